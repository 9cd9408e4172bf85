"""What planning costs: made-up graphs up to 10,000 nodes with 500 collectives, 16 orders each, on one core.

    python -m tests.bench.plan [--orders 16] [--repeats 3] [--json FILE]

Prints seconds per search, microseconds per order over n log2 n (flat if it grows no faster), and the simulator's
events (starts, ends and waits) a second.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from loopopt.graphs import as_it_was
from loopopt.plan.costs import costs_of
from loopopt.plan.search import search
from loopopt.plan.simulate import items_of, run_items
from tests.unit.plan.graphs_at_random import at_random, table

_SIZES = (1250, 2500, 5000, 10_000)
_SHARE = 0.052


def measure(nodes: int, orders: int, repeats: int) -> dict[str, Any]:
    """One size; medians over repeats."""
    graph = at_random(nodes, nodes, _SHARE)
    costs = costs_of(graph, table())
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        search(graph, costs, tries=orders)
        seconds.append(time.perf_counter() - began)
    items = items_of(graph, as_it_was(graph), costs)
    rounds = max(1, 200_000 // max(1, len(items)))
    began = time.perf_counter()
    for _ in range(rounds):
        run_items(items, costs.slowdown, 1)
    spent = time.perf_counter() - began
    search_s = statistics.median(seconds)
    return {
        "nodes": nodes,
        "collectives": len(graph.starts()),
        "search_s": search_s,
        "us_per_order_over_n_log_n": search_s / orders * 1e6 / (nodes * math.log2(nodes)),
        "events_per_s": rounds * len(items) / spent,
    }


def main() -> int:
    """Print the table; write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [measure(nodes, args.orders, args.repeats) for nodes in _SIZES]
    print(f"{'nodes':>7} {'collectives':>11} {'search, s':>10} {'us per order / n log n':>23} {'events/s':>12}")
    for row in rows:
        print(
            f"{row['nodes']:7} {row['collectives']:11} {row['search_s']:10.2f} "
            f"{row['us_per_order_over_n_log_n']:23.4f} {row['events_per_s']:12.0f}"
        )
    sizes, times = [np.log([r[k] for r in rows]) for k in ("nodes", "search_s")]
    print(f"search grows with the nodes to the power {np.polyfit(sizes, times, 1)[0]:.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
