"""Frozen records of an offline analysis: what `loopopt analyze` shows. Microseconds and bytes throughout.

One `Analysis` holds every run found among the files; a run is a set of ranks traced together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loopopt.measurement import Coverage, WindowMeasurement


@dataclass(frozen=True, slots=True)
class Selection:
    """What part of the traces is asked for; all of it by default.

    Attributes:
        steps: numbers of the steps to measure, None for all of the window.
        groups: process group names or descriptions whose collectives are listed, None for all.
        ranks: ranks to list, None for all. Their peers are read all the same: without them nobody's last
            arrival is known.
    """

    steps: frozenset[int] | None = None
    groups: frozenset[str] | None = None
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that was used.

    Attributes:
        path: the file.
        rank: global rank it was taken for.
        host, device: names, "" if the trace does not say.
        world_size: 0 if unknown.
        events: kept events.
        dropped: events of a kept category that could not be used (open at the window's edge).
        start_us: first event, microseconds since the epoch as the rank's own clock has it.
        span_us: first start to last end.
    """

    path: str
    rank: int
    host: str
    device: str
    world_size: int
    events: int
    dropped: int
    start_us: float
    span_us: float


@dataclass(frozen=True, slots=True)
class FailedFile:
    """A file that could not be used: where (byte offset in the uncompressed text, if known) and why."""

    path: str
    reason: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """One (kind, group) over all ranks of a run.

    Attributes:
        kind, group, group_size: as in `loopopt.timing`.
        description: the group's own words for people ("mesh_dp"), "" if unknown.
        topology: "local" if all members are on one host, "cross-host", "" if unknown.
        ranks: ranks that showed instances.
        count: instances, summed over ranks.
        message_bytes: summed over ranks.
        duration_us: raw durations, summed over ranks (waiting included).
        exposed_us: additive share of exposed time, summed over ranks.
        matched: collectives found on every rank of the group.
        matched_bytes: message bytes of those, one rank each.
        transfer_us: last arrival to last completion of those, summed.
        skew_us: waiting for later ranks, summed over ranks.
        algorithm_gbps: matched_bytes / transfer_us, gigabytes (1e9) a second; None if nothing matched.
        bus_gbps: algorithm bandwidth times the share of the message that crosses a link (nccl-tests'
            PERFORMANCE.md: 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, else 1).
    """

    kind: str
    group: str
    group_size: int
    description: str
    topology: str
    ranks: int
    count: int
    message_bytes: int
    duration_us: float
    exposed_us: float
    matched: int
    matched_bytes: int
    transfer_us: float
    skew_us: float
    algorithm_gbps: float | None
    bus_gbps: float | None


@dataclass(frozen=True, slots=True)
class ExposedCollective:
    """One collective on one rank, and the compute on either side of its exposed stretch.

    Attributes:
        rank: which rank.
        step: step number it began in, None without step marks.
        kind, group, group_size, dtype: dtype "" if unknown.
        message_bytes: 0 if unknown.
        start_us: from the run's first event, on the aligned clock.
        duration_us: own interval, waiting included.
        exposed_us: additive share of the rank's exposed time.
        transfer_us, skew_us: None if the instance could not be matched.
        before: compute that ended last before the exposed stretch began, "" if none.
        after: compute that began first after it ended, "" if none.
    """

    rank: int
    step: int | None
    kind: str
    group: str
    group_size: int
    dtype: str
    message_bytes: int
    start_us: float
    duration_us: float
    exposed_us: float
    transfer_us: float | None
    skew_us: float | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class LateRank:
    """How often a rank was the last to arrive, and what that cost the others.

    Attributes:
        rank: which rank.
        matched: matched collectives the rank took part in.
        last: of those, how many it arrived at last by more than the clocks can tell.
        caused_wait_us: longest waiting of another rank for it, summed over those.
        own_wait_us: its own waiting for others.
    """

    rank: int
    matched: int
    last: int
    caused_wait_us: float
    own_wait_us: float


@dataclass(frozen=True, slots=True)
class Points:
    """Matched collectives of one curve, for drawing: at most some hundreds.

    Attributes:
        kind, group, group_size, dtype, topology: the curve of the timing table they belong to.
        message_bytes, transfer_us: same length.
    """

    kind: str
    group: str
    group_size: int
    dtype: str
    topology: str
    message_bytes: tuple[int, ...]
    transfer_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunAnalysis:
    """Everything about the traces of one run.

    Attributes:
        name: what to call it: the folder its files share, with the window's number if there are several.
        files: by rank.
        world_size: ranks of the job, at least those seen.
        measurement: per rank and step, per collective, timing table, notes.
        groups: per (kind, group), by exposed time, largest first.
        worst: collectives by exposed time, largest first.
        late: ranks by the waiting they caused, largest first; empty if nothing matched.
        points: per curve of the timing table.
        coverage: of the timing table on these very traces.
        unmatched: why instances could not be matched -> how many.
        clock_us: correction subtracted from each rank's clock.
    """

    name: str
    files: tuple[TraceFile, ...]
    world_size: int
    measurement: WindowMeasurement
    groups: tuple[GroupTotals, ...] = ()
    worst: tuple[ExposedCollective, ...] = ()
    late: tuple[LateRank, ...] = ()
    points: tuple[Points, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    unmatched: Mapping[str, int] = field(default_factory=dict)
    clock_us: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Analysis:
    """All runs, by time, and the files that could not be used."""

    runs: tuple[RunAnalysis, ...]
    failed: tuple[FailedFile, ...] = ()
