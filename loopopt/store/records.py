"""Frozen records that go into and come out of the store. Microseconds; wall-clock times are seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Verdict = Literal["baseline", "kept", "rolled_back", "infeasible", "unused", "running"]
"""What became of a trial; "running" until it is decided."""

VERDICTS: frozenset[str] = frozenset(get_args(Verdict))


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One measured trace window.

    Attributes:
        window_id: name of the window, also of its trace directory.
        plan_id: plan the job ran while it was traced.
        first_step: first traced step.
        steps: whole steps in the window.
        created_s: when it was measured, seconds since 1970.
        measurement_json: the window's measurement as plain JSON values.
    """

    window_id: str
    plan_id: str
    first_step: int
    steps: int
    created_s: float
    measurement_json: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One plan tried on the job, and the evidence for its verdict.

    Attributes:
        trial_id: unique name of the trial.
        plan_id: plan that was tried.
        label: the plan's human name.
        knobs: the plan's scheduler settings.
        table_digest: timing table the plan was made with; None if torch's own estimates were used.
        started_s: seconds since 1970.
        ended_s: seconds since 1970; None while it runs.
        verdict: see `Verdict`.
        reason: why, one sentence.
        median_step_us: median step time under the plan.
        spread_us: half the interquartile range of the step times.
        samples: steps the median is taken over.
        gain: share of the baseline's step time saved (0.15: 15 % faster).
        gain_low: lower end of the gain's confidence interval.
        gain_high: upper end.
        predicted_step_us: step time the planner foretold.
        compile_us: what the switch cost, on the slowest rank.
        exposed_us: exposed communication per step.
        communication_us: communication per step.
    """

    trial_id: str
    plan_id: str
    label: str
    knobs: dict[str, Any] = field(default_factory=dict)
    table_digest: str | None = None
    started_s: float = 0.0
    ended_s: float | None = None
    verdict: Verdict = "running"
    reason: str = ""
    median_step_us: float | None = None
    spread_us: float | None = None
    samples: int = 0
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    predicted_step_us: float | None = None
    compile_us: float = 0.0
    exposed_us: float | None = None
    communication_us: float | None = None


@dataclass(frozen=True, slots=True)
class StepRun:
    """Consecutive steps of one rank under one plan.

    Attributes:
        rank: global rank.
        attempt: the launcher's restart count (step numbers may start over with each).
        first_step: number of the first step.
        plan_id: plan they ran under.
        kind: "plain", "traced" or "compiling".
        durations_us: one per step, oldest first.
    """

    rank: int
    attempt: int
    first_step: int
    plan_id: str
    kind: str
    durations_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter that survives restarts. Unit as the writer chose it (microseconds for times)."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """A histogram that survives restarts.

    Attributes:
        name: as the writer chose it.
        labels: label values by name.
        bounds: upper bounds of the buckets, strictly rising, without the last (infinite) one.
        counts: observations per bucket, *not* cumulative, one more than `bounds`.
        total: sum of all observations.
    """

    name: str
    labels: dict[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
