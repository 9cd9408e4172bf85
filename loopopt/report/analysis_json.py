"""An analysis as plain JSON values, and back.

The form is that of the records in `loopopt.analysis`: names of fields are keys, microseconds and bytes. Left out
are the spans for drawing (`--html` has them). Added are "form" and, per run, "per_step".
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from loopopt.analysis import Analysis
from loopopt.errors import UsageError
from loopopt.report.analysis_rows import step_rows

FORM = "loopopt-analysis-1"
"""First value of the object; another number means that a field has changed its meaning."""


def analysis_to_json(analysis: Analysis) -> dict[str, Any]:
    """Plain JSON values; `analysis_from_json` is the inverse but for the spans for drawing.

    A number that is not finite becomes null.
    """
    body = msgspec.to_builtins(analysis, str_keys=True)
    for run, plain in zip(analysis.runs, body["runs"], strict=True):
        for rank in plain["measurement"]["ranks"]:
            del rank["timeline"]
        plain["measurement"]["table"]["digest"] = run.measurement.table.digest
        plain["per_step"] = msgspec.to_builtins(step_rows(run))
    found: dict[str, Any] = _finite({"form": FORM, **body})
    return found


def analysis_from_json(data: object, path: str) -> Analysis:
    """Inverse of `analysis_to_json`.

    Args:
        data: what was read.
        path: from where, for the message.

    Raises:
        UsageError: it is something else, or was written by another version.
    """
    form = data.get("form") if isinstance(data, dict) else None
    if form != FORM:
        raise UsageError(f"{path}: not an analysis of this version (form {form!r}, expected {FORM!r}): analyze again")
    try:
        return msgspec.convert(data, type=Analysis, str_keys=True)
    except msgspec.ValidationError as err:
        raise UsageError(f"{path}: not an analysis as `loopopt analyze --json` writes it ({err})") from err


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
