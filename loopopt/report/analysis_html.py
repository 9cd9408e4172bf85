"""An analysis as one HTML page that needs no network: pictures to zoom into, and the tables of the terminal.

plotly's script is in the page, once. Names come from traces, which are not trusted: they are escaped for HTML here,
and once more by plotly for the script they are data of.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopopt.analysis import Analysis, RunAnalysis
from loopopt.measurement import RankMeasurement, TimelineSpan
from loopopt.report.analysis_rows import facts, group_label, number_ranges, numbered_steps, printable
from loopopt.report.analysis_tables import failed_view, not_merged, run_view
from loopopt.report.units import data, seconds
from loopopt.timing import CollectiveCurve

MOST_TIMELINES = 16
"""Ranks whose last step is drawn."""
_MOST_BARS = 128
"""Ranks drawn as bars."""
_MOST_SPANS = 9000
"""Rectangles in one timeline: what a browser still pans smoothly."""
_MOST_CURVES = 24
_LANES = (("compute", "#3b76c4"), ("communication", "#d98a1f"), ("exposed", "#d6405a"))
_PARTS = (
    ("compute", "compute_us", "#3b76c4"),
    ("exposed communication", "exposed_us", "#d6405a"),
    ("exposed memcpy", "exposed_memcpy_us", "#8a63c9"),
    ("idle", "idle_us", "#9aa4b5"),
)
_CURVES = ("#3b76c4", "#d98a1f", "#1f8a55", "#d6405a", "#8a63c9", "#12939a", "#a8701a", "#c44c9a")

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2330; --faint: #697386; --rule: #dde2ea; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e3e7ef; --faint: #929cb0; --rule: #313845; } }
body { margin: 2rem auto; max-width: 1280px; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; border-top: 1px solid var(--rule); padding-top: 1rem;
  overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.4rem 0 .1rem; }
p { margin: .2rem 0 .6rem; color: var(--faint); }
.wide { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-size: 13px; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--faint); font-weight: 500; }
td { overflow-wrap: anywhere; }
.right { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.js-plotly-plot .plotly text { fill: var(--ink) !important; }
.js-plotly-plot .plotly .hoverlayer text { fill: #ffffff !important; }
"""


def page(analysis: Analysis, *, top: int = 10, coverage: bool = True) -> str:
    """The whole page.

    Args:
        analysis: what to show.
        top: rows of the lists that are sorted by cost.
        coverage: show what the timing table does not know.
    """
    sections = [_run(run, number, top, coverage) for number, run in enumerate(analysis.runs, start=1)]
    several = f"<p>{escape(not_merged(analysis))}</p>" if len(analysis.runs) > 1 else ""
    failed = _as_html(failed_view(analysis)) if analysis.failed else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>loopopt: analysis</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>\n'
        f"<script>{get_plotlyjs()}</script></head>\n<body>\n<h1>loopopt: analysis</h1>\n{several}\n"
        + "\n".join(sections)
        + f"\n{failed}\n</body>\n</html>\n"
    )


def _run(run: RunAnalysis, number: int, top: int, coverage: bool) -> str:
    parts = [f"<h2>{_safe(run.name)}</h2>", f"<p>{_safe(facts(run))}</p>"]
    for name, title, (figure, sentence) in (
        ("ranks", "Where the time of each rank went", _bars(run)),
        ("timeline", "The last step", _timelines(run)),
        ("sizes", "Transfer time against message size", _scatter(run)),
    ):
        parts.append(f"<h3>{title}</h3>")
        parts.append(f"<p>{_safe(sentence)}</p>")
        if figure is not None:
            parts.append(_embed(figure, f"{name}-{number}"))
    parts.append(_as_html(run_view(run, top=top, coverage=coverage)))
    return "\n".join(parts)


def _bars(run: RunAnalysis) -> tuple[Any, str]:
    ranks = run.measurement.ranks[:_MOST_BARS]
    figure = _figure(height=140 + 18 * max(len(ranks), 4))
    labels = [f"rank {rank.rank}" for rank in ranks]
    for name, field, colour in _PARTS:
        values = [getattr(rank.total, field) for rank in ranks]
        hover = [f"{label}<br>{name}: {seconds(value)}" for label, value in zip(labels, values, strict=True)]
        figure.add_bar(
            x=values, y=labels, orientation="h", name=name, marker_color=colour, hovertext=hover, hoverinfo="text"
        )
    figure.update_layout(barmode="stack", bargap=0.25)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(title_text="microseconds")
    left_out = len(run.measurement.ranks) - len(ranks)
    cut = f" Drawn are the first {len(ranks)} ranks; {left_out} more are in --csv and --json." if left_out else ""
    return figure, f"The parts add up to the rank's whole span.{cut}"


def _timelines(run: RunAnalysis) -> tuple[Any, str]:
    drawable = [rank for rank in run.measurement.ranks if rank.timeline]
    if not drawable:
        return None, "No whole step was traced, so there is none to draw."
    ranks = _spread_out(drawable, MOST_TIMELINES)
    budget = _MOST_SPANS // (len(ranks) * len(_LANES))
    figure = _figure(height=130 + 54 * len(ranks))
    joined_any = False
    for number, (lane, colour) in enumerate(_LANES):
        starts: list[float] = []
        lengths: list[float] = []
        rows: list[float] = []
        hover: list[str] = []
        for row, rank in enumerate(ranks):
            spans, joined = _bounded([span for span in rank.timeline if span.lane == lane], budget)
            joined_any = joined_any or joined
            for span in spans:
                starts.append(round(span.start_us, 3))
                lengths.append(round(span.end_us - span.start_us, 3))
                rows.append(row + 0.27 * (number - 1))
                hover.append(
                    f"rank {rank.rank}, {lane}<br>{_safe(span.name, 80)}<br>"
                    f"{seconds(span.end_us - span.start_us)} from {seconds(span.start_us)}"
                )
        figure.add_bar(
            base=starts,
            x=lengths,
            y=rows,
            width=0.25,
            orientation="h",
            name=lane,
            marker={"color": colour, "line": {"width": 0}},
            hovertext=hover,
            hoverinfo="text",
        )
    figure.update_layout(barmode="overlay", dragmode="pan")
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(ranks))),
        ticktext=[f"rank {rank.rank}" for rank in ranks],
        fixedrange=len(ranks) <= 4,
    )
    figure.update_xaxes(title_text="microseconds from the start of the step")
    last = sorted({numbered_steps(rank)[-1][0] for rank in ranks if rank.steps})
    words = [f"Step {number_ranges(last)}." if last else ""]
    words.append("Red is communication while nothing is computed. Wheel zooms, dragging pans, double click resets.")
    if len(ranks) < len(run.measurement.ranks):
        numbers = number_ranges(rank.rank for rank in ranks)
        words.append(f"Drawn are {len(ranks)} of {len(run.measurement.ranks)} ranks: {numbers}.")
    if joined_any:
        words.append("Spans that lie close together are drawn as one.")
    return figure, " ".join(word for word in words if word)


def _scatter(run: RunAnalysis) -> tuple[Any, str]:
    if not run.points:
        return None, "No collective was matched over all ranks of its group, so no transfer time is known."
    figure = _figure(height=520)
    curves = {_key(curve): curve for curve in run.measurement.table.collectives}
    for number, points in enumerate(run.points[:_MOST_CURVES]):
        colour = _CURVES[number % len(_CURVES)]
        label = _safe(f"{points.kind}, {group_label(points.group, points.group_size, topology=points.topology)}")
        label += f", {_safe(points.dtype)}" if points.dtype else ""
        figure.add_scatter(
            x=list(points.message_bytes),
            y=list(points.transfer_us),
            mode="markers",
            name=label,
            legendgroup=str(number),
            marker={"color": colour, "size": 6, "opacity": 0.6},
            hovertext=[
                f"{label}<br>{data(size)}: {seconds(time_us)}"
                for size, time_us in zip(points.message_bytes, points.transfer_us, strict=True)
            ],
            hoverinfo="text",
        )
        curve = curves.get((points.kind, points.group, points.group_size, points.dtype, points.topology))
        largest = max(points.message_bytes, default=0)
        xs, ys = _line(curve, largest) if curve is not None else ([], [])
        if xs:
            figure.add_scatter(
                x=xs,
                y=ys,
                mode="lines",
                name=f"{label}: model",
                legendgroup=str(number),
                showlegend=False,
                line={"color": colour, "width": 2},
                hoverinfo="skip",
            )
    figure.update_xaxes(type="log", title_text="message, bytes")
    figure.update_yaxes(type="log", title_text="transfer, microseconds")
    figure.update_layout(legend={"orientation": "v", "x": 1.02, "y": 1.0, "yanchor": "top"}, dragmode="pan")
    cut = f" Drawn are the first {_MOST_CURVES} of {len(run.points)} curves." if len(run.points) > _MOST_CURVES else ""
    return (
        figure,
        f"From the last rank's arrival to completion, both scales logarithmic; lines are the fitted model.{cut}",
    )


def _key(curve: CollectiveCurve) -> tuple[str, str, int, str, str]:
    return curve.kind, curve.group, curve.group_size, curve.dtype, curve.topology


def _line(curve: CollectiveCurve, largest_bytes: int) -> tuple[list[float | None], list[float | None]]:
    """Points along each regime, from where it begins to where the next one does; None breaks the line."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    ends = [*(regime.from_bytes for regime in curve.regimes[1:]), largest_bytes][: len(curve.regimes)]
    for regime, end in zip(curve.regimes, ends, strict=True):
        start = max(regime.from_bytes, 1)
        if end < start:
            continue
        # A straight line is a curve on logarithmic scales.
        sizes = [start * (end / start) ** (n / 32) for n in range(33)] if end > start else [float(start)]
        xs += [*sizes, None]
        ys += [*(max(regime.latency_us + regime.us_per_byte * size, 1e-3) for size in sizes), None]
    return xs, ys


def _spread_out(ranks: Sequence[RankMeasurement], limit: int) -> list[RankMeasurement]:
    """The most exposed ranks, for those are what one looks for; in order of rank."""
    if len(ranks) <= limit:
        return list(ranks)
    chosen = sorted(ranks, key=lambda rank: -rank.total.exposed_us)[:limit]
    return sorted(chosen, key=lambda rank: rank.rank)


def _bounded(spans: Sequence[TimelineSpan], limit: int) -> tuple[list[TimelineSpan], bool]:
    """At most `limit` spans: the shortest gaps are closed. And whether any was.

    >>> spans = [TimelineSpan("compute", n, a, b) for n, a, b in (("x", 0, 1), ("y", 1.1, 2), ("z", 9, 10))]
    >>> [(s.name, s.start_us, s.end_us) for s in _bounded(spans, 2)[0]]
    [('x and 1 more', 0, 2), ('z', 9, 10)]
    """
    ordered = sorted(spans, key=lambda span: (span.start_us, span.end_us))
    if len(ordered) <= limit:
        return ordered, False
    gaps = sorted(range(1, len(ordered)), key=lambda i: ordered[i - 1].end_us - ordered[i].start_us)  # widest gap first
    cuts = sorted(gaps[: max(limit - 1, 0)])
    bounded = []
    for start, end in zip([0, *cuts], [*cuts, len(ordered)], strict=True):
        first, more = ordered[start], end - start - 1
        name = f"{first.name} and {more} more" if more else first.name
        last_us = max(span.end_us for span in ordered[start:end])
        bounded.append(TimelineSpan(first.lane, name, first.start_us, last_us))
    return bounded, True


def _figure(height: int) -> Any:
    """An empty figure whose colours suit a light and a dark page."""
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 70, "r": 20, "t": 30, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0.0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8890a0", "activecolor": "#3b76c4"},
        hovermode="closest",
        hoverlabel={"bgcolor": "#1d2330", "font": {"color": "#ffffff"}, "align": "left"},
    )
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(gridcolor="rgba(128,136,150,0.25)", zeroline=False)
    return figure


def _embed(figure: Any, name: str) -> str:
    settings = {
        "scrollZoom": True,
        "displaylogo": False,
        "responsive": True,
        "modeBarButtonsToRemove": ["select2d", "lasso2d"],
    }
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config=settings, div_id=name)
    return html


def _as_html(view: RenderableType) -> str:
    """The terminal's tables and sentences; whatever text is in them is escaped."""
    if isinstance(view, Group):
        return "\n".join(_as_html(part) for part in view.renderables)
    if isinstance(view, Table):
        return _table(view)
    text = view.plain if isinstance(view, Text) else str(view)
    return f"<p>{escape(text)}</p>" if text.strip() else ""


def _table(table: Table) -> str:
    sides = [' class="right"' if column.justify == "right" else "" for column in table.columns]
    heads = [f"<th{side}>{_cell(column.header)}</th>" for side, column in zip(sides, table.columns, strict=True)]
    rows = [
        "<tr>" + "".join(f"<td{side}>{_cell(cell)}</td>" for side, cell in zip(sides, cells, strict=True)) + "</tr>"
        for cells in zip(*(column.cells for column in table.columns), strict=True)
    ]
    return (
        f'<div class="wide"><table><caption>{_cell(table.title or "")}</caption>'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(cell: RenderableType) -> str:
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell))
    return escape(" ".join(text.plain.replace("-\n", "").split("\n")))


def _safe(text: str, longest: int = 0) -> str:
    """Text from a trace, for HTML and for plotly's labels, which read tags and entities too."""
    return escape(printable(text, longest))
