"""Which process group a gloo collective belongs to, where its events do not say.

PyTorch does not record the group's name on CPU. What is known, in this order:

1. Size. A gather or scatter shows the group's size; if only one group of the rank has that size, it is that one.
2. Thread. Each group has two backend threads of its own: what else ran on a thread tells its group, and a group
   whose threads are all known owns no other.
3. Time. On a mesh the rank is in several groups of one size. Members of one group complete a collective
   together, others do not: of the mesh dimensions (groups of one description on all ranks) the one whose members'
   completions lie clearly nearest is taken. If none stands out the group stays unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from loopopt.measure.instances import Instance
from loopopt.traces import ProcessGroup

_CLEARLY = 0.7
"""The best dimension's median distance must be below this share of the second best's."""

_LEAST_SAMPLES = 6
"""Fewer completions than this decide nothing."""

Groups = Mapping[str, ProcessGroup]
_Class = tuple[str, int, int]

_THREADS_PER_GROUP = 2
"""How many threads PyTorch gives each gloo group."""


def resolve_groups(
    instances: Mapping[int, Sequence[Instance]], groups: Mapping[int, Groups]
) -> dict[int, list[Instance]]:
    """Fill in group, size and members where they can be told; the rest stays as it was.

    Args:
        instances: per rank.
        groups: per rank, the process groups its trace lists.
    """
    found = {rank: _by_thread(rank, its, groups[rank]) for rank, its in instances.items()}
    chosen = _by_time(found, groups)
    result: dict[int, list[Instance]] = {}
    for rank, its in found.items():
        timed = [
            _in_group(it, _described(groups[rank], rank, chosen[_class(it)]))
            if not it.members and _class(it) in chosen
            else it
            for it in its
        ]
        result[rank] = _by_room(rank, _by_thread(rank, timed, groups[rank]), groups[rank])
    return result


def _fitting(groups: Groups, rank: int, size: int) -> list[ProcessGroup]:
    return [g for g in groups.values() if rank in g.ranks and g.size > 1 and size in (0, g.size)]


def _in_group(it: Instance, group: ProcessGroup | None) -> Instance:
    if group is None:
        return it
    # A gather's message is the output, which could not be known without the size.
    grown = group.size if it.kind == "all_gather" and not it.group_size else 1
    return replace(
        it,
        group=group.name,
        group_size=group.size,
        members=group.ranks,
        message_bytes=it.message_bytes * grown,
    )


def _threads(instances: Sequence[Instance]) -> dict[str, set[int]]:
    """Threads on which instances of each known group ran."""
    found: dict[str, set[int]] = defaultdict(set)
    for it in instances:
        if it.members and it.group:
            found[it.group].add(it.thread)
    return found


def _by_thread(rank: int, instances: Sequence[Instance], groups: Groups) -> list[Instance]:
    """Give the unknown what the known on the same thread have, where they agree."""
    owners: dict[int, set[str]] = defaultdict(set)
    for name, threads in _threads(instances).items():
        for thread in threads:
            owners[thread].add(name)
    choice = {
        thread: groups[min(names)] for thread, names in owners.items() if len(names) == 1 and names <= set(groups)
    }
    return _assigned(rank, instances, choice)


def _by_room(rank: int, instances: Sequence[Instance], groups: Groups) -> list[Instance]:
    """Give a thread of unknowns to the only group that fits and still lacks a thread."""
    threads = _threads(instances)
    taken = set().union(*threads.values())
    choice = {}
    for thread in {it.thread for it in instances if not it.members} - taken:
        sizes = {it.group_size for it in instances if it.thread == thread} - {0}
        if len(sizes) > 1:
            continue
        fitting = _fitting(groups, rank, min(sizes, default=0))
        room = [g for g in fitting if len(threads.get(g.name, ())) < _THREADS_PER_GROUP]
        if len(room) == 1:
            choice[thread] = room[0]
    return _assigned(rank, instances, choice)


def _assigned(rank: int, instances: Sequence[Instance], choice: Mapping[int, ProcessGroup]) -> list[Instance]:
    result = []
    for it in instances:
        group = None if it.members else choice.get(it.thread)
        fits = group is not None and it.group_size in (0, group.size) and rank in group.ranks
        result.append(_in_group(it, group) if fits else it)
    return result


def _class(it: Instance) -> _Class:
    return it.kind, it.group_size, it.message_bytes


def _described(groups: Groups, rank: int, description: str) -> ProcessGroup | None:
    found = [g for g in _fitting(groups, rank, 0) if g.description == description]
    return found[0] if len(found) == 1 else None


def _by_time(instances: Mapping[int, Sequence[Instance]], groups: Mapping[int, Groups]) -> dict[_Class, str]:
    ends: dict[_Class, dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]]] = defaultdict(dict)
    for rank, its in instances.items():
        for label in {_class(it) for it in its if not it.members}:
            mine = [it.end_ns for it in its if not it.members and _class(it) == label]
            ends[label][rank] = np.sort(np.array(mine, np.int64))
    chosen: dict[_Class, str] = {}
    for label, of_rank in sorted(ends.items()):
        distances: list[tuple[float, str]] = []
        for description in _dimensions(of_rank, groups, label[1]):
            distance = _distance(of_rank, groups, description)
            if distance is not None:
                distances.append((distance, description))
        distances.sort()
        if distances and (len(distances) == 1 or distances[0][0] < _CLEARLY * distances[1][0]):
            chosen[label] = distances[0][1]
    return chosen


def _dimensions(ranks: Iterable[int], groups: Mapping[int, Groups], size: int) -> list[str]:
    """Descriptions that name exactly one fitting group on every rank."""
    common: set[str] | None = None
    for rank in ranks:
        fitting = [g.description for g in _fitting(groups[rank], rank, size)]
        single = {d for d in fitting if fitting.count(d) == 1}
        common = single if common is None else common & single
    return sorted(common or ())


def _distance(
    ends: Mapping[int, np.ndarray[tuple[int], np.dtype[np.int64]]], groups: Mapping[int, Groups], description: str
) -> float | None:
    """Median distance (ns) from a completion to the nearest one of each other member; None if too few."""
    samples: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for rank, mine in ends.items():
        group = _described(groups[rank], rank, description)
        for peer in group.ranks if group is not None else ():
            if peer == rank:
                continue
            if peer not in ends:
                return None
            theirs = ends[peer]
            right = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
            left = np.maximum(right - 1, 0)
            samples.append(np.minimum(np.abs(theirs[right] - mine), np.abs(theirs[left] - mine)))
    together = np.concatenate(samples) if samples else np.zeros(0, np.int64)
    return float(np.median(together)) if len(together) >= _LEAST_SAMPLES else None
