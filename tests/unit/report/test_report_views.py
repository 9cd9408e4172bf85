"""What people see: tables and the page with the picture."""

from __future__ import annotations

import doctest
import xml.etree.ElementTree as ET
from io import StringIO

import pytest
from rich.console import Console, RenderableType
from test_report_summary import STATUS

from loopopt.measurement import TimelineSpan
from loopopt.report import html, terminal, units
from loopopt.report.html import RankTimeline
from loopopt.report.summary import AS_IT_WAS, Summary, summarize
from loopopt.report.timelines import timelines
from loopopt.timing import CollectiveCurve, Duration, TimingTable

STEP = (
    RankTimeline(0, (TimelineSpan("compute", "graph", 0.0, 400.0), TimelineSpan("communication", "ag", 100.0, 600.0))),
    RankTimeline(1, (TimelineSpan("exposed", "ag <&>", 400.0, 600.0),)),
)


def shown(view: RenderableType) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(view)
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue()


@pytest.mark.parametrize("module", [units, html])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    """They are the first tests."""
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_the_summary_shows_before_after_gain_and_its_uncertainty() -> None:
    """The table at the end of `loopopt run` and `loopopt demo`."""
    text = shown(terminal.summary_view(summarize(STATUS)))
    for part in ("1.00 ms", "800 us", "+20.0 %", "+17.0 % .. +23.0 %", "+58.3 %", "infeasible", "3 recompiles, 5.00 s"):
        assert part in text


def test_text_from_the_job_is_not_taken_for_markup() -> None:
    """A reason may have square brackets in it, a torch error usually has."""
    status = {**STATUS, "job": "[red]x[/oops]", "notes": ["a [/b] c"], "mode": "observe", "reason": "no [/x]"}
    text = shown(terminal.status_view(status, summarize(status)))
    assert "[red]x[/oops]" in text
    assert "a [/b] c" in text


def test_an_empty_status_can_be_shown() -> None:
    """Before the first rank has registered."""
    assert "No rank registered" in shown(terminal.status_view({}, Summary()))


def test_the_timing_table_is_shown_by_size_and_operator() -> None:
    """Largest first in time, units that people read."""
    curve = CollectiveCurve("all_gather", "0", 2, (1024, 2048), (Duration(4, 12.0, 1.0), Duration(4, 15.0, 1.0)))
    table = TimingTable((curve,), {"aten::mm|[[2,2]]|float32": Duration(3, 5.0, 0.5)}).to_json()
    text = shown(terminal.table_view(table))
    for part in ("all_gather", "2,048", "12.0 us", "aten::mm", "[[2,2]]", "float32"):
        assert part in text


def test_the_plan_in_force_is_marked() -> None:
    """And a plan's settings are those it changes."""
    trials = [{**t, "knobs": {"scheduling": True, "bucket_mode": None}} for t in STATUS["trials"]]
    lines = shown(terminal.plans_view(trials, "aaa")).splitlines()
    assert [("*" in line) for line in lines if "aaa" in line or "bbb" in line] == [False, True]
    assert "scheduling=True" in "".join(lines)
    assert "bucket_mode" not in "".join(lines)


def test_both_pictures_have_one_time_scale_and_a_lane_of_each_kind_per_rank() -> None:
    """The shorter step must be the shorter picture."""
    wide = ET.fromstring(html.picture_svg(STEP, 600.0))
    narrow = ET.fromstring(html.picture_svg(STEP, 1200.0))
    bars = [[r for r in svg.iter("rect") if r.get("class") in html.LANES] for svg in (wide, narrow)]
    assert [len(found) for found in bars] == [3, 3]
    assert float(bars[0][0].get("width", "0")) == pytest.approx(2 * float(bars[1][0].get("width", "0")), rel=0.01)
    assert sum(r.get("class") == "lane" for r in wide.iter("rect")) == 2 * len(html.LANES)
    assert any(title.text and title.text.startswith("ag <&>: 200 us") for title in wide.iter("title"))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """It is opened from disk, perhaps on a machine without network."""
    page = html.page(summarize(STATUS), STEP, ())
    assert "<script" not in page
    assert "http" not in page
    assert "+20.0 %" in page
    assert "No trace of such a step was kept." in page


def test_a_step_of_very_many_spans_stays_a_small_page() -> None:
    """Tens of thousands of kernels are joined where they cannot be told apart."""
    spans = tuple(TimelineSpan("compute", f"k{n}", n * 1.0, n + 0.9) for n in range(50_000))
    assert len(html.picture_svg((RankTimeline(0, spans),), 50_000.0)) < 300_000


def test_the_last_window_of_a_plan_is_drawn() -> None:
    """Windows come as the daemon lists them, oldest first."""

    def window(plan_id: str, end_us: float) -> dict[str, object]:
        span = {"lane": "compute", "name": "x", "start_us": 0.0, "end_us": end_us}
        return {"plan_id": plan_id, "measurement": {"ranks": [{"rank": 0, "timeline": [span]}]}}

    windows = [window(AS_IT_WAS, 1.0), window(AS_IT_WAS, 2.0), window("aaa", 3.0)]
    assert timelines(windows, AS_IT_WAS)[0].spans[0].end_us == 2.0
    assert timelines(windows, "zzz") == ()


def test_the_status_says_who_decides_and_who_follows() -> None:
    """On several nodes, one line on each side."""
    following = {"phase": "following", "follows": "nodea", "world_size": 2, "ranks": [{"rank": 1, "state": "live"}]}
    text = shown(terminal.status_view(following, summarize(following)))
    assert "node nodea, whose daemon decides" in text
    assert "Follows node nodea" in text
    leading = {"phase": "watching", "world_size": 2, "nodes": [{"host": "nodeb", "ranks": [1], "error": "disk: full"}]}
    assert "nodeb: ranks 1: disk: full" in shown(terminal.status_view(leading, summarize(leading)))
