"""What commands share that work on the traces of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from loopopt.errors import EXIT_PARTIAL, UsageError

if TYPE_CHECKING:
    from loopopt.analysis import Analysis, RunAnalysis

F = TypeVar("F", bound=Callable[..., object])


def run_options(command: F) -> F:
    """Options of a command that reads the traces of one run."""
    for option in (
        click.option("--workers", type=click.IntRange(min=1), help="Processes to read with.  [default: one per core]"),
        click.option("--run", "number", type=click.IntRange(min=1), help="Which run, if PATH holds several."),
    ):
        command = option(command)
    return command


def read_run(paths: tuple[str, ...], number: int | None, workers: int | None) -> tuple[RunAnalysis, int]:
    """Analyse the files and choose a run.

    Returns:
        The run, and the exit code that is due: 0, or `EXIT_PARTIAL` if files were left out (they are named on stderr).

    Raises:
        UsageError: a path matches nothing; several runs and no `number`, or none of that number.
        TraceError: no file could be used.
    """
    from loopopt.analysis import Selection
    from loopopt.cli.analyze import read

    analysis = read(paths, Selection(), "processes", workers)
    run = choose(analysis, number)
    if not analysis.failed:
        return run, 0
    from loopopt.report.analysis_tables import failed_lines

    for line in failed_lines(analysis):
        say(f"left out: {line}")
    return run, EXIT_PARTIAL


def choose(analysis: Analysis, number: int | None) -> RunAnalysis:
    """The only run, or the one of a number (from 1, as the message counts them).

    Raises:
        UsageError: several runs and no number, or none of that number.
    """
    runs = analysis.runs
    if number is None and len(runs) == 1:
        return runs[0]
    if number is not None and number <= len(runs):
        return runs[number - 1]
    listed = "; ".join(f"--run {i}: {run.name} ({len(run.files)} ranks)" for i, run in enumerate(runs, 1))
    if number is None:
        raise UsageError(f"the traces are of {len(runs)} runs, choose one: {listed}")
    raise UsageError(f"--run {number}: there is no such run; {listed}")


def say(line: str) -> None:
    """A line for the person, on stderr."""
    click.echo(f"loopopt: {line}", err=True)
