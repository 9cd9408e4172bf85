"""What a scrape costs: ``python -m tests.bench.scrape [--ranks 512] [--groups 64]``.

The whole way: rows in the daemon's database, the snapshot, the page. Prints the median and the longest of many
scrapes in milliseconds, and the size of the page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from loopopt.export import CounterValue, Snapshot
from loopopt.export.collector import SnapshotCollector
from loopopt.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "export"))


def measure(ranks: int, groups: int, scrapes: int) -> tuple[list[float], bytes]:
    """Milliseconds of each scrape, and the page."""
    from exported_job import fleet

    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "state.sqlite") as store:
        with store.batch():
            for counter in fleet(ranks, groups).counters:
                store.increment(counter.key, counter.labels, counter.value)

        def snapshot() -> Snapshot:
            rows = store.counters()
            return Snapshot("0", counters=tuple(CounterValue(r.name, r.value, r.labels) for r in rows))

        registry = CollectorRegistry()
        registry.register(SnapshotCollector(snapshot))
        times, page = [], b""
        for _ in range(scrapes):
            begin = time.perf_counter()
            page = generate_latest(registry)
            times.append((time.perf_counter() - begin) * 1e3)
    return times, page


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--scrapes", type=int, default=50)
    args = parser.parse_args()
    times, page = measure(args.ranks, args.groups, args.scrapes)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    print(
        f"{args.ranks} ranks, {args.groups} groups, {series} series, {len(page)} bytes: "
        f"median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms"
    )


if __name__ == "__main__":
    main()
