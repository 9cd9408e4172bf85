"""One step before and after as a self-contained HTML page: inline SVG, no script, light and dark.

Each rank has three lanes: compute, communication, and the exposed part of the communication. Both
pictures have the same time scale, so that the shorter step is the shorter picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from loopopt.measurement import TimelineSpan
from loopopt.report.summary import Side, Summary
from loopopt.report.units import percent, seconds

LANES = ("compute", "communication", "exposed")

_LEFT = 150
_WIDTH = 1080
_LANE_HEIGHT = 18
_LANE_GAP = 3
_RANK_GAP = 14
_AXIS_HEIGHT = 26

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2330; --faint: #697386; --rule: #dde2ea;
  --lane: #f3f5f9; --compute: #3b76c4; --communication: #d98a1f; --exposed: #c9344a; --good: #1f8a55; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e3e7ef; --faint: #929cb0; --rule: #313845;
  --lane: #1d222b; --compute: #6ea3ea; --communication: #eaa94b; --exposed: #f0657a; --good: #57c78f; } }
body { margin: 2rem auto; max-width: 1120px; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p { margin: .2rem 0 .8rem; color: var(--faint); }
table { border-collapse: collapse; margin: .8rem 0; } th, td { padding: .25rem .9rem .25rem 0; text-align: right;
  border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { color: var(--faint); font-weight: 500; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--exposed); font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .faint { fill: var(--faint); } svg .tick { stroke: var(--rule); } svg .lane { fill: var(--lane); }
.compute { fill: var(--compute); } .communication { fill: var(--communication); } .exposed { fill: var(--exposed); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em; }
.key.compute { background: var(--compute); } .key.communication { background: var(--communication); }
.key.exposed { background: var(--exposed); }
"""


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """One rank's row: its number and the spans of one step, microseconds from the step's start."""

    rank: int
    spans: tuple[TimelineSpan, ...]


def page(summary: Summary, before: Sequence[RankTimeline], after: Sequence[RankTimeline]) -> str:
    """The whole page.

    Args:
        summary: the numbers to show above the pictures.
        before: one step with the job's own schedule; may be empty (a sentence says so).
        after: one step with the plan that was kept; may be empty.
    """
    longest_us = max((span.end_us for rank in (*before, *after) for span in rank.spans), default=0.0)
    title = f"loopopt: {summary.job or 'job'}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        f"<h1>{escape(title)}</h1>\n<p>{escape(summary.sentence())}</p>\n"
        f"{_numbers(summary)}\n{_key()}\n"
        f"<h2>One step before: {escape(summary.before.label)}</h2>\n{_picture(before, longest_us, 'before')}\n"
        f"<h2>One step after: {escape(summary.after.label)}</h2>\n{_picture(after, longest_us, 'after')}\n"
        "</body>\n</html>\n"
    )


def picture_svg(ranks: Sequence[RankTimeline], longest_us: float, name: str = "step") -> str:
    """One step as an SVG element.

    Args:
        ranks: rows, top to bottom.
        longest_us: what the full width stands for, so that two pictures compare.
        name: what screen readers call it.
    """
    per_us = (_WIDTH - _LEFT - 10) / max(longest_us, 1.0)
    rank_height = len(LANES) * (_LANE_HEIGHT + _LANE_GAP) + _RANK_GAP
    height = len(ranks) * rank_height + _AXIS_HEIGHT
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="one step {escape(name)}">']
    bottom = height - _AXIS_HEIGHT + 2
    for tick_us in _ticks(longest_us):
        x = _LEFT + tick_us * per_us
        parts.append(f'<line class="tick" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(
            f'<text class="faint" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{seconds(tick_us)}</text>'
        )
    for row, rank in enumerate(ranks):
        top = row * rank_height
        parts.append(f'<text x="0" y="{top + 13}">rank {rank.rank}</text>')
        for number, lane in enumerate(LANES):
            y = top + number * (_LANE_HEIGHT + _LANE_GAP)
            parts.append(f'<text class="faint" x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{lane}</text>')
            parts.append(
                f'<rect class="lane" x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - 10}" height="{_LANE_HEIGHT}"/>'
            )
            for span in _visible([s for s in rank.spans if s.lane == lane], 0.6 / per_us):
                x = _LEFT + span.start_us * per_us
                width = max((span.end_us - span.start_us) * per_us, 0.6)
                label = escape(f"{span.name}: {seconds(span.end_us - span.start_us)} from {seconds(span.start_us)}")
                parts.append(
                    f'<rect class="{lane}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE_HEIGHT}">'
                    f"<title>{label}</title></rect>"
                )
    parts.append("</svg>")
    return "".join(parts)


def _picture(ranks: Sequence[RankTimeline], longest_us: float, name: str) -> str:
    if not any(rank.spans for rank in ranks):
        return "<p>No trace of such a step was kept.</p>"
    return picture_svg(ranks, longest_us, name)


def _visible(spans: list[TimelineSpan], smallest_us: float) -> list[TimelineSpan]:
    """Join spans that are closer together than can be seen: a step may have tens of thousands.

    >>> joined = _visible([TimelineSpan("compute", "a", 0, 1), TimelineSpan("compute", "b", 1.5, 2)], 1.0)
    >>> [(s.name, s.start_us, s.end_us) for s in joined]
    [('a and 1 more', 0, 2)]
    """
    joined: list[tuple[TimelineSpan, int]] = []
    for span in sorted(spans, key=lambda s: s.start_us):
        if joined and span.start_us - joined[-1][0].end_us < smallest_us:
            first, more = joined[-1]
            end_us = max(first.end_us, span.end_us)
            joined[-1] = (TimelineSpan(first.lane, first.name, first.start_us, end_us), more + 1)
        else:
            joined.append((span, 0))
    return [
        span if not more else TimelineSpan(span.lane, f"{span.name} and {more} more", span.start_us, span.end_us)
        for span, more in joined
    ]


def _ticks(longest_us: float) -> list[float]:
    """Round times, about eight of them."""
    if longest_us <= 0.0:
        return []
    raw = longest_us / 8
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 5, 10) if m * scale >= raw)
    return [n * step for n in range(int(longest_us / step) + 1)]


def _key() -> str:
    shown = "".join(f'<span class="key {lane}"></span>{lane}' for lane in LANES)
    return f"<p>{shown} (communication while nothing is computed)</p>"


def _numbers(summary: Summary) -> str:
    rows = [
        ("step time", [seconds(side.step_us) for side in (summary.before, summary.after)], summary.gain),
        ("communication", [seconds(side.communication_us) for side in (summary.before, summary.after)], None),
        (
            "exposed communication",
            [seconds(side.exposed_us) for side in (summary.before, summary.after)],
            _saved(summary.before, summary.after),
        ),
    ]
    body = "".join(
        f"<tr><td>{name}</td><td>{values[0]}</td><td>{values[1]}</td><td{_tone(saved)}>{percent(saved)}</td></tr>"
        for name, values, saved in rows
    )
    return (
        "<table><thead><tr><th>per step</th><th>before</th><th>after</th><th>saved</th></tr></thead>"
        f"<tbody>{body}</tbody></table>"
        f"<p>{summary.recompiles} recompiles, {seconds(summary.recompile_us)} spent on them.</p>"
    )


def _saved(before: Side, after: Side) -> float | None:
    if not before.exposed_us or after.exposed_us is None:
        return None
    return 1.0 - after.exposed_us / before.exposed_us


def _tone(saved: float | None) -> str:
    if saved is None or saved == 0.0:
        return ""
    return ' class="good"' if saved > 0 else ' class="bad"'
