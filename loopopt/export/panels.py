"""Grafana's JSON model of dashboards: how a board of panels is laid out and written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

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
        kind: "timeseries", "stat", "state-timeline" or "table".
        width: columns of 24.
        stacked: areas on top of each other.
        text: what a "stat" shows, Grafana's text mode.
    """

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    kind: str = "timeseries"
    width: int = 12
    stacked: bool = False
    text: str = "auto"


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board.

    Attributes:
        name: as in ``$name``.
        label: what people read.
        query: Grafana's ``label_values(...)``, or the values with commas between for a fixed choice.
        several: more than one may be chosen, all at first.
        chosen: the first choice of a fixed one.
    """

    name: str
    label: str
    query: str
    several: bool = False
    chosen: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at moments a query has a value: `title`, `color` and the query."""

    title: str
    color: str
    query: str


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `uid` never changes: links and bookmarks carry it. Its file is ``<name>.json``."""

    name: str
    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()
    marks: tuple[Mark, ...] = ()


def board_json(board: Board) -> dict[str, Any]:
    """The board in Grafana's JSON model."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["loopopt"],
        "editable": False,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "links": [
            {"type": "dashboards", "title": "loopopt", "tags": ["loopopt"], "asDropdown": True, "includeVars": True}
        ],
        "annotations": {"list": [_mark_json(mark) for mark in board.marks]},
        "templating": {"list": [_DATASOURCE, *map(_variable_json, board.variables)]},
        "panels": _placed(board.panels),
    }


def board_file(board: Board) -> str:
    """Text of the board's file."""
    return json.dumps(board_json(board), indent=2) + "\n"


_DATASOURCE: Final = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}


def _variable_json(variable: Variable) -> dict[str, Any]:
    if variable.chosen:
        values = variable.query.split(",")
        return {
            "type": "custom",
            "name": variable.name,
            "label": variable.label,
            "query": variable.query,
            "options": [{"text": v, "value": v, "selected": v == variable.chosen} for v in values],
            "current": {"text": variable.chosen, "value": variable.chosen},
        }
    several = {"multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}}
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 3,
        "hide": 0,
        **(several if variable.several else {"multi": False, "includeAll": False}),
    }


def _mark_json(mark: Mark) -> dict[str, Any]:
    return {
        "name": mark.title,
        "datasource": _SOURCE,
        "enable": True,
        "expr": mark.query,
        "iconColor": mark.color,
        "titleFormat": mark.title,
        "textFormat": "{{instance}}",
    }


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
    at_once = panel.kind in ("stat", "table")
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": at_once,
            "range": not at_once,
            "format": "table" if panel.kind == "table" else "time_series",
        }
        for i, (query, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": position,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        calcs = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"textMode": panel.text, "reduceOptions": calcs}
    if panel.kind == "table":
        return {"showHeader": True}
    if panel.kind == "state-timeline":
        return {"mergeValues": True, "showValue": "never"}
    return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
