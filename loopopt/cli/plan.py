"""``loopopt plan``: the schedules tried on a job and the one in force."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from loopopt.errors import UsageError, WireError


@click.group()
def plan() -> None:
    """The plans of a job."""


@plan.command("show")
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(job: str | None, as_json: bool) -> int:
    """Show the plans of JOB: their settings, what became of them, and which is in force (*).

    \b
    Examples:
      loopopt plan show
      loopopt plan show night --json
    """
    from loopopt.cli import background, jobs

    answer = background.ask(jobs.find_served(job), "plans", timeout_s=20.0)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return 0
    from loopopt.cli import screen
    from loopopt.report.terminal import plans_view

    screen.console().print(plans_view(answer["trials"], answer["active_plan"]))
    return 0


class Factor(click.ParamType):  # type: ignore[type-arg]
    """A positive factor, written 0.5 or x0.5."""

    name = "factor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number.

        Raises:
            click.BadParameter: it is none, or not above 0.
        """
        if isinstance(value, float):
            return value
        try:
            found = float(str(value).removeprefix("x"))
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            self.fail(f"{value!r} is not a factor above 0, like x0.5", param, ctx)
        return found


@plan.command("simulate")
@click.argument("graph_file", metavar="GRAPH.json")
@click.option("--table", "table_file", required=True, metavar="FILE", help="Timing table (`loopopt table build`).")
@click.option("--bandwidth", type=Factor(), default=1.0, metavar="xF", help="Links with F times the bandwidth.")
@click.option("--latency", type=Factor(), default=1.0, metavar="xF", help="Collectives with F times the latency.")
@click.option("--compute", type=Factor(), default=1.0, metavar="xF", help="Compute that takes F times as long.")
@click.option(
    "--memory-gb", type=float, metavar="GB", help="Memory over that of the graph's own order.  [default: any]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    graph_file: str,
    table_file: str,
    bandwidth: float,
    latency: float,
    compute: float,
    memory_gb: float | None,
    as_json: bool,
) -> int:
    """Simulate one compiled graph as it was and under the best schedule the search finds.

    GRAPH.json is one of the files that a job leaves in graphs/ of its directory when a plan is compiled. What is not
    in the table is assumed, and counted under "assumed".

    \b
    Examples:
      loopopt plan simulate graphs/0f3a.json --table table.json
      loopopt plan simulate graphs/0f3a.json --table table.json --bandwidth x0.5 --memory-gb 2
    """
    if memory_gb is not None and not 0 <= memory_gb < math.inf:
        raise UsageError(f"--memory-gb {memory_gb}: cannot be negative")
    from loopopt.graphs import Graph
    from loopopt.offline import tablefile
    from loopopt.plan import WhatIf, what_if

    try:
        with open(graph_file, encoding="utf-8") as file:
            graph = Graph.from_json(json.load(file))
    except OSError as err:
        raise UsageError(f"{graph_file}: {err.strerror or err}") from err
    except (ValueError, RecursionError, WireError) as err:
        raise UsageError(f"{graph_file}: {err}") from err
    table = tablefile.read(table_file).table
    answer = what_if(graph, table, WhatIf(bandwidth, latency, compute), memory_gb)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return 0
    from loopopt.cli import screen
    from loopopt.report.simulated import simulated_view

    screen.console().print(simulated_view(answer))
    return 0
