"""Spans of one step for drawing, bounded in number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopopt.measure.activity import Activity, Step
from loopopt.measure.breakdown import NS_PER_US
from loopopt.measure.instances import Instance
from loopopt.measure.intervals import Intervals, Times, clip, owned, union
from loopopt.measurement import TimelineSpan
from loopopt.traces import RankTrace

MAX_SPANS = 2000
"""Bound on the spans of one timeline; a third of it for each lane."""


def timeline(
    trace: RankTrace, activity: Activity, instances: Sequence[Instance], step: Step, limit: int = MAX_SPANS
) -> tuple[TimelineSpan, ...]:
    """Lanes "compute", "communication" and "exposed" of a step, microseconds from its start.

    Where a lane has too many spans the shortest gaps are closed until it fits: a drawing, not a measurement.
    """
    share = limit // 3
    spans = _draw("compute", "compute", clip(activity.compute, step.start_ns, step.end_ns), step, share)
    rows = activity.collective_rows
    starts: Times = np.maximum(trace.start_ns[rows], step.start_ns)
    ends: Times = np.minimum(trace.start_ns[rows] + trace.duration_ns[rows], step.end_ns)
    spans += _named(instances, starts, ends, "communication", step, share)
    own_starts, own_ends = owned(starts, np.maximum(starts, ends))
    pieces: list[tuple[int, int, str]] = []
    for start, end, instance in zip(own_starts.tolist(), own_ends.tolist(), instances, strict=True):
        if end > start:
            bare = clip(activity.exposed, start, end)
            pieces += [(a, b, instance.kind) for a, b in zip(bare.starts.tolist(), bare.ends.tolist(), strict=True)]
    pieces.sort()
    if len(pieces) > share:
        kinds = sorted({kind for _, _, kind in pieces})
        for kind in kinds:
            mine = union(*(np.array([p[i] for p in pieces if p[2] == kind], np.int64) for i in (0, 1)))
            spans += _draw("exposed", kind, mine, step, max(share // len(kinds), 1))
    else:
        spans += [TimelineSpan("exposed", kind, _us(a, step), _us(b, step)) for a, b, kind in pieces]
    return tuple(spans)


def coarsen(found: Intervals, limit: int) -> Intervals:
    """At most `limit` intervals that cover the set, made by closing the shortest gaps."""
    if len(found) <= limit:
        return found
    gaps = found.starts[1:] - found.ends[:-1]
    kept = np.sort(np.argsort(-gaps, kind="stable")[: limit - 1])
    return Intervals(
        np.concatenate((found.starts[:1], found.starts[1:][kept])),
        np.concatenate((found.ends[:-1][kept], found.ends[-1:])),
    )


def _named(
    instances: Sequence[Instance], starts: Times, ends: Times, lane: str, step: Step, limit: int
) -> list[TimelineSpan]:
    inside: list[int] = np.flatnonzero(ends > starts).tolist()
    if len(inside) <= limit:
        return [
            TimelineSpan(lane, instances[i].kind, _us(int(starts[i]), step), _us(int(ends[i]), step)) for i in inside
        ]
    spans: list[TimelineSpan] = []
    kinds = sorted({instances[i].kind for i in inside})
    for kind in kinds:
        mine = np.array([i for i in inside if instances[i].kind == kind], np.intp)
        spans += _draw(lane, kind, union(starts[mine], ends[mine]), step, max(limit // len(kinds), 1))
    return spans


def _draw(lane: str, name: str, found: Intervals, step: Step, limit: int) -> list[TimelineSpan]:
    bounded = coarsen(found, limit)
    pairs = zip(bounded.starts.tolist(), bounded.ends.tolist(), strict=True)
    return [TimelineSpan(lane, name, _us(a, step), _us(b, step)) for a, b in pairs]


def _us(time_ns: int, step: Step) -> float:
    return (time_ns - step.start_ns) / NS_PER_US
