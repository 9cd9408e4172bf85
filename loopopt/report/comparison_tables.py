"""Two analyses side by side as rich tables. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopopt.report.analysis_rows import printable
from loopopt.report.comparison import BEYOND, Change, Comparison, Spread
from loopopt.report.units import bandwidth, percent, seconds


def comparison_view(comparison: Comparison, top: int = 10) -> RenderableType:
    """What `loopopt diff` shows.

    Args:
        comparison: what to show.
        top: entries of the timing table.
    """
    parts: list[RenderableType] = [
        Text(f"before: {printable(comparison.before)}"),
        Text(f"after:  {printable(comparison.after)}"),
    ]
    parts += [Text(printable(remark), style="yellow") for remark in comparison.remarks]
    parts.append(_table("per step: median over ranks, then over steps (quartiles)", comparison.steps))
    if comparison.collectives:
        parts.append(_table("per kind of collective", comparison.collectives))
    if comparison.table:
        shown = comparison.table[:top]
        parts.append(_table(f"timing table: {len(shown)} of {len(comparison.table)} changed entries", shown))
    parts.append(
        Text(
            f"Timing table: {len(comparison.table)} of {comparison.table_compared} common entries changed beyond noise."
        )
    )
    parts.append(Text(sentence(comparison), style="bold"))
    return Group(*parts)


def sentence(comparison: Comparison) -> str:
    """The outcome in a sentence: what happened to the first quantity, the step time."""
    first = comparison.steps[0] if comparison.steps else None
    if first is None or first.before is None or first.after is None:
        return "No time can be compared."
    label = first.name[:1].upper() + first.name[1:]
    moved = f"{label} {seconds(first.before.median)} -> {seconds(first.after.median)} ({percent(first.change)})"
    return f"{moved}: {first.verdict}."


def _table(title: str, changes: Sequence[Change]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in ("before", "after", "change", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in changes:
        table.add_row(
            escape(printable(row.name, 90)),
            _side(row.before, row.unit),
            _side(row.after, row.unit),
            percent(row.change),
            f"{percent(row.change_low)} .. {percent(row.change_high)}" if row.change_low is not None else "",
            escape(row.verdict) if row.verdict == BEYOND else f"[dim]{escape(row.verdict)}[/]",
        )
    return table


def _side(found: Spread | None, unit: str) -> str:
    if found is None:
        return "-"
    show = bandwidth if unit == "gbps" else seconds
    if found.low == found.high:
        return show(found.median)
    return f"{show(found.median)} ({show(found.low)} .. {show(found.high)})"
