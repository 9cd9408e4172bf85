"""What ``loopopt plan simulate`` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from loopopt.report.units import data, percent, seconds


def simulated_view(answer: dict[str, Any]) -> Group:
    """Schedules side by side, then the collectives still exposed under the last one."""
    title = f"graph {answer['graph']} ({answer['kind']}): {answer['nodes']} nodes, {answer['collectives']} collectives"
    table = Table(title=title, title_justify="left")
    for name in ("schedule", "time", "saved", "communication", "exposed", "memory", "buckets"):
        table.add_column(name, justify="left" if name == "schedule" else "right")
    first = answer["schedules"][0]["step_us"]
    for found in answer["schedules"]:
        table.add_row(
            found["label"],
            seconds(found["step_us"]),
            percent(1 - found["step_us"] / first) if first else "-",
            seconds(found["communication_us"]),
            seconds(found["exposed_us"]),
            data(found["peak_bytes"]),
            str(len(found["buckets"])),
        )
    parts: list[Any] = [table]
    worst = answer["schedules"][-1]["exposed"]
    if worst:
        left = Table(title=f"still exposed: {answer['schedules'][-1]['label']}", title_justify="left")
        left.add_column("collective")
        left.add_column("merged", justify="right")
        left.add_column("exposed", justify="right")
        for row in worst:
            left.add_row(row["collective"], str(row["of"]), seconds(row["us"]))
        parts.append(left)
    if answer["assumed"]["nodes"]:
        assumed = answer["assumed"]
        parts.append(Text(f"{assumed['nodes']} nodes are not in the table: {seconds(assumed['us'])} assumed for them."))
    return Group(*parts)
