"""Prometheus metrics of the loop: one catalogue, read from a snapshot at scrape time."""

from loopopt.export.catalogue import STEP_BUCKETS_US, TRACE_FAILURE_REASONS
from loopopt.export.sampling import window_counters
from loopopt.export.server import MetricsServer, start_server
from loopopt.export.snapshot import CounterValue, HistogramValue, Snapshot
from loopopt.export.webconfig import WebConfig, read_web_config

__all__ = [
    "CounterValue",
    "HistogramValue",
    "MetricsServer",
    "STEP_BUCKETS_US",
    "Snapshot",
    "TRACE_FAILURE_REASONS",
    "WebConfig",
    "read_web_config",
    "start_server",
    "window_counters",
]
