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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loopopt.measure import naming
from loopopt.measure.activity import Step
from loopopt.measure.instances import Instance
from loopopt.traces import NO_ID

_TOLERANCE_NS = 100_000
"""A completion may precede the last arrival by this much (clocks, event resolution) before a match is refused."""

_MAX_PAIRS = 4_000_000
"""Bound on comparisons when looking for an offset; beyond, only offsets near zero are tried."""

_MOST_BYTES = 2**62

_AGREEMENT_SLACK = 0.02
"""Offsets whose share of agreeing sizes is this near the best are told apart by time."""

Place = tuple[int, int]
"""(rank, index among the rank's instances)."""


@dataclass(frozen=True, slots=True)
class Match:
    """One collective on all ranks of its group. Nanoseconds.

    Attributes:
        places: (rank, index of the instance) of each member, by rank.
        skews_ns: each member's waiting, own arrival to last arrival, same order.
        transfers_ns: each member's own completion minus the last arrival, never negative.
        completion_ns: last completion minus last arrival.
    """

    places: tuple[Place, ...]
    skews_ns: tuple[int, ...]
    transfers_ns: tuple[int, ...]
    completion_ns: int


@dataclass(frozen=True, slots=True)
class Matching:
    """Result of `match_ranks`.

    Attributes:
        matches: in order of the first member's start.
        unmatched: instances on any rank that belong to no match.
        clock_ns: correction to subtract from each rank's times.
        notes: why instances were left out, one sentence each.
    """

    matches: tuple[Match, ...]
    unmatched: int
    clock_ns: Mapping[int, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankInstances:
    """What matching needs of one rank."""

    host: str
    instances: Sequence[Instance]
    steps: tuple[Step, ...] = field(default=())


def match_ranks(ranks: Mapping[int, RankInstances]) -> Matching:
    """Match every rank's instances; see the module."""
    clock = _rough_clock(ranks)
    buckets, notes = _buckets(ranks)
    groups = [group for bucket in buckets for group in _match_bucket(bucket, ranks, clock)]
    clock = _fine_clock(ranks, groups, clock)
    matches: list[Match] = []
    refused = 0
    for places in groups:
        match = _timed(places, ranks, clock)
        if match is None:
            refused += 1
        else:
            matches.append(match)
    if refused:
        notes.append(
            f"{refused} collectives were left out because a rank completed them before another had arrived: "
            "the ranks' instances could not be lined up there."
        )
    total = sum(len(r.instances) for r in ranks.values())
    first = [(ranks[m.places[0][0]].instances[m.places[0][1]].start_ns, m) for m in matches]
    first.sort(key=lambda pair: pair[0])
    ordered = tuple(m for _, m in first)
    return Matching(ordered, total - sum(len(m.places) for m in ordered), clock, tuple(notes))


# ---------------------------------------------------------------- who belongs together

_Bucket = dict[int, list[int]]


def _buckets(ranks: Mapping[int, RankInstances]) -> tuple[list[_Bucket], list[str]]:
    """Per (kind, group) each member's instances in launch order; groups that are not all here are left out."""
    found: dict[tuple[str, str, int, tuple[int, ...]], _Bucket] = defaultdict(lambda: defaultdict(list))
    notes: list[str] = []
    nameless = 0
    for rank, data in sorted(ranks.items()):
        order = sorted(range(len(data.instances)), key=lambda i: data.instances[i].order_ns)
        for index in order:
            it = data.instances[index]
            if it.members and rank in it.members:
                found[(it.kind, it.group, it.group_size, it.members)][rank].append(index)
            else:
                nameless += 1
    if nameless:
        notes.append(f"{nameless} collective events belong to a process group the traces do not identify.")
    buckets = []
    for (kind, group, _size, members), bucket in sorted(found.items()):
        missing = [m for m in members if m not in bucket]
        if missing:
            label = f"{kind} on group {group!r}" if group else kind
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            notes.append(f"{label}: no trace or no event of rank {shown}, so its last arrival is unknown.")
        else:
            buckets.append(dict(bucket))
    return buckets, notes


def _match_bucket(bucket: _Bucket, ranks: Mapping[int, RankInstances], clock: Mapping[int, int]) -> list[list[Place]]:
    instances = {rank: [ranks[rank].instances[i] for i in indices] for rank, indices in bucket.items()}
    if all(it.seq != NO_ID for its in instances.values() for it in its):
        keyed = {rank: _by_sequence(its) for rank, its in instances.items()}
    else:
        keyed = _by_order(instances, clock)
    everywhere = set.intersection(*(set(k) for k in keyed.values()))
    return [[(rank, bucket[rank][keyed[rank][key]]) for rank in sorted(keyed)] for key in sorted(everywhere)]


_Keyed = dict[tuple[int, int], int]


def _by_sequence(instances: Sequence[Instance]) -> _Keyed:
    # Grouped point-to-point kernels share a number: the k-th of one number is the k-th everywhere.
    seen: dict[int, int] = defaultdict(int)
    keyed: _Keyed = {}
    for index, it in enumerate(instances):
        keyed[(it.seq, seen[it.seq])] = index
        seen[it.seq] += 1
    return keyed


def _by_order(instances: Mapping[int, Sequence[Instance]], clock: Mapping[int, int]) -> dict[int, _Keyed]:
    # The longest sequence is the best ruler to lay the others against.
    reference = max(sorted(instances), key=lambda r: len(instances[r]))
    ends = {r: np.array([it.end_ns - clock[r] for it in its], np.int64) for r, its in instances.items()}
    sizes = {r: np.array([min(it.message_bytes, _MOST_BYTES) for it in its], np.int64) for r, its in instances.items()}
    keyed: dict[int, _Keyed] = {}
    for rank in instances:
        shift = 0 if rank == reference else best_shift(ends[reference], sizes[reference], ends[rank], sizes[rank])
        keyed[rank] = {(index - shift, 0): index for index in range(len(instances[rank]))}
    return keyed


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
    if n * m > _MAX_PAIRS:
        reach = abs(n - m) + 1000
        low, high = max(low, -reach), min(high, reach)
    best: list[tuple[float, float, int]] = []
    for shift in range(low, high + 1):
        a, b = max(0, -shift), max(0, shift)
        length = min(n - a, m - b)
        x, y = sizes[a : a + length], other_sizes[b : b + length]
        agreement = float(((x == y) | (x == 0) | (y == 0)).mean())
        apart = float(np.median(np.abs(ends[a : a + length] - other_ends[b : b + length])))
        best.append((agreement, apart, shift))
    top = max(agreement for agreement, _, _ in best)
    near = [(apart, abs(shift), shift) for agreement, apart, shift in best if agreement >= top - _AGREEMENT_SLACK]
    return min(near)[2]


# ---------------------------------------------------------------- time


def _timed(places: Sequence[Place], ranks: Mapping[int, RankInstances], clock: Mapping[int, int]) -> Match | None:
    """Skew and transfer of one collective; None if its times contradict it being one."""
    its = [ranks[rank].instances[index] for rank, index in places]
    starts = [it.start_ns - clock[rank] for (rank, _), it in zip(places, its, strict=True)]
    ends = [it.end_ns - clock[rank] for (rank, _), it in zip(places, its, strict=True)]
    arrival = max(starts)
    if its[0].kind in naming.SYNCHRONOUS and min(ends) < arrival - _TOLERANCE_NS:
        return None
    # Waiting and transfer are parts of a rank's own interval, so that they add up to it.
    skews = tuple(min(arrival, end) - start for start, end in zip(starts, ends, strict=True))
    transfers = tuple(end - start - skew for start, end, skew in zip(starts, ends, skews, strict=True))
    return Match(tuple(places), skews, transfers, max(max(ends) - arrival, 0))


def _rough_clock(ranks: Mapping[int, RankInstances]) -> dict[int, int]:
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
    ranks: Mapping[int, RankInstances], groups: Sequence[Sequence[Place]], rough: Mapping[int, int]
) -> dict[int, int]:
    """Clock corrections from completions, which are simultaneous on all ranks of a synchronous collective.

    Hosts are linked by the collectives they share, from the lowest rank on. A correction must stand out of the
    scatter of the completions to be believed; ranks on one host share a clock.
    """
    host_of = {rank: data.host or f"rank {rank}" for rank, data in ranks.items()}
    apart: dict[tuple[str, str], list[int]] = defaultdict(list)
    for places in groups:
        for rank_a, index_a in places:
            for rank_b, index_b in places:
                a, b = ranks[rank_a].instances[index_a], ranks[rank_b].instances[index_b]
                if host_of[rank_a] != host_of[rank_b] and a.kind in naming.SYNCHRONOUS:
                    apart[(host_of[rank_a], host_of[rank_b])].append(
                        (b.end_ns - rough[rank_b]) - (a.end_ns - rough[rank_a])
                    )
    start = host_of[min(ranks)]
    correction = {start: 0}
    frontier = [start]
    while frontier:
        here = frontier.pop(0)
        for (near, far), samples in sorted(apart.items()):
            if near != here or far in correction:
                continue
            values = np.array(samples, np.int64)
            middle = int(np.median(values))
            scatter = float(np.median(np.abs(values - middle)))
            believable = len(values) >= 3 and abs(middle) > max(5 * scatter, 200_000)
            correction[far] = correction[near] + (middle if believable else 0)
            frontier.append(far)
    return {rank: rough[rank] + correction.get(host_of[rank], 0) for rank in ranks}
