"""``loopopt analyze``: where the time in recorded traces went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from loopopt.errors import EXIT_LOW_COVERAGE, EXIT_PARTIAL, LoopoptError, UsageError

if TYPE_CHECKING:
    from loopopt.analysis import Analysis, Selection

_MOST_NUMBERS = 1_000_000
F = TypeVar("F", bound=Callable[..., object])


def reading_options(command: F) -> F:
    """Options of every command that reads traces."""
    for option in (
        click.option("--workers", type=click.IntRange(min=1), help="Processes to read with.  [default: one per core]"),
        click.option(
            "--executor",
            default="processes",
            show_default=True,
            metavar="KIND",
            help="serial, processes, or dask://HOST:PORT of a running cluster.",
        ),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this process group; repeatable."),
        click.option("--steps", metavar="LIST", help="Only these steps, e.g. 3-5,8."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@reading_options
@click.option("--rank", "ranks", metavar="LIST", help="Show only these ranks, e.g. 0,4-7; all are read.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Rows of lists sorted by cost.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--csv", "csv_path", metavar="DIR|FILE", help="Also write CSV tables; a file such as steps.csv: only that."
)
@click.option("--html", "html_path", metavar="FILE", help="Also write a page with pictures; it needs no network.")
@click.option(
    "--coverage",
    type=click.Choice(["off", "warn", "strict"]),
    default="warn",
    show_default=True,
    help="What to do if under 90 % of the time has a measured duration; strict: exit code 10.",
)
def analyze(
    paths: tuple[str, ...],
    steps: str | None,
    groups: tuple[str, ...],
    executor: str,
    workers: int | None,
    ranks: str | None,
    top: int,
    as_json: bool,
    csv_path: str | None,
    html_path: str | None,
    coverage: str,
) -> int:
    """Show where the time in traces went: compute, exposed communication, idle; per rank, step and collective.

    PATH is a trace, a folder that is searched through, or a pattern in quotes. Files of several runs are shown
    run by run.

    Exit code 3 if no file could be used, 9 if some could not, 10 if --coverage strict is not met.

    \b
    Examples:
      loopopt analyze traces/
      loopopt analyze traces/ --steps 3-5 --html report.html
      loopopt analyze 'traces/rank*.json.gz' --json > before.json
      loopopt analyze traces/ --rank 0,4-7 --csv out/
    """
    selection = selection_of(steps, groups, ranks)
    check_target(csv_path, html_path)
    analysis = read(paths, selection, executor, workers)

    if as_json:
        import json

        from loopopt.report.analysis_json import analysis_to_json

        click.echo(json.dumps(analysis_to_json(analysis), allow_nan=False))
    else:
        _show(analysis, top, coverage != "off")
    if csv_path is not None:
        _write_csv(analysis, csv_path)
    if html_path is not None:
        from loopopt.report.analysis_html import page

        write_text(Path(html_path), page(analysis, top=top, coverage=coverage != "off"))
        _say(f"written: {html_path}")
    return _exit_code(analysis, coverage, quiet=as_json)


def selection_of(steps: str | None, groups: tuple[str, ...], ranks: str | None = None) -> Selection:
    """The part of the traces that was asked for.

    Raises:
        UsageError: a list of numbers is not one.
    """
    from loopopt.analysis import Selection

    return Selection(
        steps=numbers("--steps", steps),
        groups=frozenset(groups) or None,
        ranks=numbers("--rank", ranks),
    )


def numbers(option: str, text: str | None) -> frozenset[int] | None:
    """Numbers written as "3-5,8"; None for None.

    Raises:
        UsageError: it is something else.

    >>> sorted(numbers("--steps", "3-5, 8"))
    [3, 4, 5, 8]
    """
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(word.isascii() and word.isdigit() and len(word) < 12 for word in ends):
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is neither a number nor a range such as 3-5")
        low, high = int(ends[0]), int(ends[1])
        if high < low or high - low >= _MOST_NUMBERS:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is no range of at most {_MOST_NUMBERS:,} numbers")
        found.update(range(low, high + 1))
    return frozenset(found)


def read(paths: tuple[str, ...], selection: Selection, executor: str, workers: int | None) -> Analysis:
    """Analyze with a progress bar on stderr, if that is a terminal.

    Raises:
        UsageError: a path matches nothing, or the executor cannot be had.
        TraceError: no file could be used.
    """
    from loopopt.offline import analyze as analyze_files

    with _progress() as progress:
        return analyze_files(paths, selection=selection, executor=executor, workers=workers, progress=progress)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from loopopt.cli import screen
    from loopopt.report.analysis_rows import printable

    console = screen.console(stderr=True)
    bar = Progress(
        TextColumn("reading traces"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=None)

    def update(done: int, total: int, what: str) -> None:
        bar.update(task, completed=done, total=total, description=escape(printable(Path(what).name, 40)))

    with bar:
        yield update


def _show(analysis: Analysis, top: int, coverage: bool) -> None:
    from loopopt.cli import screen
    from loopopt.report.analysis_tables import analysis_view

    console = screen.console()
    if not console.is_terminal:
        console.width = max(console.width, 200)
    console.print(analysis_view(analysis, top=top, coverage=coverage))


def _exit_code(analysis: Analysis, coverage: str, quiet: bool) -> int:
    """0, or why the numbers are not about everything; with --json the reasons are in the JSON."""
    from loopopt.report.analysis_tables import coverage_complaint, failed_lines

    complaints = [line for run in analysis.runs if (line := coverage_complaint(run)) and coverage != "off"]
    if not quiet:
        for line in failed_lines(analysis):
            _say(f"left out: {line}")
        for line in complaints:
            _say(line)
    if analysis.failed:
        return EXIT_PARTIAL
    return EXIT_LOW_COVERAGE if complaints and coverage == "strict" else 0


def _csv_tables() -> tuple[str, ...]:
    from loopopt.report.analysis_csv import TABLES

    return tuple(TABLES)


def check_target(csv_path: str | None, html_path: str | None) -> None:
    """Before minutes are spent on reading: could the results be written at all?

    Raises:
        UsageError: no.
    """
    if csv_path is not None and csv_path.endswith(".csv") and Path(csv_path).name not in _csv_tables():
        names = ", ".join(_csv_tables())
        raise UsageError(f"--csv {csv_path}: a folder, or a file with the name of one of the tables: {names}")
    if html_path is not None and Path(html_path).is_dir():
        raise UsageError(f"--html {html_path}: is a folder, not a file")
    for option, path in (("--csv", csv_path), ("--html", html_path)):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {Path(path).absolute().parent}")


def _write_csv(analysis: Analysis, path: str) -> None:
    from loopopt.report.analysis_csv import analysis_csv, table_csv

    target = Path(path)
    if path.endswith(".csv"):
        write_text(target, table_csv(analysis, target.name))
    else:
        try:
            target.mkdir(exist_ok=True)
        except OSError as err:
            raise LoopoptError(f"{path}: cannot be made: {err.strerror}") from err
        for name, text in analysis_csv(analysis).items():
            write_text(target / name, text)
    _say(f"written: {path}")


def write_text(target: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        LoopoptError: it cannot be written.
    """
    partial = target.with_name(f".{target.name}.tmp")
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(target)
    except OSError as err:
        raise LoopoptError(f"{target}: cannot be written: {err.strerror}") from err


def _say(line: str) -> None:
    click.echo(f"loopopt: {line}", err=True)
