"""An analysis as CSV tables: names to texts. Units are in the column names; nothing is shortened or left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields

from loopopt.analysis import Analysis, ExposedCollective, GroupTotals, LateRank, RunAnalysis
from loopopt.measurement import Breakdown
from loopopt.report.analysis_rows import (
    BREAKDOWN_FIELDS,
    bandwidth_gbps,
    exposed_share,
    hidden_share,
    numbered_steps,
)

Row = tuple[object, ...]

_BREAKDOWN = (*BREAKDOWN_FIELDS, "exposed_share", "hidden_share")


def analysis_csv(analysis: Analysis) -> dict[str, str]:
    """File name -> content, for each of `TABLES`."""
    return {name: table_csv(analysis, name) for name in TABLES}


def table_csv(analysis: Analysis, name: str) -> str:
    """One of `TABLES` as text; the first column says which run."""
    header, rows = TABLES[name]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("run", *header))
    for run in analysis.runs:
        for row in rows(run):
            writer.writerow([_cell(value) for value in (run.name, *row)])
    return out.getvalue()


def _cell(value: object) -> object:
    """None is empty. Text that a spreadsheet would run as a formula gets an apostrophe: traces are not trusted."""
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _breakdown(b: Breakdown) -> Row:
    return (*(getattr(b, name) for name in BREAKDOWN_FIELDS), exposed_share(b), hidden_share(b))


def _ranks(run: RunAnalysis) -> Iterator[Row]:
    files = {f.rank: f for f in run.files}
    for rank in run.measurement.ranks:
        file = files.get(rank.rank)
        known = (file.host, file.device, file.path) if file is not None else ("", "", "")
        yield (rank.rank, *_breakdown(rank.total), len(rank.steps), run.clock_us.get(rank.rank, 0.0), *known)


def _steps(run: RunAnalysis) -> Iterator[Row]:
    for rank in run.measurement.ranks:
        for number, step in numbered_steps(rank):
            yield (rank.rank, number, *_breakdown(step))


def _collectives(run: RunAnalysis) -> Iterator[Row]:
    for row in run.groups:
        yield astuple(row)


def _worst(run: RunAnalysis) -> Iterator[Row]:
    for row in run.worst:
        yield astuple(row)


def _late(run: RunAnalysis) -> Iterator[Row]:
    for row in run.late:
        yield astuple(row)


def _models(run: RunAnalysis) -> Iterator[Row]:
    for curve in run.measurement.table.collectives:
        for regime in curve.regimes:
            yield (
                curve.kind,
                curve.group,
                curve.group_size,
                curve.dtype,
                curve.topology,
                regime.from_bytes,
                regime.latency_us,
                bandwidth_gbps(regime),
                regime.spread,
                regime.samples,
            )


def _names(record: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record))


_MODEL = ("kind", "group", "group_size", "dtype", "topology", "from_bytes", "latency_us", "bandwidth_gbps")

TABLES: dict[str, tuple[tuple[str, ...], Callable[[RunAnalysis], Iterator[Row]]]] = {
    "ranks.csv": (("rank", *_BREAKDOWN, "steps", "clock_us", "host", "device", "path"), _ranks),
    "steps.csv": (("rank", "step", *_BREAKDOWN), _steps),
    "collectives.csv": (_names(GroupTotals), _collectives),
    "worst.csv": (_names(ExposedCollective), _worst),
    "late.csv": (_names(LateRank), _late),
    "models.csv": ((*_MODEL, "spread_share", "samples"), _models),
}
"""File name -> (columns after "run", rows of one run)."""
