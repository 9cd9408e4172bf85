"""From a status to the record of before and after."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loopopt.report.summary import AS_IT_WAS, Summary, summarize


def trial(plan_id: str, verdict: str, step_us: float | None, **more: Any) -> dict[str, Any]:
    return {
        "plan_id": plan_id,
        "label": more.pop("label", plan_id),
        "verdict": verdict,
        "median_step_us": step_us,
        "spread_us": 10.0,
        "samples": 12,
        **more,
    }


STATUS: dict[str, Any] = {
    "job": "night",
    "phase": "watching",
    "mode": "closed_loop",
    "reason": "",
    "step": 80,
    "world_size": 2,
    "active_plan": "aaa",
    "active_label": "schedule + bucket",
    "trials": [
        trial(AS_IT_WAS, "baseline", 1000.0, label="as it was", exposed_us=600.0, communication_us=700.0),
        trial("bbb", "rolled_back", 950.0, gain=0.05, gain_low=0.01, gain_high=0.09),
        trial("ccc", "infeasible", None, reason="rank 1: compile error"),
        trial("aaa", "kept", 800.0, gain=0.2, gain_low=0.17, gain_high=0.23, exposed_us=250.0, communication_us=720.0),
    ],
    "counters": {"recompiles": 3.0, "recompile_us": 5e6, "rollbacks": 1.0},
}


def test_before_is_the_baseline_and_after_the_plan_in_force() -> None:
    """The two columns of the table."""
    summary = summarize(STATUS)
    assert (summary.before.step_us, summary.before.exposed_us) == (1000.0, 600.0)
    assert (summary.after.plan_id, summary.after.step_us, summary.after.exposed_us) == ("aaa", 800.0, 250.0)
    assert (summary.gain, summary.gain_low, summary.gain_high) == (0.2, 0.17, 0.23)
    assert (summary.recompiles, summary.recompile_us, summary.rollbacks) == (3, 5e6, 1)


def test_only_plans_that_could_be_judged_count_as_tried() -> None:
    """A plan that no rank could run says nothing about the job."""
    summary = summarize(STATUS)
    assert [t.verdict for t in summary.trials] == ["rolled_back", "infeasible", "kept"]
    assert summary.tried == 2


def test_on_its_own_schedule_before_and_after_are_the_same_and_no_gain_is_claimed() -> None:
    """A rolled back plan's gain is not the job's."""
    summary = summarize({**STATUS, "active_plan": AS_IT_WAS})
    assert summary.after == summary.before
    assert summary.gain is None


def test_what_was_not_measured_is_none() -> None:
    """No number is made up."""
    summary = summarize({**STATUS, "trials": [trial(AS_IT_WAS, "running", None)], "active_plan": "new"})
    assert summary.before.step_us is None
    assert summary.before.exposed_us is None
    assert (summary.after.plan_id, summary.after.label, summary.gain) == ("new", "schedule + bucket", None)


def test_after_a_second_round_the_newest_baseline_and_trial_count() -> None:
    """The baseline is measured again now and then."""
    again = [
        trial(AS_IT_WAS, "baseline", 1200.0),
        trial("aaa", "kept", 900.0, gain=0.25, gain_low=0.2, gain_high=0.3),
    ]
    summary = summarize({**STATUS, "trials": STATUS["trials"] + again})
    assert (summary.before.step_us, summary.after.step_us, summary.gain) == (1200.0, 900.0, 0.25)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "No rank registered"),
        ({**STATUS, "mode": "observe", "reason": "the job is not compiled"}, "the job is not compiled"),
        (STATUS, "+20.0 % saved"),
        ({**STATUS, "active_plan": AS_IT_WAS}, "no plan was measurably better"),
        ({**STATUS, "active_plan": AS_IT_WAS, "trials": [], "reason": "nothing to gain"}, "nothing to gain"),
    ],
)
def test_the_outcome_is_told_in_a_sentence(status: dict[str, Any], said: str) -> None:
    """The last line of `loopopt run`."""
    assert said in summarize(status).sentence()


def test_an_empty_status_gives_an_empty_record() -> None:
    """The daemon may never have answered."""
    assert summarize({}) == Summary()


def test_the_json_has_the_record_and_the_sentence() -> None:
    """`--summary-json` is for scripts."""
    body = json.loads(json.dumps(summarize(STATUS).to_json()))
    assert body["after"]["step_us"] == 800.0
    assert body["trials"][1]["reason"] == "rank 1: compile error"
    assert body["sentence"].endswith(".")
