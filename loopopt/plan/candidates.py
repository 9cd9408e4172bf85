"""The plans of one round. Pure and deterministic: same measurement, same plans, same order."""

from __future__ import annotations

from dataclasses import dataclass

from loopopt.plans import Knobs, Plan
from loopopt.timing import TimingTable


@dataclass(frozen=True, slots=True)
class Proposal:
    """Plans to try, in this order; "as it was" is always among the choices and not listed.

    Attributes:
        plans: may be empty.
        reason: why it is empty.
        warning: what should be known about the plans, "" if nothing.
    """

    plans: tuple[Plan, ...]
    reason: str = ""
    warning: str = ""


def propose(
    table: TimingTable,
    *,
    step_us: float,
    exposed_us: float,
    min_exposed_share: float,
    memory_increase_gb: float,
    max_trials: int,
    known_share: float | None = None,
    coverage: str = "off",
    min_coverage: float = 0.0,
) -> Proposal:
    """Plans for a job.

    The scheduler (2.13) may add the larger of an absolute amount and a share of the peak; the share is set to
    nothing, so that the budget is what counts. The plan that most often wins is tried last: if it does, it is in
    force already and costs no further recompile.

    Args:
        table: measured durations.
        step_us: median step time of the job as it was, microseconds.
        exposed_us: exposed communication in it.
        min_exposed_share: below it nothing is proposed.
        memory_increase_gb: budget over the baseline's peak.
        max_trials: number of plans at most.
        known_share: share of the communication time that the table knows, None if unknown.
        coverage: "strict" proposes nothing if that is below `min_coverage`; "warn" says so in `warning`.
        min_coverage: 0 to 1.
    """
    if not table.collectives:
        return Proposal((), "no collective was measured: there is nothing to schedule around")
    if step_us <= 0 or exposed_us < min_exposed_share * step_us:
        share = exposed_us / step_us if step_us > 0 else 0.0
        return Proposal((), f"only {share:.1%} of the step is exposed communication: nothing to gain")

    warning = ""
    if coverage != "off" and known_share is not None and known_share < min_coverage:
        warning = f"the timing table knows only {known_share:.0%} of the communication time (min_coverage)"
        if coverage == "strict":
            return Proposal((), warning)

    def plan(label: str, bucketing: bool, pre_bucketing: bool) -> Plan:
        knobs = Knobs(
            scheduling=True,
            collective_bucketing=bucketing,
            pre_bucketing=pre_bucketing,
            max_memory_increase_gb=memory_increase_gb,
            max_memory_increase_ratio=0.0,
        )
        return Plan(label, knobs, table)

    plans = (
        plan("schedule, stock pre-bucketing", True, True),
        plan("schedule", False, False),
        plan("schedule + bucket", True, False),
    )
    return Proposal(plans[-max_trials:], warning=warning)
