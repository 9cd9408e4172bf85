"""``loopopt table``: the measured durations the scheduler is fed with."""

from __future__ import annotations

import click


@click.group()
def table() -> None:
    """The timing table of a job."""


@table.command("show")
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(job: str | None, as_json: bool) -> int:
    """Show the transfer times and compute durations measured on JOB.

    \b
    Examples:
      loopopt table show
      loopopt table show night --json > table.json
    """
    from loopopt.cli import background, jobs

    answer = background.ask(jobs.find_served(job), "table", timeout_s=20.0)
    if as_json:
        import json

        click.echo(json.dumps(answer, indent=2))
        return 0
    content = answer.get("table")
    if not content:
        click.echo("no timing table yet: the first window has not been measured")
        return 0
    from loopopt.cli import screen
    from loopopt.report.terminal import table_view

    screen.console().print(table_view(content))
    return 0
