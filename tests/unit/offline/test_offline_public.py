"""`loopopt analyze --json` on a collection of public traces, read once: totals, ranks, matching, refusals.

The expected totals were computed by other code, of kernels only, in floating point. Where a trace has fractions of
microseconds, they are computed here once more from its text in exact decimals.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopopt.errors import EXIT_PARTIAL

pytestmark = pytest.mark.traces

REPOSITORY = Path(__file__).parents[3]
HOST_ONLY = "single_hta_cpu_only"
"""Communicates on the host, which the expected values leave out."""


@dataclass(frozen=True)
class Collection:
    """What one call said about every file below the folder.

    Attributes:
        folder: where the collection is.
        code: exit code.
        runs: by file, the run it is in.
        failed: by file, why it could not be used and at which byte.
    """

    folder: Path
    code: int
    runs: dict[str, dict[str, Any]]
    failed: dict[str, tuple[str, int | None]]

    def ranks(self, path: str) -> tuple[int, dict[str, Any]]:
        """A file's rank, and what was measured on it."""
        run = self.runs[path]
        (rank,) = (f["rank"] for f in run["files"] if f["path"] == str(self.folder / path))
        (measured,) = (r for r in run["measurement"]["ranks"] if r["rank"] == rank)
        return rank, measured


@pytest.fixture(scope="module")
def found() -> Collection:
    given = os.environ.get("LOOPOPT_TEST_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    if not (folder / "EXPECTED.json").is_file():
        pytest.skip("the public trace collection is not here; set LOOPOPT_TEST_TRACES to its folder")
    command = [sys.executable, "-m", "loopopt", "analyze", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    said = json.loads(done.stdout)
    return Collection(
        folder,
        done.returncode,
        {os.path.relpath(f["path"], folder): run for run in said["runs"] for f in run["files"]},
        {os.path.relpath(f["path"], folder): (f["reason"], f["offset"]) for f in said["failed"]},
    )


@pytest.fixture(scope="module")
def sets(found: Collection) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((found.folder / "EXPECTED.json").read_text())["sets"]
    return content


def catalogue(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "CATALOG.tsv", newline="") as file:
        return {row["path"]: row for row in csv.DictReader(file, delimiter="\t")}


def test_every_file_of_the_catalogue_is_analysed_or_refused_with_a_reason(found: Collection) -> None:
    """Refused are those that no JSON reader takes, with the byte at which they stop to be JSON."""
    rows = catalogue(found.folder)
    assert len(rows) > 50
    assert found.runs.keys() | found.failed.keys() == rows.keys() | {"EXPECTED.json"}
    assert not found.runs.keys() & found.failed.keys()
    refused = {path for path, row in rows.items() if not row["n_events"]}
    assert found.failed.keys() - {"EXPECTED.json"} == refused
    for path in refused:
        reason, offset = found.failed[path]
        assert "not valid JSON" in reason
        assert offset is not None
        assert f"(char {offset})" in rows[path]["notes"], path
    assert "traceEvents" in found.failed["EXPECTED.json"][0]
    assert found.code == EXIT_PARTIAL


def test_ranks_and_worlds_are_those_of_the_catalogue(found: Collection) -> None:
    for path, row in catalogue(found.folder).items():
        if row["n_events"] and row["rank"]:
            assert found.ranks(path)[0] == int(row["rank"]), path
        if row["n_events"] and row["world_size"]:
            assert found.runs[path]["world_size"] == int(row["world_size"]), path


def test_the_ranks_of_a_set_are_one_run_and_nothing_else_is_in_it(found: Collection, sets: dict[str, Any]) -> None:
    """Also where two runs lie in one folder."""
    for name, one in sets.items():
        paths = list(one["files"].values())
        if len(paths) > 1:
            assert {os.path.relpath(f["path"], found.folder) for f in found.runs[paths[0]]["files"]} == set(paths), name


def test_totals_equal_the_independent_ones(found: Collection, sets: dict[str, Any]) -> None:
    """Communication, exposed and compute time of the whole trace; to 0.01 us for each interval where there are
    fractions, exact where there are none."""
    rows, compared = catalogue(found.folder), 0
    for name, one in sets.items():
        for rank, path in one["files"].items():
            if name == HOST_ONLY or rank not in one["per_rank"]:
                continue
            expected, total = one["per_rank"][rank], found.ranks(path)[1]["total"]
            fractions = "fractional ts" in rows[path]["notes"]
            allowed = 0.01 * max(1, int(rows[path]["n_kernel"] or 0)) if fractions else 1e-6
            overlap = total["communication_us"] - total["exposed_us"]
            assert total["communication_us"] == pytest.approx(expected["comm_us"], abs=allowed), path
            assert total["exposed_us"] == pytest.approx(expected["exposed_comm_us"], abs=allowed), path
            assert total["compute_us"] == pytest.approx(expected["compute_us"], abs=allowed), path
            assert overlap == pytest.approx(expected["overlap_us"], abs=allowed), path
            if expected["overlap_pct"] is not None:
                assert 100 * overlap / total["communication_us"] == pytest.approx(expected["overlap_pct"], abs=0.001)
            compared += 1
    assert compared >= 30


def test_totals_with_fractions_are_those_of_exact_decimals(found: Collection, sets: dict[str, Any]) -> None:
    for name in ("single_hta_ns_resolution", "single_rccl_resnet", "single_ao_ref_ep_moe"):
        (path,) = sets[name]["files"].values()
        kernels = kernel_spans(found.folder / path)
        communication = union(kernels[True])
        compute = union(kernels[False])
        exposed = length(union([*communication, *compute])) - length(compute)
        total = found.ranks(path)[1]["total"]
        assert total["communication_us"] == pytest.approx(float(length(communication)), abs=1e-6), path
        assert total["compute_us"] == pytest.approx(float(length(compute)), abs=1e-6), path
        assert total["exposed_us"] == pytest.approx(float(exposed), abs=1e-6), path


def test_parts_add_up_and_shares_too(found: Collection) -> None:
    """On every rank: the parts to the span, and the collectives' shares to the exposed time."""
    for path, run in found.runs.items():
        for rank in run["measurement"]["ranks"]:
            for part in (rank["total"], *rank["steps"]):
                parts = part["compute_us"] + part["exposed_us"] + part["exposed_memcpy_us"] + part["idle_us"]
                assert parts == pytest.approx(part["span_us"], abs=1e-3), path
            shares = sum(c["exposed_us"] for c in rank["collectives"])
            assert shares == pytest.approx(rank["total"]["exposed_us"], abs=1e-3), path


def test_raw_durations_differ_between_ranks_but_transfer_times_agree(found: Collection, sets: dict[str, Any]) -> None:
    """Where ranks waited for each other, what is left after taking the waits out is the same for all."""
    measured = found.runs[sets["param_dlrm_8r"]["files"]["0"]]["measurement"]
    assert (measured["matched"], measured["unmatched"]) == (8, 0)
    raw = [sum(c["duration_us"] for c in r["collectives"]) for r in measured["ranks"]]
    transfer = [sum(c["transfer_us"] for c in r["collectives"]) for r in measured["ranks"]]
    assert max(raw) > 5 * min(raw)
    assert max(transfer) < 1.25 * min(transfer)


@pytest.mark.parametrize("name", ["torchrec_sst_long_a2a_optimizer_3", "torchrec_a2a_2_run1", "torchrec_a2a_2_run2"])
def test_windows_that_begin_at_different_places_are_lined_up(
    name: str, found: Collection, sets: dict[str, Any]
) -> None:
    """Ranks of these sets have different numbers of collectives; the common ones end together once matched."""
    run = found.runs[sets[name]["files"]["0"]]
    measured = run["measurement"]
    counts = [sum(c["count"] for c in r["collectives"]) for r in measured["ranks"]]
    assert max(counts) > min(counts)
    assert measured["matched"] == min(counts)
    assert sum(run["unmatched"].values()) == measured["unmatched"] > 0
    for kind in ("all_reduce", "all_to_all"):
        values = [sum(c["transfer_us"] for c in r["collectives"] if c["kind"] == kind) for r in measured["ranks"]]
        assert max(values) < 1.25 * min(values)


# ---------------------------------------------------------------- the totals once more, the plain way

Span = tuple[Decimal, Decimal]


def kernel_spans(path: Path) -> dict[bool, list[Span]]:
    """Start and end of each kernel in microseconds, by whether it communicates."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for event in json.loads(text, parse_float=Decimal)["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") == "kernel":
            name = event["name"].lower()
            spans["nccl" in name or "rccl" in name].append((Decimal(event["ts"]), event["ts"] + Decimal(event["dur"])))
    return spans


def union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> Decimal:
    return sum((end - start for start, end in spans), Decimal(0))
