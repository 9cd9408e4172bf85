"""The timing table: lookups, and a digest that depends on the content alone."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopopt.errors import WireError
from loopopt.timing import CollectiveCurve, Duration, TimingTable, compute_key


def curve(*points: tuple[int, float], group: str = "0", group_size: int = 2) -> CollectiveCurve:
    sizes = tuple(size for size, _ in points)
    return CollectiveCurve("all_gather", group, group_size, sizes, tuple(Duration(3, us, 1.0) for _, us in points))


@st.composite
def curves(draw: st.DrawFn) -> CollectiveCurve:
    """Curves as a network gives them: a larger message never takes less time."""
    sizes = sorted(draw(st.sets(st.integers(1, 2**34), min_size=1, max_size=6)))
    times = sorted(draw(st.lists(st.floats(1.0, 1e7), min_size=len(sizes), max_size=len(sizes))))
    return curve(*zip(sizes, times, strict=True))


def test_measured_sizes_answer_what_was_measured_and_between_them_it_is_linear() -> None:
    """Two points make a line."""
    measured = curve((1000, 10.0), (3000, 30.0))
    assert [measured.at(size) for size in (1000, 2000, 3000)] == [10.0, 20.0, 30.0]


@given(curves(), st.lists(st.integers(0, 2**36), min_size=2, max_size=20))
def test_a_larger_message_never_takes_less_time_and_none_takes_negative_time(
    measured: CollectiveCurve, sizes: list[int]
) -> None:
    """A scheduler fed with anything else would prefer more communication."""
    answers = [measured.at(size) for size in sorted(sizes)]
    assert answers[0] > 0.0
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(answers))


def test_beyond_the_largest_size_the_bandwidth_is_no_better_than_twice_the_best_seen() -> None:
    """A flat end of the curve (noise) must not promise free communication."""
    flat = curve((1000, 100.0), (2000, 100.0))
    best = 2000 / flat.at(2000)
    assert flat.at(4000) == pytest.approx(150.0)
    assert 10**9 / flat.at(10**9) < 2 * best


def test_the_exact_group_is_preferred_and_another_of_the_same_size_stands_in() -> None:
    """Groups on other links have other times; an unmeasured group is best guessed by its size."""
    table = TimingTable((curve((8, 1.0), group="a"), curve((8, 9.0), group="b"), curve((8, 5.0), group_size=4)))
    assert table.collective_us("all_gather", "b", 2, 8) == 9.0
    assert table.collective_us("all_gather", "new", 4, 8) == 5.0
    assert table.collective_us("all_gather", "new", 2, 8) == 1.0


def test_what_was_never_measured_stays_unknown() -> None:
    """None, not a guess."""
    table = TimingTable((curve((8, 1.0)),), {"aten::mm|[[2,2]]|float32": Duration(1, 4.0, 0.0)})
    assert table.collective_us("all_reduce", "0", 2, 8) is None
    assert table.collective_us("all_gather", "x", 8, 8) is None
    assert table.compute_us("aten::mm|[[3,3]]|float32") is None
    assert table.compute_us("aten::mm|[[2,2]]|float32") == 4.0


@given(st.dictionaries(st.text(max_size=8), st.floats(0.0, 1e9), max_size=5), st.lists(curves(), max_size=3))
def test_a_table_survives_its_json_and_keeps_its_digest(
    compute: dict[str, float], collectives: list[CollectiveCurve]
) -> None:
    """Ranks compare digests of tables that came over the wire."""
    table = TimingTable(tuple(collectives), {k: Duration(1, us, 0.0) for k, us in compute.items()}, {"torch": "2"})
    again = TimingTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    assert again.digest == table.digest


def test_the_digest_does_not_depend_on_the_order_of_insertion_but_on_every_number() -> None:
    """Two ranks build the same table from the same numbers in any order."""
    a, b = Duration(1, 4.0, 0.5), Duration(2, 5.0, 0.5)
    assert TimingTable((), {"x": a, "y": b}).digest == TimingTable((), {"y": b, "x": a}).digest
    assert TimingTable((), {"x": a}).digest != TimingTable((), {"x": Duration(1, 4.0, 0.6)}).digest


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"collectives": [], "compute": [], "fingerprint": {}},
        {"collectives": [{"kind": "all_gather"}], "compute": {}, "fingerprint": {}},
        {"collectives": [], "compute": {"k": [1]}, "fingerprint": {}},
        {"collectives": [], "compute": {"k": ["x", 1, 1]}, "fingerprint": {}},
    ],
)
def test_a_malformed_table_is_refused(broken: dict[str, Any]) -> None:
    """A wrong table is worse than none."""
    with pytest.raises(WireError, match="timing table"):
        TimingTable.from_json(broken)


def test_the_compute_key_is_written_as_documented() -> None:
    """Both sides build the key by themselves, so its form is a contract."""
    assert compute_key("aten::mm", [(512, 256), (256, 64)], "float32") == "aten::mm|[[512,256],[256,64]]|float32"


def test_an_older_table_adds_what_was_not_measured_again_if_it_is_of_the_same_hardware() -> None:
    """The newer number wins; another fingerprint, or none, adds nothing."""
    here = {"device": "cpu"}
    gather = CollectiveCurve("all_gather", "0", 2, (1000,), (Duration(3, 50.0, 1.0),))
    slower = CollectiveCurve("all_gather", "0", 2, (1000,), (Duration(3, 500.0, 1.0),))
    reduce = CollectiveCurve("all_reduce", "0", 2, (1000,), (Duration(3, 70.0, 1.0),))
    new = TimingTable((gather,), {"mm": Duration(3, 5.0, 0.1)}, here)
    old = TimingTable((slower, reduce), {"mm": Duration(3, 9.0, 0.1), "add": Duration(3, 1.0, 0.1)}, here)
    both = new.completed(old)
    assert both.collectives == (gather, reduce)
    assert both.compute == {"mm": Duration(3, 5.0, 0.1), "add": Duration(3, 1.0, 0.1)}
    assert new.completed(TimingTable(old.collectives, old.compute, {"device": "other"})) == new
    assert new.completed(TimingTable()) == new
