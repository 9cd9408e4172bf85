"""Records and status as rich tables. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loopopt.report.summary import Side, Summary
from loopopt.report.units import percent, seconds

_VERDICTS = {
    "baseline": "the job's own",
    "kept": "[green]kept[/]",
    "rolled_back": "[yellow]rolled back[/]",
    "infeasible": "[red]infeasible[/]",
    "unused": "[red]not used[/]",
    "running": "[cyan]on trial[/]",
}


def summary_view(summary: Summary) -> RenderableType:
    """The before/after table, the plans tried, and the outcome in a sentence."""
    parts: list[RenderableType] = [_before_after(summary)]
    if summary.trials:
        parts.append(_trials(summary))
    parts.append(
        Text(
            f"{summary.recompiles} recompiles, {seconds(summary.recompile_us)} spent on them; "
            f"{summary.rollbacks} rollbacks."
        )
    )
    parts.append(Text(summary.sentence(), style="bold"))
    return Group(*parts)


def status_view(status: Mapping[str, Any], summary: Summary) -> RenderableType:
    """What `loopopt status` shows: the job, its ranks, the loop, and what has been measured so far."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_column()
    head.add_row("job", escape(summary.job))
    head.add_row("loop", f"{escape(summary.phase) or '-'}{_observing(summary)}")
    head.add_row("step", str(summary.step))
    head.add_row("plan", escape(f"{summary.after.label} ({summary.after.plan_id})"))
    head.add_row("ranks", escape(_ranks(status)))
    if summary.follows:
        head.add_row("follows", f"node {escape(summary.follows)}, whose daemon decides")
    for node in status.get("nodes") or ():
        head.add_row("node", escape(_node(node)))
    if port := status.get("metrics_port"):
        head.add_row("metrics", f"port {port}, /metrics")
    for note in list(status.get("notes") or ())[-3:]:
        head.add_row("", f"[dim]{escape(str(note))}[/]")
    return Group(head, summary_view(summary))


def table_view(table: Mapping[str, Any]) -> RenderableType:
    """A timing table's collectives by size, and its compute operators by total count."""
    collectives = Table(title="collectives: transfer time by message size", title_justify="left")
    for name in ("kind", "group", "ranks", "bytes", "median", "spread", "samples"):
        collectives.add_column(name, justify="left" if name in ("kind", "group") else "right")
    for curve in table.get("collectives") or ():
        for size, (count, median_us, spread_us) in zip(curve["sizes"], curve["durations"], strict=False):
            collectives.add_row(
                escape(str(curve["kind"])),
                escape(str(curve["group"])) or "-",
                str(curve["group_size"]),
                f"{int(size):,}",
                seconds(median_us),
                seconds(spread_us),
                str(count),
            )
    compute = Table(title="compute, under overlap", title_justify="left")
    for name in ("operator", "shapes", "type", "median", "spread", "samples"):
        compute.add_column(name, justify="left" if name in ("operator", "shapes", "type") else "right")
    rows = sorted((table.get("compute") or {}).items(), key=lambda item: -float(item[1][1]))
    for key, (count, median_us, spread_us) in rows:
        operator, _, rest = key.partition("|")
        shapes, _, kind = rest.rpartition("|")
        compute.add_row(
            escape(operator), escape(shapes), escape(kind), seconds(median_us), seconds(spread_us), str(count)
        )
    return Group(collectives, compute)


def plans_view(trials: Sequence[Mapping[str, Any]], active_plan: str) -> RenderableType:
    """Plans with the settings they make; the one in force is marked. A plan tried again shows its last trial."""
    view = Table()
    for name in ("", "plan", "label", "verdict", "settings", "table"):
        view.add_column(name)
    for plan in {trial.get("plan_id"): trial for trial in trials}.values():
        knobs = {k: v for k, v in (plan.get("knobs") or {}).items() if v is not None}
        view.add_row(
            "*" if plan.get("plan_id") == active_plan else "",
            escape(str(plan.get("plan_id") or "")),
            escape(str(plan.get("label") or "")),
            _VERDICTS.get(str(plan.get("verdict")), escape(str(plan.get("verdict") or "-"))),
            escape(", ".join(f"{k}={v}" for k, v in knobs.items())),
            escape(str(plan.get("table_digest") or "-")),
        )
    return view


def _before_after(summary: Summary) -> Table:
    table = Table(title=f"{escape(summary.job) or 'job'}: one step", title_justify="left")
    table.add_column("")
    table.add_column(f"before\n[dim]{escape(summary.before.label)}[/]", justify="right")
    table.add_column(f"after\n[dim]{escape(summary.after.label)}[/]", justify="right")
    table.add_column("saved", justify="right")
    table.add_row("step time", _step(summary.before), _step(summary.after), _gain(summary))
    for name, before_us, after_us in (
        ("communication", summary.before.communication_us, summary.after.communication_us),
        ("exposed communication", summary.before.exposed_us, summary.after.exposed_us),
    ):
        saved = 1.0 - after_us / before_us if before_us and after_us is not None and summary.gain is not None else None
        table.add_row(name, seconds(before_us), seconds(after_us), percent(saved))
    return table


def _trials(summary: Summary) -> Table:
    table = Table(title="plans tried", title_justify="left")
    for name in ("plan", "verdict", "step", "saved (95 %)", "exposed", "recompile"):
        table.add_column(name, justify="left" if name in ("plan", "verdict") else "right")
    for trial in summary.trials:
        interval = _interval(trial.gain, trial.gain_low, trial.gain_high)
        # With a gain, the numbers beside it say why; what follows them in the reason is worth showing.
        why = trial.reason if trial.gain is None else trial.reason.partition("; ")[2]
        table.add_row(
            escape(trial.label or trial.plan_id),
            _VERDICTS.get(trial.verdict, escape(trial.verdict)) + (f"\n[dim]{escape(why)}[/]" if why else ""),
            seconds(trial.step_us),
            interval,
            seconds(trial.exposed_us),
            seconds(trial.compile_us),
        )
    return table


def _step(side: Side) -> str:
    if side.step_us is None:
        return "-"
    spread = f" ± {seconds(side.step_spread_us)}" if side.step_spread_us is not None else ""
    return f"{seconds(side.step_us)}{spread}"


def _gain(summary: Summary) -> str:
    return _interval(summary.gain, summary.gain_low, summary.gain_high)


def _interval(gain: float | None, low: float | None, high: float | None) -> str:
    if gain is None:
        return "-"
    if low is None or high is None:
        return percent(gain)
    return f"{percent(gain)}\n[dim]{percent(low)} .. {percent(high)}[/]"


def _observing(summary: Summary) -> str:
    return f" (observing only: {escape(summary.reason)})" if summary.mode == "observe" else ""


def _ranks(status: Mapping[str, Any]) -> str:
    ranks = status.get("ranks") or ()
    states: dict[str, list[str]] = {}
    for rank in ranks:
        states.setdefault(str(rank.get("state") or "live"), []).append(str(rank.get("rank")))
    if not states:
        return "none has registered"
    return "; ".join(f"{state}: {', '.join(numbers)}" for state, numbers in states.items())


def _node(node: Mapping[str, Any]) -> str:
    ranks = ", ".join(map(str, node.get("ranks") or ()))
    error = f": {node['error']}" if node.get("error") else ""
    return f"{node.get('host')}: ranks {ranks}{error}"
