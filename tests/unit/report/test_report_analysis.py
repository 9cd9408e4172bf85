"""What `loopopt analyze` shows and writes, from records with known numbers."""

from __future__ import annotations

import csv
import doctest
import io
import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_analysis import HOSTILE, analysis, run, without_drawings
from rich.console import Console

from loopopt.analysis import Analysis, Coverage, RunAnalysis
from loopopt.errors import UsageError
from loopopt.measurement import TimelineSpan, WindowMeasurement
from loopopt.report import analysis_html, analysis_rows, analysis_tables
from loopopt.report.analysis_csv import TABLES, analysis_csv, table_csv
from loopopt.report.analysis_json import analysis_from_json, analysis_to_json
from loopopt.report.analysis_rows import numbered_steps, step_rows
from loopopt.timing import TimingTable


def shown(one: Analysis, width: int = 220, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(analysis_tables.analysis_view(one, **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("module", [analysis_rows, analysis_html])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    """They are the first tests."""
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_the_tables_answer_each_question() -> None:
    """Ranks, steps, collectives, the worst, the late, the model, coverage, notes, unmatched, clocks."""
    text = shown(analysis())
    for part in (
        "night",
        "2 ranks, 1 host, NVIDIA H100, 3 steps, 2,000 events (2 left out)",
        "per rank: compute + exposed + exposed memcpy + idle = span",
        "3.00 ms",  # span of rank 0
        "30.0 %",  # exposed of span
        "40.0 %",  # hidden of communication
        "per step: median over ranks",
        "per rank and step",
        "0 mesh_dp, 2 ranks, local",
        "40.0 GB/s",
        "64.0 MB",
        "worst exposed collectives",
        "late ranks",
        "75.0 %",
        "± 10.0 %",
        "10.0 GB/s",  # 1e-4 us a byte
        "compute 95.0 %, communication 50.0 %",
        "broadcast, 2 ranks",
        "rank 1: no marks [/x]",
        "3 collectives could not be matched",
        "2: not on every rank",
        "rank 1 -12.5 us",
    ):
        assert part in text, part


def test_names_from_traces_cannot_write_to_the_terminal() -> None:
    """No escape sequences, no markup."""
    text = shown(analysis())
    assert "\x1b" not in text
    assert "evil</script>" in text


def test_many_ranks_are_summarised_and_the_way_to_all_is_named() -> None:
    """Sixty-four rows help nobody."""
    text = shown(analysis(run(ranks=64)), top=3)
    ranks = text[text.index("per rank:") : text.index("per step")]
    assert [line.split()[0] for line in ranks.splitlines() if line[:1].isalnum()][1:4] == ["min", "median", "max"] or (
        "min" in ranks and "max" in ranks
    )
    assert "Ranks 0-63; shown are the 3 with the largest exposed share." in ranks
    assert "--csv" in ranks
    assert "per rank and step" not in text


def test_many_steps_are_cut_to_the_longest() -> None:
    """In order of time."""
    text = shown(analysis(run(scales=tuple(1.0 + (n % 7) / 10 for n in range(40)))), top=4)
    assert "the 4 longest of 40 steps" in text
    assert "All steps: --csv DIR" in text


def test_several_runs_are_under_their_own_headings_and_not_merged() -> None:
    """Silence would let people add them up."""
    text = shown(analysis(run("morning"), run("evening")))
    assert "The files belong to 2 runs." in text
    assert "were not merged" in text
    assert "Run 1 of 2: morning" in text
    assert "Run 2 of 2: evening" in text


def test_what_is_missing_is_not_made_up() -> None:
    """No steps, no collectives, nothing matched."""
    bare = RunAnalysis("bare", (), 8, WindowMeasurement((), TimingTable()))
    text = shown(analysis(bare))
    assert "0 of 8 ranks, no step marks" in text
    assert "compute -, communication -" in text
    assert "worst" not in text
    analysis_html.page(analysis(bare))
    analysis_to_json(analysis(bare))
    analysis_csv(analysis(bare))


def test_files_that_failed_are_named_with_place_and_reason() -> None:
    """In the tables; the command says it on stderr too."""
    text = shown(analysis(failed=True))
    assert "1 file could not be used" in text
    assert "/t/torn.json (byte 512): ends early" in text


def test_a_step_is_the_median_over_its_ranks_and_names_the_slowest() -> None:
    """Ranks may have seen different steps."""
    one = run(ranks=3)
    first, second, third = one.measurement.ranks
    shorter = replace(third, steps=third.steps[:1], step_numbers=(4,))
    one = replace(one, measurement=replace(one.measurement, ranks=(first, second, shorter)))
    rows = {row.step: row for row in step_rows(one)}
    assert [rows[n].ranks for n in (3, 4, 5)] == [2, 3, 2]
    assert rows[4].median.span_us == pytest.approx(1100.0)
    assert (rows[4].longest_rank, rows[4].longest_us) == (0, pytest.approx(1100.0))


def test_json_is_finite_and_comes_back() -> None:
    """`loopopt diff` reads it."""
    one = analysis(run("a"), run("b"), failed=True)
    body = json.loads(json.dumps(analysis_to_json(one), allow_nan=False))
    assert next(iter(body)) == "form"
    assert body["runs"][0]["per_step"][0]["median"]["span_us"] == 1000.0
    assert body["runs"][0]["clock_us"] == {"0": 0.0, "1": -12.5}
    assert body["failed"] == [{"path": "/t/torn.json", "reason": "ends early: expected ']'", "offset": 512}]
    assert analysis_from_json(body, "x.json") == without_drawings(one)


def test_a_number_that_is_not_finite_becomes_null() -> None:
    """JSON has no word for it."""
    one = run()
    odd = replace(one, groups=(replace(one.groups[0], bus_gbps=math.inf),))
    assert analysis_to_json(analysis(odd))["runs"][0]["groups"][0]["bus_gbps"] is None


@pytest.mark.parametrize("body", [[], {}, {"form": "loopopt-analysis-0"}, {"form": "loopopt-analysis-1", "runs": 3}])
def test_another_json_is_refused_by_name(body: object) -> None:
    """Traces end in .json too."""
    with pytest.raises(UsageError, match=r"x\.json"):
        analysis_from_json(body, "x.json")


def test_csv_has_units_in_its_names_and_every_row() -> None:
    """One file a question."""
    one = analysis(run("a", ranks=20), run("b"))
    files = analysis_csv(one)
    assert set(files) == {"ranks.csv", "steps.csv", "collectives.csv", "worst.csv", "late.csv", "models.csv"}
    rows = {name: list(csv.DictReader(io.StringIO(text))) for name, text in files.items()}
    assert {name: len(r) for name, r in rows.items()} == {
        "ranks.csv": 22,
        "steps.csv": 66,
        "collectives.csv": 4,
        "worst.csv": 4,
        "late.csv": 4,
        "models.csv": 4,
    }
    for name, (columns, _) in TABLES.items():
        assert list(rows[name][0]) == ["run", *columns]
    for row in rows["ranks.csv"] + rows["steps.csv"]:
        parts = (row["compute_us"], row["exposed_us"], row["exposed_memcpy_us"], row["idle_us"])
        assert sum(map(float, parts)) == pytest.approx(float(row["span_us"]))
    assert rows["models.csv"][0]["bandwidth_gbps"] == ""
    assert float(rows["models.csv"][1]["bandwidth_gbps"]) == pytest.approx(10.0)
    assert rows["steps.csv"][0]["step"] == "3"
    assert rows["worst.csv"][1]["step"] == ""


def test_a_spreadsheet_does_not_run_what_a_trace_says() -> None:
    """A name that begins like a formula is text."""
    assert "'=cmd()" in table_csv(analysis(), "worst.csv")


def test_the_page_needs_no_network_and_holds_plotly_once() -> None:
    """It is mailed around."""
    text = analysis_html.page(analysis())
    assert "<script src" not in text
    assert "<link" not in text
    assert text.count("plotly.js v") == 1
    assert text.count("Plotly.newPlot(") == text.count('class="plotly-graph-div"')


def own_html(one: Analysis) -> str:
    """The page without plotly's own script, which is a third party's."""
    return analysis_html.page(one).replace(analysis_html.get_plotlyjs(), "")


def test_names_from_traces_cannot_end_the_script() -> None:
    """In the data of the pictures and in the tables."""
    text = own_html(analysis(run(name=HOSTILE)))
    assert "evil</script>" not in text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    # Plotly reads tags in labels, so the name is escaped for it before it is escaped for the script.
    assert r"evil\u0026lt;" in text or "evil&lt;" in text


def test_parts_of_a_rank_and_lanes_of_a_step_are_drawn() -> None:
    """And the model's lines."""
    text = own_html(analysis())
    for part in ("exposed memcpy", "idle", "rank 1", "The last step", "Step 5.", "log", "worst exposed collectives"):
        assert part in text


def test_sixty_four_ranks_stay_small_and_the_cut_is_said() -> None:
    """The step of the most exposed ranks is drawn."""
    one = run(ranks=64)
    spans = tuple(TimelineSpan("compute", f"k{n}", n * 1.0, n + 0.9) for n in range(2000))
    ranks = tuple(replace(rank, timeline=spans) for rank in one.measurement.ranks)
    text = own_html(analysis(replace(one, measurement=replace(one.measurement, ranks=ranks))))
    assert "Drawn are 16 of 64 ranks: 48-63." in text
    assert "Spans that lie close together are drawn as one." in text
    assert len(text) < 2_500_000


def test_a_timetable_without_steps_has_no_picture_of_one() -> None:
    """And a sentence says so."""
    one = run(scales=())
    assert all(not numbered_steps(rank) for rank in one.measurement.ranks)
    assert "No whole step was traced" in own_html(analysis(one))


def test_coverage_below_nine_tenths_is_complained_about() -> None:
    """What was not there cannot be missing."""
    one = run()
    assert "communication" in (analysis_tables.coverage_complaint(one) or "")
    assert analysis_tables.coverage_complaint(replace(one, coverage=Coverage(0.9, None))) is None


def browser() -> str:
    found = next((f for f in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if f), None)
    if found is None:
        pytest.skip("no Chromium here (Debian: chromium)")
    return found


def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    """All pictures of a hostile trace, without an error of the script."""
    target = tmp_path / "report.html"
    check = (
        "<script>window.onerror = m => document.body.append('FAILED ' + m);"
        "window.alert = () => document.body.append('FAILED alert');"
        "window.onload = () => document.body.append('loaded ' + document.querySelectorAll('.main-svg').length);"
        "</script>"
    )
    page = analysis_html.page(analysis(run(HOSTILE), run("b", ranks=40)))
    target.write_text(page.replace("<body>", f"<body>{check}", 1), encoding="utf-8")
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom", target.as_uri()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env={**os.environ, "HOME": str(tmp_path)}
    )
    dom = done.stdout[done.stdout.rindex("<body") :] if "<body" in done.stdout else done.stdout
    found = re.search(r"loaded (\d+)", dom)
    assert found is not None, done.stderr[-2000:]
    assert int(found[1]) >= 6
    assert "FAILED" not in dom.replace(check, "")
    assert "evil</script>" not in dom
