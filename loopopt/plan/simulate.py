"""How long a schedule takes: a discrete-event simulation of one rank.

One queue for compute, which also starts collectives and waits for them, and one queue per link. A collective runs
from the later of its start and the link's being free; a wait holds the compute queue until it has arrived. While a
collective is in flight compute is slower by a measured factor. Deterministic; no clock.

Exposed time is put down to the collective that is waited for, so that the parts add up to the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loopopt.graphs import COMPUTE, FREE, START, WAIT, Graph, Schedule, waits_of
from loopopt.plan.costs import Costs

Item = tuple[int, int, float, int]
"""(0 compute, 1 start, 2 wait; node; microseconds; link)."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of the simulated step: `lane` is "compute", "exposed" or "link <n>". Microseconds."""

    lane: str
    node: int
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule comes to, microseconds and bytes.

    Attributes:
        step_us: from the first node to the end of the last.
        compute_us: of it, computing (slowdown included).
        communication_us: summed transfer times.
        exposed_us: of it, waiting; `compute_us + exposed_us == step_us`.
        exposed: start of a collective (of a bucket, its first) -> its share of `exposed_us`, where there is one.
        peak_bytes: most memory of the graph's own values at once.
        critical: nodes on the critical path, first to last; a bucket is named by its first start.
        events: starts, ends and waits that were worked through.
    """

    step_us: float
    compute_us: float
    communication_us: float
    exposed_us: float
    exposed: dict[int, float]
    peak_bytes: int
    critical: tuple[int, ...] = ()
    events: int = 0


def items_of(graph: Graph, schedule: Schedule, costs: Costs) -> list[Item]:
    """The schedule as a programme of what takes time; members of a bucket become one."""
    nodes = graph.nodes
    head: dict[int, int] = {}
    price: dict[int, float] = {}
    for bucket in schedule.buckets:
        price[bucket[0]] = costs.transfer_us([c for i in bucket if (c := nodes[i].collective) is not None])
        for i in bucket:
            head[i] = bucket[0]
    items: list[Item] = []
    begun: set[int] = set()
    waited: set[int] = set()
    for i in schedule.order:
        node = nodes[i]
        if node.role == COMPUTE:
            if costs.us[i]:
                items.append((0, i, costs.us[i], -1))
        elif node.role == START:
            first = head.get(i, i)
            if first not in begun:
                begun.add(first)
                items.append((1, first, price.get(first, costs.us[i]), costs.links[i]))
        elif node.role == WAIT:
            first = head.get(node.start, node.start)
            if first not in waited:
                waited.add(first)
                items.append((2, first, 0.0, costs.links[node.start]))
    return items


def run_items(items: Sequence[Item], slowdown: float, links: int) -> tuple[float, float]:
    """(step time, exposed time) of a programme, microseconds: the search's inner loop."""
    now = exposed = latest = 0.0
    free = [0.0] * max(1, links)
    arrived: dict[int, float] = {}
    for kind, node, us, link in items:
        if kind == 0:
            if latest > now and slowdown > 1.0:
                beside = latest - now
                now += us * slowdown if us * slowdown <= beside else us + beside - beside / slowdown
            else:
                now += us
        elif kind == 1:
            begin = free[link]
            if now > begin:
                begin = now
            begin += us
            free[link] = arrived[node] = begin
            if begin > latest:
                latest = begin
        else:
            end = arrived[node]
            if end > now:
                exposed += end - now
                now = end
    return now, exposed


def simulate(graph: Graph, schedule: Schedule, costs: Costs) -> Outcome:
    """Run a schedule that `loopopt.graphs.why_not` has nothing against."""
    return _run(graph, schedule, costs)[0]


def spans_of(graph: Graph, schedule: Schedule, costs: Costs) -> list[Span]:
    """The simulated step, for drawing."""
    return _run(graph, schedule, costs)[1]


def _run(graph: Graph, schedule: Schedule, costs: Costs) -> tuple[Outcome, list[Span]]:
    items = items_of(graph, schedule, costs)
    slowdown = costs.slowdown
    now = communication = latest = 0.0
    free: dict[int, float] = {}
    last_on: dict[int, int] = {}
    arrived: dict[int, float] = {}
    began: dict[int, tuple[int, int]] = {}
    exposed: dict[int, float] = {}
    blocked: dict[int, int] = {}
    spans: list[Span] = []
    for at, (kind, node, us, link) in enumerate(items):
        if kind == 0:
            beside = max(0.0, latest - now)
            takes = us * slowdown if us * slowdown <= beside else us + beside - beside / slowdown
            spans.append(Span("compute", node, now, now + takes))
            now += takes
        elif kind == 1:
            queued = free.get(link, 0.0) > now
            begin = free[link] if queued else now
            # What it had to wait for: the collective before it on the link, or the programme up to here.
            began[node] = (last_on[link], -1) if queued else (-1, at)
            free[link] = arrived[node] = begin + us
            last_on[link] = node
            latest = max(latest, begin + us)
            communication += us
            spans.append(Span(f"link {link}", node, begin, begin + us))
        elif arrived[node] > now:
            exposed[node] = exposed.get(node, 0.0) + arrived[node] - now
            blocked[at] = node
            spans.append(Span("exposed", node, now, arrived[node]))
            now = arrived[node]
    total = sum(exposed.values())
    outcome = Outcome(
        step_us=now,
        compute_us=now - total,
        communication_us=communication,
        exposed_us=total,
        exposed=exposed,
        peak_bytes=peak_bytes(graph, schedule),
        critical=_critical(items, began, blocked),
        events=2 * len(items),
    )
    return outcome, spans


def _critical(items: list[Item], began: dict[int, tuple[int, int]], blocked: dict[int, int]) -> tuple[int, ...]:
    path: list[int] = []
    at = len(items) - 1
    while at >= 0:
        if at in blocked:
            collective = blocked[at]
            while True:
                path.append(collective)
                before, at = began[collective]
                if before < 0:
                    break
                collective = before
        elif items[at][0] == 0:
            path.append(items[at][1])
        at -= 1
    return tuple(reversed(path))


class Storage:
    """Where a graph's values live, whatever the order.

    Attributes:
        root: node -> the node whose memory its value lives in: a view's is its input's, a wait's its collective's.
        kept: node -> whether its memory outlives the graph.
        waits: start -> the nodes that wait for it.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self.waits = waits_of(graph)
        self.root = list(range(len(graph.nodes)))
        self.kept = [False] * len(graph.nodes)
        for i, node in enumerate(graph.nodes):
            if node.role == WAIT:
                self.root[i] = self.root[node.start]
            elif node.role == FREE and not node.output_bytes and node.inputs:
                self.root[i] = self.root[node.inputs[0]]
            if node.kept:
                self.kept[self.root[i]] = True

    def peak_bytes(self, order: Sequence[int]) -> int:
        """Most memory that values of the graph take up at once, in this order.

        A value is freed after its last use; a bucket's input copy is not counted.
        """
        nodes, root = self._nodes, self.root
        place = [0] * len(nodes)
        for at, i in enumerate(order):
            place[i] = at
        last = place[:]
        for i, node in enumerate(nodes):
            for j in (*node.inputs, i):
                last[root[j]] = max(last[root[j]], place[i])
            if node.role == START:
                # The input is read until the collective has arrived.
                end = max((place[w] for w in self.waits.get(i, ())), default=place[i])
                for j in node.inputs:
                    last[root[j]] = max(last[root[j]], end)
        change = np.zeros(len(nodes) + 1, dtype=np.int64)
        for i, node in enumerate(nodes):
            if node.output_bytes:
                change[place[i]] += node.output_bytes
                if not self.kept[i]:
                    change[last[i] + 1] -= node.output_bytes
        return int(np.cumsum(change).max(initial=0))


def peak_bytes(graph: Graph, schedule: Schedule) -> int:
    """`Storage.peak_bytes` of one schedule."""
    return Storage(graph).peak_bytes(schedule.order)
