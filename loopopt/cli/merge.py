"""``loopopt merge``: all ranks of a run in one trace file."""

from __future__ import annotations

import click

from loopopt.cli.onerun import read_run, run_options, say


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", "out", required=True, metavar="FILE", help="The trace to write: .json.gz or .json.")
@click.option("--no-exposed", is_flag=True, help="Without the tracks of exposed communication.")
@run_options
def merge(paths: tuple[str, ...], out: str, no_exposed: bool, number: int | None, workers: int | None) -> int:
    """Merge the traces of all ranks of a run into one, for Perfetto or chrome://tracing.

    All ranks are on one clock: it is corrected where the ranks' clocks disagree about when collectives end. Each
    rank has a track more, its exposed communication by kind of collective. The ranks' files stay as they are, and
    are passed through piece by piece: they need not fit into memory together.

    \b
    Examples:
      loopopt merge traces/ -o merged.json.gz
      loopopt merge 'traces/rank*.json.gz' -o merged.json --no-exposed
    """
    from loopopt.errors import UsageError

    if not out.endswith((".json", ".json.gz")):
        raise UsageError(f"{out}: the merged trace must end in .json or .json.gz")
    run, code = read_run(paths, number, workers)
    from loopopt.offline.merge import merge as merge_files

    merged = merge_files(run, out, exposed=not no_exposed)
    corrected = [rank for rank in merged.ranks if run.clock_us.get(rank)]
    say(
        f"written: {out}, {len(merged.ranks)} ranks, {merged.events:,} events"
        + (f", clocks of {len(corrected)} ranks corrected" if corrected else "")
    )
    return code
