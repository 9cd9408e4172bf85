"""The work on one file: parse and summarise. A pure function of the file, for any executor."""

from __future__ import annotations

import os
from dataclasses import dataclass

from loopopt.analysis import FailedFile, Selection
from loopopt.errors import TraceError
from loopopt.measure.summary import Limits, RankSummary, summarize
from loopopt.parse import parse_trace


@dataclass(frozen=True, slots=True)
class Task:
    """One file and what is wanted of it."""

    path: str
    selection: Selection
    limits: Limits


def summarize_file(task: Task) -> RankSummary | FailedFile:
    """What the trace says, or why it cannot be used; raises nothing that a trace could cause."""
    # A worker has one file at a time: threads of the numeric library would only fight with the other workers.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        return summarize(parse_trace(task.path), selection=task.selection, limits=task.limits)
    except TraceError as err:
        return FailedFile(err.path, err.reason, err.offset)
    except MemoryError:
        return FailedFile(task.path, "not enough memory to read it; try fewer workers")
