"""``loopopt diff``: two analyses side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopopt.cli.analyze import read, reading_options, selection_of
from loopopt.errors import EXIT_PARTIAL, UsageError

if TYPE_CHECKING:
    from loopopt.analysis import Analysis, RunAnalysis, Selection

_HEAD_BYTES = 256


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--before-run", metavar="RUN", help="Which run of BEFORE, by number or name, if it holds several.")
@click.option("--after-run", metavar="RUN", help="Which run of AFTER, by number or name, if it holds several.")
@reading_options
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Entries of the timing table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def diff(
    before: str,
    after: str,
    before_run: str | None,
    after_run: str | None,
    steps: str | None,
    groups: tuple[str, ...],
    executor: str,
    workers: int | None,
    top: int,
    as_json: bool,
) -> int:
    """Compare the traces BEFORE and AFTER: what changed, and is it beyond noise.

    Each is a trace, a folder or a pattern as for `loopopt analyze`, or a file saved with its --json (then
    --steps and --group must have been given there). Four steps on each side are the least for a verdict.

    Exit code 0 whatever changed; 3 if no file of a side could be used, 9 if some could not.

    \b
    Examples:
      loopopt diff before/ after/
      loopopt analyze before/ --json > before.json; loopopt diff before.json after/
      loopopt diff traces/ traces/ --before-run 1 --after-run 2
    """
    from dataclasses import asdict, replace

    selection = selection_of(steps, groups)
    sides = []
    failed = False
    for path, wanted, option in ((before, before_run, "--before-run"), (after, after_run, "--after-run")):
        analysis = _load(path, selection, executor, workers)
        sides.append(_one_run(analysis, path, wanted, option))
        failed = failed or bool(analysis.failed)
        _name_failed(analysis)
    from loopopt.report.comparison import compare_runs

    comparison = compare_runs(*sides)
    if comparison.before == comparison.after:
        comparison = replace(comparison, before=f"{before}: {comparison.before}", after=f"{after}: {comparison.after}")
    if as_json:
        import json

        click.echo(json.dumps({"form": "loopopt-diff-1", **asdict(comparison)}, allow_nan=False))
    else:
        from loopopt.cli import screen
        from loopopt.report.comparison_tables import comparison_view

        screen.console().print(comparison_view(comparison, top))
    return EXIT_PARTIAL if failed else 0


def _load(path: str, selection: Selection, executor: str, workers: int | None) -> Analysis:
    """From traces, or from a saved analysis."""
    if not _is_saved(Path(path)):
        return read((path,), selection, executor, workers)
    if selection.steps or selection.groups:
        raise UsageError(f"{path}: is a saved analysis; --steps and --group must be given to `loopopt analyze`")
    import json

    from loopopt.report.analysis_json import analysis_from_json

    try:
        return analysis_from_json(json.loads(Path(path).read_text(encoding="utf-8")), path)
    except (OSError, ValueError) as err:
        raise UsageError(f"{path}: cannot be read as a saved analysis: {err}") from err


def _is_saved(path: Path) -> bool:
    """Traces end in .json too, so the file's own first words decide."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.lstrip().startswith(b"{") and b'"form"' in head and b"loopopt-analysis" in head


def _one_run(analysis: Analysis, path: str, wanted: str | None, option: str) -> RunAnalysis:
    """The run that is meant; never a guess between two."""
    from loopopt.report.analysis_rows import printable

    found = ", ".join(f"{number} ({printable(run.name)})" for number, run in enumerate(analysis.runs, start=1))
    if wanted is None:
        if len(analysis.runs) != 1:
            raise UsageError(f"{path}: holds {len(analysis.runs)} runs: {found}; choose one with {option}")
        return analysis.runs[0]
    for number, run in enumerate(analysis.runs, start=1):
        if wanted in (str(number), run.name):
            return run
    raise UsageError(f"{option} {wanted}: {path} has no such run, only: {found}")


def _name_failed(analysis: Analysis) -> None:
    from loopopt.report.analysis_tables import failed_lines

    for line in failed_lines(analysis):
        click.echo(f"loopopt: left out: {line}", err=True)
