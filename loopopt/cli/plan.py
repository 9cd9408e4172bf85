"""``loopopt plan``: the schedules tried on a job and the one in force."""

from __future__ import annotations

import click


@click.group()
def plan() -> None:
    """The plans of a job."""


@plan.command("show")
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(job: str | None, as_json: bool) -> int:
    """Show the plans of JOB: their settings, what became of them, and which is in force (*).

    \b
    Examples:
      loopopt plan show
      loopopt plan show night --json
    """
    from loopopt.cli import background, jobs

    answer = background.ask(jobs.find_served(job), "plans", timeout_s=20.0)
    if as_json:
        import json

        click.echo(json.dumps(answer, indent=2))
        return 0
    from loopopt.cli import screen
    from loopopt.report.terminal import plans_view

    screen.console().print(plans_view(answer["trials"], answer["active_plan"]))
    return 0
