"""``loopopt detach``: end the loop, leave the job."""

from __future__ import annotations

import time

import click

from loopopt.errors import DaemonError


@click.command()
@click.argument("job", required=False)
@click.option("--restore", is_flag=True, help="First put the job back on its own schedule.")
@click.option("--wait", "wait_s", type=float, default=120.0, show_default=True, help="Seconds it may take.")
def detach(job: str | None, restore: bool, wait_s: float) -> int:
    """End the loop, leave the job training.

    It trains on with the plan it has, or with --restore on its own schedule.

    \b
    Examples:
      loopopt detach
      loopopt detach night --restore
    """
    from loopopt.cli import background, jobs

    job_dir = jobs.find_served(job)
    answer = background.ask(job_dir, "detach", timeout_s=wait_s, restore=restore)
    deadline = time.monotonic() + wait_s
    while jobs.daemon_answers(job_dir):
        if time.monotonic() > deadline:
            raise DaemonError(f"{job_dir}: the daemon has not ended after {wait_s:.0f} s: see {job_dir}/daemon.log")
        time.sleep(0.1)
    if restore and not answer.get("restored"):
        raise DaemonError(
            f"detached from {job_dir.name}, but the ranks have not yet said that they are back on their own schedule: "
            "they switch at their next step; `loopopt attach` shows what they run"
        )
    schedule = "its own schedule" if restore else "the schedule it has"
    click.echo(f"detached from {job_dir.name}: the job trains on with {schedule}")
    return 0
