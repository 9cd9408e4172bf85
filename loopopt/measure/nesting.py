"""Which event on a thread an instant lies in, and which events are outermost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loopopt.measure.intervals import Times
from loopopt.traces import RankTrace

Rows = NDArray[np.intp]


def outermost(trace: RankTrace, rows: Rows) -> Rows:
    """The given rows that lie inside no other given row of the same thread, by start.

    Rows must be by (start, longest first), as all rows of a `RankTrace` are.
    """
    kept: list[Rows] = []
    for thread in np.unique(trace.thread[rows]):
        mine = rows[trace.thread[rows] == thread]
        ends = trace.end_ns[mine]
        reach = np.maximum.accumulate(ends)
        inside = np.zeros(len(mine), bool)
        inside[1:] = (trace.start_ns[mine[1:]] < reach[:-1]) & (ends[1:] <= reach[:-1])
        kept.append(mine[~inside])
    return np.sort(np.concatenate(kept)) if kept else rows


def enclosing(trace: RankTrace, rows: Rows, threads: NDArray[np.int32], times: Times) -> Rows:
    """For each (thread, time) the given row that holds it, -1 if none.

    Args:
        rows: rows that do not overlap on a thread, by start.
        threads, times: what to look for, same length.
    """
    found = np.full(len(times), -1, np.intp)
    for thread in np.unique(threads):
        mine = rows[trace.thread[rows] == thread]
        if not len(mine):
            continue
        asked = np.flatnonzero(threads == thread)
        place = np.searchsorted(trace.start_ns[mine], times[asked], side="right") - 1
        candidate = mine[np.maximum(place, 0)]
        inside = (place >= 0) & (times[asked] <= trace.end_ns[candidate])
        found[asked[inside]] = candidate[inside]
    return found
