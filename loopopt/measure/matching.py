"""The same collective on different ranks: who arrived last, and how long the transfer took from then on.

    rank 0   |== waits ======|== transfer ==|        skew = last arrival - own arrival
    rank 1                   |== transfer ==|        transfer = own completion - last arrival
                             ^ last arrival

Instances are matched by (process group, sequence number) where the trace has one, else by order within (kind,
group). Ranks need not begin their window at the same instance: the offset between two ranks is the one at which
most message sizes agree and, among offsets that agree equally well (training repeats itself), the completions
lie nearest in time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loopopt.measure import naming
from loopopt.measure.activity import Step
from loopopt.measure.columns import Collectives, GroupKey
from loopopt.measure.intervals import Times
from loopopt.traces import NO_ID

_TOLERANCE_NS = 100_000
"""A completion may precede the last arrival by this much (clocks, event resolution) before a match is refused."""

_MAX_PAIRS = 4_000_000
"""Bound on comparisons when looking for an offset; beyond, only offsets near the one time suggests are tried."""

_SHORT = 300
"""Instances up to which every offset is tried at once."""

_REACH = 40
"""Offsets tried on either side of the one that the completion times suggest."""

_AGREEMENT_SLACK = 0.02
"""Offsets whose share of agreeing sizes is this near the best are told apart by time."""

_LEAST_CLOCK_SAMPLES = 3
_NAMED_FLOOR_NS = 20_000
_UNNAMED_FLOOR_NS = 200_000
"""Clock differences below are not corrected: ranks complete a collective a little apart even on one clock. Ranks
that do not name their host may well be on one."""

MAX_NOTES = 40

UNKNOWN_GROUP = "process group unknown"
MISSING_RANK = "a member's trace is missing or shows none"
NOT_EVERYWHERE = "not seen on every member within its window"
CONTRADICTION = "completed on one rank before another had arrived"
"""Why an instance could not be matched."""


@dataclass(frozen=True, eq=False, slots=True)
class Matched:
    """Collectives of one kind on one group that were found on all its ranks. Nanoseconds.

    Attributes:
        kind, group: what and among whom.
        ranks: int32 (members,), rising.
        index: int32 (members, n), which of the rank's collectives.
        skews_ns: int64 (members, n), each member's waiting: own arrival to last arrival.
        transfers_ns: int64 (members, n), each member's own completion minus the last arrival, never negative.
        completion_ns: int64 (n,), last completion minus last arrival.
        last: int32 (n,), position in `ranks` of the last to arrive.
        margin_ns: int64 (n,), by how much it was later than the last but one.
        message_bytes: int64 (n,), largest of any member.
        dtypes: what `dtype` is an index into.
        dtype: int16 (n,).
        chosen: bool (n,), whether it began within the steps that were asked for, on the first member.
    """

    kind: str
    group: GroupKey
    ranks: NDArray[np.int32]
    index: NDArray[np.int32]
    skews_ns: Times
    transfers_ns: Times
    completion_ns: Times
    last: NDArray[np.int32]
    margin_ns: Times
    message_bytes: Times
    dtypes: tuple[str, ...]
    dtype: NDArray[np.int16]
    chosen: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.completion_ns)


@dataclass(frozen=True, slots=True)
class Matching:
    """Result of `match_ranks`.

    Attributes:
        matched: one for each (kind, group).
        unmatched: why instances were left out -> how many, over all ranks.
        clock_ns: correction to subtract from each rank's times.
        scatter_ns: what the correction of each rank may still be wrong by; 0 for ranks that share the first one's
            clock.
        notes: why instances were left out, one sentence each.
    """

    matched: tuple[Matched, ...]
    unmatched: Mapping[str, int]
    clock_ns: Mapping[int, int]
    scatter_ns: Mapping[int, int]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return sum(len(m) for m in self.matched)


@dataclass(frozen=True, eq=False, slots=True)
class RankColumns:
    """What matching needs of one rank."""

    host: str
    collectives: Collectives
    steps: tuple[Step, ...] = field(default=())


@dataclass(frozen=True, eq=False, slots=True)
class _Lined:
    """One (kind, group) with its instances lined up, before their times are looked at.

    Attributes:
        index: int32 (members, n).
    """

    kind: str
    group: GroupKey
    ranks: tuple[int, ...]
    index: NDArray[np.int32]


def match_ranks(ranks: Mapping[int, RankColumns]) -> Matching:
    """Match every rank's collectives; see the module. Work and memory grow linearly with ranks and collectives."""
    clock = _rough_clock(ranks)
    reasons: Counter[str] = Counter()
    buckets, notes = _buckets(ranks, reasons)
    lined = [_line_up(kind, group, bucket, ranks, clock) for (kind, group), bucket in buckets]
    for (_, bucket), line in zip(buckets, lined, strict=True):
        left = sum(len(i) for i in bucket.values()) - line.index.size
        if left:
            reasons[NOT_EVERYWHERE] += left
    clock, scatter = _fine_clock(ranks, lined, clock)
    matched = []
    refused = 0
    for line in lined:
        found, bad = _timed(line, ranks, clock)
        if bad:
            refused += bad
            reasons[CONTRADICTION] += bad * len(line.ranks)
        if len(found):
            matched.append(found)
    if refused:
        notes.append(
            f"{refused} collectives were left out because a rank completed them before another had arrived: "
            "the ranks' instances could not be lined up there."
        )
    return Matching(tuple(matched), dict(reasons), clock, scatter, tuple(notes))


# ---------------------------------------------------------------- who belongs together

_Bucket = dict[int, NDArray[np.int32]]


def _buckets(
    ranks: Mapping[int, RankColumns], reasons: Counter[str]
) -> tuple[list[tuple[tuple[str, GroupKey], _Bucket]], list[str]]:
    """Per (kind, group) each member's instances in launch order; groups that are not all here are left out."""
    found: dict[tuple[str, GroupKey], _Bucket] = defaultdict(dict)
    notes: list[str] = []
    for rank, data in sorted(ranks.items()):
        all_of = data.collectives
        order = np.argsort(all_of.order_ns, kind="stable").astype(np.int32)
        label = all_of.kind[order].astype(np.int64) * (len(all_of.groups) + 1) + all_of.group[order]
        for value in np.unique(label).tolist():
            kind, group = divmod(value, len(all_of.groups) + 1)
            mine = order[label == value]
            key = all_of.groups[group]
            if key.members and rank in key.members:
                found[(all_of.kinds[kind], key)][rank] = mine
            else:
                reasons[UNKNOWN_GROUP] += len(mine)
    if reasons[UNKNOWN_GROUP]:
        notes.append(
            f"{reasons[UNKNOWN_GROUP]} collective events belong to a process group the traces do not identify."
        )
    else:
        del reasons[UNKNOWN_GROUP]
    buckets = []
    more = 0
    for (kind, group), bucket in sorted(
        found.items(), key=lambda item: (item[0][0], item[0][1].name, item[0][1].members)
    ):
        missing = [m for m in group.members if m not in bucket]
        if not missing:
            buckets.append(((kind, group), bucket))
            continue
        reasons[MISSING_RANK] += sum(len(i) for i in bucket.values())
        more += len(notes) >= MAX_NOTES
        if len(notes) < MAX_NOTES:
            label_text = f"{kind} on group {group.name!r}" if group.name else kind
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            notes.append(f"{label_text}: no trace or no event of rank {shown}, so its last arrival is unknown.")
    if more:
        notes.append(f"So it is with {more} more.")
    return buckets, notes


def _line_up(
    kind: str, group: GroupKey, bucket: _Bucket, ranks: Mapping[int, RankColumns], clock: Mapping[int, int]
) -> _Lined:
    members = tuple(sorted(bucket))
    seqs = {rank: ranks[rank].collectives.seq[bucket[rank]] for rank in members}
    numbered = all((s != NO_ID).all() for s in seqs.values())
    keys = _numbered(seqs) if numbered else _by_order(bucket, ranks, clock)
    # A key occurs once on a rank at most, so one that occurs as often as there are members is everywhere.
    values, counts = np.unique(np.concatenate([keys[r] for r in members]), return_counts=True)
    everywhere = values[counts == len(members)]
    index = np.empty((len(members), len(everywhere)), np.int32)
    for row, rank in enumerate(members):
        order = np.argsort(keys[rank], kind="stable")
        place = np.searchsorted(keys[rank][order], everywhere)
        index[row] = bucket[rank][order[place]]
    return _Lined(kind, group, members, index)


def _numbered(seqs: Mapping[int, Times]) -> dict[int, Times]:
    """Keys for (sequence number, how many of that number came before).

    Grouped point-to-point kernels share a number: the k-th of one number is the k-th everywhere.
    """
    # Numbers are made small first, so that the product below cannot overflow whatever a trace says.
    dense = np.unique(np.concatenate(list(seqs.values())), return_inverse=True)[1].astype(np.int64)
    numbers = dict(zip(seqs, np.split(dense, np.cumsum([len(s) for s in seqs.values()])[:-1]), strict=True))
    earlier: dict[int, Times] = {}
    for rank, mine in numbers.items():
        order = np.argsort(mine, kind="stable")
        begins = np.concatenate(([True], np.diff(mine[order]) != 0)) if len(mine) else np.zeros(0, bool)
        first = np.maximum.accumulate(np.where(begins, np.arange(len(mine)), 0))
        earlier[rank] = np.empty(len(mine), np.int64)
        earlier[rank][order] = np.arange(len(mine)) - first
    most = 1 + max(int(e.max(initial=0)) for e in earlier.values())
    return {rank: numbers[rank] * most + earlier[rank] for rank in seqs}


def _by_order(bucket: _Bucket, ranks: Mapping[int, RankColumns], clock: Mapping[int, int]) -> dict[int, Times]:
    # The longest sequence is the best ruler to lay the others against.
    reference = max(sorted(bucket), key=lambda r: len(bucket[r]))
    ends = {r: ranks[r].collectives.end_ns[i] - clock[r] for r, i in bucket.items()}
    sizes = {r: ranks[r].collectives.message_bytes[i] for r, i in bucket.items()}
    keys: dict[int, Times] = {}
    for rank, indices in bucket.items():
        shift = 0 if rank == reference else best_shift(ends[reference], sizes[reference], ends[rank], sizes[rank])
        keys[rank] = np.arange(len(indices), dtype=np.int64) - shift
    return keys


def best_shift(
    ends: NDArray[np.int64], sizes: NDArray[np.int64], other_ends: NDArray[np.int64], other_sizes: NDArray[np.int64]
) -> int:
    """The s for which `ends[i]` and `other_ends[i + s]` are the same collectives.

    Args:
        ends, other_ends: completion times, ns, in launch order.
        sizes, other_sizes: message bytes, 0 where unknown (agrees with any).
    """
    n, m = len(ends), len(other_ends)
    least = max(1, (min(n, m) + 1) // 2)
    low, high = -(n - least), m - least
    if min(n, m) > _SHORT:
        # The completions tell about where to look; only if the sizes disagree there is every offset tried.
        place = np.searchsorted(other_ends, ends) - np.arange(n)
        guess = int(np.median(place))
        near = _best_of(
            range(max(low, guess - _REACH), min(high, guess + _REACH) + 1), ends, sizes, other_ends, other_sizes
        )
        if near is not None and (near[0] >= 1.0 - _AGREEMENT_SLACK or n * m > _MAX_PAIRS):
            return near[1]
    found = _best_of(range(low, high + 1), ends, sizes, other_ends, other_sizes)
    return found[1] if found is not None else 0


def _best_of(
    shifts: range,
    ends: NDArray[np.int64],
    sizes: NDArray[np.int64],
    other_ends: NDArray[np.int64],
    other_sizes: NDArray[np.int64],
) -> tuple[float, int] | None:
    """(share of agreeing sizes, offset) of the best offset; None without any."""
    n, m = len(ends), len(other_ends)
    best: list[tuple[float, float, int]] = []
    for shift in shifts:
        a, b = max(0, -shift), max(0, shift)
        length = min(n - a, m - b)
        x, y = sizes[a : a + length], other_sizes[b : b + length]
        agreement = float(((x == y) | (x == 0) | (y == 0)).mean())
        apart = float(np.median(np.abs(ends[a : a + length] - other_ends[b : b + length])))
        best.append((agreement, apart, shift))
    top = max((agreement for agreement, _, _ in best), default=0.0)
    near = [(apart, abs(shift), shift) for agreement, apart, shift in best if agreement >= top - _AGREEMENT_SLACK]
    return (top, min(near)[2]) if near else None


# ---------------------------------------------------------------- time


def _timed(line: _Lined, ranks: Mapping[int, RankColumns], clock: Mapping[int, int]) -> tuple[Matched, int]:
    """Skew and transfer of the collectives of one (kind, group), and how many were refused.

    Refused are those whose times contradict that they are one collective.
    """
    of = [ranks[rank].collectives for rank in line.ranks]
    corrections = [clock[rank] for rank in line.ranks]
    starts = np.stack([c.start_ns[i] - t for c, i, t in zip(of, line.index, corrections, strict=True)])
    ends = np.stack([c.end_ns[i] - t for c, i, t in zip(of, line.index, corrections, strict=True)])
    index = line.index
    bad = 0
    if line.kind in naming.SYNCHRONOUS and index.size:
        fine = ends.min(axis=0) >= starts.max(axis=0) - _TOLERANCE_NS
        bad = int((~fine).sum())
        starts, ends, index = starts[:, fine], ends[:, fine], index[:, fine]
    last = starts.argmax(axis=0) if index.size else np.zeros(index.shape[1], np.intp)
    arrival = starts.max(axis=0) if index.size else np.zeros(index.shape[1], np.int64)
    if len(line.ranks) > 1 and index.size:
        margin = arrival - np.partition(starts, len(line.ranks) - 2, axis=0)[-2]
    else:
        margin = np.zeros(index.shape[1], np.int64)
    # Waiting and transfer are parts of a rank's own interval, so that they add up to it.
    skews = np.minimum(arrival, ends) - starts
    completion = np.maximum(ends.max(axis=0) - arrival, 0) if index.size else arrival
    message = np.zeros(index.shape[1], np.int64)
    for columns, row in zip(of, index, strict=True):
        message = np.maximum(message, columns.message_bytes[row])
    first = of[0]
    return Matched(
        kind=line.kind,
        group=line.group,
        ranks=np.array(line.ranks, np.int32),
        index=index,
        skews_ns=skews,
        transfers_ns=ends - starts - skews,
        completion_ns=completion,
        last=last.astype(np.int32),
        margin_ns=margin,
        message_bytes=message,
        dtypes=first.dtypes,
        dtype=first.dtype[index[0]],
        chosen=first.chosen[index[0]],
    ), bad


def _rough_clock(ranks: Mapping[int, RankColumns]) -> dict[int, int]:
    """First guess of each rank's clock against the lowest rank's, ns: zero on one host, else from step marks.

    Steps carry their number, and collectives keep ranks within about a step of each other; a difference of
    less than a step therefore says nothing.
    """
    reference = min(ranks)
    clock = {}
    for rank, data in ranks.items():
        clock[rank] = 0
        mine = ranks[reference]
        if rank == reference or (data.host and data.host == mine.host):
            continue
        ends = {s.number: s.end_ns for s in mine.steps}
        apart = [s.end_ns - ends[s.number] for s in data.steps if s.number in ends]
        if not apart:
            continue
        typical = int(np.median([s.end_ns - s.start_ns for s in data.steps]))
        difference = int(np.median(np.array(apart, np.int64)))
        if abs(difference) > typical:
            clock[rank] = difference
    return clock


def _fine_clock(
    ranks: Mapping[int, RankColumns], lined: Sequence[_Lined], rough: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Clock corrections from completions, which are simultaneous on all ranks of a synchronous collective.

    Hosts are linked by the collectives they share, from the lowest rank's on; in each collective every host is laid
    against the first. A correction must stand out of the scatter of the completions to be believed; ranks on one
    host share a clock.

    Returns:
        (correction, what it may still be wrong by) of each rank, ns.
    """
    host_of = {rank: data.host or f"rank {rank}" for rank, data in ranks.items()}
    named = {host_of[rank] for rank, data in ranks.items() if data.host}
    apart: dict[tuple[str, str], list[Times]] = defaultdict(list)
    for line in lined:
        if line.kind not in naming.SYNCHRONOUS or not line.index.size:
            continue
        ends: dict[str, list[Times]] = defaultdict(list)
        for rank, row in zip(line.ranks, line.index, strict=True):
            ends[host_of[rank]].append(ranks[rank].collectives.end_ns[row] - rough[rank])
        first, *others = ends
        # Relative to one of them: nanoseconds since 1970 have more digits than a float64.
        base = ends[first][0]
        middle = {h: np.median(np.stack([e - base for e in es]), axis=0).astype(np.int64) for h, es in ends.items()}
        for host in others:
            difference = middle[host] - middle[first]
            apart[(first, host)].append(difference)
            apart[(host, first)].append(-difference)
    neighbours: dict[str, list[str]] = defaultdict(list)
    for near, far in sorted(apart):
        neighbours[near].append(far)
    correction, scatter = {}, {}
    for root in [host_of[min(ranks)], *sorted(set(host_of.values()))]:
        if root in correction:
            continue
        correction[root], scatter[root] = 0, 0
        frontier = [root]
        while frontier:
            near = frontier.pop(0)
            for far in neighbours[near]:
                if far in correction:
                    continue
                samples = np.concatenate(apart[(near, far)])
                middle_ns = int(np.median(samples))
                spread = float(np.median(np.abs(samples - middle_ns)))
                floor = _NAMED_FLOOR_NS if {near, far} <= named else _UNNAMED_FLOOR_NS
                stands_out = abs(middle_ns) > max(5 * spread / np.sqrt(len(samples)), floor)
                believable = len(samples) >= _LEAST_CLOCK_SAMPLES and stands_out
                correction[far] = correction[near] + (middle_ns if believable else 0)
                scatter[far] = scatter[near] + int(spread)
                frontier.append(far)
    return (
        {rank: rough[rank] + correction[host_of[rank]] for rank in ranks},
        {rank: scatter[host_of[rank]] for rank in ranks},
    )
