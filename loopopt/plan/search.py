"""The search for a schedule: bucket sizes, how far ahead, then merges and splits where time is still exposed.

Every candidate is ordered by `loopopt.plan.order` and judged by `loopopt.plan.simulate`; one that does not fit the
memory is no candidate. Pure: the same graph, prices and limits give the same schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from loopopt.graphs import Graph, Schedule, as_it_was, waits_of
from loopopt.plan.costs import Costs
from loopopt.plan.order import Policy, Scheduler
from loopopt.plan.simulate import Outcome, Storage, items_of, run_items, simulate

Buckets = tuple[tuple[int, ...], ...]

_SIZES = 5
"""Bucket sizes tried between the smallest collective and all in one."""
_TIGHTER = 3
"""So often an order that needs too much memory is made again with less to go by."""
_GROWS = "all_gather"
"""Kinds whose result is larger than what goes in get a bucket size of their own."""


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule and what it comes to."""

    schedule: Schedule
    outcome: Outcome


def search(
    graph: Graph, costs: Costs, *, memory_bytes: int | None = None, others: Iterable[Schedule] = (), tries: int = 120
) -> list[Found]:
    """The best schedules found, fastest first, distinct, at least one: the graph's own.

    Args:
        graph: the graph.
        costs: prices of its nodes.
        memory_bytes: most memory for the graph's values, `peak_bytes` of its own order if that is more.
        others: schedules of somebody else (the compiler's own passes), judged with ours.
        tries: orders made at most.
    """
    own = as_it_was(graph)
    storage = Storage(graph)
    if memory_bytes is not None:
        memory_bytes = max(memory_bytes, storage.peak_bytes(own.order))
    hunt = _Hunt(graph, costs, storage, memory_bytes, tries)
    hunt.judge(own)
    for schedule in others:
        hunt.judge(schedule)
    keys = _sequences(graph)
    if keys:
        _sizes_and_looks(hunt, graph, costs, keys)
        _climb(hunt)
    ranked = sorted(hunt.seen.values(), key=lambda found: (found[0], found[1].order))
    return [Found(schedule, simulate(graph, schedule, costs)) for _, schedule in ranked[:8]]


class _Hunt:
    """What has been tried."""

    def __init__(self, graph: Graph, costs: Costs, storage: Storage, memory_bytes: int | None, tries: int) -> None:
        self.graph = graph
        self.costs = costs
        self.memory_bytes = memory_bytes
        self.left = tries
        self.seen: dict[tuple[tuple[int, ...], Buckets], tuple[float, Schedule]] = {}
        self.best: tuple[float, Schedule] | None = None
        self.policy = Policy(memory_bytes=memory_bytes)
        self._storage = storage
        self._scheduler = Scheduler(graph, costs, storage)
        self._before = _ancestors(graph)

    def judge(self, schedule: Schedule) -> float:
        """Its step time; infinite if it needs too much memory."""
        key = (schedule.order, schedule.buckets)
        if key in self.seen:
            return self.seen[key][0]
        if self._over(schedule) > 0:
            return float("inf")
        return self._timed(schedule)

    def _over(self, schedule: Schedule) -> int:
        """Bytes beyond the memory."""
        return 0 if self.memory_bytes is None else self._storage.peak_bytes(schedule.order) - self.memory_bytes

    def _timed(self, schedule: Schedule) -> float:
        """The step time of one that fits, noted."""
        step_us, _ = run_items(items_of(self.graph, schedule, self.costs), self.costs.slowdown, self._scheduler.links)
        self.seen[schedule.order, schedule.buckets] = (step_us, schedule)
        if self.best is None or step_us < self.best[0]:
            self.best = (step_us, schedule)
        return step_us

    def attempt(self, buckets: Sequence[Sequence[int]], policy: Policy) -> float:
        """Order these buckets and judge."""
        if self.left <= 0:
            return float("inf")
        self.left -= 1
        merged = [b for b in buckets if len(b) > 1]
        for _ in range(_TIGHTER):
            schedule = self._scheduler.order(merged, policy)
            if schedule is None:
                return float("inf")
            over = self._over(schedule)
            if over <= 0 or policy.memory_bytes is None:
                return self._timed(schedule)
            # The list scheduler counts as it goes, before waits are put off: ask it for less.
            policy = Policy(policy.ahead_us, max(0, policy.memory_bytes - over))
        return float("inf")

    def may_join(self, bucket: Sequence[int], start: int) -> bool:
        """Whether neither needs the other's result."""
        mask = sum(1 << b for b in bucket)
        return not (self._before[start] & mask) and not any(self._before[b] >> start & 1 for b in bucket)

    def cut(self, sequence: Sequence[int], most_bytes: float) -> list[tuple[int, ...]]:
        """Neighbours of a sequence in buckets of at most so many bytes."""
        buckets: list[list[int]] = []
        size = 0
        for start in sequence:
            collective = self.graph.nodes[start].collective
            assert collective is not None
            if buckets and size + collective.message_bytes <= most_bytes and self.may_join(buckets[-1], start):
                buckets[-1].append(start)
                size += collective.message_bytes
            else:
                buckets.append([start])
                size = collective.message_bytes
        return [tuple(b) for b in buckets]


def _sizes_and_looks(hunt: _Hunt, graph: Graph, costs: Costs, keys: dict[str, list[int]]) -> None:
    growing = [k for k in keys if k.startswith(_GROWS)]
    others = [k for k in keys if not k.startswith(_GROWS)]
    best: tuple[float, list[tuple[int, ...]]] = (float("inf"), [])
    for large, small in product(_sizes(graph, keys, growing), _sizes(graph, keys, others)):
        buckets = [b for k in growing for b in hunt.cut(keys[k], large)]
        buckets += [b for k in others for b in hunt.cut(keys[k], small)]
        step_us = hunt.attempt(buckets, hunt.policy)
        if step_us < best[0]:
            best = (step_us, buckets)
    longest = max((us for us, link in zip(costs.us, costs.links, strict=True) if link >= 0), default=0.0)
    for ahead in (0.0, longest, 4 * longest):
        policy = Policy(ahead, hunt.memory_bytes)
        step_us = hunt.attempt(best[1], policy)
        if step_us < best[0]:
            best, hunt.policy = (step_us, best[1]), policy


def _climb(hunt: _Hunt) -> None:
    """Split or merge buckets next to each other as long as that helps."""
    better = True
    while better and hunt.left > 0 and hunt.best is not None:
        better = False
        step_us, schedule = hunt.best
        singles = [(s,) for s in hunt.graph.starts() if not any(s in b for b in schedule.buckets)]
        buckets: list[tuple[int, ...]] = sorted([*schedule.buckets, *singles])
        exposed = simulate(hunt.graph, schedule, hunt.costs).exposed
        for bucket in sorted(buckets, key=lambda b: -exposed.get(b[0], 0.0))[:8]:
            rest = [b for b in buckets if b != bucket]
            if len(bucket) > 1:
                half = len(bucket) // 2
                better |= hunt.attempt([*rest, bucket[:half], bucket[half:]], hunt.policy) < step_us
            key = _key(hunt.graph, bucket[0])
            near = [b for b in rest if key and _key(hunt.graph, b[0]) == key]
            near.sort(key=lambda b: (abs(b[0] - bucket[0]), b))
            for other in near[:1]:
                if all(hunt.may_join(bucket, start) for start in other):
                    merged = [b for b in rest if b != other]
                    better |= hunt.attempt([*merged, tuple(sorted(bucket + other))], hunt.policy) < step_us


def _sequences(graph: Graph) -> dict[str, list[int]]:
    """Bucket key -> its starts, in the order in which their results are first used."""
    first_use = [len(graph.nodes)] * len(graph.nodes)
    for i in range(len(graph.nodes) - 1, -1, -1):
        for j in graph.nodes[i].inputs:
            first_use[j] = min(first_use[j], i)
    waits = waits_of(graph)
    keys: dict[str, list[int]] = {}
    for start in graph.starts():
        key = _key(graph, start)
        if key:
            keys.setdefault(key, []).append(start)
    for starts in keys.values():
        starts.sort(key=lambda s: (min((first_use[w] for w in waits.get(s, ())), default=s), s))
    return keys


def _key(graph: Graph, start: int) -> str:
    collective = graph.nodes[start].collective
    return f"{collective.kind}|{collective.bucket_key}" if collective and collective.bucket_key else ""


def _sizes(graph: Graph, keys: dict[str, list[int]], names: list[str]) -> list[float]:
    """Bucket sizes to try: none, some in geometric steps, all in one."""
    sizes = [c.message_bytes for k in names for s in keys[k] if (c := graph.nodes[s].collective) is not None]
    if not sizes:
        return [0.0]
    smallest, total = max(1, min(sizes)), float(sum(sizes))
    step = (total / smallest) ** (1 / (_SIZES - 1))
    between = [smallest * step**n for n in range(1, _SIZES - 1)] if step > 1 else []
    return sorted({0.0, *between, total})


def _ancestors(graph: Graph) -> list[int]:
    """Node -> bits of the starts it cannot run without."""
    before = [0] * len(graph.nodes)
    for i, node in enumerate(graph.nodes):
        bits = 0
        for j in node.inputs:
            bits |= before[j]
            if graph.nodes[j].collective is not None:
                bits |= 1 << j
        before[i] = bits
    return before
