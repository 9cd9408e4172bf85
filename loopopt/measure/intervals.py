"""Exact arithmetic on sets of intervals of int64 time.

    a            |----)      |----)          [0,5) [11,16)
    b               |----------)             [3,13)
    union        |----------------)          [0,16)
    a minus b    |--)          |--)          [0,3) [13,16)

An interval is half open; one of no length holds nothing. All functions are pure and work in O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Intervals:
    """A set of instants, as intervals that are sorted, not empty, and neither overlap nor touch.

    Make one with `union`; the constructor does not check.

    Attributes:
        starts: int64 (n,), rising.
        ends: int64 (n,), `starts < ends`, and `ends[i] < starts[i + 1]`.
    """

    starts: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    ends: Times = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def length(self) -> int:
        """Summed length."""
        return int((self.ends - self.starts).sum())

    def before(self, times: Times) -> Times:
        """Length of the set before each time; int64, the shape of `times`.

        `s.before(b) - s.before(a)` is the part of the set within [a, b).
        """
        if not len(self):
            return np.zeros(np.shape(times), np.int64)
        sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.ends - self.starts)))
        place = np.searchsorted(self.starts, times, side="right")
        last = np.maximum(place - 1, 0)
        inside = np.minimum(times, self.ends[last]) - self.starts[last]
        result: Times = np.where(place > 0, sums[last] + inside, 0)
        return result

    def within(self, starts: Times, ends: Times) -> Times:
        """Length of the set within each [start, end); int64, the shape of `starts`."""
        return self.before(ends) - self.before(starts)


def union(starts: Times, ends: Times) -> Intervals:
    """The instants inside any of the intervals, given in any order and overlapping at will; both int64 (n,)."""
    real = ends > starts
    starts, ends = starts[real], ends[real]
    if not len(starts):
        return Intervals()
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    begins = np.concatenate(([True], starts[1:] > reach[:-1]))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    return Intervals(starts[first], reach[last])


def join(*sets: Intervals) -> Intervals:
    """The instants in any of the sets."""
    if not sets:
        return Intervals()
    return union(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The instants in both sets."""
    return _combine(a, b, 2)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The instants in `a` and not in `b`."""
    if not len(a) or not len(b):
        return a
    # a minus b is a and the gaps of b within a's reach.
    low, high = min(a.starts[0], b.starts[0]) - 1, max(a.ends[-1], b.ends[-1]) + 1
    gaps = Intervals(np.concatenate(([low], b.ends)), np.concatenate((b.starts, [high])))
    return intersect(a, gaps)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of the set within [start, end)."""
    starts, ends = np.maximum(a.starts, start), np.minimum(a.ends, end)
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])


def _combine(a: Intervals, b: Intervals, depth: int) -> Intervals:
    """The instants covered by `depth` of the two sets, by a sweep over all edges."""
    if not len(a) or not len(b):
        return Intervals()
    edges = np.concatenate((a.starts, b.starts, a.ends, b.ends))
    steps = np.ones(len(edges), np.int64)
    steps[len(a) + len(b) :] = -1
    # At one instant ends come before starts, so that touching intervals do not count as overlapping.
    order = np.lexsort((steps, edges))
    edges = edges[order]
    level = np.cumsum(steps[order])
    inside = np.flatnonzero(level[:-1] >= depth)
    return union(edges[inside], edges[inside + 1])


def owned(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Divide the union among the intervals: each instant goes to the earliest-started interval that holds it.

        1  |-------)            owns [0,8)
        2     |--------)        owns [8,12)
        3       |--)            owns nothing

    Ties go to the one that comes first in the arrays.

    Args:
        starts, ends: int64 (n,).

    Returns:
        The owned start and end of each, int64 (n,); equal where nothing is owned. The owned parts are disjoint
        and together are the union.
    """
    order = np.argsort(starts, kind="stable")
    begin, end = starts[order], ends[order]
    if len(begin):
        reach = np.maximum.accumulate(end)
        begin = begin.copy()
        begin[1:] = np.maximum(begin[1:], reach[:-1])
    end = np.maximum(begin, end)
    own_start, own_end = np.empty_like(begin), np.empty_like(end)
    own_start[order], own_end[order] = begin, end
    return own_start, own_end
