"""The one catalogue of exported metrics: names, help, units, labels, buckets, and where each value comes from.

The collector, the documentation page, the dashboard and the recording rules are all made from it. A
name in here is a contract with people's dashboards: it is never renamed, only added to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

US_PER_S: Final = 1e6

COLLECTIVES: Final = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "send_recv",
    "barrier",
)
"""Values of the label `collective`, besides "other"."""

MAX_GROUPS: Final = 64
"""Distinct values of the label `group`; process groups met later are "other"."""

MAX_RANKS: Final = 512
"""Distinct values of the label `rank`; an endpoint has the ranks of its own node only."""

OTHER: Final = "other"
UNKNOWN: Final = "unknown"

TRACE_FAILURE_REASONS: Final = (
    "user_profiler",
    "busy",
    "disk",
    "internal",
    "timeout",
    "missing_rank",
    "unreadable",
    OTHER,
)
"""Values of the label `reason`. "unreadable": the trace was written but is torn, empty or malformed."""

RANK_STATES: Final = ("live", "lost", "observe", "disarmed")
"""Values of the label `state`."""

PHASES: Final = (
    "waiting",
    "baseline",
    "capturing",
    "measuring",
    "applying",
    "trial",
    "watching",
    "observing",
    "following",
    "released",
)
"""Values of the label `phase`."""

_MANTISSAS: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
STEP_BUCKETS_US: Final = tuple(
    min(mantissa * 10**exponent, 600e6) for exponent in range(3, 9) for mantissa in _MANTISSAS
)
"""Upper bounds from 1 ms to 10 min, six per decade: fine enough to see a plan take effect in a quantile."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric.

    Attributes:
        name: as it appears on the page; a counter's ends in ``_total``.
        kind: "counter", "gauge" or "histogram".
        help: one sentence, the metric's documentation.
        source: key of the counter or histogram in the snapshot, or the snapshot's field for a gauge.
        unit: "seconds", "bytes" or "" (a number of things).
        labels: label names.
        known: label values of which a series exists from the start, at 0 (metrics with one label only).
        divisor: the snapshot's value is divided by this (microseconds to seconds).
    """

    name: str
    kind: Kind
    help: str
    source: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    divisor: float = 1.0


def _counter(
    name: str, source: str, help_: str, labels: tuple[str, ...] = (), known: tuple[str, ...] = (), unit: str = ""
) -> Metric:
    divisor = US_PER_S if unit == "seconds" else 1.0
    return Metric(name, "counter", help_, source, unit, labels, known, divisor)


def _step_gauge(name: str, source: str, help_: str) -> Metric:
    return Metric(name, "gauge", help_, source, unit="seconds", divisor=US_PER_S)


_BY_COLLECTIVE: Final = ("collective", "group")
_BY_RANK: Final = ("rank",)

CATALOGUE: Final[tuple[Metric, ...]] = (
    Metric(
        "loopopt_build_info",
        "gauge",
        "Always 1; the labels tell loopopt's version and the job it serves.",
        "build",
        labels=("version", "training_job", "torch", "backend"),
    ),
    Metric(
        "loopopt_plan_info",
        "gauge",
        "Always 1; the labels tell the plan the job runs now.",
        "plan",
        labels=("plan", "label"),
    ),
    Metric(
        "loopopt_registered_ranks",
        "gauge",
        "Ranks of the job on this node by state: live, lost, observe (traced, never changed), disarmed (gave up).",
        "ranks",
        labels=("state",),
        known=RANK_STATES,
    ),
    Metric(
        "loopopt_loop_phase",
        "gauge",
        "1 for what the loop is doing now, 0 for everything else (see docs/architecture.md).",
        "phase",
        labels=("phase",),
        known=PHASES,
    ),
    _step_gauge(
        "loopopt_baseline_step_seconds",
        "baseline_step_us",
        "Median step time without loopopt's schedule, as last measured; absent until measured.",
    ),
    _step_gauge(
        "loopopt_current_step_seconds",
        "current_step_us",
        "Median step time under the plan the job runs now; absent until measured.",
    ),
    _step_gauge(
        "loopopt_predicted_step_seconds",
        "predicted_step_us",
        "Step time to be expected of the plan the job runs now: the baseline's, less the communication that traces "
        "show to be exposed no longer; absent until traced.",
    ),
    Metric(
        "loopopt_step_duration_seconds",
        "histogram",
        "Duration of training steps, without steps in which a trace was taken or a plan was switched.",
        "step_us",
        unit="seconds",
        divisor=US_PER_S,
    ),
    _counter(
        "loopopt_sampled_seconds_total",
        "sampled_us",
        "Traced time, summed over ranks: the denominator of compute, communication and exposed time.",
        unit="seconds",
    ),
    _counter("loopopt_sampled_steps_total", "sampled_steps", "Traced whole steps, summed over ranks."),
    _counter(
        "loopopt_compute_seconds_total",
        "compute_us",
        "Traced time in which a rank computed, summed over ranks.",
        unit="seconds",
    ),
    _counter(
        "loopopt_communication_seconds_total",
        "communication_us",
        "Traced time in which a rank communicated, summed over ranks; collectives that run at once share the time, "
        "so the sum over labels counts no moment of a rank twice.",
        _BY_COLLECTIVE,
        unit="seconds",
    ),
    _counter(
        "loopopt_exposed_communication_seconds_total",
        "exposed_us",
        "Traced time in which a rank communicated and did not compute, summed over ranks.",
        _BY_COLLECTIVE,
        unit="seconds",
    ),
    _counter(
        "loopopt_skew_seconds_total",
        "skew_us",
        "Traced time collectives spent waiting for ranks that arrived later, summed over ranks and collectives.",
        unit="seconds",
    ),
    _counter(
        "loopopt_rank_sampled_seconds_total",
        "rank_sampled_us",
        "Traced time of each rank of this node: the denominator of the other times by rank.",
        _BY_RANK,
        unit="seconds",
    ),
    _counter(
        "loopopt_rank_exposed_communication_seconds_total",
        "rank_exposed_us",
        "Traced time in which the rank communicated and did not compute.",
        _BY_RANK,
        unit="seconds",
    ),
    _counter(
        "loopopt_rank_skew_seconds_total",
        "rank_skew_us",
        "Traced time the rank's collectives spent waiting for ranks that arrived later; the rank that waits least "
        "is the late one.",
        _BY_RANK,
        unit="seconds",
    ),
    _counter("loopopt_trace_requests_total", "trace_requests", "Trace windows asked for."),
    _counter(
        "loopopt_trace_failures_total",
        "trace_failures",
        "Trace windows that gave no measurement, by reason.",
        ("reason",),
        TRACE_FAILURE_REASONS,
    ),
    _counter("loopopt_trace_bytes_total", "trace_bytes", "Bytes of trace files read.", unit="bytes"),
    Metric(
        "loopopt_trace_last_success_timestamp_seconds",
        "gauge",
        "When a trace window was last measured, seconds since 1970; absent before the first.",
        "trace_last_success_s",
        unit="seconds",
    ),
    _counter("loopopt_recompiles_total", "recompiles", "Times the job was recompiled with another plan."),
    _counter(
        "loopopt_recompile_failures_total",
        "recompile_failures",
        "Recompilations that failed on some rank; all ranks then ran the unscheduled graph.",
    ),
    _counter(
        "loopopt_recompile_seconds_total",
        "recompile_us",
        "Time training stood still for recompilations (the slowest rank's, each time).",
        unit="seconds",
    ),
    _counter("loopopt_rollbacks_total", "rollbacks", "Plans taken back because the job was not faster with them."),
    _counter(
        "loopopt_agent_seconds_total",
        "agent_us",
        "Time loopopt's agent spent in the training threads, summed over ranks.",
        unit="seconds",
    ),
    _counter(
        "loopopt_messages_refused_total",
        "messages_refused",
        "Messages on the agents' socket that were malformed or from another user; each ends its connection.",
    ),
)

BY_NAME: Final[dict[str, Metric]] = {metric.name: metric for metric in CATALOGUE}


def counter_keys() -> frozenset[str]:
    """Keys under which the daemon counts; values under any other key are not exported."""
    return frozenset(metric.source for metric in CATALOGUE if metric.kind == "counter")
