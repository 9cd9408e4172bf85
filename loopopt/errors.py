"""Every error loopopt raises on purpose.

    LoopoptError                 base; `exit_code` is what the command line returns
    +-- UsageError        2      a wrong setting or argument
    +-- TraceError        3      a trace file that cannot be used (names path, offset, expectation)
    +-- StoreError        4      the state directory or database cannot be used
    +-- WireError         5      a malformed, oversized or wrong-version message
    +-- DaemonError       6      no daemon, or the daemon cannot do what was asked
    +-- JobError          7      the job cannot be found, attached to or started
    +-- UnsupportedError  8      this PyTorch or platform lacks what is needed
    +-- BusyError        11      another process is doing the same; nothing was done

Two more exit codes come with results and without an error: `EXIT_PARTIAL` and `EXIT_LOW_COVERAGE`.

The command line catches `LoopoptError` in one place (`loopopt.cli.main`) and prints one line on stderr.
"""

from __future__ import annotations

EXIT_PARTIAL = 9
"""`loopopt analyze`, `diff`: done, but some trace files could not be used; `refresh`: some jobs; they are named."""

EXIT_LOW_COVERAGE = 10
"""`loopopt analyze --coverage strict`: done, but too little of the time has a measured duration."""


class LoopoptError(Exception):
    """Base of the tree. The message says what is wrong and what to do about it."""

    exit_code = 1


class UsageError(LoopoptError):
    """A setting or argument is wrong; the message names it."""

    exit_code = 2


class TraceError(LoopoptError):
    """A trace file cannot be used.

    Args:
        path: the file.
        reason: what is wrong and what was expected.
        offset: byte offset in the uncompressed text where it went wrong, if known.
    """

    exit_code = 3

    def __init__(self, path: str, reason: str, offset: int | None = None) -> None:
        where = f"{path} (byte {offset})" if offset is not None else path
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.reason = reason
        self.offset = offset


class StoreError(LoopoptError):
    """The state directory or database cannot be used; the message names the path."""

    exit_code = 4


class WireError(LoopoptError):
    """A message between agent and daemon is malformed, too large or of another version."""

    exit_code = 5


class DaemonError(LoopoptError):
    """No daemon serves the job, or it refused."""

    exit_code = 6


class JobError(LoopoptError):
    """The job cannot be found, attached to or started."""

    exit_code = 7


class UnsupportedError(LoopoptError):
    """This version of PyTorch, or this platform, lacks something that is needed."""

    exit_code = 8


class BusyError(LoopoptError):
    """Another process is doing the same at this moment; nothing was done."""

    exit_code = 11
