"""Metric names, types, units and labels are a contract with people's dashboards and alerts."""

from __future__ import annotations

import re
from pathlib import Path

from loopopt.export.catalogue import CATALOGUE

GOLDEN = Path(__file__).with_name("metric_names.txt")


def test_metrics_are_as_published() -> None:
    """Nothing published is renamed or changed by accident: a wanted change also changes the golden file."""
    lines = [f"{m.name} {m.kind} [{','.join(m.labels)}] {m.unit}".rstrip() for m in CATALOGUE]
    assert "\n".join(sorted(lines)) + "\n" == GOLDEN.read_text()


def test_names_follow_the_conventions() -> None:
    """Prefixed, base units, counters in _total, no ratios, no reserved or per-kernel labels."""
    assert len({m.name for m in CATALOGUE}) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert re.fullmatch(r"loopopt_[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not re.search(r"_(ratio|percent|us|ms|milliseconds|microseconds|kb|mb)(_|$)", metric.name)
        stem = metric.name.removesuffix("_total")
        units = [unit for unit in ("seconds", "bytes") if stem.endswith(f"_{unit}")]
        assert units == ([metric.unit] if metric.unit else [])
        assert not {"le", "quantile", "job", "instance", "kernel", "shape", "op"} & set(metric.labels)
        # One series per rank is dear: only where the name says so.
        assert ("rank" in metric.labels) == metric.name.startswith("loopopt_rank_")
        assert metric.help.endswith(".")
        assert metric.divisor == (1e6 if metric.source.endswith("_us") else 1.0)
