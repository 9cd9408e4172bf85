"""`WindowMeasurement` as plain JSON values, to pass between processes and to store."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import msgspec

from loopopt.errors import WireError
from loopopt.measurement import Coverage, RankMeasurement, WindowMeasurement
from loopopt.timing import TimingTable


def measurement_to_json(measurement: WindowMeasurement) -> dict[str, Any]:
    """Plain JSON values; `measurement_from_json` is the inverse."""
    data = asdict(replace(measurement, table=TimingTable()))
    data["table"] = measurement.table.to_json()
    return data


def measurement_from_json(data: dict[str, Any]) -> WindowMeasurement:
    """Inverse of `measurement_to_json`.

    Raises:
        WireError: the value does not have the measurement's form.
    """
    try:
        ranks = msgspec.convert(data["ranks"], type=tuple[RankMeasurement, ...])
        matched = msgspec.convert(data["matched"], type=int)
        unmatched = msgspec.convert(data["unmatched"], type=int)
        notes = msgspec.convert(data["notes"], type=tuple[str, ...])
        table = TimingTable.from_json(data["table"])
        coverage = msgspec.convert(data.get("coverage", {}), type=Coverage)
    except (KeyError, TypeError, msgspec.ValidationError) as err:
        raise WireError(f"measurement: not of the expected form ({err!r})") from err
    return WindowMeasurement(ranks, table, matched, unmatched, notes, coverage)
