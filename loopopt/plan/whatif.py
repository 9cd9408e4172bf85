"""What-if questions about one graph: its own order and the best the search finds, side by side."""

from __future__ import annotations

from typing import Any

from loopopt.graphs import Graph, Schedule, as_it_was
from loopopt.plan.costs import Costs, WhatIf, costs_of
from loopopt.plan.search import search
from loopopt.plan.simulate import Outcome, peak_bytes, simulate
from loopopt.timing import TimingTable

_WORST = 10


def what_if(graph: Graph, table: TimingTable, circumstances: WhatIf, memory_gb: float | None) -> dict[str, Any]:
    """Both outcomes as plain JSON values, microseconds and bytes.

    Args:
        graph: the graph.
        table: measured durations.
        circumstances: factors on them.
        memory_gb: memory over that of the graph's own order; None is no limit.
    """
    costs = costs_of(graph, table, what_if=circumstances)
    own = as_it_was(graph)
    limit = None if memory_gb is None else peak_bytes(graph, own) + int(memory_gb * 1e9)
    best = search(graph, costs, memory_bytes=limit)[0]
    count, assumed_us = costs.unknown
    return {
        "graph": graph.signature,
        "kind": graph.kind,
        "nodes": len(graph.nodes),
        "collectives": len(graph.starts()),
        "assumed": {"nodes": count, "us": assumed_us},
        "schedules": [
            _told("as it was", graph, own, simulate(graph, own, costs), costs),
            _told("best found", graph, best.schedule, best.outcome, costs),
        ],
    }


def _told(label: str, graph: Graph, schedule: Schedule, outcome: Outcome, costs: Costs) -> dict[str, Any]:
    head = {i: b for b in schedule.buckets for i in b[:1]}
    worst = sorted(outcome.exposed.items(), key=lambda item: (-item[1], item[0]))[:_WORST]
    return {
        "label": label,
        "step_us": outcome.step_us,
        "compute_us": outcome.compute_us,
        "communication_us": outcome.communication_us,
        "exposed_us": outcome.exposed_us,
        "peak_bytes": outcome.peak_bytes,
        "buckets": [[graph.nodes[i].name for i in b] for b in schedule.buckets],
        "exposed": [{"collective": graph.nodes[i].name, "of": len(head.get(i, (i,))), "us": us} for i, us in worst],
        "critical": [graph.nodes[i].name for i in outcome.critical],
    }
