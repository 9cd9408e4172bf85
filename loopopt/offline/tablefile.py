"""A timing table as a file: JSON with where it came from, or CSV for spreadsheets.

    {"loopopt_table": 1, "digest": "...", "created": "2026-12-01T06:00:00+00:00", "sources": ["traces/..."],
     "coverage": {"compute": 0.98, "communication": 1.0, "unknown": [["aten::cat", 12.5]]},
     "fingerprint": {"device": "..."}, "groups": [{"name": "0", "description": "", "size": 2, "ranks": [0, 1]}],
     "table": {...}}

The digest is the table's own (`TimingTable.digest`): a file whose digest does not fit its table is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loopopt.analysis import RunAnalysis
from loopopt.errors import UsageError, WireError
from loopopt.measurement import Coverage
from loopopt.timing import TimingTable
from loopopt.traces import ProcessGroup

FORM = 1
"""Version of the file's form."""

CSV_COLUMNS = (
    "section",
    "kind",
    "group",
    "group_size",
    "dtype",
    "topology",
    "key",
    "message_bytes",
    "samples",
    "median_us",
    "spread_us",
    "more",
)
"""One duration a row. `more` is JSON of what has no column, in the first row of what it belongs to."""

_CURVE_NAMES = ("kind", "group", "group_size", "dtype", "topology")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A timing table and what is known about where it came from.

    Attributes:
        table: the durations.
        created: when it was made, UTC as ISO 8601, "" if unknown.
        sources: traces, or the job, it was made from.
        coverage: of the traces it was made from.
        groups: process groups of those traces, each once.
    """

    table: TimingTable
    created: str = ""
    sources: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    groups: tuple[ProcessGroup, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The file's content as plain JSON values."""
        return {
            "loopopt_table": FORM,
            "digest": self.table.digest,
            "created": self.created,
            "sources": list(self.sources),
            "coverage": {
                "compute": self.coverage.compute,
                "communication": self.coverage.communication,
                "unknown": [[name, duration_us] for name, duration_us in self.coverage.unknown],
            },
            "fingerprint": dict(sorted(self.table.fingerprint.items())),
            "groups": [
                {"name": g.name, "description": g.description, "size": g.size, "ranks": list(g.ranks)}
                for g in self.groups
            ],
            "table": self.table.to_json(),
        }


def of_run(run: RunAnalysis, groups: Iterable[ProcessGroup], created: str) -> TableFile:
    """The timing table of an analysed run.

    Args:
        run: the analysis.
        groups: process groups of all its ranks; repetitions are dropped.
        created: now, UTC as ISO 8601.
    """
    fingerprint = {"world": str(run.world_size)} if run.world_size else {}
    devices = sorted({f.device for f in run.files if f.device})
    if devices:
        fingerprint["device"] = ", ".join(devices)
    table = run.measurement.table
    return TableFile(
        table=replace(table, fingerprint={**fingerprint, **table.fingerprint}),
        created=created,
        sources=tuple(f.path for f in run.files),
        coverage=run.coverage,
        groups=tuple(sorted(set(groups), key=lambda g: (g.name, g.ranks))),
    )


def write(file: TableFile, path: str) -> None:
    """Write it as JSON; the file appears whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    write_text(path, json_text(file.to_json()))


def json_text(content: Mapping[str, Any]) -> str:
    """JSON with one value of the top level a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_text(path: str, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with open(partial, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        os.replace(partial, path)
    except OSError as err:
        if os.path.exists(partial):
            os.unlink(partial)
        raise UsageError(f"{path}: cannot be written: {err.strerror or err}") from err


def read(path: str) -> TableFile:
    """A table from a file in any of the forms that are written, told from its content.

    Those are: a table file, the CSV form, an Inductor profile written by loopopt, the answer of
    `loopopt table show JOB --json`, and a bare `TimingTable.to_json()`.

    Raises:
        UsageError: the file cannot be read, has none of these forms, holds impossible values, or states another
            digest than its content has.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"{path}: cannot be read: {getattr(err, 'strerror', None) or err}") from err
    try:
        if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
            return _from_json(path, json.loads(text))
        return _checked(path, *_from_csv(text.lstrip("\ufeff")))
    except (WireError, ValueError, RecursionError, csv.Error) as err:
        raise UsageError(f"{path}: not a timing table: {err}") from err


def _from_json(path: str, content: Any) -> TableFile:
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    if "loopopt_table" in content and content["loopopt_table"] != FORM:
        raise ValueError(f"of form {content['loopopt_table']!r}; this loopopt reads form {FORM}")
    if "collectives" in content:
        return _checked(path, content, None)
    if content.get("table") is None:
        if "traceEvents" in content:
            raise ValueError("a trace; make a table of it with `loopopt table build`")
        raise ValueError("it has no 'table'")
    file = _checked(path, content["table"], content.get("digest"))
    coverage = content.get("coverage") or {}
    try:
        return replace(
            file,
            created=str(content.get("created") or ""),
            sources=tuple(str(source) for source in content.get("sources") or ()),
            coverage=Coverage(
                compute=_share(coverage.get("compute")),
                communication=_share(coverage.get("communication")),
                unknown=tuple((str(name), float(duration)) for name, duration in coverage.get("unknown") or ()),
            ),
            groups=tuple(
                ProcessGroup(
                    str(g["name"]), str(g.get("description", "")), int(g["size"]), tuple(int(r) for r in g["ranks"])
                )
                for g in content.get("groups") or ()
            ),
        )
    except (TypeError, KeyError, AttributeError) as err:
        raise ValueError(f"coverage, sources or groups are not of the expected form ({err!r})") from err


def _share(value: Any) -> float | None:
    return None if value is None else float(value)


def _checked(path: str, content: Any, digest: Any) -> TableFile:
    """The table, if its values are possible and its digest is the stated one (None: none is stated)."""
    if not isinstance(content, dict):
        raise ValueError("the table is not a JSON object")
    table = TimingTable.from_json(content)
    durations = [(f"{c.kind} of {s} bytes", d) for c in table.collectives for s, d in zip(c.sizes, c.durations)]  # noqa: B905
    for known in (table.compute, table.isolated, table.regions):
        durations += known.items()
    for what, duration in durations:
        values = (duration.median_us, duration.spread_us)
        if duration.count < 1 or not all(math.isfinite(v) and v >= 0 for v in values):
            raise ValueError(f"{what}: {duration.count} samples of {values[0]} us +- {values[1]} us is no duration")
    for curve in table.collectives:
        if len(curve.sizes) != len(curve.durations) or not curve.sizes or curve.group_size < 1:
            raise ValueError(f"{curve.kind} on {curve.group or '-'}: needs ranks, and sizes with one duration each")
        if curve.sizes[0] < 0 or any(a >= b for a, b in zip(curve.sizes, curve.sizes[1:])):  # noqa: B905
            raise ValueError(f"{curve.kind} on {curve.group or '-'}: message sizes must rise")
    if digest not in (None, "", table.digest):
        raise ValueError(
            f"its digest is stated as {digest}, but its content has {table.digest}: it was changed or damaged "
            "(remove the digest to import it nevertheless)"
        )
    return TableFile(table)


# ---------------------------------------------------------------- CSV


def csv_text(table: TimingTable) -> str:
    """The table as CSV; `read` gives back the same table."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerow({"section": "digest", "key": table.digest})
    for name, value in table.to_json().items():
        if name == "collectives":
            for curve in value:
                writer.writerows(_curve_rows(curve))
        elif name == "fingerprint":
            writer.writerows({"section": name, "key": key, "more": text} for key, text in value.items())
        elif isinstance(value, dict):
            writer.writerows({"section": name, "key": key, **_duration_cells(d)} for key, d in value.items())
        else:
            raise ValueError(f"{name}: has no form in CSV")
    return out.getvalue()


def _curve_rows(curve: Mapping[str, Any]) -> list[dict[str, Any]]:
    own = {name: curve.get(name, "") for name in _CURVE_NAMES}
    more = {k: v for k, v in curve.items() if k not in (*_CURVE_NAMES, "sizes", "durations")}
    rows: list[dict[str, Any]] = [
        {"section": "collectives", **own, "message_bytes": size, **_duration_cells(duration)}
        for size, duration in zip(curve["sizes"], curve["durations"], strict=True)
    ]
    if more and rows:
        rows[0]["more"] = json.dumps(more)
    return rows


def _duration_cells(duration: list[float]) -> dict[str, Any]:
    count, median_us, spread_us = duration
    return {"samples": count, "median_us": repr(median_us), "spread_us": repr(spread_us)}


def _from_csv(text: str) -> tuple[dict[str, Any], str | None]:
    """(the table's JSON, the stated digest)."""
    reader = csv.DictReader(io.StringIO(text))
    missing = set(CSV_COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise ValueError(f"neither JSON nor CSV with the columns {','.join(CSV_COLUMNS)}")
    digest = None
    curves: dict[tuple[str, ...], dict[str, Any]] = {}
    content: dict[str, Any] = {"compute": {}, "fingerprint": {}}
    for number, row in enumerate(reader, 2):
        try:
            section = row["section"]
            if section == "digest":
                digest = row["key"]
            elif section == "fingerprint":
                content[section][row["key"]] = row["more"]
            elif section == "collectives":
                _add_size(curves, row)
            else:
                content.setdefault(section, {})[row["key"]] = _duration(row)
        except (ValueError, TypeError, KeyError) as err:
            raise ValueError(f"line {number}: {err}") from err
    return {"collectives": list(curves.values()), **content}, digest


def _add_size(curves: dict[tuple[str, ...], dict[str, Any]], row: dict[str, str]) -> None:
    key = tuple(row[name] for name in _CURVE_NAMES)
    curve = curves.get(key)
    if curve is None:
        own: dict[str, Any] = {name: row[name] for name in _CURVE_NAMES if row[name]}
        own |= {"kind": row["kind"], "group": row["group"], "group_size": int(row["group_size"])}
        curve = curves[key] = {**own, "sizes": [], "durations": []}
    curve["sizes"].append(int(row["message_bytes"]))
    curve["durations"].append(_duration(row))
    if row["more"]:
        curve.update(json.loads(row["more"]))


def _duration(row: dict[str, str]) -> list[float]:
    return [int(row["samples"]), float(row["median_us"]), float(row["spread_us"])]
