"""Real gloo traces (see tests/data/traces/README.md): kinds, sizes, groups and waits are recovered."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopopt.measure import measure_window
from loopopt.measurement import WindowMeasurement
from loopopt.parse import parse_trace
from loopopt.timing import compute_key

DATA = Path(__file__).parents[2] / "data" / "traces"
ROW = 256 * 128 * 4


def window(name: str) -> WindowMeasurement:
    paths = sorted((DATA / name).glob("rank*.json.gz"))
    assert paths
    return measure_window([parse_trace(p) for p in reversed(paths)])


def test_two_ranks_are_measured_completely() -> None:
    """Every collective of three steps is matched, and kinds and message bytes are those of the script."""
    found = window("gloo_2ranks")
    assert (found.matched, found.unmatched, found.notes) == (7 * 3, 0, ())
    sizes = {(c.kind, c.group, c.group_size): c.sizes for c in found.table.collectives}
    assert sizes == {
        ("all_gather", "0", 2): (16, ROW, 2 * ROW),
        ("all_reduce", "0", 2): (28, 32, 36, 64 * 128 * 4),
        ("all_to_all", "0", 2): (ROW,),
        ("reduce_scatter", "0", 2): (ROW,),
    }
    assert compute_key("aten::mm", [[256, 256], [256, 128]], "float32") in found.table.compute
    # Rank 0 multiplies once more in each step than rank 1: 3 + 3 of the first product, 3 of rank 0's own.
    assert found.table.compute[compute_key("aten::mm", [[256, 256], [256, 256]], "float32")].count == 9


@pytest.mark.parametrize("name", ["gloo_2ranks", "gloo_4ranks_2x2"])
def test_real_breakdowns_are_consistent(name: str) -> None:
    """Parts add up; exposed time is part of communication; waiting and transfer are what a duration is made of."""
    found = window(name)
    for rank in found.ranks:
        assert len(rank.steps) == 3
        for b in (rank.total, *rank.steps):
            assert b.compute_us + b.exposed_us + b.idle_us == pytest.approx(b.span_us)
            assert 0 < b.exposed_us <= b.communication_us < b.span_us
            assert b.compute_us > 0
        assert sum(c.exposed_us for c in rank.collectives) == pytest.approx(rank.total.exposed_us)
        assert rank.timeline
        for c in rank.collectives:
            assert c.transfer_us + c.skew_us <= c.duration_us + 1e-6
            if not found.unmatched:
                assert c.transfer_us + c.skew_us == pytest.approx(c.duration_us)


def test_groups_of_a_mesh_are_told_apart() -> None:
    """On a 2 x 2 mesh unnamed groups of one size are found, and never a wrong one."""
    found = window("gloo_4ranks_2x2")
    assert found.matched + len(found.notes) >= 33
    rows, columns, everybody = {0: "3", 1: "3", 2: "4", 3: "4"}, {0: "1", 1: "2", 2: "1", 3: "2"}, "0"
    for rank in found.ranks:
        for c in rank.collectives:
            if c.kind == "all_reduce":
                expected = columns[rank.rank] if c.message_bytes == 3 * 64 * 128 * 4 else everybody
            elif c.kind == "all_gather" and c.message_bytes == 3 * 32:
                expected = everybody
            else:
                expected = rows[rank.rank]
            assert c.group in (expected, ""), c
            assert c.count == (6 if c.kind == "all_gather" and expected in rows.values() else 3)
