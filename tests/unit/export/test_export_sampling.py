"""A measured window becomes steps of the counters, and nothing is lost or counted twice on the way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopopt.export import CounterValue, window_counters
from loopopt.export.catalogue import counter_keys
from loopopt.measurement import Breakdown, CollectiveTotals, RankMeasurement, WindowMeasurement
from loopopt.timing import TimingTable


def collective(kind: str, duration: float, exposed: float, skew: float = 0.0) -> CollectiveTotals:
    return CollectiveTotals(kind, "0", 2, 1, 1024, duration, duration - skew, skew, exposed)


def rank(number: int, communication: float, exposed: float, *collectives: CollectiveTotals) -> RankMeasurement:
    step = Breakdown(50.0, 30.0, communication / 2, exposed / 2, 0.0, 0.0, 0.0)
    return RankMeasurement(
        number, Breakdown(100.0, 60.0, communication, exposed, 0.0, 0.0, 0.0), (step, step), collectives
    )


def values(counters: tuple[CounterValue, ...]) -> dict[tuple[str, ...], float]:
    return {(c.key, *c.labels.values()): c.value for c in counters}


def test_the_documented_example_holds() -> None:
    """Collectives that run at once share the union; exposed time keeps its measured parts."""
    one = rank(0, 10.0, 4.0, collective("all_gather", 9.0, 4.0, 1.5), collective("all_reduce", 3.0, 0.0))
    assert values(window_counters(WindowMeasurement((one,), TimingTable()))) == {
        ("sampled_us",): 100.0,
        ("sampled_steps",): 2.0,
        ("compute_us",): 60.0,
        ("skew_us",): 1.5,
        ("communication_us", "all_gather", "0"): 7.5,
        ("communication_us", "all_reduce", "0"): 2.5,
        ("exposed_us", "all_gather", "0"): 4.0,
        ("exposed_us", "all_reduce", "0"): 0.0,
        ("rank_sampled_us", "0"): 100.0,
        ("rank_exposed_us", "0"): 4.0,
        ("rank_skew_us", "0"): 1.5,
    }


def test_ranks_add_up() -> None:
    """Two ranks count twice."""
    ranks = tuple(rank(n, 10.0, 4.0, collective("all_gather", 10.0, 4.0)) for n in range(2))
    counted = values(window_counters(WindowMeasurement(ranks, TimingTable())))
    assert counted[("sampled_us",)] == 200.0
    assert counted[("sampled_steps",)] == 4.0
    assert counted[("exposed_us", "all_gather", "0")] == 8.0


def test_time_that_no_collective_claims_is_other() -> None:
    """Communication that could not be told apart is counted all the same."""
    counted = values(window_counters(WindowMeasurement((rank(0, 10.0, 4.0),), TimingTable())))
    assert counted[("communication_us", "other", "unknown")] == 10.0
    assert counted[("exposed_us", "other", "unknown")] == 4.0


def test_an_empty_window_counts_nothing() -> None:
    """A window without ranks only has zeros."""
    assert {c.value for c in window_counters(WindowMeasurement((), TimingTable()))} == {0.0}


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e9),
            st.floats(0, 1e9),
            st.lists(
                st.tuples(st.sampled_from(["all_gather", "all_reduce"]), st.floats(0, 1e9), st.floats(0, 1e9)),
                max_size=4,
            ),
        ),
        max_size=4,
    )
)
def test_shares_add_up_to_the_total(ranks: list[tuple[float, float, list[tuple[str, float, float]]]]) -> None:
    """Over all labels communication and exposed time are the ranks' totals, whatever the parts claim."""
    measured = tuple(
        rank(n, communication, exposed, *(collective(*c) for c in parts))
        for n, (communication, exposed, parts) in enumerate(ranks)
    )
    counters = window_counters(WindowMeasurement(measured, TimingTable()))
    for key, index in (("communication_us", 0), ("exposed_us", 1)):
        total = math.fsum(c.value for c in counters if c.key == key)
        assert total == pytest.approx(math.fsum(r[index] for r in ranks), rel=1e-9, abs=1e-9)
    assert all(c.value >= 0 for c in counters)


def test_all_keys_are_in_the_catalogue() -> None:
    """What is counted is exported."""
    one = rank(0, 10.0, 4.0, collective("all_gather", 9.0, 4.0))
    assert {c.key for c in window_counters(WindowMeasurement((one,), TimingTable()))} <= counter_keys()
