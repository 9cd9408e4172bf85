"""``loopopt table``: the measured durations the scheduler is fed with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from loopopt.cli.onerun import read_run, run_options, say
from loopopt.errors import EXIT_LOW_COVERAGE, UsageError

if TYPE_CHECKING:
    from loopopt.offline.tablefile import TableFile


@click.group()
def table() -> None:
    """The timing table of a job, or in a file."""


@table.command("build")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", "out", required=True, metavar="FILE", help="The table to write, as JSON.")
@click.option(
    "--coverage",
    type=click.Choice(["off", "warn", "strict"]),
    default="warn",
    show_default=True,
    help="What to do if under 90 % of the time has a measured duration; strict: exit code 10.",
)
@run_options
def build(paths: tuple[str, ...], out: str, coverage: str, number: int | None, workers: int | None) -> int:
    """Make a timing table from the traces of one run.

    PATH is a trace, a folder that is searched through, or a pattern in quotes. It takes the traces of all ranks:
    transfer times are measured from the last arrival in a group.

    \b
    Examples:
      loopopt table build traces/ -o table.json
      loopopt table build 'traces/rank*.json.gz' -o table.json --coverage strict
    """
    from datetime import datetime, timezone

    run, code = read_run(paths, number, workers)
    from loopopt.offline import events, tablefile
    from loopopt.report.analysis_tables import coverage_complaint

    groups = [group for file in run.files for group in events.groups_of(file.path)]
    made = tablefile.of_run(run, groups, datetime.now(timezone.utc).isoformat(timespec="seconds"))
    tablefile.write(made, out)
    say(f"written: {out}, digest {made.table.digest}")
    complaint = coverage_complaint(run) if coverage != "off" else None
    if complaint is not None:
        say(complaint)
    return code or (EXIT_LOW_COVERAGE if complaint is not None and coverage == "strict" else 0)


@table.command("show")
@click.argument("source", required=False, metavar="[JOB|FILE]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(source: str | None, as_json: bool) -> int:
    """Show the transfer times and compute durations measured on JOB, or those in FILE.

    \b
    Examples:
      loopopt table show
      loopopt table show night --json > table.json
      loopopt table show table.json
    """
    if source is None or not os.path.isfile(source):
        return _show_job(source, as_json)
    from datetime import datetime, timezone

    from loopopt.offline import tablefile

    content = tablefile.read(source).to_json()
    if as_json:
        click.echo(tablefile.json_text(content), nl=False)
        return 0
    from loopopt.cli import screen
    from loopopt.report.table_file import table_file_view

    screen.console().print(table_file_view(content, datetime.now(timezone.utc)))
    return 0


@table.command("diff")
@click.argument("before", metavar="JOB|FILE")
@click.argument("after", metavar="JOB|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; it has all keys.")
def diff(before: str, after: str, as_json: bool) -> int:
    """Show what differs between two timing tables.

    Latency and bandwidth of each curve, durations that changed by more than they vary, keys in one table only.

    \b
    Examples:
      loopopt table diff before.json after.json
      loopopt table diff monday.json night --json | jq '.changes[] | select(.beyond_spread)'
    """
    from loopopt.offline import tablediff

    content = tablediff.diff(_load(before).table, _load(after).table).to_json()
    if as_json:
        import json

        click.echo(json.dumps(content, indent=2, allow_nan=False))
        return 0
    from loopopt.cli import screen
    from loopopt.report.table_file import table_diff_view

    screen.console().print(table_diff_view(content))
    return 0


@table.command("export")
@click.argument("source", required=False, metavar="[JOB|FILE]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "csv", "inductor-profile"]),
    default="json",
    show_default=True,
    help="inductor-profile: what PyTorch's own profile-guided estimator reads.",
)
@click.option("-o", "--output", "out", required=True, metavar="FILE", help="The file to write.")
def export(source: str | None, form: str, out: str) -> int:
    """Write the timing table of JOB, or of FILE, in another form.

    \b
    Examples:
      loopopt table export night -o table.json
      loopopt table export table.json --format csv -o table.csv
      loopopt table export table.json --format inductor-profile -o profile.json
    """
    from loopopt.offline import inductor, tablefile

    file = _load(source)
    if form == "csv":
        tablefile.write_text(out, tablefile.csv_text(file.table))
        say(f"written: {out}")
    elif form == "inductor-profile":
        profile = inductor.profile(file)
        tablefile.write_text(out, tablefile.json_text(profile.content))
        for note in profile.notes:
            say(note)
        say(f"written: {out}, {profile.collectives} kinds of collective, {profile.operators} operator durations")
    else:
        tablefile.write(file, out)
        say(f"written: {out}, digest {file.table.digest}")
    return 0


@table.command("import")
@click.argument("path", metavar="FILE")
@click.option("-o", "--output", "out", required=True, metavar="FILE", help="The table to write, as JSON.")
def import_(path: str, out: str) -> int:
    """Check FILE and write it as a timing table.

    FILE is anything that `table export` or `table show --json` writes, edited or not. One whose digest does not
    fit its content is refused; without a digest it is taken as it is.

    \b
    Examples:
      loopopt table import table.csv -o table.json
      loopopt table import profile.json -o table.json
    """
    from loopopt.offline import tablefile

    file = tablefile.read(path)
    tablefile.write(file, out)
    say(f"written: {out}, digest {file.table.digest}")
    return 0


def _ask(job: str | None) -> dict[str, Any]:
    from loopopt.cli import background, jobs

    return background.ask(jobs.find_served(job), "table", timeout_s=20.0)


def _show_job(job: str | None, as_json: bool) -> int:
    answer = _ask(job)
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


def _load(source: str | None) -> TableFile:
    """The table in a file, or of a job.

    Raises:
        UsageError: the file is no table, or the job has none yet.
        JobError, DaemonError: there is no such job, or no daemon serves it.
    """
    from loopopt.offline import tablefile

    if source is not None and os.path.isfile(source):
        return tablefile.read(source)
    if source is not None and source.endswith((".json", ".csv")):
        raise UsageError(f"{source}: there is no such file")
    from datetime import datetime, timezone

    from loopopt.timing import TimingTable

    answer = _ask(source)
    if not answer.get("table"):
        raise UsageError("no timing table yet: the first window of the job has not been measured")
    return tablefile.TableFile(
        table=TimingTable.from_json(answer["table"]),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        sources=(f"job {source}" if source else "the job",),
    )
