"""The loop as a state machine: no clock, no I/O. Events in, actions out.

    phase       waits for                      then
    waiting     all local ranks                baseline (or watching, if the job runs the plan kept before)
    baseline    `baseline_steps` plain steps   capturing
    capturing   all ranks' traces              measuring
    measuring   the measurement                first time: propose -> applying; in a trial: judge -> next
    applying    all ranks' results             trial; or the next plan, if this one is infeasible
    trial       `trial_steps` plain steps      capturing, under the plan
    watching    `trial_steps` more steps       on; or applying, as it was, if the gain does not hold
                regression or refresh time     baseline, as it was (a new round)
    observing   -                              windows for the metrics only
    released    -                              nothing

Whatever the phase: a rank lost or restarted goes to `waiting`; a window or switch that is not answered in time
is given up and the round goes on without it; a job that keeps reporting another plan than the ordered one gets
a new round.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loopopt.config import LoopConfig
from loopopt.control.compare import Gain, compare
from loopopt.measurement import WindowMeasurement
from loopopt.plans import BASELINE, Plan

_KEEP_RECENT = 50
_FOREIGN_STEPS = 50
"""So many steps in a row of every rank under another plan than the ordered one are no straggling reports."""


@dataclass(frozen=True, slots=True)
class SendCapture:
    """Have all ranks trace a window."""

    window_id: str
    steps: int


@dataclass(frozen=True, slots=True)
class SendApply:
    """Have all ranks switch."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Detach."""

    restore: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Worth telling a person."""

    text: str


@dataclass(slots=True)
class Trial:
    """A plan tried (or the baseline), and what came of it. Times in microseconds, per step."""

    trial_id: str
    plan: Plan
    started_s: float
    verdict: str = "running"
    reason: str = ""
    ended_s: float | None = None
    samples: list[float] = field(default_factory=list)
    gain: Gain | None = None
    compile_us: float = 0.0
    exposed_us: float | None = None
    communication_us: float | None = None


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the planner; answer with `on_proposal`."""

    measured: WindowMeasurement
    step_us: float
    exposed_us: float


Action = Propose | SendCapture | SendApply | SendRelease | Note


class Loop:
    """All decisions about one job.

    Each `on_*` method and `tick` returns the actions to carry out. `state` is JSON; a loop made from it after
    the daemon was killed goes on from the last settled point.

    Attributes:
        phase: see the table above.
        trials: all trials of the present round, baseline first.
        changed: trials that were changed since they were last asked for (for the store).
    """

    def __init__(self, config: LoopConfig, saved: dict[str, Any] | None = None) -> None:
        self.config = config
        self.phase = "waiting"
        self.reason = ""
        self.round = 0
        self.trials: list[Trial] = []
        self.changed: list[Trial] = []
        self.active = BASELINE
        self.active_id = BASELINE.plan_id
        self.kept: Plan | None = None
        self.kept_step_us: float | None = None
        self.baseline_step_us: float | None = None
        self.rollbacks = 0
        self._queue: list[Plan] = []
        self._trial: Trial | None = None
        self._since_s = 0.0
        self._round_s = 0.0
        self._skip = 0
        self._first_step = 0
        self._steps: dict[int, dict[int, float]] = {}
        self._window: str | None = None
        self._windows = 0
        self._results: dict[int, tuple[str, str, float]] = {}
        self._final = False
        self._recent: list[float] = []
        self._next_window_s = 0.0
        self._ranks: frozenset[int] = frozenset()
        self._retried = False
        self._unproven: list[float] | None = None
        self._traceable = True
        self._unmeasured = False
        self._foreign = ("", 0)
        self._job = ""
        self._settled_job = ""
        if saved:
            self.round = int(saved.get("round", 0))
            self.rollbacks = int(saved.get("rollbacks", 0))
            self._windows = int(saved.get("windows", 0))
            self.baseline_step_us = saved.get("baseline_step_us")
            self.kept_step_us = saved.get("kept_step_us")
            self.kept = Plan.from_json(saved["kept"]) if saved.get("kept") else None
            self._settled_job = str(saved.get("settled_job", ""))

    @property
    def state(self) -> dict[str, Any]:
        """What must outlive the daemon."""
        return {
            "round": self.round,
            "rollbacks": self.rollbacks,
            "windows": self._windows,
            "phase": self.phase,
            "baseline_step_us": self.baseline_step_us,
            "kept_step_us": self.kept_step_us,
            "kept": self.kept.to_json() if self.kept else None,
            "settled_job": self._settled_job,
        }

    @property
    def current_step_us(self) -> float | None:
        """Median of the latest plain steps."""
        return statistics.median(self._recent) if self._recent else None

    @property
    def settled(self) -> bool:
        """Whether the round is over: decided, and what was kept has been proved by the steps that followed."""
        return self.phase == "watching" and self._unproven is None

    # ---------------------------------------------------------------- events

    def on_ranks(
        self, ranks: Sequence[int], active_plan: str, observe: str, now_s: float, job: str = ""
    ) -> list[Action]:
        """The set of local ranks is complete.

        Args:
            ranks: local ranks, all live.
            active_plan: plan id the job says it runs.
            observe: why only observing is possible; empty if the loop can be closed.
            now_s: seconds.
            job: tells these very processes from restarted ones; empty if unknown.
        """
        self._ranks = frozenset(ranks)
        self._job = job
        self._traceable = True
        self._first_step = 0
        self._steps.clear()
        self._foreign = ("", 0)
        self.active_id = active_plan
        self._next_window_s = now_s + self.config.sampling_interval_s
        if observe:
            self.reason = observe
            self._enter("observing", now_s)
            self._next_window_s = now_s
            return [Note(f"only observing: {observe}")]
        if self.kept is not None and active_plan == self.kept.plan_id != BASELINE.plan_id:
            self.active = self.kept
            self._round_s = now_s
            self._enter("watching", now_s)
            return [Note(f"the job still runs {self.kept.label!r}: watching")]
        if job and job == self._settled_job and self.kept is None and active_plan == BASELINE.plan_id:
            self.active = BASELINE
            self._start_counting()
            self._round_s = now_s
            self._enter("watching", now_s)
            return [Note("nothing better than its own schedule was found for this job before: watching")]
        return self._begin_round(now_s, "ranks are registered")

    def on_observe(self, reason: str, now_s: float, traceable: bool = True) -> list[Action]:
        """A rank says that the loop cannot be closed; or, not `traceable`, it has disarmed itself."""
        self._traceable = self._traceable and traceable
        if self.phase in ("observing", "released"):
            return []
        self.reason = reason
        self._give_up(reason, now_s)
        self._enter("observing", now_s)
        return [Note(f"only observing: {reason}")]

    def on_lost(self, reason: str, now_s: float) -> list[Action]:
        """A rank is gone: what runs is given up until all are back."""
        if self.phase == "released":
            return []
        self._give_up(reason, now_s)
        self._enter("waiting", now_s)
        return [Note(f"waiting: {reason}")]

    def on_steps(self, rank: int, first_step: int, durations_us: Sequence[float], plan_id: str, now_s: float) -> None:
        """Plain steps of one rank. A step counts when all local ranks have reported it: its longest time."""
        if plan_id != self.active.plan_id:
            self._foreign = (plan_id, self._foreign[1] + len(durations_us) if plan_id == self._foreign[0] else 0)
            return
        self._foreign = ("", 0)
        for number, duration in enumerate(durations_us, first_step):
            if number < self._first_step:
                continue
            row = self._steps.setdefault(number, {})
            row[rank] = duration
            if len(row) >= len(self._ranks) > 0:
                del self._steps[number]
                self._count(max(row.values()))
        if len(self._steps) > 1000:
            self._steps.clear()

    def on_plan_result(
        self, rank: int, plan_id: str, outcome: str, reason: str, compile_us: float, step: int, now_s: float
    ) -> list[Action]:
        """One rank's answer to a switch."""
        if self.phase != "applying" or plan_id != self.active.plan_id:
            return []
        self._results[rank] = (outcome, reason, compile_us)
        self._first_step = max(self._first_step, step)
        if outcome == "infeasible" and compile_us == 0.0:
            # Refused before any switch: rank 0 speaks for all.
            return self._failed("infeasible", reason, now_s)
        if not self._ranks <= self._results.keys():
            return []
        stall = max(us for _, _, us in self._results.values())
        if self._trial is not None:
            self._trial.compile_us = stall
        bad = next((r for r in self._results.values() if r[0] != "applied"), None)
        if bad is not None:
            return self._failed(bad[0], bad[1], now_s)
        self.active_id = plan_id
        self._start_counting()
        if self._final:
            self._round_s = now_s
            self._enter("watching", now_s)
            return [Note(f"in force: {self.active.label}")]
        self._enter("baseline" if self._trial is None else "trial", now_s)
        return []

    def on_measured(
        self, window_id: str, measured: WindowMeasurement | None, reason: str, now_s: float
    ) -> list[Action]:
        """A window was measured, or (None) could not be."""
        if window_id != self._window:
            return []
        self._window = None
        if self.phase == "watching" and self._unmeasured and measured is not None:
            return self._begin_round(now_s, "the job can be measured now")
        if self.phase not in ("capturing", "measuring"):
            return []
        trial = self._trial
        assert trial is not None
        if measured is not None and measured.ranks:
            trial.exposed_us, trial.communication_us = per_step(measured)
        elif trial.plan.plan_id == BASELINE.plan_id:
            if not self._retried:
                self._retried = True
                return [Note(f"window {window_id}: {reason}: trying once more"), *self._capture(now_s)]
            self.reason = f"the baseline could not be measured: {reason}"
            self._unmeasured = True
            self._finish_trial("baseline", reason, now_s)
            self._round_s = now_s
            self._enter("watching", now_s)
            return [Note(self.reason)]
        if trial.plan.plan_id == BASELINE.plan_id:
            self._finish_trial("baseline", "", now_s)
            assert measured is not None
            assert self.baseline_step_us is not None
            assert trial.exposed_us is not None
            return [Propose(measured, self.baseline_step_us, trial.exposed_us)]
        return self._judge(trial, now_s)

    def on_proposal(self, plans: Sequence[Plan], reason: str, now_s: float) -> list[Action]:
        """The planner's answer to the baseline's measurement."""
        self._queue = list(plans)
        self.reason = reason
        if not plans:
            self._round_s = now_s
            self._enter("watching", now_s)
            return [Note(reason)]
        return self._next_plan(now_s)

    def on_refresh(self, now_s: float) -> list[Action]:
        """A person or a timer asks for a new round; one that is under way is as good as a new one."""
        if self.settled:
            return self._begin_round(now_s, "a refresh was asked for")
        if self.phase == "observing" and self._window is None:
            self._next_window_s = now_s
        return []

    def on_release(self, restore: bool, now_s: float) -> list[Action]:
        """Detach."""
        self._enter("released", now_s)
        return [SendRelease(restore)]

    def on_window_cost(self, overhead_us: float, now_s: float) -> None:
        """What a window cost the job; the next one waits until the average is within the duty cycle."""
        wait = max(self.config.sampling_interval_s, overhead_us / 1e6 / self.config.sampling_duty)
        self._next_window_s = now_s + wait

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed, or steps were counted."""
        trial = self._trial
        if self._foreign[1] > _FOREIGN_STEPS * len(self._ranks) and self.phase in ("baseline", "trial", "watching"):
            self.active_id, _ = self._foreign
            self._give_up("the job runs another plan", now_s)
            return self._begin_round(now_s, f"the job runs plan {self.active_id}, not the one it was given")
        if self.phase == "baseline":
            if trial is None:
                trial = self._trial = self._new_trial(BASELINE, now_s)
            if len(trial.samples) >= self.config.baseline_steps:
                self.baseline_step_us = statistics.median(trial.samples)
                return self._capture(now_s)
        elif self.phase == "trial" and trial is not None:
            if len(trial.samples) >= self.config.trial_steps:
                return self._capture(now_s)
        elif self.phase in ("capturing", "measuring"):
            limit = self.config.window_timeout_s + self.config.measure_timeout_s
            if now_s - self._since_s > limit and self._window is not None:
                return self.on_measured(self._window, None, f"not answered within {limit:.0f} s", now_s)
        elif self.phase == "applying":
            if now_s - self._since_s > self.config.apply_timeout_s:
                return self._failed("infeasible", f"not answered within {self.config.apply_timeout_s:.0f} s", now_s)
        elif self.phase == "watching":
            return self._watch(now_s)
        elif self.phase == "observing" and self._window is None and now_s >= self._next_window_s:
            return self._sample(now_s) if self._traceable else []
        return []

    # ---------------------------------------------------------------- inside

    def _begin_round(self, now_s: float, why: str) -> list[Action]:
        self.round += 1
        self.reason = ""
        self.trials = []
        self._trial = None
        self._queue = []
        self._final = False
        self._unproven = None
        self._retried = False
        self._unmeasured = False
        self._round_s = now_s
        notes: list[Action] = [Note(f"round {self.round}: {why}")]
        if self.active_id != BASELINE.plan_id:
            return [*notes, *self._apply(BASELINE, now_s)]
        self.active = BASELINE
        self._start_counting()
        self._enter("baseline", now_s)
        return notes

    def _new_trial(self, plan: Plan, now_s: float) -> Trial:
        trial = Trial(f"{self.round}.{len(self.trials)}", plan, now_s)
        self.trials.append(trial)
        self.changed.append(trial)
        return trial

    def _finish_trial(self, verdict: str, reason: str, now_s: float) -> None:
        trial = self._trial
        if trial is not None and trial.verdict == "running":
            trial.verdict, trial.reason, trial.ended_s = verdict, reason, now_s
            self.changed.append(trial)

    def _give_up(self, reason: str, now_s: float) -> None:
        """End all trials of the round that are not decided."""
        for trial in self.trials:
            if trial.verdict == "running":
                trial.verdict, trial.reason, trial.ended_s = "unused", f"given up: {reason}", now_s
                self.changed.append(trial)

    def _start_counting(self) -> None:
        self._steps.clear()
        self._recent.clear()
        self._foreign = ("", 0)
        self._skip = self.config.settle_steps

    def _count(self, duration_us: float) -> None:
        if self._skip > 0:
            self._skip -= 1
            return
        self._recent.append(duration_us)
        del self._recent[:-_KEEP_RECENT]
        if self.phase == "watching" and self._unproven is not None:
            self._unproven.append(duration_us)
        if self._trial is not None and self.phase in ("baseline", "trial"):
            self._trial.samples.append(duration_us)
            wanted = self.config.baseline_steps if self.phase == "baseline" else self.config.trial_steps
            # A compile among the first steps of a job is no step time: drop what the later ones show to be one.
            typical = statistics.median(self._trial.samples)
            if len(self._trial.samples) == wanted and self._trial.samples[0] > 3 * typical:
                self._trial.samples = [s for s in self._trial.samples if s <= 3 * typical]

    def _enter(self, phase: str, now_s: float) -> None:
        self.phase = phase
        self._since_s = now_s
        self._settled_job = self._job if phase == "watching" and not self._unmeasured else ""
        if phase not in ("capturing", "measuring", "observing", "watching"):
            self._window = None

    def _capture(self, now_s: float) -> list[Action]:
        self._enter("capturing", now_s)
        return self._sample(now_s)

    def _sample(self, now_s: float) -> list[Action]:
        self._windows += 1
        self._window = f"w{self._windows:06d}"
        self._next_window_s = now_s + self.config.sampling_interval_s
        return [SendCapture(self._window, self.config.window_steps)]

    def _apply(self, plan: Plan, now_s: float) -> list[Action]:
        self._results.clear()
        self.active = plan
        self._steps.clear()
        self._enter("applying", now_s)
        return [SendApply(plan)]

    def _next_plan(self, now_s: float) -> list[Action]:
        if self._queue:
            plan = self._queue.pop(0)
            self._trial = self._new_trial(plan, now_s)
            return self._apply(plan, now_s)
        return self._choose(now_s)

    def _failed(self, outcome: str, reason: str, now_s: float) -> list[Action]:
        """A switch did not take: all ranks are back on the schedule they had, or on the original one."""
        verdict = "unused" if outcome == "unused" else "infeasible"
        self._finish_trial(verdict, reason, now_s)
        failed = self.active
        self.active = BASELINE
        self.active_id = BASELINE.plan_id
        note = Note(f"{failed.label}: {verdict}: {reason}")
        if self._final or self._trial is None:
            self.kept, self.kept_step_us = None, None
            self._start_counting()
            self._round_s = now_s
            self._enter("watching", now_s)
            return [note]
        if verdict == "unused":
            # No graph with collectives passed the compiler: no other plan would be used either, and each costs a stall.
            self._queue.clear()
            self.reason = reason
        return [note, *self._next_plan(now_s)]

    def _judge(self, trial: Trial, now_s: float) -> list[Action]:
        baseline = self.trials[0].samples
        trial.gain = compare(baseline, trial.samples, confidence=self.config.confidence)
        trial.ended_s = now_s
        if trial.gain.low > self.config.min_gain:
            trial.reason = f"saves {trial.gain.value:.1%} ({trial.gain.low:.1%} to {trial.gain.high:.1%})"
        else:
            trial.verdict = "rolled_back"
            between = f"{trial.gain.low:+.1%} to {trial.gain.high:+.1%}"
            trial.reason = f"not measurably better: {trial.gain.value:+.1%} ({between})"
            self.rollbacks += 1
        self.changed.append(trial)
        return self._next_plan(now_s)

    def _choose(self, now_s: float) -> list[Action]:
        better = [t for t in self.trials if t.verdict == "running" and t.gain is not None]
        best = min(better, key=lambda t: statistics.median(t.samples), default=None)
        for trial in better:
            trial.verdict = "kept" if trial is best else "rolled_back"
            if trial is not best:
                assert best is not None
                trial.reason += f"; {best.plan.label!r} is faster"
                self.rollbacks += 1
            self.changed.append(trial)
        self._trial = None
        self._final = True
        self.kept = best.plan if best is not None else None
        self.kept_step_us = statistics.median(best.samples) if best is not None else None
        self._unproven = [] if best is not None else None
        self._skip = self.config.settle_steps
        chosen = best.plan if best is not None else BASELINE
        if chosen.plan_id == self.active_id:
            self._round_s = now_s
            self._enter("watching", now_s)
            return [Note(f"kept: {chosen.label}")]
        return [Note(f"chosen: {chosen.label}"), *self._apply(chosen, now_s)]

    def _prove(self, fresh: list[float], now_s: float) -> list[Action]:
        """The winner of several was lucky, too: it stays only if it is as good in the steps that follow."""
        self._unproven = None
        trial = next((t for t in self.trials if t.verdict == "kept"), None)
        if trial is None:
            return []
        baseline = self.trials[0].samples
        trial.samples += fresh
        trial.gain = compare(baseline, trial.samples, confidence=self.config.confidence)
        self.kept_step_us = statistics.median(trial.samples)
        self.changed.append(trial)
        held = statistics.median(fresh) < statistics.median(baseline) and trial.gain.low > self.config.min_gain
        if held:
            return [Note(f"{trial.plan.label!r} holds: saves {trial.gain.value:.1%}")]
        trial.verdict = "rolled_back"
        trial.reason += f"; did not hold afterwards: {trial.gain.value:+.1%}"
        self.rollbacks += 1
        self.kept, self.kept_step_us = None, None
        return [Note(f"{trial.plan.label!r} did not hold: back to {BASELINE.label!r}"), *self._apply(BASELINE, now_s)]

    def _watch(self, now_s: float) -> list[Action]:
        if now_s - self._round_s > self.config.refresh_interval_s:
            return self._begin_round(now_s, "time for a refresh")
        window = self.config.trial_steps
        if self._unproven is not None and self._window is None and len(self._unproven) >= window:
            return self._prove(self._unproven[:window], now_s)
        if self.kept is not None and self.kept_step_us and len(self._recent) >= 2 * window:
            # Half of the latest steps must lie above the limit: one slow stretch is not a regression.
            latest = self._recent[-2 * window :]
            if statistics.quantiles(latest, n=4)[0] > self.kept_step_us * (1 + self.config.regression):
                return self._begin_round(now_s, "the step has become slower")
        if self._window is None and now_s >= self._next_window_s:
            return self._sample(now_s)
        if self._window is not None and now_s > self._next_window_s + self.config.window_timeout_s:
            self._window = None
        return []


def per_step(measured: WindowMeasurement) -> tuple[float, float]:
    """Exposed and total communication per step, averaged over ranks, microseconds."""
    exposed, communication = [], []
    for rank in measured.ranks:
        steps = rank.steps or (rank.total,)
        exposed.append(statistics.fmean(s.exposed_us for s in steps))
        communication.append(statistics.fmean(s.communication_us for s in steps))
    return statistics.fmean(exposed), statistics.fmean(communication)
