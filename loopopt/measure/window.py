"""The traces of one window -> one `WindowMeasurement`: `summarize` each, then `merge_ranks`."""

from __future__ import annotations

from collections.abc import Sequence

from loopopt.measure.merge import merge_ranks
from loopopt.measure.summary import RankSummary, summarize
from loopopt.measurement import WindowMeasurement
from loopopt.traces import RankTrace


def measure_window(traces: Sequence[RankTrace], *, fingerprint: dict[str, str] | None = None) -> WindowMeasurement:
    """Measure the traces of one window, one per rank, in any order.

    Args:
        traces: one per rank; ranks may be missing, then collectives they take part in stay unmatched. A rank the
            trace does not name gets the lowest free number, with a note.
        fingerprint: hardware and software the numbers belong to, kept in the table.

    Returns:
        Breakdowns per rank and step, totals per collective, and the timing table.

    Raises:
        TraceError: no trace, the same rank twice, or traces of jobs of different sizes.
    """
    return merge_ranks(summarize_window(traces), fingerprint=fingerprint).measurement


def summarize_window(traces: Sequence[RankTrace]) -> list[RankSummary]:
    """The half of `measure_window` that needs no other rank; a rank the trace does not name gets a free number."""
    taken = {trace.rank for trace in traces}
    free = iter(r for r in range(2 * len(traces) + 1) if r not in taken)
    return [summarize(trace, rank=trace.rank if trace.rank is not None else next(free, None)) for trace in traces]
