"""One rank's trace -> `RankSummary`: all that the ranks need to know of each other, small enough for thousands.

This is the part of the measurement that needs no other rank. It is a pure function of the trace, so that it can
run in another process or on another machine; `loopopt.measure.merge` puts the summaries together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loopopt.analysis import Selection
from loopopt.measure.activity import Activity, Step, find_activity, find_steps
from loopopt.measure.breakdown import added, breakdowns, exposed_shares
from loopopt.measure.columns import Collectives, collectives_of
from loopopt.measure.instances import Instance, find_instances
from loopopt.measure.intervals import Intervals, Times, clip, join, owned, union
from loopopt.measure.samples import ComputeSamples, compute_samples, named_compute
from loopopt.measure.timeline import MAX_SPANS, timeline
from loopopt.measurement import Breakdown, TimelineSpan
from loopopt.traces import ProcessGroup, RankTrace

NEIGHBOURS = 20
"""Collectives of a rank, the most exposed ones, for which the compute before and after is noted."""

_EMPTY = Breakdown(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the size of a summary.

    Attributes:
        samples: durations kept for each compute key; medians and quartiles of more are taken from as many evenly
            spaced ones.
        spans: spans of the timeline; 0 for none.
    """

    samples: int = 512
    spans: int = MAX_SPANS


@dataclass(frozen=True, eq=False, slots=True)
class RankSummary:
    """What one rank's trace says.

    Attributes:
        path, rank, world_size, backend, host, device, groups: as in `RankTrace`.
        events, dropped: kept events, and those of a kept category that could not be used.
        start_ns, end_ns: first start and last end of any kept event, nanoseconds since the epoch; 0 if none.
        steps: whole steps that were asked for, by time.
        total: the window, or the steps that were asked for.
        per_step: one for each of `steps`.
        collectives: every collective of the window, also outside of the steps that were asked for: they are
            needed to line up the ranks.
        neighbours: index of a collective -> compute (before, after) its exposed stretch.
        compute: durations by key.
        timeline: spans of the last whole step.
    """

    path: str
    rank: int | None
    world_size: int
    backend: str
    host: str
    device: str
    groups: Mapping[str, ProcessGroup]
    events: int
    dropped: int
    start_ns: int
    end_ns: int
    steps: tuple[Step, ...]
    total: Breakdown
    per_step: tuple[Breakdown, ...]
    collectives: Collectives
    neighbours: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    compute: ComputeSamples = field(default_factory=ComputeSamples)
    timeline: tuple[TimelineSpan, ...] = ()


def summarize(
    trace: RankTrace,
    *,
    rank: int | None = None,
    selection: Selection | None = None,
    limits: Limits | None = None,
) -> RankSummary:
    """Measure one rank.

    Args:
        trace: the rank's trace.
        rank: what to take it for if the trace does not say; that matters only for telling its process groups.
        selection: which steps count. Without any step of that number the rank has none, and all its times are 0.
        limits: bounds on the result's size.
    """
    limits = limits or Limits()
    wanted = selection.steps if selection is not None else None
    number = trace.rank if trace.rank is not None else rank
    steps = find_steps(trace)
    activity = find_activity(trace)
    instances = find_instances(trace, activity, number or 0)
    if wanted is None:
        spans = [(activity.start_ns, activity.end_ns)] if len(trace) else []
    else:
        steps = tuple(s for s in steps if s.number in wanted)
        spans = [(s.start_ns, s.end_ns) for s in steps]
    total = added(breakdowns(activity, spans)) if spans else _EMPTY
    per_step = breakdowns(activity, [(s.start_ns, s.end_ns) for s in steps]) if steps else []
    within = union(*_edges(spans)) if wanted is not None else None
    exposed = exposed_shares(trace, activity, within)
    collectives = collectives_of(instances, exposed, _inside(trace.start_ns[activity.collective_rows], within))
    drawn = timeline(trace, activity, instances, steps[-1], limits.spans) if steps and limits.spans else ()
    return RankSummary(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        backend=trace.backend,
        host=trace.host,
        device=getattr(trace, "device", ""),
        groups=trace.groups,
        events=len(trace),
        dropped=getattr(trace, "dropped", 0),
        start_ns=activity.start_ns,
        end_ns=activity.end_ns,
        steps=steps,
        total=total,
        per_step=tuple(per_step),
        collectives=collectives,
        neighbours=_neighbours(trace, activity, instances, exposed),
        compute=compute_samples(trace, activity, within, limits.samples),
        timeline=drawn,
    )


def _edges(spans: Sequence[tuple[int, int]]) -> tuple[Times, Times]:
    return np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64)


def _inside(times: Times, within: Intervals | None) -> NDArray[np.bool_]:
    if within is None:
        return np.ones(len(times), bool)
    return within.within(times, times + 1) > 0


def _neighbours(
    trace: RankTrace, activity: Activity, instances: Sequence[Instance], exposed: Times
) -> dict[int, tuple[str, str]]:
    """Compute that ended last before, and began first after, the exposed stretch of the most exposed collectives."""
    worst = np.argsort(-exposed, kind="stable")[:NEIGHBOURS]
    worst = worst[exposed[worst] > 0]
    if not len(worst):
        return {}
    rows = named_compute(trace, activity)
    starts: Times = trace.start_ns[rows]
    ends: Times = starts + trace.duration_ns[rows]
    by_end = np.argsort(ends, kind="stable")
    own_starts, own_ends = owned(*_edges([(i.start_ns, i.end_ns) for i in instances]))
    found: dict[int, tuple[str, str]] = {}
    for index in worst.tolist():
        bare = clip(activity.exposed, int(own_starts[index]), int(own_ends[index]))
        if not len(bare):
            continue
        before = int(np.searchsorted(ends[by_end], bare.starts[0], side="right")) - 1
        after = int(np.searchsorted(starts, bare.ends[-1], side="left"))
        found[index] = (
            trace.names[trace.name[rows[by_end[before]]]] if before >= 0 else "",
            trace.names[trace.name[rows[after]]] if after < len(rows) else "",
        )
    return found


def window_of(summaries: Sequence[RankSummary]) -> Intervals:
    """The instants any of the ranks was traced."""
    return join(*(union(*_edges([(s.start_ns, s.end_ns)])) for s in summaries))
