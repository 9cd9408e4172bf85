"""Claims about which plans are tried."""

from __future__ import annotations

from typing import Any

import pytest

from loopopt.plan import Proposal, propose
from loopopt.timing import CollectiveCurve, Duration, TimingTable

TABLE = TimingTable((CollectiveCurve("all_reduce", "0", 4, (4096,), (Duration(3, 40.0, 1.0),)),))


def _propose(table: TimingTable = TABLE, **changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "step_us": 100_000.0,
        "exposed_us": 30_000.0,
        "min_exposed_share": 0.03,
        "memory_increase_gb": 1.0,
        "max_trials": 4,
    }
    return propose(table, **{**values, **changes})


def test_the_same_measurement_gives_the_same_plans() -> None:
    """Ids and order depend on the input alone."""
    assert [p.plan_id for p in _propose().plans] == [p.plan_id for p in _propose().plans]


def test_every_candidate_schedules_with_the_measured_durations() -> None:
    """All plans carry the table, all differ, none is the job's own schedule."""
    plans = _propose().plans
    assert len({p.plan_id for p in plans}) == len(plans) == 3
    assert all(p.knobs.scheduling and p.table == TABLE for p in plans)


def test_bucketing_and_pre_bucketing_are_both_tried_on_and_off() -> None:
    """The three combinations that differ: neither, bucketing alone, both."""
    tried = {(p.knobs.collective_bucketing, p.knobs.pre_bucketing) for p in _propose().plans}
    assert tried == {(False, False), (True, False), (True, True)}


def test_with_little_room_the_most_promising_plan_is_still_tried() -> None:
    """Of all candidates the one that wins most often is the last to be left out."""
    (only,) = _propose(max_trials=1).plans
    assert (only.knobs.collective_bucketing, only.knobs.pre_bucketing) == (True, False)


def test_the_memory_budget_reaches_every_plan() -> None:
    """A plan never asks for more than the settings allow."""
    assert {p.knobs.max_memory_increase_gb for p in _propose(memory_increase_gb=0.25).plans} == {0.25}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exposed_us": 1_000.0}, "nothing to gain"),
        ({"exposed_us": 0.0}, "nothing to gain"),
        ({"step_us": 0.0}, "nothing to gain"),
        ({"table": TimingTable()}, "no collective was measured"),
    ],
)
def test_where_there_is_nothing_to_hide_nothing_is_proposed(changes: dict[str, Any], reason: str) -> None:
    """No exposed communication or no measured collective: no plan, and a reason for people."""
    proposal = _propose(**changes)
    assert proposal.plans == ()
    assert reason in proposal.reason


def test_a_table_that_knows_little_warns_or_forbids() -> None:
    """off: as ever; warn: plans and a sentence; strict: no plans."""
    little: dict[str, Any] = {"known_share": 0.2, "min_coverage": 0.5}
    assert _propose(coverage="off", **little) == _propose()
    warned, forbidden = _propose(coverage="warn", **little), _propose(coverage="strict", **little)
    assert warned.plans == _propose().plans
    assert "20%" in warned.warning
    assert not forbidden.plans
    assert "20%" in forbidden.reason
    for mode in ("warn", "strict"):
        assert _propose(coverage=mode, known_share=0.5, min_coverage=0.5) == _propose()
        assert _propose(coverage=mode, known_share=None, min_coverage=0.5) == _propose()
