"""Settings of the loop. A field's docstring says what it means and in which unit."""

from __future__ import annotations

from dataclasses import dataclass

from loopopt.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """How the daemon observes, tries and decides; `--set key=value` changes a field."""

    baseline_steps: int = 10
    """Plain steps the baseline's median is taken over."""
    trial_steps: int = 10
    """Plain steps a plan's median is taken over."""
    settle_steps: int = 2
    """Steps dropped after a start or a switch, before any are counted."""
    window_steps: int = 2
    """Whole steps in a trace window."""
    max_trials: int = 4
    """Plans tried in one round at most."""
    min_gain: float = 0.01
    """Share of the step time a plan must save, beyond doubt, to be kept."""
    min_exposed_share: float = 0.03
    """Below this share of exposed communication in a step nothing is tried."""
    confidence: float = 0.95
    """Of the interval around a gain."""
    coverage: str = "warn"
    """What to do when the timing table knows too little: "off" (nothing), "warn" (say so) or "strict" (try no plan)."""
    min_coverage: float = 0.5
    """Share of the communication time whose durations the table must know."""
    memory_increase_gb: float = 1.0
    """Peak memory a plan may add, GB; prefetching gathered parameters needs some."""
    sampling_duty: float = 0.01
    """Share of the job's time that sampling may cost on average."""
    sampling_interval_s: float = 300.0
    """Seconds between trace windows when nothing else is going on, at least."""
    refresh_interval_s: float = 86400.0
    """Seconds after which everything is measured again, baseline included."""
    regression: float = 0.1
    """Rise of the step time over that of the kept plan which starts a new round (beyond noise)."""
    apply_timeout_s: float = 1200.0
    """Seconds to wait for all ranks to report a switch."""
    window_timeout_s: float = 300.0
    """Seconds to wait for all ranks to report a window."""
    lost_after_s: float = 30.0
    """A rank that has not been heard of for so many seconds is lost."""
    measure_timeout_s: float = 600.0
    """Seconds the measuring child may take for one window."""
    trace_max_bytes: int = 2_000_000_000
    """Bytes of trace files kept."""
    trace_keep: int = 4
    """Newest windows whose files are never deleted."""
    metrics_host: str = "127.0.0.1"
    """Address the metrics are served on."""
    metrics_port: int = 0
    """Port of the metrics; 0 takes a free one (`loopopt status` says which)."""
    web_config: str = ""
    """File with TLS and passwords for the metrics, as Prometheus' own exporters read it (docs/prometheus.md)."""

    def __post_init__(self) -> None:
        for name in ("baseline_steps", "trial_steps"):
            if getattr(self, name) < 5:
                raise UsageError(f"{name}={getattr(self, name)}: a median needs at least 5 steps")
        for name in ("window_steps", "max_trials", "trace_keep"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: must be at least 1")
        if not 0 < self.sampling_duty <= 0.5:
            raise UsageError(f"sampling_duty={self.sampling_duty}: must be above 0 and at most 0.5")
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"confidence={self.confidence}: must be at least 0.5 and below 1")
        if self.coverage not in ("off", "warn", "strict"):
            raise UsageError(f"coverage={self.coverage}: must be off, warn or strict")
        if not 0 <= self.min_coverage <= 1:
            raise UsageError(f"min_coverage={self.min_coverage}: must be from 0 to 1")
        if not 0 <= self.min_gain < 1:
            raise UsageError(f"min_gain={self.min_gain}: must be from 0 to below 1")
        if self.settle_steps < 0:
            raise UsageError(f"settle_steps={self.settle_steps}: cannot be negative")
