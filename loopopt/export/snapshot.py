"""What the exporter reads at scrape time. Microseconds, as everywhere inside; the exporter makes seconds of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CounterValue:
    """A counter's value since the job began, over all restarts of the daemon.

    Attributes:
        key: a metric's `source` in the catalogue; unknown keys are not exported.
        value: never falls.
        labels: label values by name.
    """

    key: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A histogram's state since the job began.

    Attributes:
        key: a metric's `source` in the catalogue.
        bounds: upper bounds of the buckets, rising, without infinity.
        counts: observations per bucket, not cumulative, one more than `bounds`.
        total: sum of the observations.
    """

    key: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent view of the job.

    Attributes:
        version: loopopt's version.
        training_job: the job's name.
        torch: PyTorch's version, "" until a rank has registered.
        backend: the process groups' backend, "" until a rank has registered.
        not_ready: why the daemon cannot work yet; "" if it can.
        ranks: number of ranks by state ("live", "lost", "observe", "disarmed").
        phase: what the loop is doing, one of `PHASES`.
        plan_id: plan the job runs now; "" if unknown.
        plan_label: its human name.
        baseline_step_us: median step time of the job as it was.
        current_step_us: median step time under the present plan.
        predicted_step_us: step time to be expected of it, by what traces show to be exposed no longer.
        trace_last_success_s: seconds since 1970.
        counters: in the order they became known (that decides which groups get a label of their own).
        histograms: likewise.
    """

    version: str
    training_job: str = ""
    torch: str = ""
    backend: str = ""
    not_ready: str = ""
    ranks: Mapping[str, int] = field(default_factory=dict)
    phase: str = ""
    plan_id: str = ""
    plan_label: str = ""
    baseline_step_us: float | None = None
    current_step_us: float | None = None
    predicted_step_us: float | None = None
    trace_last_success_s: float | None = None
    counters: tuple[CounterValue, ...] = ()
    histograms: tuple[HistogramValue, ...] = ()
