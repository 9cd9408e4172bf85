"""Our device times beside HTA's as a rich table. Nothing is computed here but differences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopopt.report.units import seconds

Row = tuple[str, str, float | None, float | None]
"""(rank, what, ours, HTA's); microseconds, but per cent where `what` ends in "%"."""


def hta_view(rows: Sequence[Row], reasons: Sequence[str]) -> RenderableType:
    """The table, and below it why the numbers may differ."""
    view = Table()
    view.add_column("rank", justify="right")
    view.add_column("what")
    for name in ("loopopt", "HTA", "HTA - loopopt"):
        view.add_column(name, justify="right")
    before = None
    for rank, what, ours, theirs in rows:
        difference = None if ours is None or theirs is None else theirs - ours
        view.add_row(
            "" if rank == before else escape(rank),
            escape(what),
            _cell(what, ours),
            _cell(what, theirs),
            _cell(what, difference, signed=True),
        )
        before = rank
    return Group(view, *(Text(reason) for reason in reasons))


def _cell(what: str, value: float | None, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed and value > 0 else ""
    return f"{sign}{value:.2f} %" if what.endswith("%") else f"{sign}{seconds(value)}"
