"""What a rank was doing when: communication, compute and copies as sets of instants.

GPU rank (the trace has kernels): communication and compute are kernels, copies are memcpy and memset.

CPU rank (no kernels, collectives of gloo or MPI): communication is the backend's own events; compute is the
time in which a thread that runs the step is inside an operator or compiled region and not in a wait:

    step thread   |== CompiledFunction =======================|
                    |=mm==|  |wait_tensor........|  |=mm==|
    compute       |----------)                   |------------)
    gloo thread           |== gloo:all_gather ==|
    exposed                  |------------------)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopopt.measure import naming
from loopopt.measure.intervals import Intervals, Times, join, subtract, union
from loopopt.traces import Category, RankTrace

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False, slots=True)
class Activity:
    """One rank's sets of instants (nanoseconds since the epoch).

    Attributes:
        on_device: whether kernels were recorded; False for a CPU rank.
        communication, compute, copies: see the module.
        exposed: communication minus compute.
        collective_rows: rows of the trace that make up `communication`, by start.
        step_threads: threads that run the step, as indices into `RankTrace.threads`.
        start_ns, end_ns: first start and last end of any kept event.
    """

    on_device: bool
    communication: Intervals
    compute: Intervals
    copies: Intervals
    exposed: Intervals
    collective_rows: Rows
    step_threads: tuple[int, ...]
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """One whole training step as its annotation on the host marks it (nanoseconds since the epoch)."""

    number: int
    start_ns: int
    end_ns: int


def rows_named(trace: RankTrace, accept: Callable[[str], object], *categories: Category) -> Rows:
    """Rows of these categories whose name is accepted, by start."""
    wanted = np.fromiter((bool(accept(n)) for n in trace.names), bool, len(trace.names))
    if not len(trace) or not wanted.any():
        return np.zeros(0, np.intp)
    return np.flatnonzero(wanted[trace.name] & np.isin(trace.category, categories))


def find_steps(trace: RankTrace) -> tuple[Step, ...]:
    """Steps by number. Our own marks win over the profiler's; of one number the longest counts."""
    rows = rows_named(trace, naming.STEP.fullmatch, Category.ANNOTATION, Category.OPERATOR)
    found: dict[str, dict[int, Step]] = {}
    for row in rows.tolist():
        match = naming.STEP.fullmatch(trace.names[trace.name[row]])
        start, length = int(trace.start_ns[row]), int(trace.duration_ns[row])
        if match is None or length <= 0:
            continue
        steps = found.setdefault(match.group(1), {})
        step = Step(int(match.group(2)), start, start + length)
        known = steps.get(step.number)
        if known is None or known.end_ns - known.start_ns < length:
            steps[step.number] = step
    steps = found.get("loopopt.step") or found.get("ProfilerStep") or {}
    return tuple(sorted(steps.values(), key=lambda s: s.start_ns))


def find_activity(trace: RankTrace) -> Activity:
    """Sort a rank's events into the sets; see the module."""
    kernels = np.flatnonzero(trace.category == Category.KERNEL)
    host_rows = rows_named(trace, naming.HOST_COLLECTIVE.match, Category.ANNOTATION, Category.OPERATOR)
    threads = _step_threads(trace, host_rows)
    copies = _union(trace, np.flatnonzero(np.isin(trace.category, (Category.MEMCPY, Category.MEMSET))))
    on_device = bool(len(kernels)) or not (len(host_rows) or _host_backend(trace.backend))
    if on_device:
        rows = rows_named(trace, naming.COMMUNICATION_KERNEL.search, Category.KERNEL)
        compute = _union(trace, np.setdiff1d(kernels, rows, assume_unique=True))
    else:
        rows = host_rows
        compute = join(*(_thread_compute(trace, thread) for thread in threads))
    communication = _union(trace, rows)
    return Activity(
        on_device=on_device,
        communication=communication,
        compute=compute,
        copies=copies,
        exposed=subtract(communication, compute),
        collective_rows=rows,
        step_threads=threads,
        start_ns=int(trace.start_ns.min()) if len(trace) else 0,
        end_ns=int(trace.end_ns.max()) if len(trace) else 0,
    )


def _host_backend(backend: str) -> bool:
    """Whether every backend in "gloo" or "cpu:gloo,cuda:gloo" runs on the host."""
    names = {part.rpartition(":")[2].strip().lower() for part in backend.split(",")} - {""}
    return bool(names) and names <= {"gloo", "mpi"}


def _union(trace: RankTrace, rows: Rows) -> Intervals:
    starts: Times = trace.start_ns[rows]
    return union(starts, starts + trace.duration_ns[rows])


def _step_threads(trace: RankTrace, host_rows: Rows) -> tuple[int, ...]:
    """Threads with step marks and those of the autograd engine; without marks the one busiest with operators."""
    marks = rows_named(trace, naming.STEP.fullmatch, Category.ANNOTATION, Category.OPERATOR)
    chosen = set(trace.thread[marks].tolist())
    backend = set(trace.thread[host_rows].tolist())
    if not chosen:
        operators = np.flatnonzero(trace.category == Category.OPERATOR)
        operators = operators[~np.isin(trace.thread[operators], list(backend))]
        if len(operators):
            busy = np.bincount(trace.thread[operators], weights=trace.duration_ns[operators])
            chosen.add(int(busy.argmax()))
    autograd = rows_named(trace, lambda n: n.startswith(naming.AUTOGRAD), Category.OPERATOR)
    chosen.update(set(trace.thread[autograd].tolist()) - backend)
    return tuple(sorted(chosen))


def _thread_compute(trace: RankTrace, thread: int) -> Intervals:
    here = trace.thread == thread
    working = here & (trace.category == Category.OPERATOR)
    regions = rows_named(trace, naming.COMPILED_REGION.match, Category.ANNOTATION)
    working[regions[here[regions]]] = True
    # A step mark was an operator in old traces; it covers waiting as well as working.
    working[rows_named(trace, naming.STEP.fullmatch, Category.OPERATOR)] = False
    waits = rows_named(trace, naming.WAIT.search, Category.OPERATOR, Category.ANNOTATION)
    waits = waits[here[waits]]
    return subtract(_union(trace, np.flatnonzero(working)), _union(trace, waits))
