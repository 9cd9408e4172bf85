"""Counters kept in the store come out of the exporter the same after a restart of the daemon."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from loopopt.export import STEP_BUCKETS_US, CounterValue, HistogramValue, Snapshot
from loopopt.export.collector import SnapshotCollector
from loopopt.store import Store


def page(store: Store) -> str:
    """The metrics page of what a store holds."""
    snapshot = Snapshot(
        version="0.1.0",
        counters=tuple(CounterValue(row.name, row.value, row.labels) for row in store.counters()),
        histograms=tuple(HistogramValue(row.name, row.bounds, row.counts, row.total) for row in store.histograms()),
    )
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: snapshot))
    return generate_latest(registry).decode()


def test_the_page_goes_on_where_it_was(tmp_path: Path) -> None:
    """The page after reopening is the page before, and counting goes on from there; groups keep their labels."""
    path = tmp_path / "state.sqlite"
    with Store.open(path) as store:
        with store.batch():
            store.increment("rollbacks")
            for number in range(70, 0, -1):
                store.increment("exposed_us", {"collective": "all_gather", "group": f"g{number}"}, 1e6)
        store.observe("step_us", [350_000.0, 1.5e6], STEP_BUCKETS_US)
        before = page(store)
    assert "loopopt_rollbacks_total 1.0\n" in before
    assert 'loopopt_exposed_communication_seconds_total{collective="all_gather",group="other"} 6.0\n' in before
    assert 'loopopt_step_duration_seconds_bucket{le="0.5"} 1.0\n' in before
    with Store.open(path) as store:
        assert page(store) == before
        store.increment("rollbacks")
        store.observe("step_us", [350_000.0], STEP_BUCKETS_US)
        after = page(store)
    assert "loopopt_rollbacks_total 2.0\n" in after
    assert 'loopopt_step_duration_seconds_bucket{le="0.5"} 2.0\n' in after
