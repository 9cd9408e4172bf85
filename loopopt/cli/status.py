"""``loopopt status``: what the loop is doing."""

from __future__ import annotations

import time

import click


@click.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (with --watch: one line each time).")
@click.option("--watch", is_flag=True, help="Keep showing it until Ctrl-C or until the daemon ends.")
@click.option("--every", "every_s", type=float, default=1.0, show_default=True, help="Seconds between two looks.")
def status(job: str | None, as_json: bool, watch: bool, every_s: float) -> int:
    """Show what the loop is doing.

    Its phase, the ranks, and before and after of JOB (the only one, if none is named).

    \b
    Examples:
      loopopt status
      loopopt status night --watch
      loopopt status --json | jq .phase
    """
    import json

    from loopopt.cli import background, jobs

    job_dir = jobs.find_served(job)
    if as_json:
        while True:
            click.echo(json.dumps(background.ask(job_dir, "status"), indent=None if watch else 2))
            if not watch:
                return 0
            time.sleep(every_s)
            if not jobs.daemon_answers(job_dir):
                return 0

    from rich.console import RenderableType
    from rich.live import Live

    from loopopt.cli import screen
    from loopopt.report.summary import summarize
    from loopopt.report.terminal import status_view

    def look() -> RenderableType:
        answer = background.ask(job_dir, "status")
        return status_view(answer, summarize(answer))

    console = screen.console()
    if not watch:
        console.print(look())
        return 0
    with Live(look(), console=console, auto_refresh=False) as live:
        while jobs.daemon_answers(job_dir):
            live.update(look(), refresh=True)
            time.sleep(every_s)
    click.echo("the daemon has ended", err=True)
    return 0
