"""Before and after in one frozen record, computed from the daemon's status. Renderers only read it.

The status is what `loopopt.ctl.request(job_dir, "status")` answers. What is missing there is None here and
"-" on the screen: a number that was not measured is never made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loopopt.report.units import percent, seconds

AS_IT_WAS = "as-it-was"
"""Plan id of the job's own schedule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """The job under one plan; times are per step, microseconds.

    Attributes:
        plan_id: the plan.
        label: its human name.
        step_us: median step time.
        step_spread_us: half the interquartile range of the step times.
        steps: steps the median is taken over.
        communication_us: time in which a rank communicates.
        exposed_us: the part of it in which the rank does not compute.
    """

    plan_id: str = AS_IT_WAS
    label: str = "as it was"
    step_us: float | None = None
    step_spread_us: float | None = None
    steps: int = 0
    communication_us: float | None = None
    exposed_us: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A plan that was tried.

    Attributes:
        verdict: "running", "kept", "rolled_back", "infeasible" or "unused".
        gain, gain_low, gain_high: share of the step time saved, with its confidence interval.
        compile_us: what the switch cost on the slowest rank.
    """

    plan_id: str
    label: str
    verdict: str
    reason: str = ""
    step_us: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    exposed_us: float | None = None
    compile_us: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What the loop did to a job.

    Attributes:
        job: name.
        phase: where the loop stands.
        mode: "closed_loop", or "observe" with `reason`.
        step: last step seen.
        world_size: ranks of the job; 0 if none has registered.
        before: the job's own schedule.
        after: the plan in force; equal to `before` if that is the job's own.
        gain, gain_low, gain_high: share of the step time saved by `after`, with its confidence interval.
        trials: plans tried, oldest first.
        recompiles: times the job was made to compile.
        recompile_us: time the job stood still for it.
        rollbacks: plans that were taken back.
        follows: host of the node whose daemon decides; empty if this one's does.
    """

    job: str = ""
    phase: str = ""
    mode: str = ""
    reason: str = ""
    step: int = 0
    world_size: int = 0
    before: Side = Side()
    after: Side = Side()
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    trials: tuple[Trial, ...] = ()
    recompiles: int = 0
    recompile_us: float = 0.0
    rollbacks: int = 0
    follows: str = ""

    @property
    def tried(self) -> int:
        """Plans that ran on the job until they could be judged: neither infeasible nor unused."""
        return sum(t.verdict in ("kept", "rolled_back", "running") and t.gain is not None for t in self.trials)

    def sentence(self) -> str:
        """The outcome in one sentence."""
        if not self.world_size:
            return "No rank registered: the job did not load the agent (see `loopopt doctor`)."
        if self.follows:
            return f"Follows node {self.follows}, whose daemon decides for all ranks: before and after are told there."
        if self.mode == "observe":
            return f"Only observed, nothing changed: {self.reason or 'the loop cannot be closed on this job'}."
        if self.after.plan_id != AS_IT_WAS:
            if self.gain is None:
                return f"Runs with the plan “{self.after.label}”; its gain is not measured yet."
            return (
                f"Step time {seconds(self.before.step_us)} -> {seconds(self.after.step_us)}"
                f" ({percent(self.gain)} saved) with the plan “{self.after.label}”."
            )
        if self.tried:
            return "Runs on its own schedule: no plan was measurably better."
        return "Runs on its own schedule: no plan has been tried" + (f" ({self.reason})." if self.reason else ".")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "sentence": self.sentence()}


def summarize(status: Mapping[str, Any]) -> Summary:
    """The record from a status; an empty status gives an empty record."""
    trials = tuple(_trial(t) for t in status.get("trials") or () if t.get("plan_id") != AS_IT_WAS)
    before = _before(status)
    active = str(status.get("active_plan") or AS_IT_WAS)
    in_force = _latest(status, active) if active != AS_IT_WAS else None
    label = str(status.get("active_label") or active)
    after = before if active == AS_IT_WAS else _side(in_force or {}, active, label)
    counters = status.get("counters") or {}
    return Summary(
        job=str(status.get("job") or ""),
        phase=str(status.get("phase") or ""),
        mode=str(status.get("mode") or ""),
        reason=str(status.get("reason") or ""),
        step=int(status.get("step") or 0),
        world_size=int(status.get("world_size") or 0),
        before=before,
        after=after,
        gain=_number(in_force, "gain"),
        gain_low=_number(in_force, "gain_low"),
        gain_high=_number(in_force, "gain_high"),
        trials=trials,
        recompiles=int(counters.get("recompiles") or 0),
        recompile_us=float(counters.get("recompile_us") or 0.0),
        rollbacks=int(counters.get("rollbacks") or 0),
        follows=str(status.get("follows") or ""),
    )


def _before(status: Mapping[str, Any]) -> Side:
    return _side(_latest(status, AS_IT_WAS) or {}, AS_IT_WAS, "as it was")


def _latest(status: Mapping[str, Any], plan_id: str) -> Mapping[str, Any] | None:
    """The last trial of a plan that has a result."""
    found: Sequence[Mapping[str, Any]] = [
        t for t in status.get("trials") or () if t.get("plan_id") == plan_id and t.get("median_step_us") is not None
    ]
    return found[-1] if found else None


def _side(row: Mapping[str, Any], plan_id: str, label: str) -> Side:
    return Side(
        plan_id=plan_id,
        label=str(row.get("label") or label),
        step_us=_number(row, "median_step_us"),
        step_spread_us=_number(row, "spread_us"),
        steps=int(row.get("samples") or 0),
        communication_us=_number(row, "communication_us"),
        exposed_us=_number(row, "exposed_us"),
    )


def _trial(row: Mapping[str, Any]) -> Trial:
    return Trial(
        plan_id=str(row.get("plan_id") or ""),
        label=str(row.get("label") or ""),
        verdict=str(row.get("verdict") or ""),
        reason=str(row.get("reason") or ""),
        step_us=_number(row, "median_step_us"),
        gain=_number(row, "gain"),
        gain_low=_number(row, "gain_low"),
        gain_high=_number(row, "gain_high"),
        exposed_us=_number(row, "exposed_us"),
        compile_us=float(row.get("compile_us") or 0.0),
    )


def _number(row: Mapping[str, Any] | None, name: str) -> float | None:
    value = (row or {}).get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
