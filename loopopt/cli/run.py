"""``loopopt run``: a command, unchanged, with the loop beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from loopopt.errors import LoopoptError

if TYPE_CHECKING:
    from loopopt.cli.session import Outcome


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", help="Name of the job.  [default: the script's name and a process id]")
@click.option("--dir", "directory", help="Job directory (sockets, state, traces).  [default: LOOPOPT_HOME/NAME]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the loop; repeatable.")
@click.option("--summary-json", metavar="FILE", help="Also write the summary to a file, as JSON.")
@click.option("--quiet", is_flag=True, help="Print no summary at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    name: str | None,
    directory: str | None,
    settings: tuple[str, ...],
    summary_json: str | None,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with the loop beside it.

    The command runs unchanged in the foreground: same streams, same exit code, signals passed on. A daemon
    is started if none serves the job, and ended with it; if it cannot start or dies, the job goes on. At the
    end a summary of before and after is printed on stderr.

    \b
    Examples:
      loopopt run -- torchrun --nproc-per-node 2 train.py --lr 0.1
      loopopt run --name night --summary-json night.json -- torchrun --nproc-per-node 8 train.py
      loopopt run --set metrics_port=9400 -- torchrun --nproc-per-node 2 train.py
    """
    from loopopt.cli import jobs, session

    job_dir = jobs.job_directory(name, directory, list(command), os.getpid())
    request = session.Request(list(command), job_dir, name or job_dir.name, settings)
    outcome = session.run_job(request, lambda line: click.echo(f"loopopt: {line}", err=True))

    try:
        _report(outcome, summary_json, quiet)
    except LoopoptError as err:
        click.echo(f"loopopt: {err}", err=True)
    except Exception as err:  # noqa: BLE001  (the door: whatever the report does, the job's exit code comes first)
        click.echo(f"loopopt: no summary: {err!r}", err=True)
    return outcome.exit_code


def _report(outcome: Outcome, summary_json: str | None, quiet: bool) -> None:
    from loopopt.cli import background
    from loopopt.report.summary import summarize

    summary = summarize(outcome.status)
    if summary_json is not None:
        body = {**summary.to_json(), "exit_code": outcome.exit_code, "trouble": outcome.trouble}
        background.write_json(summary_json, body)
    if not quiet and outcome.status:
        from loopopt.cli import screen
        from loopopt.report.terminal import summary_view

        screen.console(stderr=True).print(summary_view(summary))
