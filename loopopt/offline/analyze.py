"""Files -> `Analysis`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loopopt.analysis import Analysis, Selection

Progress = Callable[[int, int, str], None]
"""(files done, files in all, what was done last)."""


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
        UsageError: a pattern matches nothing, or the executor cannot be had.
        TraceError: none of the files could be used (the first one's error).
    """
    raise NotImplementedError
