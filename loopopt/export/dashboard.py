"""The Grafana dashboard, generated: `grafana/exposed-communication.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from loopopt.export.queries import Queries

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
"""Width of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: heading.
        description: what is seen, and what good looks like.
        queries: (query, legend) pairs.
        unit: Grafana's unit id.
        kind: "timeseries" or "stat".
        width: columns of 24.
        stacked: areas on top of each other.
    """

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    kind: str = "timeseries"
    width: int = 12
    stacked: bool = False


def panels() -> tuple[Panel, ...]:
    """All panels, in reading order."""
    q = Queries(selector='job=~"$job",instance=~"$instance"', window="$window")
    exposed = "loopopt_exposed_communication_seconds_total"
    return (
        Panel(
            "Plan",
            "The schedule the job runs now.",
            ((q.metric("loopopt_plan_info"), "{{label}} ({{plan}})"),),
            "none",
            "stat",
            6,
        ),
        Panel(
            "Step time saved",
            "Against the job as it was without loopopt, by the medians last measured.",
            ((q.realised_gain(), "{{instance}}"),),
            "percentunit",
            "stat",
            6,
        ),
        Panel(
            "Exposed communication",
            "Share of step time in which ranks communicate and do not compute. Lower is better.",
            ((q.share_of_sampled(exposed), "{{instance}}"),),
            "percentunit",
            "stat",
            6,
        ),
        Panel(
            "Ranks",
            "Ranks registered with this node's daemon, by state.",
            ((q.metric("loopopt_registered_ranks"), "{{state}}"),),
            "none",
            "stat",
            6,
        ),
        Panel(
            "Step time",
            "Measured medians, what the planner foretold, and the median of all steps of the last 5 minutes.",
            (
                (q.metric("loopopt_current_step_seconds"), "now {{instance}}"),
                (q.metric("loopopt_baseline_step_seconds"), "as it was {{instance}}"),
                (q.metric("loopopt_predicted_step_seconds"), "foretold {{instance}}"),
                (q.step_quantile(0.5), "all steps {{instance}}"),
            ),
            "s",
        ),
        Panel(
            "Where the step goes",
            "Shares of traced time. Hidden communication runs behind compute and is part of both.",
            (
                (q.share_of_sampled("loopopt_compute_seconds_total"), "compute {{instance}}"),
                (q.share_of_sampled(exposed), "exposed communication {{instance}}"),
                (q.hidden_share(), "hidden communication {{instance}}"),
            ),
            "percentunit",
        ),
        Panel(
            "Exposed communication by collective",
            "Which kind of collective the ranks wait for.",
            ((q.exposed_share_by_collective(), "{{collective}} {{instance}}"),),
            "percentunit",
            stacked=True,
        ),
        Panel(
            "Communication hidden by compute",
            "Share of communication that compute hides. Higher is better.",
            ((q.overlap(), "{{instance}}"),),
            "percentunit",
        ),
        Panel(
            "Waiting for slower ranks",
            "Time collectives waited for ranks that arrived later, as a share of traced time. No schedule removes it.",
            ((q.share_of_sampled("loopopt_skew_seconds_total"), "{{instance}}"),),
            "percentunit",
        ),
        Panel(
            "What the loop did",
            "Recompilations, those that failed, and plans taken back, since the job began.",
            (
                (q.metric("loopopt_recompiles_total"), "recompiled {{instance}}"),
                (q.metric("loopopt_recompile_failures_total"), "failed {{instance}}"),
                (q.metric("loopopt_rollbacks_total"), "taken back {{instance}}"),
            ),
            "none",
        ),
        Panel(
            "What the loop costs",
            "The agent's share of the training threads' time.",
            ((q.agent_share(), "{{instance}}"),),
            "percentunit",
        ),
        Panel(
            "Traces",
            "Windows asked for, and windows that gave no measurement by reason, since the job began.",
            (
                (q.metric("loopopt_trace_requests_total"), "asked for {{instance}}"),
                (q.metric("loopopt_trace_failures_total") + " > 0", "{{reason}} {{instance}}"),
            ),
            "none",
        ),
    )


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    return {
        "uid": "loopopt-exposed",
        "title": "loopopt: exposed communication",
        "tags": ["loopopt"],
        "editable": False,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _placed(panels()),
    }


def dashboard_file() -> str:
    """Text of `grafana/exposed-communication.json`."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    build = Queries().metric("loopopt_build_info")

    def of_label(name: str, query: str) -> dict[str, Any]:
        return {
            "type": "query",
            "name": name,
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        }

    windows = ("10m", "30m", "1h", "6h")
    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
        of_label("job", f"label_values({build}, job)"),
        of_label("instance", f'label_values({build}{{job=~"$job"}}, instance)'),
        {
            "type": "custom",
            "name": "window",
            "label": "Traced over",
            "query": ",".join(windows),
            "options": [{"text": w, "value": w, "selected": w == "30m"} for w in windows],
            "current": {"text": "30m", "value": "30m"},
        },
    ]


def _placed(items: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Lay the panels out left to right, a new line where one does not fit."""
    placed: list[dict[str, Any]] = []
    x = y = line_height = 0
    for number, panel in enumerate(items, start=1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > _COLUMNS:
            x, y, line_height = 0, y + line_height, 0
        placed.append(_panel_json(panel, number, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
        line_height = max(line_height, height)
    return placed


def _panel_json(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    stat = panel.kind == "stat"
    targets = [
        {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": query, "legendFormat": legend, "instant": stat}
        for i, (query, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit}
    if not stat:
        defaults["custom"] = {"fillOpacity": 10, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    if stat:
        named = panel.title in ("Plan", "Ranks")
        show = {"textMode": "name"} if panel.title == "Plan" else {"textMode": "value_and_name" if named else "auto"}
        options = {**show, "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": position,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }
