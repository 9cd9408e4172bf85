"""What each node of a graph costs, from a timing table, and what it would cost under other circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loopopt.graphs import COMPUTE, START, Collective, Graph
from loopopt.timing import TimingTable

ASSUMED_BYTES_PER_US = 10_000.0
ASSUMED_LATENCY_US = 20.0
"""For a collective that the table knows nothing of: 10 GB/s after 20 us. `Costs.unknown` counts them."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Factors on what was measured; 1 leaves it.

    Attributes:
        bandwidth: of all links; 0.5 halves it.
        latency: of a collective of no bytes.
        compute: of all compute durations; 0.5 is a device twice as fast.
    """

    bandwidth: float = 1.0
    latency: float = 1.0
    compute: float = 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Prices of a graph.

    Attributes:
        us: per node; the kernel time of a compute node, the transfer time of a start that stays alone, else 0.
        links: per node; for a start, the link it travels on, counted from 0; else -1. Collectives on one link queue.
        slowdown: how much longer compute takes while a collective is in flight, at least 1.
        unknown: (nodes without a measured duration, their time as assumed in microseconds).
        table, what_if: what they were made from.
    """

    us: tuple[float, ...]
    links: tuple[int, ...]
    slowdown: float
    unknown: tuple[int, float]
    table: TimingTable
    what_if: WhatIf

    def transfer_us(self, collectives: Sequence[Collective]) -> float:
        """Transfer time of collectives merged into one, microseconds."""
        return _transfer_us(self.table, collectives, self.what_if)[0]


def costs_of(
    graph: Graph, table: TimingTable, *, what_if: WhatIf | None = None, compute_us: float | None = None
) -> Costs:
    """Prices of all nodes.

    Compute nodes that the table knows cost their median. The others cost the compiler's own estimate, scaled so
    that the whole is as long as was measured: generated kernels leave no trace of their own on CPU, so most
    pointwise work is only known as what is left of the total.

    Args:
        graph: the graph.
        table: measured durations.
        what_if: other circumstances.
        compute_us: measured compute time of one run of this graph; None if unknown: estimates stay unscaled.
    """
    what_if = what_if or WhatIf()
    us = [0.0] * len(graph.nodes)
    links = [-1] * len(graph.nodes)
    names: dict[str, int] = {}
    known_us, guessed, guesses_us, unknown, unknown_us = 0.0, [], 0.0, 0, 0.0
    alone_us: list[tuple[float, float]] = []
    for i, node in enumerate(graph.nodes):
        if node.role == START and node.collective is not None:
            us[i], known = _transfer_us(table, (node.collective,), what_if)
            links[i] = names.setdefault(_link(table, node.collective), len(names))
            if not known:
                unknown, unknown_us = unknown + 1, unknown_us + us[i]
        elif node.role == COMPUTE:
            found = table.compute_us(node.key) if node.key else None
            if found is None:
                guessed.append(i)
                guesses_us += node.estimate_us
                continue
            us[i] = found * what_if.compute
            known_us += found
            isolated = table.isolated.get(node.key)
            if isolated is not None and isolated.median_us > 0:
                alone_us.append((found / isolated.median_us, isolated.median_us))
    scale = 1.0
    if compute_us is not None and guesses_us > 0:
        scale = max(0.0, compute_us - known_us) / guesses_us
    for i in guessed:
        us[i] = graph.nodes[i].estimate_us * scale * what_if.compute
    slowdown = max(1.0, median(r for r, _ in alone_us)) if alone_us else 1.0
    # The table's durations are in situ, with whatever ran beside them: as isolated ones they would be counted twice.
    factor = 1.0 / slowdown
    for i, node in enumerate(graph.nodes):
        if node.role == COMPUTE:
            us[i] *= factor
    total_unknown = (unknown + len(guessed), unknown_us + guesses_us * scale * what_if.compute)
    return Costs(tuple(us), tuple(links), slowdown, total_unknown, table, what_if)


def _transfer_us(table: TimingTable, collectives: Sequence[Collective], what_if: WhatIf) -> tuple[float, bool]:
    first = collectives[0]
    size = sum(c.message_bytes for c in collectives)
    whole = table.collective_us(first.kind, first.group, first.group_size, size, first.dtype)
    known = whole is not None
    if whole is None:
        latency, whole = ASSUMED_LATENCY_US, ASSUMED_LATENCY_US + size / ASSUMED_BYTES_PER_US
    else:
        latency = min(whole, table.collective_us(first.kind, first.group, first.group_size, 0, first.dtype) or 0.0)
    return latency * what_if.latency + (whole - latency) / what_if.bandwidth, known


def _link(table: TimingTable, collective: Collective) -> str:
    """Groups within a host share its links, groups across hosts share the network; else each group has its own."""
    curve = table.curve(collective.kind, collective.group, collective.group_size, collective.dtype)
    return curve.topology if curve is not None and curve.topology else f"group {collective.group}"
