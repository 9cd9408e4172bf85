"""``loopopt refresh``: measure, plan and verify anew; what a timer runs at night."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopopt.errors import EXIT_PARTIAL, BusyError, DaemonError, JobError, UsageError

if TYPE_CHECKING:
    from loopopt.cli.refreshing import Outcome

LOCK_NAME = ".refresh.lock"


@click.command()
@click.argument("names", nargs=-1, metavar="[JOB]...")
@click.option("--all", "everything", is_flag=True, help="All jobs, running or not.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1.0),
    default=3600.0,
    show_default=True,
    help="Seconds a running job may take.",
)
@click.option("--quiet", is_flag=True, help="Print only the jobs that could not be refreshed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def refresh(names: tuple[str, ...], everything: bool, timeout_s: float, quiet: bool, as_json: bool) -> int:
    """Measure again, plan again, verify, keep or roll back.

    A running JOB (name, directory or process id) is given a new round by its daemon. One that does not run gets a
    new timing table from the traces it has left, which its next start uses. One line per job; jobs are taken one
    after the other, so that none disturbs the measurement of another. Repeating it does no harm.

    Exit code 0 if all went well (jobs with nothing to do included), 9 if some jobs could not be refreshed, 6 if none
    could, 11 if another refresh is running.

    \b
    Examples:
      loopopt refresh night
      loopopt refresh --all --timeout 1800
      loopopt refresh --all --json | jq -r '.jobs[] | select(.outcome == "changed").job'
    """
    from loopopt.cli import jobs
    from loopopt.cli.refreshing import refresh_job

    if bool(names) == everything:
        raise UsageError("name the jobs, or give --all" if everything is False else "give names or --all, not both")
    directories = jobs.all_directories() if everything else list(dict.fromkeys(jobs.find_directory(n) for n in names))
    with alone(jobs.home()), _progress(quiet or as_json) as tell:
        outcomes = []
        for place, job_dir in enumerate(directories, 1):
            tell(job_dir.name, f"job {place} of {len(directories)}")
            outcomes.append(
                refresh_job(job_dir, timeout_s, lambda words, name=job_dir.name: tell(name, words))  # type: ignore[misc]
            )
            if not as_json and (outcomes[-1].failed or not quiet):
                click.echo(outcomes[-1].line())
    code = _exit_code(outcomes)
    if as_json:
        import json

        click.echo(json.dumps({"exit_code": code, "jobs": [o.to_json() for o in outcomes]}, indent=2))
    elif not outcomes and not quiet:
        click.echo(f"no job under {jobs.home()}")
    return code


def _exit_code(outcomes: list[Outcome]) -> int:
    failed = sum(o.failed for o in outcomes)
    if not failed:
        return 0
    return DaemonError.exit_code if failed == len(outcomes) else EXIT_PARTIAL


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Be the only refresh of these jobs; the kernel lifts the lock when the process ends, however it ends.

    Raises:
        BusyError: another one is running.
        JobError: the folder cannot be used.
    """
    from loopopt.cli import jobs

    jobs.make_directory(home)
    try:
        lock = os.open(home / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise JobError(f"{home / LOCK_NAME}: {err.strerror}") from err
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(lock, 32, 0).decode(errors="replace").strip()
            raise BusyError(f"another refresh is running (pid {who or 'unknown'}): nothing was done") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _progress(silent: bool) -> Iterator[Callable[[str, str], None]]:
    """Shows (job, words) on a terminal; nothing elsewhere: a timer's log wants the summary only."""
    from rich.markup import escape

    from loopopt.cli import screen

    console = screen.console(stderr=True)
    if silent or not console.is_terminal:
        yield lambda job, words: None
        return
    began_s = time.monotonic()
    with console.status("refresh") as shown:
        yield lambda job, words: shown.update(escape(f"{job}: {words}  {time.monotonic() - began_s:.0f} s"))
