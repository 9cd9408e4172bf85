"""What the daemon remembers: job state, windows, trials, tables, step samples, counters; and trace retention."""

from loopopt.store.database import Store
from loopopt.store.records import CounterRow, HistogramRow, StepRun, TrialRow, Verdict, WindowRow
from loopopt.store.retention import PruneResult, prune_traces

__all__ = [
    "Store",
    "CounterRow",
    "HistogramRow",
    "StepRun",
    "TrialRow",
    "Verdict",
    "WindowRow",
    "PruneResult",
    "prune_traces",
]
