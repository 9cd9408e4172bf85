"""The loop on a job made of numbers: no clock, no sockets, no torch."""

from __future__ import annotations

import json

import pytest
from fake_job import FakeJob

from loopopt.config import LoopConfig

AS_IT_WAS = "as it was"
STOCK = "schedule, stock pre-bucketing"
PLAIN = "schedule"
BUCKET = "schedule + bucket"

BETTER = {AS_IT_WAS: 100_000.0, STOCK: 99_900.0, PLAIN: 90_000.0, BUCKET: 80_000.0}
WORSE = {AS_IT_WAS: 100_000.0, STOCK: 120_000.0, PLAIN: 130_000.0, BUCKET: 150_000.0}
EQUAL = dict.fromkeys(BETTER, 100_000.0)
EACH_PHASE = ("baseline", "capturing", "applying", "trial", "watching")


def test_the_best_plan_is_kept_and_the_others_are_taken_back() -> None:
    """Of several better plans the fastest is in force in the end, with its gain and what it was compared with."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("watching")
    assert job.plan.label == BUCKET
    assert job.verdicts == {AS_IT_WAS: "baseline", STOCK: "rolled_back", PLAIN: "rolled_back", BUCKET: "kept"}
    kept = next(t for t in job.loop.trials if t.verdict == "kept")
    assert kept.gain is not None
    assert kept.gain.value == pytest.approx(0.2, abs=0.02)
    assert kept.gain.low > 0.15
    assert kept.exposed_us == pytest.approx(30_000.0)


def test_a_job_that_gets_slower_under_every_plan_runs_as_it_was() -> None:
    """Worse plans are rolled back, and the last order puts the job's own schedule back."""
    job = FakeJob(WORSE)
    job.register()
    job.run_until("watching")
    job.run(30)
    assert job.plan.label == AS_IT_WAS
    assert job.applied[-1] == AS_IT_WAS
    assert set(job.verdicts.values()) == {"baseline", "rolled_back"}
    assert job.loop.kept is None


def test_a_tie_keeps_the_schedule_the_job_had() -> None:
    """Plans that change nothing are not kept: there must be a gain beyond noise."""
    job = FakeJob(EQUAL, noise=0.03)
    job.register()
    job.run_until("watching")
    job.run(30)
    assert job.plan.label == AS_IT_WAS


def test_an_infeasible_plan_is_passed_over() -> None:
    """A plan that does not compile is marked so, and the next one is tried from the unscheduled graph."""
    job = FakeJob(BETTER, infeasible=frozenset({BUCKET}))
    job.register()
    job.run_until("watching")
    job.run(10)
    assert job.verdicts[BUCKET] == "infeasible"
    assert job.verdicts[PLAIN] == "kept"
    assert job.plan.label == PLAIN


def test_if_no_plan_compiles_the_job_runs_as_it_was_and_the_loop_rests() -> None:
    """All candidates infeasible: nothing is in force, nothing more is ordered."""
    job = FakeJob(BETTER, infeasible=frozenset({STOCK, PLAIN, BUCKET}))
    job.register()
    job.run_until("watching")
    ordered = len(job.applied)
    job.run(100)
    assert job.plan.label == AS_IT_WAS
    assert len(job.applied) == ordered


def test_nothing_is_tried_where_nothing_is_exposed() -> None:
    """A compute-bound job is measured once and then left alone."""
    job = FakeJob(BETTER, exposed_us=500.0)
    job.register()
    job.run_until("watching")
    job.run(50)
    assert job.applied == []
    assert "nothing to gain" in job.notes[-1]


def test_there_are_never_two_windows_at_once() -> None:
    """Through a whole round and long after it, at most one window is open."""
    job = FakeJob(BETTER, config=LoopConfig(sampling_interval_s=1.0))
    job.register()
    job.run_until("watching")
    job.run(3000)
    assert len(job.windows_asked) > 5
    assert len(set(job.windows_asked)) == len(job.windows_asked)
    assert job.most_windows_open == 1


def test_sampling_stays_within_its_duty_cycle() -> None:
    """Once the loop rests, the cost the windows reported is at most the configured share of the time."""
    job = FakeJob(BETTER, config=LoopConfig(sampling_interval_s=1.0, sampling_duty=0.01))
    job.register()
    job.run_until("watching")
    began_s, before = job.now_s, len(job.windows_asked)
    job.run(5000)
    windows = len(job.windows_asked) - before
    cost_us = windows * 0.1 * job.config.window_steps * BETTER[BUCKET]
    assert windows > 2
    assert cost_us <= 1.05 * job.config.sampling_duty * (job.now_s - began_s) * 1e6


def test_a_plan_that_turns_bad_is_put_to_the_test_again() -> None:
    """If the job gets slower under the kept plan, everything is measured anew and the plan does not stay."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("watching")
    job.run(20)
    job.speeds = WORSE
    job.run(40)
    assert job.loop.round == 2
    job.run_until("watching")
    job.run(10)
    assert job.plan.label == AS_IT_WAS


def test_one_slow_stretch_is_no_regression() -> None:
    """A few slow steps do not start a new round."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("watching")
    job.run(20)
    for slow in (200_000.0, 80_000.0):
        job.speeds = {**BETTER, BUCKET: slow}
        job.run(4)
    job.speeds = BETTER
    job.run(60)
    assert job.loop.round == 1


def test_a_rank_lost_in_a_trial_stops_it_and_the_loop_starts_over_when_it_is_back() -> None:
    """After the launcher has restarted the ranks, the round is repeated and the better plan is found again."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("trial")
    job.run(3)
    job.restart()
    job.run_until("watching")
    job.run(5)
    assert job.plan.label == BUCKET
    assert job.verdicts[BUCKET] == "kept"


def test_while_a_rank_is_missing_nothing_is_ordered() -> None:
    """Waiting means waiting: no capture, no switch."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("trial")
    job.carry_out(job.loop.on_lost("rank 1 is gone", job.now_s))
    asked, applied = len(job.windows_asked), len(job.applied)
    job.run(100)
    assert job.loop.phase == "waiting"
    assert (len(job.windows_asked), len(job.applied)) == (asked, applied)


@pytest.mark.parametrize("phase", EACH_PHASE)
def test_a_daemon_killed_in_any_phase_goes_on_to_the_same_end(phase: str) -> None:
    """The state is JSON, and a loop made from it keeps the plan that is better and forgets none it kept."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until(phase)
    job.run(1)
    job.saved = json.loads(json.dumps(job.saved))
    job.kill_daemon()
    job.run_until("watching")
    job.run(5)
    assert job.plan.label == BUCKET
    assert job.loop.kept is not None
    assert job.loop.kept.label == BUCKET


def test_a_restarted_daemon_does_not_touch_a_job_that_runs_the_kept_plan() -> None:
    """What was proven stays proven: no order is given after the restart."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("watching")
    ordered = len(job.applied)
    job.kill_daemon()
    job.run(100)
    assert job.loop.phase == "watching"
    assert len(job.applied) == ordered


@pytest.mark.parametrize("restore", [True, False])
def test_after_a_detach_nothing_is_ordered_any_more(restore: bool) -> None:
    """Detach is passed on once, then the loop is silent whatever happens."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("trial")
    job.carry_out(job.loop.on_release(restore, job.now_s))
    asked, applied = len(job.windows_asked), len(job.applied)
    job.run(100)
    job.carry_out(job.loop.on_lost("rank 0 is gone", job.now_s))
    assert job.released == [restore]
    assert (len(job.windows_asked), len(job.applied)) == (asked, applied)
    assert job.loop.phase == "released"


def test_a_job_that_cannot_be_changed_is_only_observed() -> None:
    """Windows are taken for the metrics, no plan is ever ordered, and the reason is kept for the status."""
    job = FakeJob(BETTER, config=LoopConfig(sampling_interval_s=1.0))
    job.register(observe="the job is not compiled")
    job.run(500)
    assert job.loop.phase == "observing"
    assert job.loop.reason == "the job is not compiled"
    assert job.windows_asked
    assert job.applied == []


def test_a_rank_that_disarms_in_a_trial_ends_it() -> None:
    """The loop goes over to observing and leaves the job with the schedule it has."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("trial")
    applied = len(job.applied)
    job.carry_out(job.loop.on_observe("rank 1 has disarmed itself: broken", job.now_s))
    job.run(50)
    assert job.loop.phase == "observing"
    assert len(job.applied) == applied


def test_a_switch_that_is_never_answered_is_given_up() -> None:
    """If no rank reports, the plan is infeasible after the time limit and the round goes on."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("applying")
    job._due.clear()
    job.now_s += job.config.apply_timeout_s + 1
    job.run(1)
    assert job.verdicts[STOCK] == "infeasible"
    job.run_until("watching")
    assert job.plan.label == BUCKET


def test_a_window_that_cannot_be_measured_is_asked_for_once_more() -> None:
    """A torn trace costs one window; the round ends as it would have."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("capturing")
    job._due.clear()
    job.carry_out(job.loop.on_measured(job.windows_asked[-1], None, "torn", job.now_s))
    job.run_until("watching")
    assert job.plan.label == BUCKET


def test_a_compilation_among_the_first_steps_is_not_taken_for_a_step_time() -> None:
    """A job that is still compiling when it registers gets the baseline of its steady state."""
    job = FakeJob({**BETTER, AS_IT_WAS: 5_000_000.0})
    job.register()
    job.run(3)
    job.speeds = BETTER
    job.run_until("capturing")
    assert job.loop.baseline_step_us == pytest.approx(100_000.0, rel=0.05)


def test_a_winner_that_was_only_lucky_does_not_stay() -> None:
    """If the steps after the decision are no better than the baseline, the plan is taken back at once."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("watching")
    assert job.loop.kept is not None
    job.speeds = EQUAL
    job.run(30)
    assert job.plan.label == AS_IT_WAS
    assert job.loop.kept is None
    assert job.verdicts[BUCKET] == "rolled_back"
    assert job.loop.round == 1


def test_the_steps_after_the_decision_make_the_gain_surer() -> None:
    """They are added to the evidence: more samples, a narrower interval."""
    job = FakeJob(BETTER, noise=0.03)
    job.register()
    job.run_until("watching")
    (kept,) = [t for t in job.loop.trials if t.verdict == "kept"]
    first = kept.gain
    job.run(20)
    assert first is not None
    assert kept.gain is not None
    assert len(kept.samples) == 2 * job.config.trial_steps
    assert kept.gain.high - kept.gain.low < first.high - first.low


def test_a_restarted_daemon_does_not_try_again_what_was_no_better() -> None:
    """The same processes, nothing found before: no order, until it is time for a refresh."""
    job = FakeJob(WORSE)
    job.register()
    job.run_until("watching")
    job.run(10)
    ordered = len(job.applied)
    job.saved = json.loads(json.dumps(job.saved))
    job.kill_daemon()
    job.run(100)
    assert job.loop.phase == "watching"
    assert len(job.applied) == ordered


def test_restarted_ranks_are_measured_again_even_if_nothing_was_found_before() -> None:
    """New processes may behave otherwise (another node, another batch size)."""
    job = FakeJob(WORSE)
    job.register()
    job.run_until("watching")
    job.restart()
    assert job.loop.phase == "baseline"
    assert job.loop.round == 2


def test_a_job_that_runs_another_plan_than_ordered_is_noticed() -> None:
    """A switch that took place after it was given up must not go unseen: a new round puts things straight."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("trial")
    stray = job.plan
    job.run_until("watching")
    job.run(20)
    job.plan = stray
    job.run(200)
    assert job.loop.round == 2
    job.run_until("watching")
    job.run(20)
    assert job.plan.label == BUCKET


def test_a_round_that_is_broken_off_leaves_no_trial_running() -> None:
    """Plans judged but not chosen yet are given up with the rest, and say why."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("trial")
    job.run_until("applying")
    job.run_until("trial")
    job.carry_out(job.loop.on_lost("rank 1 is gone", job.now_s))
    assert "running" not in job.verdicts.values()
    assert all("rank 1 is gone" in t.reason for t in job.loop.trials if t.verdict == "unused")


def test_a_disarmed_job_is_not_asked_for_windows() -> None:
    """Its ranks agree on nothing any more: asking would only produce failures."""
    job = FakeJob(BETTER, config=LoopConfig(sampling_interval_s=1.0))
    job.register()
    job.run_until("trial")
    asked = len(job.windows_asked)
    job.carry_out(job.loop.on_observe("rank 1 has disarmed itself: broken", job.now_s, traceable=False))
    job.run(500)
    assert len(job.windows_asked) == asked


def test_a_refresh_measures_again_and_finds_the_plan_that_is_best_now() -> None:
    """What was best before is not any more: the plan kept is taken back, and the new best one is kept."""
    job = FakeJob(BETTER)
    job.register()
    job.run_until("watching")
    assert job.loop.on_refresh(job.now_s) == [], "the first round is still being proved"
    while not job.loop.settled:
        job.run(1)
    assert job.plan.label == BUCKET
    job.speeds[PLAIN], job.speeds[BUCKET] = 70_000.0, 90_000.0
    former = job.loop.round
    job.carry_out(job.loop.on_refresh(job.now_s))
    assert job.loop.round == former + 1
    job.carry_out(job.loop.on_refresh(job.now_s))
    assert job.loop.round == former + 1, "asked for again during the round, nothing more happens"
    while not job.loop.settled:
        job.run(1)
    assert job.plan.label == PLAIN
    assert job.verdicts == {AS_IT_WAS: "baseline", STOCK: "rolled_back", PLAIN: "kept", BUCKET: "rolled_back"}


def test_a_refresh_of_a_job_that_is_only_observed_is_one_more_window() -> None:
    """Nothing is tried there; the numbers are taken again at once."""
    job = FakeJob(BETTER)
    job.register(observe="the model is not compiled")
    job.run(20)
    before = len(job.windows_asked)
    job.carry_out(job.loop.on_refresh(job.now_s))
    job.run(2)
    assert len(job.windows_asked) == before + 1
