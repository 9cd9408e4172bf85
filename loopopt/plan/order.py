"""Our list scheduler: an order for a graph's nodes, given the buckets.

List scheduling by critical path (Graham 1966; Kwok and Ahmad 1999 survey it), with two kinds of machines: a queue
for compute, and the links. Compute that can run runs, in the graph's own order, so that memory keeps its shape;
collectives are started as early as memory and the look-ahead allow, the one with the longest way still to go after
it first; only when nothing else can run is a collective waited for.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from loopopt.graphs import COMPUTE, FREE, START, WAIT, Graph, Schedule, contract, lawful
from loopopt.plan.costs import Costs
from loopopt.plan.simulate import Storage


@dataclass(frozen=True, slots=True)
class Policy:
    """How far ahead the list scheduler starts collectives.

    Attributes:
        ahead_us: a collective is started only while the link has less than this queued; a shorter queue lets
            one that becomes urgent later overtake.
        memory_bytes: most memory for values of the graph; None is no limit. A hard one: where even starting
            nothing early exceeds it, nothing is started early.
    """

    ahead_us: float = float("inf")
    memory_bytes: int | None = None


class Scheduler:
    """What the orders of one graph have in common; `order` may be called with many buckets."""

    def __init__(self, graph: Graph, costs: Costs, storage: Storage) -> None:
        self.graph = graph
        self.costs = costs
        self.links = max(costs.links, default=-1) + 1
        self._storage = storage
        self._uses = [0] * len(graph.nodes)
        for node in graph.nodes:
            for j in node.inputs:
                self._uses[storage.root[j]] += 1

    def order(self, buckets: Sequence[Sequence[int]], policy: Policy) -> Schedule | None:
        """A schedule with these buckets; None if they contradict the dependencies."""
        nodes, us = self.graph.nodes, self.costs.us
        unit, users, missing = contract(self.graph, buckets)
        members: dict[int, list[int]] = {}
        for i, u in enumerate(unit):
            members.setdefault(u, []).append(i)
        takes = {u: us[u] for u in members}
        for bucket in buckets:
            takes[min(bucket)] = self.costs.transfer_us([c for i in bucket if (c := nodes[i].collective) is not None])
        topological = _topological(users, missing)
        if topological is None:
            return None
        tail: dict[int, float] = {}
        for u in reversed(topological):
            tail[u] = takes[u] + max((tail[v] for v in users[u]), default=0.0)
        wish = self._work(members, takes, users, missing, tail, policy)
        return lawful(self.graph, self._late_waits(wish, unit, members, policy.memory_bytes is None), buckets)

    def _work(
        self,
        members: dict[int, list[int]],
        takes: dict[int, float],
        users: dict[int, list[int]],
        missing: dict[int, int],
        tail: dict[int, float],
        policy: Policy,
    ) -> list[int]:
        nodes, links = self.graph.nodes, self.costs.links
        root, kept, waits = self._storage.root, self._storage.kept, self._storage.waits
        left = self._uses[:]
        missing = dict(missing)
        now, used = 0.0, 0
        free_at = [0.0] * max(1, self.links)
        arrives: dict[int, float] = {}
        compute: list[int] = []
        starts: list[tuple[float, int]] = []
        pending: list[tuple[float, int]] = []
        arrived: set[int] = set()
        wish: list[int] = []

        def make_ready(u: int) -> None:
            role = nodes[u].role
            if role == START:
                heapq.heappush(starts, (-tail[u], u))
            elif role == WAIT:
                heapq.heappush(pending, (max(arrives[w] for w in members[u]), u))
            else:
                heapq.heappush(compute, u)

        def done(u: int) -> None:
            nonlocal used
            for i in members[u]:
                wish.append(i)
                used += nodes[i].output_bytes
                # What a collective reads is free only when it has arrived.
                reads = () if nodes[i].role == START else nodes[i].inputs
                if nodes[i].role == WAIT and nodes[i].start not in arrived:
                    arrived.add(nodes[i].start)
                    reads = (*reads, *nodes[nodes[i].start].inputs)
                for j in reads:
                    owner = root[j]
                    left[owner] -= 1
                    if not left[owner] and not kept[owner]:
                        used -= nodes[owner].output_bytes
            for v in users[u]:
                missing[v] -= 1
                if not missing[v]:
                    make_ready(v)

        def start(u: int) -> None:
            link = links[u]
            free_at[link] = max(now, free_at[link]) + takes[u]
            for i in members[u]:
                for w in waits.get(i, ()):
                    arrives[w] = free_at[link]
            done(u)

        for u, count in list(missing.items()):
            if not count:
                make_ready(u)
        limit = policy.memory_bytes
        while compute or starts or pending:
            while pending and pending[0][0] <= now:
                done(heapq.heappop(pending)[1])
            held: list[tuple[float, int]] = []
            while starts:
                u = starts[0][1]
                if free_at[links[u]] - now > policy.ahead_us:
                    break
                heapq.heappop(starts)
                # A reduction is never held: it frees its input. Only what comes back larger can wait for memory.
                size = sum(nodes[i].output_bytes for i in members[u])
                grows = size > sum(nodes[root[j]].output_bytes for i in members[u] for j in nodes[i].inputs)
                if limit is not None and grows and used + size > limit:
                    held.append((-tail[u], u))
                else:
                    start(u)
            for entry in held:
                heapq.heappush(starts, entry)
            # Computing on while gradients queue up for their reduction would fill the memory: let one arrive first.
            full = bool(compute) and limit is not None and used + nodes[compute[0]].output_bytes > limit
            if compute and not (full and pending):
                u = heapq.heappop(compute)
                now += takes[u] if nodes[u].role == COMPUTE else 0.0
                done(u)
            elif pending:
                arrival, u = heapq.heappop(pending)
                now = max(now, arrival)
                done(u)
            elif starts:
                start(heapq.heappop(starts)[1])
        return wish

    def _late_waits(self, wish: list[int], unit: list[int], members: dict[int, list[int]], plenty: bool) -> list[int]:
        """The same order with each wait, and what costs nothing after it, put off to its first user.

        Without a user it stays where the collective is expected to arrive, which frees its input; with `plenty` of
        memory it goes to the end, where a late arrival holds up nothing.
        """
        nodes = self.graph.nodes
        place = {i: at for at, i in enumerate(wish)}
        first_use = [len(wish)] * len(nodes)
        due: list[float] = [float(place[i]) for i in range(len(nodes))]
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            if node.role in (WAIT, FREE):
                used_at = min(first_use[m] for m in members[unit[i]])
                # Behind everything else that stands before the user, in the order they had among themselves.
                if used_at - 0.5 > due[i] and (used_at < len(wish) or plenty):
                    for m in members[unit[i]]:
                        due[m] = used_at - 0.5
            for j in node.inputs:
                first_use[j] = min(first_use[j], int(due[i] + 0.5))
        return sorted(range(len(nodes)), key=lambda i: (due[i], place[i]))


def _topological(users: dict[int, list[int]], missing: dict[int, int]) -> list[int] | None:
    missing = dict(missing)
    ready = [u for u, count in missing.items() if not count]
    found: list[int] = []
    while ready:
        u = ready.pop()
        found.append(u)
        for v in users[u]:
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    return found if len(found) == len(missing) else None
