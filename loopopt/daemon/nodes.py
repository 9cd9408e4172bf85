"""A job on several nodes: one daemon decides, the others hand it what they measured of their own ranks.

    following node                     leading node (rank 0's)
    traces -> summaries  -- w/... -->  merged with its own and the other nodes' -> table, plan, verdict
    metrics of its ranks <-- m/... --  times of every rank, with skew and transfer, which one node cannot know

Both ways go through the job's own store by way of an agent (`wire.Post`, `wire.Fetch`). A node whose answer does
not come in time is missing in that window, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from loopopt import wire
from loopopt.errors import WireError
from loopopt.measurement import RankMeasurement


class Report(msgspec.Struct, frozen=True):
    """What a following node says about a window.

    Attributes:
        host: the node.
        ranks: its ranks that were traced.
        summaries: of these ranks, see `loopopt.measure.sending`; empty with an `error`.
        error: why the node has nothing; empty if it has.
        metrics_port: where its daemon serves metrics, 0 if it does not.
    """

    host: str
    ranks: tuple[int, ...]
    summaries: str = ""
    error: str = ""
    metrics_port: int = 0


def report_topic(window_id: str, first_step: int) -> str:
    """Where the reports of a window go. Window numbers may come again when a state directory is lost, steps do not."""
    return f"w/{window_id}.{first_step}"


def shares_topic(window_id: str, first_step: int) -> str:
    """Where the leading node puts what each rank's share came to."""
    return f"m/{window_id}.{first_step}"


def report_to_text(report: Report) -> str:
    """JSON; `report_from_text` is the inverse."""
    return msgspec.json.encode(report).decode()


def report_from_text(text: str) -> Report:
    """Inverse of `report_to_text`.

    Raises:
        WireError: not of the expected form.
    """
    try:
        return msgspec.json.decode(text, type=Report)
    except msgspec.MsgspecError as err:
        raise WireError(f"report of another node: not of the expected form ({err})") from err


def shares_to_text(ranks: Iterable[RankMeasurement]) -> str:
    """Every rank's share of a window, without what is only for drawing."""
    return msgspec.json.encode([replace(r, timeline=()) for r in ranks]).decode()


def shares_from_text(text: str, ranks: Iterable[int]) -> tuple[RankMeasurement, ...]:
    """The shares of these ranks.

    Raises:
        WireError: not of the expected form, or one of the ranks is missing.
    """
    try:
        shares = {r.rank: r for r in msgspec.json.decode(text, type=list[RankMeasurement])}
        return tuple(shares[r] for r in ranks)
    except (msgspec.MsgspecError, KeyError) as err:
        raise WireError(f"measurement of the leading node: not of the expected form ({err!r})") from err


class Window:
    """A window that was asked for: which ranks have answered, and with what.

    Attributes:
        answers: of this node's ranks.
        reports: of the other nodes.
        topic: where those come, known from the first answer on.
    """

    def __init__(self, window_id: str, plan_id: str, asked_s: float) -> None:
        self.window_id = window_id
        self.plan_id = plan_id
        self.asked_s = asked_s
        self.answers: dict[int, wire.WindowDone] = {}
        self.reports: dict[str, Report] = {}
        self.topic = ""

    @property
    def error(self) -> str:
        """The first thing that went wrong, with its rank or node; empty if nothing has."""
        for answer in self.answers.values():
            if answer.error:
                return f"rank {answer.rank}: {answer.error}"
        for report in self.reports.values():
            if report.error:
                return f"node {report.host}: {report.error}"
        return ""

    def missing(self, elsewhere: Sequence[int]) -> list[int]:
        """Ranks of other nodes that nobody has reported yet."""
        told = {rank for report in self.reports.values() for rank in report.ranks}
        return [rank for rank in elsewhere if rank not in told]


class Nodes:
    """The other nodes as the leading daemon has last heard of them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Report, float]] = {}

    def heard(self, report: Report, now_s: float) -> None:
        """A report has come."""
        self._seen[report.host] = (report, now_s)

    def status(self) -> list[dict[str, Any]]:
        """For `loopopt status`."""
        return [
            {
                "host": host,
                "ranks": list(r.ranks),
                "metrics_port": r.metrics_port or None,
                "heard_s": seen,
                "error": r.error,
            }
            for host, (r, seen) in sorted(self._seen.items())
        ]
