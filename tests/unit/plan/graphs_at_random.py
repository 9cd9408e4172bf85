"""Graphs for the planner's tests: sharded layers forward and back, and random ones."""

from __future__ import annotations

import random

from loopopt.graphs import COMPUTE, FREE, START, WAIT, Collective, Graph, Node
from loopopt.timing import CollectiveCurve, Duration, TimingTable

MB = 1_000_000
MATMUL = "aten::mm|[[8,8],[8,8]]|float32"


def table(gather_us_per_mb: float = 100.0, latency_us: float = 50.0, compute_us: float = 200.0) -> TimingTable:
    """Straight lines for both collectives, one duration for the matmul."""
    sizes = (MB, 10 * MB)
    durations = tuple(Duration(50, latency_us + gather_us_per_mb * s / MB, 1.0) for s in sizes)
    curves = tuple(CollectiveCurve(kind, "0", 2, sizes, durations) for kind in ("all_gather", "reduce_scatter"))
    return TimingTable(curves, {MATMUL: Duration(50, compute_us, 1.0)})


def sharded(layers: int, megabytes: int = 2) -> Graph:
    """Forward: gather, wait, view, matmul per layer. Backward: gather again, matmul, scatter the gradient."""
    size = megabytes * MB
    gather = Collective("all_gather", "0", 2, size // 2, size, "float32", "0|float32")
    scatter = Collective("reduce_scatter", "0", 2, size, size // 2, "float32", "0|sum|float32")
    nodes: list[Node] = []

    def add(node: Node) -> int:
        nodes.append(node)
        return len(nodes) - 1

    last = -1
    for way in ("f", "b"):
        for layer in range(layers) if way == "f" else reversed(range(layers)):
            name = f"{way}{layer}"
            start = add(Node(f"gather_{name}", START, (), output_bytes=size, collective=gather))
            wait = add(Node(f"wait_{name}", WAIT, (start,), start=start))
            view = add(Node(f"view_{name}", FREE, (wait,)))
            inputs = (view, last) if last >= 0 else (view,)
            last = add(Node(f"mm_{name}", COMPUTE, inputs, MATMUL, MB // 10, anchor=True))
            if way == "b":
                grad = add(Node(f"grad_{name}", COMPUTE, (last,), MATMUL, size, anchor=True))
                out = add(Node(f"scatter_{name}", START, (grad,), output_bytes=size // 2, collective=scatter))
                add(Node(f"out_{name}", WAIT, (out,), start=out, kept=True))
    return Graph(f"sharded{layers}", tuple(nodes))


def at_random(seed: int, count: int, share: float = 0.1) -> Graph:
    """A graph without any sense: nodes hang on up to three of the forty before them."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    while len(nodes) < count:
        inputs = tuple(sorted({rng.randrange(max(0, len(nodes) - 40), len(nodes)) for _ in range(3)})) if nodes else ()
        at = len(nodes)
        if rng.random() < share:
            size = rng.randrange(1, 40) * MB // 10
            kind = rng.choice(["all_gather", "reduce_scatter"])
            moved = Collective(kind, "0", 2, size, size, "float32", rng.choice(["", "a", "b"]))
            nodes.append(Node(f"start{at}", START, inputs[:1], output_bytes=size, collective=moved))
            nodes.append(Node(f"wait{at}", WAIT, (at,), start=at, kept=rng.random() < 0.1))
        elif rng.random() < 0.3:
            nodes.append(Node(f"view{at}", FREE, inputs[:1]))
        else:
            nodes.append(
                Node(
                    f"mm{at}",
                    COMPUTE,
                    inputs,
                    rng.choice([MATMUL, ""]),
                    rng.randrange(MB),
                    estimate_us=rng.random() * 50,
                )
            )
    return Graph(f"random{seed}", tuple(nodes))
