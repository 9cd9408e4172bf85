"""Builds metric families from a snapshot at scrape time. The one place where microseconds become seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from loopopt.export.catalogue import CATALOGUE, STEP_BUCKETS_US, Metric
from loopopt.export.labels import LabelBounds
from loopopt.export.snapshot import CounterValue, HistogramValue, Snapshot

Series = dict[tuple[str, ...], float]
"""Exported values by label values, in the order of the metric's label names."""

Counters = dict[str, list[CounterValue]]
"""A snapshot's counters by key, each list in the order they became known."""


class SnapshotCollector(Collector):
    """Exports a `Snapshot` under the names of the catalogue.

    Every metric is on the page in every scrape; counters without labels, and those whose label values
    are known, begin at 0. A gauge whose value is unknown has no sample: unknown is not zero.

    Args:
        snapshot: called once per scrape, from the scraping thread.
        bounds: label bounds; a fresh one by default.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], bounds: LabelBounds | None = None) -> None:
        self._snapshot = snapshot
        self._bounds = bounds or LabelBounds()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Family]:
        """The families without samples, so that registering does not need a snapshot."""
        return [_family(metric) for metric in CATALOGUE]

    def collect(self) -> Iterator[Family]:
        """One family per entry of the catalogue, in its order."""
        snapshot = self._snapshot()
        counters: Counters = {}
        for counter in snapshot.counters:
            counters.setdefault(counter.key, []).append(counter)
        with self._lock:  # two scrapes at once must not race for the last free label
            families = [self._filled(metric, snapshot, counters.get(metric.source, [])) for metric in CATALOGUE]
        yield from families

    def _filled(self, metric: Metric, snapshot: Snapshot, counters: list[CounterValue]) -> Family:
        family = _family(metric)
        if isinstance(family, HistogramMetricFamily):
            _fill_histogram(family, metric, snapshot)
        elif isinstance(family, CounterMetricFamily):
            for labels, value in self._counted(metric, counters).items():
                family.add_metric(labels, value / metric.divisor)
        elif isinstance(family, GaugeMetricFamily):
            for labels, value in _gauged(metric, snapshot).items():
                family.add_metric(labels, value / metric.divisor)
        return family

    def _counted(self, metric: Metric, counters: list[CounterValue]) -> Series:
        series: Series = {(): 0.0} if not metric.labels else {(value,): 0.0 for value in metric.known}
        for counter in counters:
            labels = tuple(self._bounds.bounded(name, counter.labels.get(name, "")) for name in metric.labels)
            series[labels] = series.get(labels, 0.0) + counter.value
        return series


def _family(metric: Metric) -> Family:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)


def _gauged(metric: Metric, snapshot: Snapshot) -> Series:
    if metric.source == "build":
        return {(snapshot.version, snapshot.training_job, snapshot.torch, snapshot.backend): 1.0}
    if metric.source == "plan":
        return {(snapshot.plan_id, snapshot.plan_label): 1.0} if snapshot.plan_id else {}
    if metric.source == "ranks":
        return {(state,): float(snapshot.ranks.get(state, 0)) for state in metric.known}
    if metric.source == "phase":
        return {(phase,): float(phase == snapshot.phase) for phase in metric.known}
    value = getattr(snapshot, metric.source)
    return {} if value is None else {(): float(value)}


def _fill_histogram(family: HistogramMetricFamily, metric: Metric, snapshot: Snapshot) -> None:
    value = HistogramValue(metric.source, STEP_BUCKETS_US, (0,) * (len(STEP_BUCKETS_US) + 1), 0.0)
    for kept in snapshot.histograms:
        # Counts kept with the buckets of another release are left out: they begin anew with the next step.
        if kept.key == metric.source and kept.bounds == STEP_BUCKETS_US:
            value = kept
    edges = [repr(bound / metric.divisor) for bound in value.bounds] + ["+Inf"]
    cumulative = [float(count) for count in accumulate(value.counts)]
    family.add_metric([], list(zip(edges, cumulative, strict=True)), value.total / metric.divisor)
