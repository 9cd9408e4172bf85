"""Which node decides, and what a window of several nodes lacks."""

from __future__ import annotations

from typing import Any, cast

import pytest

from loopopt import wire
from loopopt.config import LoopConfig
from loopopt.control import Loop, Note
from loopopt.daemon import nodes
from loopopt.daemon.ranks import Registry
from loopopt.errors import WireError
from loopopt.measurement import Breakdown, RankMeasurement, WindowMeasurement
from loopopt.timing import TimingTable


def registry(*ranks: int, leader: str, host: str = "nodeb") -> Registry:
    """Ranks that registered at second 0, of a job of four."""
    made = Registry()
    common: dict[str, Any] = {"torch": "2.13.0", "backend": "gloo", "device": "cpu", "job": "j"}
    for rank in ranks:
        hello = wire.Hello(rank=rank, local_rank=rank, world_size=4, pid=rank + 1, host=host, leader=leader, **common)
        made.hello(hello, cast(Any, object()), 0.0)
    return made


def test_the_node_without_rank_0_follows_rank_0s() -> None:
    """As soon as its ranks have read who that is."""
    assert registry(2, 3, leader="nodea").follows(1.0) == "nodea"
    assert registry(2, 3, leader="").follows(100.0) == ""
    assert registry(0, 1, leader="nodea", host="nodea").follows(100.0) == ""
    assert registry(2, 3, leader="nodea").elsewhere == [0, 1]


def test_rank_0_of_the_same_host_may_be_late_but_not_forever() -> None:
    """Two machines of one name: after a while the other one leads."""
    both = registry(2, leader="same", host="same")
    assert both.follows(5.0) == ""
    assert both.follows(11.0) == "same"


def test_a_window_says_whom_it_lacks() -> None:
    """Ranks nobody reported; an error of a node is the window's."""
    window = nodes.Window("w1", "as-it-was", 0.0)
    window.reports["nodeb"] = nodes.Report("nodeb", (2,))
    assert window.missing([2, 3]) == [3]
    assert window.error == ""
    window.reports["nodec"] = nodes.Report("nodec", (3,), error="disk: full")
    assert window.missing([2, 3]) == []
    assert window.error == "node nodec: disk: full"


def test_reports_and_shares_travel_as_they_are() -> None:
    """And what is something else is refused."""
    report = nodes.Report("nodeb", (2, 3), "abc", "", 9400)
    assert nodes.report_from_text(nodes.report_to_text(report)) == report
    share = RankMeasurement(2, Breakdown(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), (), ())
    assert nodes.shares_from_text(nodes.shares_to_text([share]), [2]) == (share,)
    for text in ("", "[]", '{"host": 1}', "null"):
        with pytest.raises(WireError):
            nodes.report_from_text(text)
    with pytest.raises(WireError, match="leading node"):
        nodes.shares_from_text(nodes.shares_to_text([share]), [2, 3])


def test_a_job_that_could_not_be_measured_gets_its_round_once_it_can() -> None:
    """A daemon that is missing on one node is not the last word until the next refresh."""
    loop = Loop(LoopConfig(settle_steps=0))
    loop.on_ranks([0], "as-it-was", "", 0.0, "job")
    loop.tick(0.5)
    loop.on_steps(0, 1, [1000.0] * 20, "as-it-was", 1.0)
    loop.tick(2.0)
    for window in ("w000001", "w000002"):
        loop.on_measured(window, None, "nothing from rank 1", 3.0)
    assert loop.phase == "watching"
    assert loop.state["settled_job"] == "", "a new daemon tries again, too"
    loop.tick(1000.0)
    share = RankMeasurement(0, Breakdown(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), (), ())
    measured = WindowMeasurement((share,), TimingTable(), 0, 0, ())
    actions = loop.on_measured("w000003", measured, "", 1001.0)
    assert loop.phase == "baseline"
    assert [a.text for a in actions if isinstance(a, Note)] == ["round 2: the job can be measured now"]
