"""An analysis as rich tables. Nothing is measured here; long lists are cut, and say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopopt.analysis import Analysis, RunAnalysis
from loopopt.measurement import Breakdown, RankMeasurement
from loopopt.report.analysis_rows import (
    LEAST_COVERAGE,
    StepRow,
    bandwidth_gbps,
    corrected_clocks,
    count,
    exposed_share,
    facts,
    group_label,
    hidden_share,
    is_covered,
    median_breakdown,
    number_ranges,
    numbered_steps,
    over,
    printable,
    step_rows,
    totals_label,
)
from loopopt.report.units import bandwidth, data, seconds, share

_MOST_RANKS = 16
"""More ranks than this are summarised."""
_MOST_STEPS = 20
_MOST_RANK_STEPS = 24
"""Rows of the table per rank and step, if it is shown at all."""
_NAME = 44
"""Characters of a kernel's name."""

_BREAKDOWN_COLUMNS = (
    "span",
    "compute",
    "commu-\nnication",
    "exposed",
    "exposed\nof span",
    "hidden of\ncommun.",
    "memcpy",
    "exposed\nmemcpy",
    "idle",
)

T = TypeVar("T")


def analysis_view(analysis: Analysis, *, top: int = 10, coverage: bool = True) -> RenderableType:
    """Everything the terminal shows.

    Args:
        analysis: what to show.
        top: rows of the lists that are sorted by cost.
        coverage: show what the timing table does not know.
    """
    parts: list[RenderableType] = []
    several = len(analysis.runs) > 1
    if several:
        parts.append(Text(not_merged(analysis)))
    for number, run in enumerate(analysis.runs, start=1):
        heading = f"Run {number} of {len(analysis.runs)}: {run.name}" if several else run.name
        parts += ["", Text(printable(heading), style="bold underline"), Text(facts(run), style="dim")]
        parts.append(run_view(run, top=top, coverage=coverage))
    if analysis.failed:
        parts.append(failed_view(analysis))
    return Group(*parts)


def not_merged(analysis: Analysis) -> str:
    """The sentence above several runs."""
    return (
        f"The files belong to {len(analysis.runs)} runs. Each is shown on its own; they were not merged, "
        "and no number below is about two of them together."
    )


def run_view(run: RunAnalysis, *, top: int = 10, coverage: bool = True) -> RenderableType:
    """The tables of one run."""
    parts: list[RenderableType] = [ranks_view(run, top)]
    steps = step_rows(run)
    if steps:
        parts.append(steps_view(run, steps, top))
    if len(run.measurement.ranks) > 1 and 0 < sum(row.ranks for row in steps) <= _MOST_RANK_STEPS:
        parts.append(rank_steps_view(run))
    if run.groups:
        parts.append(groups_view(run))
    if run.worst:
        parts.append(worst_view(run, top))
    if run.late:
        parts.append(late_view(run, top))
    if run.measurement.table.collectives:
        parts.append(models_view(run))
    if coverage:
        parts.append(coverage_view(run, top))
    parts.append(notes_view(run))
    return Group(*parts)


def ranks_view(run: RunAnalysis, top: int = 10) -> RenderableType:
    """Where each rank's time went; over many ranks min, median and max, and those that wait most."""
    ranks = run.measurement.ranks
    table = _table("per rank: compute + exposed + exposed memcpy + idle = span", ("rank",), _BREAKDOWN_COLUMNS)
    if len(ranks) <= _MOST_RANKS:
        for rank in ranks:
            table.add_row(str(rank.rank), *_breakdown_cells(rank.total))
        if len(ranks) > 2:
            table.add_section()
            table.add_row("median", *_breakdown_cells(median_breakdown([r.total for r in ranks])), style="dim")
        return table
    totals = [rank.total for rank in ranks]
    table.add_row("min", *_breakdown_cells(over(totals, min), shares=False))
    table.add_row("median", *_breakdown_cells(median_breakdown(totals)))
    table.add_row("max", *_breakdown_cells(over(totals, max), shares=False))
    table.add_section()
    worst = _first(sorted(ranks, key=_most_exposed), top)
    for rank in worst:
        table.add_row(str(rank.rank), *_breakdown_cells(rank.total))
    numbers = number_ranges(r.rank for r in ranks)
    return Group(
        table,
        _hint(
            f"Ranks {numbers}; shown are the {len(worst)} with the largest exposed share. "
            "All: --csv DIR or --json; some: --rank 0-15."
        ),
    )


def _most_exposed(rank: RankMeasurement) -> tuple[float, int]:
    return -(exposed_share(rank.total) or 0.0), rank.rank


def steps_view(run: RunAnalysis, steps: Sequence[StepRow], top: int = 10) -> RenderableType:
    """Each step as the median over its ranks; of many steps the longest."""
    columns = ("ranks", *_BREAKDOWN_COLUMNS, "longest\non a rank")
    title = "per step: median over ranks"
    shown = list(steps)
    if len(steps) > _MOST_STEPS:
        longest = _first(sorted(steps, key=lambda row: -row.median.span_us), top)
        shown = sorted(longest, key=lambda row: row.step)
        title = f"per step: median over ranks, the {len(shown)} longest of {len(steps)} steps"
    table = _table(title, ("step",), columns)
    for row in shown:
        slowest = f"{seconds(row.longest_us)} ({row.longest_rank})" if row.ranks > 1 else "-"
        table.add_row(str(row.step), str(row.ranks), *_breakdown_cells(row.median), slowest)
    if len(steps) > 2:
        table.add_section()
        middle = median_breakdown([row.median for row in steps])
        table.add_row("median", str(len(run.measurement.ranks)), *_breakdown_cells(middle), "", style="dim")
    if len(shown) < len(steps):
        return Group(table, _hint("All steps: --csv DIR or --json; some: --steps 10-20."))
    return table


def rank_steps_view(run: RunAnalysis) -> RenderableType:
    """Every step of every rank, for small runs."""
    table = _table("per rank and step", ("rank", "step"), _BREAKDOWN_COLUMNS)
    for rank in run.measurement.ranks:
        for number, (step, breakdown) in enumerate(numbered_steps(rank)):
            table.add_row("" if number else str(rank.rank), str(step), *_breakdown_cells(breakdown))
        table.add_section()
    return table


def groups_view(run: RunAnalysis) -> RenderableType:
    """Collectives by kind and process group."""
    numbers = ("count", "matched", "bytes", "algorithm\nbandwidth", "bus\nbandwidth", "transfer", "skew", "exposed")
    table = _table("collectives: sums over all ranks", ("kind", "process group"), numbers)
    for row in run.groups:
        table.add_row(
            _plain(row.kind),
            escape(totals_label(row)),
            f"{row.count:,}",
            f"{row.matched:,}",
            data(row.message_bytes),
            bandwidth(row.algorithm_gbps),
            bandwidth(row.bus_gbps),
            seconds(row.transfer_us) if row.matched else "-",
            seconds(row.skew_us) if row.matched else "-",
            seconds(row.exposed_us),
        )
    return table


def worst_view(run: RunAnalysis, top: int = 10) -> RenderableType:
    """The collectives that cost the most exposed time, and the compute around them."""
    shown = _first(run.worst, top)
    table = _table(
        "worst exposed collectives",
        ("kind", "process group"),
        ("rank", "step", "at", "bytes", "duration", "exposed", "transfer", "skew"),
        ("computed before", "computed after"),
    )
    for row in shown:
        table.add_row(
            _plain(row.kind),
            escape(group_label(row.group, row.group_size)),
            str(row.rank),
            "-" if row.step is None else str(row.step),
            seconds(row.start_us),
            data(row.message_bytes) if row.message_bytes else "-",
            seconds(row.duration_us),
            seconds(row.exposed_us),
            seconds(row.transfer_us),
            seconds(row.skew_us),
            _plain(row.before, _NAME) or "-",
            _plain(row.after, _NAME) or "-",
        )
    return table


def late_view(run: RunAnalysis, top: int = 10) -> RenderableType:
    """Ranks that others wait for."""
    shown = _first(run.late, max(top, 1))
    numbers = ("matched", "arrived last", "of them", "made others wait", "waited itself")
    table = _table("late ranks", ("rank",), numbers)
    for row in shown:
        table.add_row(
            str(row.rank),
            f"{row.matched:,}",
            f"{row.last:,}",
            share(row.last / row.matched if row.matched else None),
            seconds(row.caused_wait_us),
            seconds(row.own_wait_us),
        )
    if len(shown) < len(run.late):
        return Group(table, _hint(f"The first {len(shown)} of {len(run.late)} ranks; more with --top."))
    return table


def models_view(run: RunAnalysis) -> RenderableType:
    """The lines fitted to each curve: latency + bytes / bandwidth."""
    numbers = ("from", "latency", "bandwidth", "spread", "samples")
    table = _table(
        "fitted model: transfer time = latency + bytes / bandwidth", ("kind", "process group", "type"), numbers
    )
    for curve in run.measurement.table.collectives:
        group = escape(group_label(curve.group, curve.group_size, topology=curve.topology))
        names = [_plain(curve.kind), group, _plain(curve.dtype) or "-"]
        if not curve.regimes:
            measured = sum(duration.count for duration in curve.durations)
            table.add_row(*names, "-", "-", "-", "-", f"{measured:,} ({count(len(curve.sizes), 'size')})", style="dim")
        for number, regime in enumerate(curve.regimes):
            table.add_row(
                *(names if not number else ["", "", ""]),
                data(regime.from_bytes),
                seconds(regime.latency_us),
                bandwidth(bandwidth_gbps(regime)),
                f"± {share(regime.spread)}",
                f"{regime.samples:,}",
            )
    if all(curve.regimes for curve in run.measurement.table.collectives):
        return table
    return Group(table, _hint("Without numbers: too few samples or sizes for a line."))


def coverage_view(run: RunAnalysis, top: int = 10) -> RenderableType:
    """What the timing table knows of the time it was made from, and what it does not."""
    found = run.coverage
    style = "" if is_covered(run) else "yellow"
    words = f"compute {share(found.compute)}, communication {share(found.communication)}"
    line = Text(f"The timing table knows the durations of: {words} of the measured time.", style=style)
    if not found.unknown:
        return line
    shown = _first(found.unknown, top)
    table = _table("not in the timing table", ("name",), ("time",))
    for name, time_us in shown:
        table.add_row(_plain(name, 2 * _NAME), seconds(time_us))
    return Group(line, table)


def coverage_complaint(run: RunAnalysis) -> str | None:
    """A sentence if the timing table knows too little; None if it knows enough."""
    if is_covered(run):
        return None
    return (
        f"{printable(run.name)}: the timing table covers {share(run.coverage.compute)} of compute and "
        f"{share(run.coverage.communication)} of communication, less than {LEAST_COVERAGE:.0%} of one of them"
    )


def notes_view(run: RunAnalysis) -> RenderableType:
    """Notes, unmatched collectives by reason, and clocks that were corrected."""
    lines = [Text(f"note: {printable(note)}") for note in run.measurement.notes]
    if run.unmatched:
        total = sum(run.unmatched.values())
        lines.append(Text(f"{count(total, 'collective')} could not be matched over the ranks of the group:"))
        by_count = sorted(run.unmatched.items(), key=lambda item: (-item[1], item[0]))
        lines += [Text(f"  {number:,}: {printable(reason)}") for reason, number in by_count]
    clocks = corrected_clocks(run)
    if clocks:
        shown = ", ".join(f"rank {rank} {_signed(offset)}" for rank, offset in clocks[:_MOST_RANKS])
        more = f", and {len(clocks) - _MOST_RANKS} more" if len(clocks) > _MOST_RANKS else ""
        lines.append(Text(f"Clocks were corrected by: {shown}{more}."))
    return Group(*lines)


def failed_view(analysis: Analysis) -> RenderableType:
    """Files that could not be used."""
    lines = [Text(""), Text(f"{count(len(analysis.failed), 'file')} could not be used:", style="red")]
    lines += [Text(f"  {line}") for line in failed_lines(analysis)]
    return Group(*lines)


def failed_lines(analysis: Analysis) -> list[str]:
    """A line for each file that could not be used: where and why."""
    return [
        printable(f"{f.path}" + (f" (byte {f.offset})" if f.offset is not None else "") + f": {f.reason}")
        for f in analysis.failed
    ]


def _signed(offset_us: float) -> str:
    return f"{'-' if offset_us < 0 else '+'}{seconds(abs(offset_us))}"


def _breakdown_cells(b: Breakdown, shares: bool = True) -> list[str]:
    """Cells of `_BREAKDOWN_COLUMNS`. The smallest of each part do not belong together, so they have no shares."""
    return [
        seconds(b.span_us),
        seconds(b.compute_us),
        seconds(b.communication_us),
        seconds(b.exposed_us),
        share(exposed_share(b)) if shares else "",
        share(hidden_share(b)) if shares else "",
        seconds(b.memcpy_us),
        seconds(b.exposed_memcpy_us),
        seconds(b.idle_us),
    ]


def _table(title: str, left: Sequence[str], right: Sequence[str], last: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    add: Callable[..., None] = table.add_column
    for name in left:
        add(name, overflow="fold")
    for name in right:
        add(name, justify="right", no_wrap=True)
    for name in last:
        add(name, overflow="fold")
    return table


def _first(rows: Sequence[T], top: int) -> list[T]:
    return list(rows[: max(top, 0)])


def _hint(text: str) -> Text:
    return Text(text, style="dim")


def _plain(text: str, longest: int = 0) -> str:
    """Text from a trace for a cell: no markup, no control characters."""
    return escape(printable(text, longest))
