"""From the daemon's windows to the rows of a picture: the last window before, the last one after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopopt.measurement import TimelineSpan
from loopopt.report.html import RankTimeline


def timelines(windows: Sequence[Mapping[str, Any]], plan_id: str) -> tuple[RankTimeline, ...]:
    """Rows of the last window that was traced under a plan; empty if there is none.

    Args:
        windows: as `loopopt.ctl.request(job_dir, "windows")` lists them, oldest first; each has "plan_id" and
            "measurement", the plain JSON of a `loopopt.measurement.WindowMeasurement`.
        plan_id: the plan to look for.
    """
    for window in reversed(windows):
        measured = window.get("measurement")
        if window.get("plan_id") == plan_id and isinstance(measured, Mapping):
            rows = tuple(_row(rank) for rank in measured.get("ranks") or ())
            if any(row.spans for row in rows):
                return rows
    return ()


def _row(rank: Mapping[str, Any]) -> RankTimeline:
    return RankTimeline(
        rank=int(rank["rank"]),
        spans=tuple(
            TimelineSpan(str(s["lane"]), str(s["name"]), float(s["start_us"]), float(s["end_us"]))
            for s in rank.get("timeline") or ()
        ),
    )
