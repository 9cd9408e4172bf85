"""Where the per-rank work runs: this process, processes of this machine, or a Dask cluster.

All three have the form of `concurrent.futures.Executor`; nothing here knows what the work is.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from loopopt.errors import UnsupportedError, UsageError

Result = TypeVar("Result")


class SerialExecutor(Executor):
    """Runs everything at once, in this thread."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run now; the future that comes back is done."""
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as err:  # noqa: BLE001 - a future carries whatever the work raised
            future.set_exception(err)
        return future


@contextmanager
def open_executor(where: str, workers: int | None = None) -> Iterator[Executor]:
    """An executor for as long as the block lasts; what has not begun is cancelled when the block is left by an error.

    Args:
        where: "serial", "processes", or "dask://host:port", the scheduler of a running cluster whose workers can
            read the files and have this package installed.
        workers: number of processes; as many as this process may use cores by default.

    Raises:
        UsageError: the text means nothing, or no cluster answers there.
        UnsupportedError: Dask is not installed.
    """
    if where == "serial":
        yield SerialExecutor()
    elif where == "processes":
        # Not fork: this process may have threads, and its memory is none of the workers' business.
        pool = ProcessPoolExecutor(workers or available_cores(), mp_context=multiprocessing.get_context("spawn"))
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
    elif where.startswith("dask://"):
        yield from _dask(where)
    else:
        raise UsageError(f"executor {where!r}: expected serial, processes or dask://host:port")


def available_cores() -> int:
    """Cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _dask(where: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as err:
        raise UnsupportedError(f"{where}: Dask is not installed: pip install 'loopopt[dask]'") from err
    address = "tcp://" + where.removeprefix("dask://")
    try:
        client = Client(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as err:
        raise UsageError(f"{where}: no Dask scheduler answers there ({err})") from err
    try:
        executor = client.get_executor(pure=False)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)
    finally:
        client.close()
