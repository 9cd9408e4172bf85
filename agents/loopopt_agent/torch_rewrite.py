"""Writes a schedule (`loopopt.graphs`) back to the FX graph it was made for.

Buckets are merged by torch's own functions; then the nodes are put into the schedule's order; then control
dependencies hold starts and waits against the matmuls between them, because Inductor's scheduler comes after this and
would move them.
"""

from __future__ import annotations

import heapq
from typing import Any

from loopopt.errors import UnsupportedError
from loopopt.graphs import Graph, Schedule, waits_of, why_not
from loopopt_agent import torch_api
from loopopt_agent.torch_graph import Effects


def write_schedule(graph_module: Any, graph: Graph, schedule: Schedule) -> None:
    """Change the FX graph into what the schedule says.

    After an error the graph may be half changed: give a copy where that matters.

    Args:
        graph_module: the graph that `graph` was read off, unchanged since.
        graph: as `loopopt_agent.torch_graph.read_graph` gave it.
        schedule: for that graph.

    Raises:
        UnsupportedError: the schedule is not for this graph, or torch cannot merge a bucket.
    """
    fx_graph = graph_module.graph
    fx_nodes = [n for n in fx_graph.nodes if n.op == "call_function"]
    if [str(n.name) for n in fx_nodes] != [n.name for n in graph.nodes]:
        raise UnsupportedError("the FX graph is not the one the schedule was made for")
    reason = why_not(graph, schedule)
    if reason:
        raise UnsupportedError(f"the schedule cannot be carried out: {reason}")
    place = {fx_nodes[i]: at for at, i in enumerate(schedule.order)}
    became: dict[int, list[Any]] = {i: [n] for i, n in enumerate(fx_nodes)}
    waits_for = waits_of(graph)
    inside: list[tuple[Any, Any]] = []
    for bucket in schedule.buckets:
        members = sorted(bucket, key=lambda i: place[fx_nodes[i]])
        waits = [wait for i in members for wait in waits_for[i]]
        new = torch_api.merge_bucket(fx_graph, [fx_nodes[i] for i in members])
        first_wait = next(at for at, n in enumerate(new) if torch_api.is_wait(n))
        for old, part in ((members, new[:first_wait]), (waits, new[first_wait:])):
            place |= dict.fromkeys(part, min(place[fx_nodes[i]] for i in old))
            became |= dict.fromkeys(old, part)
        effects, own = Effects(), set(new)
        inside += [(before, n) for n in new for before in effects.before(n) if before in own]
    alive = set(fx_graph.nodes)
    # What no data says: the order of writes and reads, as it was; where a bucket took a node's place, of its nodes.
    ordering = [
        (before, after)
        for i, node in enumerate(graph.nodes)
        for j in node.inputs
        for before in became[j]
        for after in became[i]
        if before in alive and after in alive and before is not after
    ]
    _put_in_order(fx_graph, place, [*ordering, *inside])
    _pin(fx_graph)
    fx_graph.lint()
    graph_module.recompile()


def _put_in_order(fx_graph: Any, place: dict[Any, int], ordering: list[tuple[Any, Any]]) -> None:
    """Move the nodes to the order nearest to `place` that data and `ordering` (before, after) allow."""
    nodes = [n for n in fx_graph.nodes if n.op != "output"]
    users: dict[Any, list[Any]] = {n: [] for n in nodes}
    missing = dict.fromkeys(nodes, 0)
    for before, after in {*ordering, *((b, n) for n in nodes for b in n.all_input_nodes)}:
        users[before].append(after)
        missing[after] += 1
    # Inputs and constants first, as they were; nodes of one bucket in the order torch made them.
    key = {n: (place.get(n, -1), at) for at, n in enumerate(nodes)}
    ready = [(key[n], n) for n in nodes if not missing[n]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, node = heapq.heappop(ready)
        ordered.append(node)
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (key[user], user))
    if len(ordered) != len(nodes):
        raise UnsupportedError("the buckets and the dependencies of the FX graph contradict each other")
    output = next(n for n in fx_graph.nodes if n.op == "output")
    for node in ordered:
        output.prepend(node)


def _pin(fx_graph: Any) -> None:
    """Hold each start before the next matmul, each wait behind the last one, and all starts in their order."""
    pins: dict[Any, list[Any]] = {}
    fresh: list[Any] = []  # started since the last matmul
    last_start: Any = None
    anchor: Any = None
    anchor_before: dict[Any, Any] = {}
    for node in fx_graph.nodes:
        if node.op != "call_function":
            continue
        if torch_api.is_anchor(node):
            if fresh:
                pins[node] = fresh
                fresh = []
            anchor = node
        elif torch_api.collective_node(node) is not None:
            anchor_before[node] = anchor
            if last_start is not None:
                pins[node] = [last_start]
            last_start = node
            fresh.append(node)
        elif torch_api.is_wait(node) and anchor is not None and anchor is not anchor_before.get(node.args[0]):
            pins[node] = [anchor]
    torch_api.add_ordering(fx_graph, pins)
