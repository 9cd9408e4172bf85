"""Sets of instants -> `Breakdown`s, and the exposed time of each collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from loopopt.measure.activity import Activity
from loopopt.measure.intervals import Intervals, Times, intersect, join, owned, subtract
from loopopt.measurement import Breakdown
from loopopt.traces import RankTrace

NS_PER_US = 1000


def breakdowns(activity: Activity, spans: Sequence[tuple[int, int]]) -> list[Breakdown]:
    """Where the time of each span (start, end; ns) went.

    A kernel counts where it ran: one launched in a step and running after its end is in the next span.
    """
    starts = np.array([s for s, _ in spans], np.int64)
    ends = np.array([e for _, e in spans], np.int64)
    busy = join(activity.communication, activity.compute)
    bare_copies = subtract(activity.copies, busy)

    def within(found: Intervals) -> list[int]:
        return [int(n) for n in found.within(starts, ends)]

    columns = zip(
        (ends - starts).tolist(),
        within(activity.compute),
        within(activity.communication),
        within(activity.exposed),
        within(activity.copies),
        within(bare_copies),
        strict=True,
    )
    return [
        Breakdown(
            span_us=span / NS_PER_US,
            compute_us=compute / NS_PER_US,
            communication_us=communication / NS_PER_US,
            exposed_us=exposed / NS_PER_US,
            memcpy_us=copies / NS_PER_US,
            exposed_memcpy_us=bare / NS_PER_US,
            idle_us=(span - compute - exposed - bare) / NS_PER_US,
        )
        for span, compute, communication, exposed, copies, bare in columns
    ]


def added(parts: Sequence[Breakdown]) -> Breakdown:
    """The sum of breakdowns of spans that do not overlap; at least one."""
    return (
        parts[0] if len(parts) == 1 else Breakdown(*(sum(column) for column in zip(*map(astuple, parts), strict=True)))
    )


def exposed_shares(trace: RankTrace, activity: Activity, within: Intervals | None = None) -> Times:
    """Exposed time of each collective, ns, int64 (len(activity.collective_rows),).

    Args:
        within: only exposed time in this set counts; all of it by default.

    Rule: an exposed instant belongs to the earliest-started collective in flight then (see
    `intervals.owned`), so that the shares add up to the rank's exposed time exactly:

        all_gather      |=========)          own [0,10), exposed [4,10)  -> 6
        reduce_scatter       |=========)     own [10,15), exposed        -> 5
        compute         |===)
        exposed             |----------)     11
    """
    rows = activity.collective_rows
    starts: Times = trace.start_ns[rows]
    exposed = activity.exposed if within is None else intersect(activity.exposed, within)
    return exposed.within(*owned(starts, starts + trace.duration_ns[rows]))
