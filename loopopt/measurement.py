"""Frozen records that leave the `measure` room. Microseconds throughout.

`parse` makes `RankTrace` (in `loopopt.parse`, numpy columns); `measure` turns the traces of one
window into one `WindowMeasurement`; store, plan, export and report read only these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loopopt.timing import TimingTable


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a span went; `compute + exposed_communication + exposed_memcpy + idle == span`.

    Attributes:
        span_us: length of the span.
        compute_us: union of compute.
        communication_us: union of communication.
        exposed_us: communication minus compute.
        memcpy_us: union of memcpy/memset.
        exposed_memcpy_us: memcpy minus compute minus communication.
        idle_us: the rest.
    """

    span_us: float
    compute_us: float
    communication_us: float
    exposed_us: float
    memcpy_us: float
    exposed_memcpy_us: float
    idle_us: float


@dataclass(frozen=True, slots=True)
class CollectiveTotals:
    """Sums over the window of one (kind, group) on one rank.

    Attributes:
        kind, group, group_size: as in `loopopt.timing`.
        count: instances.
        message_bytes: summed.
        duration_us: summed raw durations (includes waiting).
        transfer_us: summed transfer time (last arrival to completion); NaN-free, 0 if unmatched.
        skew_us: summed waiting for later ranks.
        exposed_us: this kind's additive share of the rank's exposed time.
    """

    kind: str
    group: str
    group_size: int
    count: int
    message_bytes: int
    duration_us: float
    transfer_us: float
    skew_us: float
    exposed_us: float


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """One stretch of one rank's step, for drawing. `lane` is "compute", "communication" or "exposed"."""

    lane: str
    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class RankMeasurement:
    """One rank's share of a window.

    Attributes:
        rank: global rank.
        total: whole window.
        steps: one breakdown per whole step, oldest first.
        collectives: sums per kind and group.
        timeline: spans of the last whole step, times relative to its start.
        step_numbers: number of each of `steps`, as the trace's marks have it.
    """

    rank: int
    total: Breakdown
    steps: tuple[Breakdown, ...] = ()
    collectives: tuple[CollectiveTotals, ...] = ()
    timeline: tuple[TimelineSpan, ...] = ()
    step_numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """What share of the measured time a timing table knows the durations of.

    Attributes:
        compute: share of compute time (0..1), None if no compute was seen.
        communication: share of collectives' time, None if there were none.
        unknown: what is not covered, longest first: (name, microseconds), at most twenty.
    """

    compute: float | None = None
    communication: float | None = None
    unknown: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class WindowMeasurement:
    """All ranks of one window.

    Attributes:
        ranks: sorted by rank.
        table: timing table from this window's transfer times and compute durations.
        matched: collective instances matched over all ranks of their group.
        unmatched: instances left out of the table.
        notes: what could not be used and why, one sentence each.
        coverage: of the table on this very window.
    """

    ranks: tuple[RankMeasurement, ...]
    table: TimingTable
    matched: int = 0
    unmatched: int = 0
    notes: tuple[str, ...] = field(default=())
    coverage: Coverage = field(default_factory=Coverage)
