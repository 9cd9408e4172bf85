"""Writes a schedule (`loopopt.graphs`) back to the FX graph it was made for.

Buckets are merged by torch's own functions; then the nodes are put into the schedule's order; then control
dependencies hold starts and waits against the matmuls between them, because Inductor's scheduler comes after this and
would move them.
"""

from __future__ import annotations

from typing import Any

from loopopt.errors import UnsupportedError
from loopopt.graphs import Graph, Schedule, waits_of, why_not
from loopopt_agent import torch_api


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
    waits_for = waits_of(graph)
    for bucket in schedule.buckets:
        members = sorted(bucket, key=lambda i: place[fx_nodes[i]])
        waits = [wait for i in members for wait in waits_for[i]]
        new = torch_api.merge_bucket(fx_graph, [fx_nodes[i] for i in members])
        first_wait = next(at for at, n in enumerate(new) if torch_api.is_wait(n))
        for old, part in ((members, new[:first_wait]), (waits, new[first_wait:])):
            place |= dict.fromkeys(part, min(place[fx_nodes[i]] for i in old))
    # A lawful order has the nodes of a bucket side by side: this keeps all dependencies, those without data too.
    order = {n: (place.get(n, -1), at) for at, n in enumerate(fx_graph.nodes)}
    output = next(n for n in fx_graph.nodes if n.op == "output")
    for node in sorted((n for n in fx_graph.nodes if n is not output), key=order.__getitem__):
        output.prepend(node)
    _pin(fx_graph)
    fx_graph.lint()
    graph_module.recompile()


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
