"""Totals on public GPU traces equal those computed independently."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loopopt.measure import measure_window
from loopopt.parse import parse_trace
from loopopt.traces import Category

pytestmark = pytest.mark.traces

REPOSITORY = Path(__file__).parents[3]


def collection() -> Path:
    given = os.environ.get("LOOPOPT_TEST_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    if not (folder / "EXPECTED.json").is_file():
        pytest.skip("the public trace collection is not here; set LOOPOPT_TEST_TRACES to its folder")
    return folder


def expected_sets() -> dict[str, Any]:
    sets: dict[str, Any] = json.loads((collection() / "EXPECTED.json").read_text())["sets"]
    return {name: one for name, one in sets.items() if one["per_rank"]}


def test_totals_equal_the_independent_ones() -> None:
    """Communication, exposed and compute time of the whole trace, to 0.01 us for each interval's rounding.

    The expected values count kernels only, so the one trace of a CPU rank is left out.
    """
    compared = 0
    for name, one in expected_sets().items():
        traces = [parse_trace(collection() / path) for path in one["files"].values()]
        if any(t.backend == "gloo" and not (t.category == Category.KERNEL).any() for t in traces):
            continue
        window = measure_window(traces)
        assert {str(r.rank) for r in window.ranks} == set(one["per_rank"]), name
        for rank, trace in zip(window.ranks, sorted(traces, key=lambda t: t.rank or 0), strict=True):
            expected = one["per_rank"][str(rank.rank)]
            rounding = 0.01 * max(1, int((trace.category == Category.KERNEL).sum()))
            exact = bool((trace.start_ns % 1000 == 0).all() and (trace.duration_ns % 1000 == 0).all())
            allowed = 1e-6 if exact else rounding
            assert rank.total.communication_us == pytest.approx(expected["comm_us"], abs=allowed), name
            assert rank.total.exposed_us == pytest.approx(expected["exposed_comm_us"], abs=allowed), name
            assert rank.total.compute_us == pytest.approx(expected["compute_us"], abs=allowed), name
            compared += 1
    assert compared >= 30


def test_raw_durations_differ_between_ranks_but_transfer_times_agree() -> None:
    """Where ranks waited for each other, what is left after taking the waits out is the same for all."""
    one = expected_sets()["param_dlrm_8r"]
    window = measure_window([parse_trace(collection() / path) for path in one["files"].values()])
    assert (window.matched, window.unmatched) == (8, 0)
    raw = [sum(c.duration_us for c in r.collectives) for r in window.ranks]
    transfer = [sum(c.transfer_us for c in r.collectives) for r in window.ranks]
    assert max(raw) > 5 * min(raw)
    assert max(transfer) < 1.25 * min(transfer)


@pytest.mark.parametrize("name", ["torchrec_sst_long_a2a_optimizer_3", "torchrec_a2a_2_run1", "torchrec_a2a_2_run2"])
def test_windows_that_begin_at_different_places_are_lined_up(name: str) -> None:
    """Ranks of these sets have different numbers of collectives; the common ones end together once matched."""
    one = expected_sets()[name]
    window = measure_window([parse_trace(collection() / path) for path in one["files"].values()])
    counts = [sum(c.count for c in r.collectives) for r in window.ranks]
    assert max(counts) > min(counts)
    assert window.matched == min(counts)
    transfer = [
        {c.kind: c.transfer_us for c in r.collectives if c.kind in ("all_reduce", "all_to_all")} for r in window.ranks
    ]
    for kind in ("all_reduce", "all_to_all"):
        values = [t[kind] for t in transfer]
        assert max(values) < 1.25 * min(values)
