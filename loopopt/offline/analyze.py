"""Files -> `Analysis`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed

from loopopt.analysis import Analysis, FailedFile, RunAnalysis, Selection
from loopopt.errors import LoopoptError, TraceError, UsageError
from loopopt.measure.merge import merge_ranks
from loopopt.measure.summary import Limits, RankSummary
from loopopt.offline.executors import open_executor
from loopopt.offline.find import find_traces
from loopopt.offline.runs import Run, find_runs, run_names
from loopopt.offline.work import Task, summarize_file

Progress = Callable[[int, int, str], None]
"""(files done, files in all, what was done last)."""

MANY = 64
"""Files beyond which less is kept of each."""

_SMALL_BYTES = 8 << 20
"""Local files of less in all are read faster than processes start."""


def analyze(
    patterns: Sequence[str],
    *,
    selection: Selection | None = None,
    executor: str = "processes",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Find, parse and measure traces.

    Args:
        patterns: files, folders (searched through), globs, fsspec URLs.
        selection: what part is asked for.
        executor: "serial", "processes", or "dask://host:port" of a running cluster.
        workers: processes, as many as there are cores by default.
        progress: called from this thread after every file.

    Raises:
        UsageError: a pattern matches nothing, no rank has a step or number that was asked for, or the executor
            cannot be had.
        TraceError: none of the files could be used (the first one's error).
    """
    selection = selection or Selection()
    paths = find_traces(patterns)
    limits = Limits() if len(paths) <= MANY else Limits(samples=64, spans=120)
    tasks = [Task(path, selection, limits) for path in paths]
    if executor == "processes" and _is_small(paths):
        executor = "serial"
    summaries: list[RankSummary] = []
    failed: list[FailedFile] = []
    # Before the work, so that a progress bar shows how much there is.
    if progress is not None:
        progress(0, len(tasks), "")
    with open_executor(executor, workers) as pool:
        futures = {pool.submit(summarize_file, task): task for task in tasks}
        for done, (task, result) in enumerate(_results(futures), start=1):
            if isinstance(result, FailedFile):
                failed.append(result)
            else:
                summaries.append(result)
            if progress is not None:
                progress(done, len(tasks), task.path)
    _check(selection, summaries)
    order = {path: place for place, path in enumerate(paths)}
    failed.sort(key=lambda f: order.get(f.path, 0))
    runs: list[RunAnalysis] = []
    found = find_runs(summaries)
    for run, name in zip(found, run_names(found), strict=True):
        try:
            runs.append(merge_ranks(run.summaries, name=name, fingerprint=_fingerprint(run), selection=selection))
        except TraceError as err:
            failed.append(FailedFile(err.path, err.reason, err.offset))
    if not runs:
        first = failed[0]
        more = f" ({len(failed) - 1} more could not be used either)" if len(failed) > 1 else ""
        raise TraceError(first.path, first.reason + more, first.offset)
    return Analysis(tuple(runs), tuple(failed))


def _results(futures: dict[Future[RankSummary | FailedFile], Task]) -> Iterator[tuple[Task, RankSummary | FailedFile]]:
    for future in as_completed(list(futures)):
        task = futures.pop(future)
        try:
            yield task, future.result()
        except BrokenExecutor as err:
            raise LoopoptError(
                f"{task.path}: a worker process died while reading (out of memory?): try --workers 1"
            ) from err


def _is_small(paths: Sequence[str]) -> bool:
    if len(paths) == 1:
        return True
    try:
        return sum(os.path.getsize(path) for path in paths) < _SMALL_BYTES
    except OSError:
        return False


def _check(selection: Selection, summaries: Sequence[RankSummary]) -> None:
    """Refuse a selection that selects nothing: empty tables would look like an answer."""
    if selection.steps is not None and summaries and not any(s.steps for s in summaries):
        raise UsageError(f"steps {_listed(selection.steps)}: no trace has a whole step of that number")
    ranks = {s.rank for s in summaries if s.rank is not None}
    if selection.ranks is not None and ranks and not ranks & selection.ranks:
        raise UsageError(f"ranks {_listed(selection.ranks)}: there are only {_listed(ranks)}")
    names = {name for s in summaries for g in s.groups.values() for name in (g.name, g.description)}
    names |= {g.name for s in summaries for g in s.collectives.groups}
    if selection.groups is not None and summaries and not names & selection.groups:
        known = ", ".join(sorted(n for n in names if n)) or "none"
        raise UsageError(f"groups {', '.join(sorted(selection.groups))}: the traces name {known}")


def _listed(numbers: frozenset[int] | set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:12]))
    return shown + (", ..." if len(numbers) > 12 else "")


def _fingerprint(run: Run) -> dict[str, str]:
    """What the numbers belong to, as far as traces tell."""
    first = run.summaries[0]
    hosts = {s.host for s in run.summaries} - {""}
    found = {
        "world": str(max([len(run.summaries), *(s.world_size for s in run.summaries)])),
        "backend": first.backend,
        "device": ", ".join(sorted({s.device for s in run.summaries} - {""})),
        "hosts": str(len(hosts)) if hosts else "",
    }
    return {key: value for key, value in found.items() if value}
