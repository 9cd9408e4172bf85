"""The traces of one window -> one `WindowMeasurement`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from loopopt.errors import TraceError
from loopopt.measure.activity import Activity, Step, find_activity, find_steps
from loopopt.measure.breakdown import NS_PER_US, breakdowns, exposed_shares
from loopopt.measure.groups import resolve_groups
from loopopt.measure.instances import Instance, find_instances
from loopopt.measure.matching import Matching, RankInstances, match_ranks
from loopopt.measure.table import collective_curves, compute_durations, compute_samples
from loopopt.measure.timeline import timeline
from loopopt.measurement import Breakdown, CollectiveTotals, RankMeasurement, WindowMeasurement
from loopopt.timing import TimingTable
from loopopt.traces import RankTrace

_EMPTY = Breakdown(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def measure_window(traces: Sequence[RankTrace], *, fingerprint: dict[str, str] | None = None) -> WindowMeasurement:
    """Measure the traces of one window, one per rank, in any order.

    A rank the trace does not name gets the lowest free number, with a note.

    Args:
        traces: one per rank; ranks may be missing, then collectives they take part in stay unmatched.
        fingerprint: hardware and software the numbers belong to, kept in the table.

    Returns:
        Breakdowns per rank and step, totals per collective, and the timing table.

    Raises:
        TraceError: no trace, the same rank twice, or traces of jobs of different sizes.
    """
    notes: list[str] = []
    by_rank = _by_rank(traces, notes)
    activities = {rank: find_activity(trace) for rank, trace in by_rank.items()}
    steps = {rank: find_steps(trace) for rank, trace in by_rank.items()}
    instances = resolve_groups(
        {rank: find_instances(trace, activities[rank], rank) for rank, trace in by_rank.items()},
        {rank: trace.groups for rank, trace in by_rank.items()},
    )
    matching = match_ranks(
        {rank: RankInstances(trace.host, instances[rank], steps[rank]) for rank, trace in by_rank.items()}
    )
    notes += matching.notes
    for rank, trace in by_rank.items():
        if not len(trace):
            notes.append(f"rank {rank}: {trace.path} holds no events that can be measured.")
        elif not steps[rank]:
            notes.append(f"rank {rank}: no step marks, so there is no breakdown per step.")
    waits = _waits(matching)
    table = TimingTable(
        collectives=collective_curves(instances, matching),
        compute=compute_durations([compute_samples(trace, activities[rank]) for rank, trace in by_rank.items()]),
        fingerprint=dict(fingerprint or {}),
    )
    ranks = tuple(
        _rank(rank, trace, activities[rank], steps[rank], instances[rank], waits) for rank, trace in by_rank.items()
    )
    return WindowMeasurement(ranks, table, len(matching.matches), matching.unmatched, tuple(notes))


def _by_rank(traces: Sequence[RankTrace], notes: list[str]) -> dict[int, RankTrace]:
    if not traces:
        raise TraceError("(no file)", "a window needs the trace of at least one rank")
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in found:
            raise TraceError(trace.path, f"rank {trace.rank} again; {found[trace.rank].path} already is that rank's")
        found[trace.rank] = trace
    for trace in traces:
        if trace.rank is None:
            rank = next(r for r in range(len(traces)) if r not in found)
            found[rank] = trace
            notes.append(f"{trace.path} does not say which rank it is; taken for rank {rank}.")
    sizes = {t.world_size: t for t in traces if t.world_size}
    if len(sizes) > 1:
        (first, a), (second, b) = sorted(sizes.items())[:2]
        raise TraceError(b.path, f"from a job of {second} ranks, but {a.path} is from one of {first}: not one window")
    outside = [r for r, t in found.items() if t.world_size and r >= t.world_size]
    if outside:
        trace = found[outside[0]]
        raise TraceError(trace.path, f"rank {outside[0]} in a job of {trace.world_size} ranks")
    return dict(sorted(found.items()))


def _waits(matching: Matching) -> dict[tuple[int, int], tuple[int, int]]:
    """(skew, transfer) in ns of each matched (rank, index)."""
    return {
        place: (skew, transfer)
        for match in matching.matches
        for place, skew, transfer in zip(match.places, match.skews_ns, match.transfers_ns, strict=True)
    }


def _rank(
    rank: int,
    trace: RankTrace,
    activity: Activity,
    steps: tuple[Step, ...],
    instances: Sequence[Instance],
    waits: Mapping[tuple[int, int], tuple[int, int]],
) -> RankMeasurement:
    if not len(trace):
        return RankMeasurement(rank, _EMPTY)
    total, *per_step = breakdowns(
        activity, [(activity.start_ns, activity.end_ns), *((s.start_ns, s.end_ns) for s in steps)]
    )
    return RankMeasurement(
        rank=rank,
        total=total,
        steps=tuple(per_step),
        collectives=_totals(rank, instances, exposed_shares(trace, activity).tolist(), waits),
        timeline=timeline(trace, activity, instances, steps[-1]) if steps else (),
    )


def _totals(
    rank: int,
    instances: Sequence[Instance],
    exposed_ns: Sequence[int],
    waits: Mapping[tuple[int, int], tuple[int, int]],
) -> tuple[CollectiveTotals, ...]:
    sums: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0] * 6)
    for index, (it, exposed) in enumerate(zip(instances, exposed_ns, strict=True)):
        skew, transfer = waits.get((rank, index), (0, 0))
        values = (1, it.message_bytes, it.end_ns - it.start_ns, transfer, skew, exposed)
        key = (it.kind, it.group, it.group_size)
        sums[key] = [known + value for known, value in zip(sums[key], values, strict=True)]
    return tuple(
        CollectiveTotals(
            kind=kind,
            group=group,
            group_size=group_size,
            count=total[0],
            message_bytes=total[1],
            duration_us=total[2] / NS_PER_US,
            transfer_us=total[3] / NS_PER_US,
            skew_us=total[4] / NS_PER_US,
            exposed_us=total[5] / NS_PER_US,
        )
        for (kind, group, group_size), total in sorted(sums.items())
    )
