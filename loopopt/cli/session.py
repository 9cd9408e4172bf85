"""One job from beginning to end with a daemon beside it: what `run` and `demo` share."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopopt.cli import background, jobs, launch
from loopopt.errors import LoopoptError


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job went.

    Attributes:
        exit_code: the command's.
        status: the daemon's last status; empty if there was none.
        windows: the daemon's windows, if they were asked for.
        trouble: why there was no daemon, or that it died; empty if all was well.
    """

    exit_code: int
    status: dict[str, Any]
    windows: tuple[dict[str, Any], ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run and how.

    Attributes:
        command: program and arguments.
        job_dir: absolute directory, not necessarily there yet.
        job: name.
        settings: ``key=value`` for the daemon.
        output: file descriptor for the command's output; this process's own if None.
        want_windows: ask the daemon for its windows at the end.
    """

    command: list[str]
    job_dir: Path
    job: str
    settings: tuple[str, ...] = ()
    output: int | None = None
    want_windows: bool = False


def run_job(
    request: Request,
    say: Callable[[str], None],
    started: Callable[[background.Watcher], None] = lambda watcher: None,
) -> Outcome:
    """Run a command with a daemon beside it. Without a daemon the command runs all the same.

    Args:
        request: what to run.
        say: prints a line for the person.
        started: called once the command runs, with the source of live status.

    Raises:
        UsageError, JobError: the directory or the command is wrong; nothing has been run.
    """
    jobs.make_directory(request.job_dir)
    mask = launch.block_signals()
    daemon: subprocess.Popen[bytes] | None = None
    trouble = ""
    try:
        if not jobs.daemon_answers(request.job_dir):
            try:
                daemon = background.start(request.job_dir, request.settings)
            except LoopoptError as err:
                trouble = f"{err}; the job runs without it"
                say(trouble)
        elif request.settings:
            say(f"a daemon already serves {request.job_dir}: --set has no effect on it")
        watcher = background.Watcher(request.job_dir)

        def begin() -> None:
            watcher.begin()
            started(watcher)

        environ = launch.job_environment(os.environ, str(request.job_dir), request.job)
        try:
            code = launch.run_in_foreground(request.command, environ, mask, begin, request.output)
            status = watcher.end()
            windows = _windows(request) if request.want_windows else ()
        finally:
            died = daemon is not None and daemon.poll() is not None
            if daemon is not None and not died:
                background.shut_down(request.job_dir, daemon)
    finally:
        launch.restore_signals(mask)
    if died and daemon is not None:
        log = request.job_dir / background.LOG_NAME
        trouble = f"the daemon ended during the job with exit code {daemon.returncode}: see {log}"
        say(trouble)
    return Outcome(code, status, windows, trouble)


def _windows(request: Request) -> tuple[dict[str, Any], ...]:
    """The daemon's windows; the last ones may still be in the measuring process, so it is given a moment."""
    deadline = time.monotonic() + 3.0
    while True:
        try:
            found = background.ask(request.job_dir, "windows", timeout_s=20.0).get("windows") or ()
        except LoopoptError:
            return ()
        if found or time.monotonic() > deadline:
            return tuple(found)
        time.sleep(0.3)
