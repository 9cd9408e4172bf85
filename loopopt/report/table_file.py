"""A timing table's origin, and two tables side by side, as rich tables. Takes their JSON; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopopt.report.terminal import table_view
from loopopt.report.units import bandwidth, seconds, share

MOST_ROWS = 40
"""Changed keys, and keys in one table only, that are shown; the JSON has all."""

_MOST_SOURCES = 4


def table_file_view(file: Mapping[str, Any], now: datetime) -> RenderableType:
    """Digest, age, coverage, fingerprint and sources of a table file, then its durations.

    Args:
        file: the file's JSON (`loopopt.offline.tablefile`).
        now: the present time, with a zone.
    """
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_column()
    head.add_row("digest", escape(str(file["digest"])))
    if created := file.get("created"):
        head.add_row("made", escape(f"{created}{_age(str(created), now)}"))
    coverage = file.get("coverage") or {}
    if coverage.get("compute") is not None or coverage.get("communication") is not None:
        head.add_row(
            "covers",
            f"{share(coverage.get('compute'))} of compute time, "
            f"{share(coverage.get('communication'))} of communication time",
        )
    for name, duration_us in (coverage.get("unknown") or ())[:_MOST_SOURCES]:
        head.add_row("", f"[dim]not in it: {escape(str(name))} ({seconds(duration_us)})[/]")
    fingerprint = file.get("fingerprint") or {}
    if fingerprint:
        head.add_row("measured on", escape(", ".join(f"{k} {v}" for k, v in fingerprint.items())))
    sources = list(file.get("sources") or ())
    for index, source in enumerate(sources[:_MOST_SOURCES]):
        head.add_row("" if index else "made from", escape(str(source)))
    if len(sources) > _MOST_SOURCES:
        head.add_row("", f"and {len(sources) - _MOST_SOURCES} more")
    return Group(head, table_view(file["table"]))


def table_diff_view(diff: Mapping[str, Any]) -> RenderableType:
    """Lines per curve, changed durations, keys in one table only."""
    before, after = diff["digests"]
    parts: list[RenderableType] = [
        Text(f"{before} -> {after}" if before != after else f"the same table ({before})", style="bold")
    ]
    for key, (old, new) in diff["fingerprint"].items():
        parts.append(Text(f"{key}: {old or '-'} -> {new or '-'}"))
    if diff["curves"]:
        parts.append(_curves(diff["curves"]))
    beyond = [c for c in diff["changes"] if c["beyond_spread"]]
    if beyond:
        parts.append(_changes(beyond))
    within = len(diff["changes"]) - len(beyond)
    parts.append(
        Text(f"{len(beyond)} durations changed by more than they vary, {within} by less; {diff['same']} are the same.")
    )
    for name, keys in (("before", diff["only_before"]), ("after", diff["only_after"])):
        if keys:
            parts.append(_only(name, keys))
    return Group(*parts)


def _age(created: str, now: datetime) -> str:
    try:
        age_s = (now - datetime.fromisoformat(created)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if age_s >= 2 * size:
            return f", {age_s / size:.0f} {unit} ago"
    return ", just now" if age_s >= 0 else ""


def _curves(curves: Sequence[Mapping[str, Any]]) -> Table:
    view = Table(title="curves", title_justify="left")
    view.add_column("collective")
    for name in ("latency before", "after", "bandwidth before", "after"):
        view.add_column(name, justify="right")
    for curve in curves:
        old, new = curve["before"] or {}, curve["after"] or {}
        view.add_row(
            escape(curve["curve"]),
            seconds(old.get("latency_us")),
            seconds(new.get("latency_us")),
            bandwidth(old.get("gbps")),
            bandwidth(new.get("gbps")),
        )
    return view


def _changes(changes: Sequence[Mapping[str, Any]]) -> Table:
    view = Table(title="changed by more than they vary", title_justify="left")
    view.add_column("section")
    view.add_column("what", overflow="fold")
    for name in ("before", "after", "factor"):
        view.add_column(name, justify="right")
    for change in changes[:MOST_ROWS]:
        ratio = change["ratio"]
        view.add_row(
            change["section"],
            escape(change["key"]),
            f"{seconds(change['before'][1])} ± {seconds(change['before'][2])}",
            f"{seconds(change['after'][1])} ± {seconds(change['after'][2])}",
            "-" if ratio is None else f"{ratio:.2f}",
        )
    if len(changes) > MOST_ROWS:
        view.add_row("", f"and {len(changes) - MOST_ROWS} more (--json has all)", "", "", "")
    return view


def _only(name: str, keys: Sequence[Sequence[str]]) -> RenderableType:
    lines = [Text(f"only in {name}:")]
    lines += [Text(f"  {section}: {key}") for section, key in keys[:MOST_ROWS]]
    if len(keys) > MOST_ROWS:
        lines.append(Text(f"  and {len(keys) - MOST_ROWS} more (--json has all)"))
    return Group(*lines)
