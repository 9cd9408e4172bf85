"""``loopopt hta``: the traces for HolisticTraceAnalysis, and its numbers beside ours."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from loopopt.cli.onerun import read_run, run_options, say
from loopopt.errors import UsageError

if TYPE_CHECKING:
    from loopopt.offline.external import Beside
    from loopopt.report.table_hta import Row


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--out", metavar="DIR", help="Keep the folder made for HTA; it must be empty or new.")
@click.option("--run-python", "python", metavar="EXE", help="Run HTA with this interpreter.  [default: loopopt's own]")
@click.option("--no-run", is_flag=True, help="Only make the folder; needs --out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@run_options
def hta(
    paths: tuple[str, ...],
    out: str | None,
    python: str | None,
    no_run: bool,
    as_json: bool,
    number: int | None,
    workers: int | None,
) -> int:
    """Hand the traces of a run to HolisticTraceAnalysis, and show its numbers beside ours.

    HTA reads GPU traces, one file per rank. The folder made for it has links to the traces, and copies of those that
    it would not read or would take for another rank. Then its communication overlap and temporal breakdown are
    shown next to ours, and why they differ (docs/hta.md).

    HTA brings many packages along (`pip install 'loopopt[hta]'`); it may live in an environment of its own, whose
    interpreter is then named with --run-python.

    \b
    Examples:
      loopopt hta traces/
      loopopt hta traces/ --run-python ~/hta-venv/bin/python
      loopopt hta traces/ --out for-hta --no-run
    """
    import sys

    from loopopt.offline import external

    if no_run and out is None:
        raise UsageError("--no-run: name the folder to make with --out")
    interpreter = python or sys.executable
    if not no_run:
        # Before minutes are spent on reading.
        external.check_hta(interpreter)
    run, code = read_run(paths, number, workers)
    with contextlib.ExitStack() as stack:
        folder = out or stack.enter_context(tempfile.TemporaryDirectory(prefix="loopopt-hta-"))
        handed = external.for_hta(run, folder)
        if out is not None:
            copies = [h for h in handed if h.why]
            say(f"made: {out}, {len(handed) - len(copies)} links and {len(copies)} copies")
            for copy in copies[:4]:
                say(f"copied: rank {copy.rank}, {copy.why}")
        if no_run:
            return code
        compared = external.beside_hta(handed, folder, interpreter)
    _show(compared, as_json)
    return code


def _show(compared: Sequence[Beside], as_json: bool) -> None:
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps([asdict(rank) for rank in compared], indent=2, allow_nan=False))
        return
    from loopopt.cli import screen
    from loopopt.report.table_hta import hta_view

    reasons: dict[str, list[str]] = {}
    for rank in compared:
        for reason in rank.reasons:
            reasons.setdefault(reason, []).append(str(rank.rank))
    lines = [f"{reason} (rank {', '.join(ranks)})." for reason, ranks in reasons.items()]
    screen.console().print(hta_view([row for rank in compared for row in _rows(rank)], lines))


def _rows(rank: Beside) -> list[Row]:
    ours, theirs = rank.ours, rank.theirs
    return [
        (str(rank.rank), what, getattr(ours, name), None if theirs is None else getattr(theirs, name))
        for what, name in (
            ("communication hidden, %", "overlap_percent"),
            ("compute", "compute_us"),
            ("communication or copies alone", "other_us"),
            ("idle", "idle_us"),
            ("first kernel to last", "span_us"),
        )
    ]
