"""``loopopt attach``: a daemon for a job that is already running."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopopt.errors import JobError, LoopoptError

if TYPE_CHECKING:
    from loopopt.cli.processes import Rank


@click.command()
@click.argument("job", required=False, metavar="[JOB|PID]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the loop; repeatable.")
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Seconds to wait for the ranks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def attach(job: str | None, settings: tuple[str, ...], wait_s: float, as_json: bool) -> int:
    """Attach a daemon to a running job, or list those.

    Without an argument: the jobs that can be attached to, and why not the others.

    The job must have been started with the agent in it: LOOPOPT=1 and LOOPOPT_DIR in its environment, as
    `loopopt run` sets them.

    \b
    Examples:
      loopopt attach
      loopopt attach night
      loopopt attach 12345
    """
    from loopopt.cli import background, jobs, processes

    if job is None:
        return _list(processes.live_ranks(), as_json)
    job_dir = jobs.find_directory(job)
    jobs.check_socket_path(job_dir)
    if jobs.daemon_answers(job_dir):
        raise JobError(f"{job_dir}: a daemon already serves this job: see `loopopt status {job}`")
    ranks = [r for r in processes.armed_ranks() if r.job_dir == job_dir]
    if not ranks:
        raise JobError(f"{job_dir}: no live rank of this job on this machine: start it with `loopopt run`")
    jobs.make_directory(job_dir)
    daemon = background.start(job_dir, settings)
    registered = _wait_for_ranks(job_dir, len(ranks), wait_s)
    if as_json:
        import json

        body = {"dir": str(job_dir), "daemon_pid": daemon.pid, "ranks": len(ranks), "registered": registered}
        click.echo(json.dumps(body))
    else:
        click.echo(f"attached to {job_dir} (daemon {daemon.pid}): {registered} of {len(ranks)} local ranks registered")
        if registered < len(ranks):
            click.echo("a rank registers after its first optimizer step; see `loopopt status`", err=True)
    return 0


def _wait_for_ranks(job_dir: Path, wanted: int, wait_s: float) -> int:
    from loopopt.cli import background

    deadline = time.monotonic() + wait_s
    registered = 0
    while True:
        try:
            ranks = background.ask(job_dir, "status").get("ranks") or ()
            registered = sum(rank.get("state") != "lost" for rank in ranks)
        except LoopoptError:
            registered = 0
        if registered >= wanted or time.monotonic() > deadline:
            return registered
        time.sleep(0.2)


def _list(ranks: list[Rank], as_json: bool) -> int:
    from loopopt.cli import jobs

    served = {r.job_dir: jobs.daemon_answers(r.job_dir) for r in ranks if not r.why_not}
    rows = []
    for rank in ranks:
        why_not = rank.why_not or ("a daemon already serves it" if served[rank.job_dir] else "")
        note = "" if rank.present or rank.why_not else "no step yet"
        if rank.mode == "observe":
            note = "observes only"
        rows.append((rank, why_not, note))
    if as_json:
        import json

        click.echo(
            json.dumps(
                [
                    {
                        "job": r.job if not r.why_not else "",
                        "dir": str(r.job_dir) if not r.why_not else "",
                        "rank": r.rank,
                        "world_size": r.world_size,
                        "pid": r.pid,
                        "attachable": not why_not,
                        "why_not": why_not,
                        "note": note,
                        "command": r.command,
                    }
                    for r, why_not, note in rows
                ],
                indent=2,
            )
        )
        return 0
    if not rows:
        click.echo("no training rank (RANK and WORLD_SIZE in its environment) among your live processes")
        return 0
    from rich.markup import escape
    from rich.table import Table

    from loopopt.cli import screen

    table = Table()
    for name in ("job", "rank", "pid", "attach?", "command"):
        table.add_column(name, overflow="fold", justify="right" if name in ("rank", "pid") else "left")
    for rank, why_not, note in rows:
        answer = f"no: {why_not}" if why_not else f"yes{f' ({note})' if note else ''}"
        number = f"{rank.rank}/{rank.world_size}"
        table.add_row(escape(rank.job) or "-", number, str(rank.pid), escape(answer), escape(rank.command[:80]))
    screen.console().print(table)
    return 0
