"""`loopopt diff`: what changed, and is it beyond noise."""

from __future__ import annotations

import doctest
import io
import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from made_up_analysis import run
from rich.console import Console

from loopopt.control.compare import compare
from loopopt.report import comparison
from loopopt.report.comparison import BEYOND, ONE_SIDE, TOO_FEW_STEPS, WITHIN, compare_runs, difference
from loopopt.report.comparison_tables import comparison_view, sentence

STEADY = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)
FASTER = tuple(0.8 * scale for scale in STEADY)


def test_the_examples_in_the_docstrings_hold() -> None:
    """They are the first tests."""
    result = doctest.testmod(comparison)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_clear_gain_is_beyond_noise() -> None:
    """Twenty per cent off each part of a step."""
    found = compare_runs(run("a", scales=STEADY), run("b", scales=FASTER))
    by_name = {change.name: change for change in found.steps}
    assert list(by_name) == ["step time", "compute", "communication", "exposed", "memcpy", "idle"]
    for change in found.steps:
        assert change.verdict == BEYOND
        assert change.change == pytest.approx(-0.2, abs=0.01)
        assert change.change_low is not None
        assert change.change_high is not None
        assert change.change_low <= change.change <= change.change_high < 0
    assert "Step time 1.00 ms -> 800 us (-20.0 %): beyond noise." in sentence(found)


def test_a_run_does_not_differ_from_itself() -> None:
    """Nor from one in another order."""
    found = compare_runs(run(scales=STEADY), run(scales=tuple(reversed(STEADY))))
    assert {change.verdict for change in found.steps} == {WITHIN}
    assert found.table == ()
    assert found.table_compared == 5
    assert found.remarks == ()


def test_three_steps_are_too_few_to_tell() -> None:
    """However far apart."""
    found = compare_runs(run(scales=(1.0, 1.0, 1.0)), run(scales=(9.0, 9.0, 9.0, 9.0, 9.0)))
    assert {change.verdict for change in found.steps} == {TOO_FEW_STEPS}
    assert found.steps[0].change == pytest.approx(8.0)


def test_without_step_marks_whole_traces_are_compared_without_a_verdict() -> None:
    """One sample a side."""
    found = compare_runs(run(scales=()), run(scales=STEADY))
    assert found.steps[0].name == "whole trace: span"
    assert found.steps[0].verdict == TOO_FEW_STEPS


def test_steps_are_the_samples_not_ranks() -> None:
    """Sixty-four ranks of one step are one sample."""
    found = compare_runs(run(ranks=64, scales=(1.0,)), run(ranks=64, scales=(2.0,)))
    assert found.steps[0].before is not None
    assert found.steps[0].before.samples == 1
    assert found.steps[0].verdict == TOO_FEW_STEPS


def test_slower_transfers_of_the_same_sizes_show_per_kind_and_in_the_table() -> None:
    """Half as slow again: transfer up, bandwidth down, the matrix product up, what stayed is not listed."""
    found = compare_runs(run(factor=1.0), run(factor=1.5))
    by_name = {change.name: change for change in found.collectives}
    transfer, bus = by_name["all_reduce: transfer, mean"], by_name["all_reduce: bus bandwidth"]
    assert (transfer.change, transfer.verdict) == (pytest.approx(0.5), BEYOND)
    assert (bus.change, bus.verdict) == (pytest.approx(-1 / 3), BEYOND)
    assert by_name["all_reduce: exposed, mean"].change == pytest.approx(0.0)
    names = [change.name for change in found.table]
    assert len(names) == 3
    assert "compute aten::mm|[[2,2]]|float32" in names
    assert not any("add" in name for name in names)


def test_a_kind_that_only_one_side_has_is_shown_as_that() -> None:
    """No change from nothing."""
    before = run()
    after = replace(before, groups=(replace(before.groups[0], kind="all_gather"),), points=())
    verdicts = {change.name: change.verdict for change in compare_runs(before, after).collectives}
    assert verdicts["all_gather: transfer, mean"] == ONE_SIDE
    assert verdicts["all_reduce: transfer, mean"] == ONE_SIDE


def test_what_makes_two_runs_hard_to_compare_is_said() -> None:
    """Other ranks, other devices."""
    other = run(ranks=4)
    other = replace(other, files=tuple(replace(f, device="AMD") for f in other.files))
    remarks = " ".join(compare_runs(run(), other).remarks)
    assert "2 and 4 ranks" in remarks
    assert "NVIDIA H100 and AMD" in remarks


def test_a_part_that_was_nothing_before_has_no_percentage() -> None:
    """A share of zero means nothing."""
    found = comparison.change("memcpy", "us", [0.0] * 5, [1.0] * 5)
    assert (found.change, found.verdict) == (None, BEYOND)


def test_the_chances_are_those_of_all_orders() -> None:
    """Counted by hand over every way to share the ranks."""
    n, m = 4, 3
    counts = np.zeros(n * m + 1)
    for mine in itertools.combinations(range(n + m), n):
        others = [i for i in range(n + m) if i not in mine]
        counts[sum(a > b for a in mine for b in others)] += 1
    assert comparison._chances(n, m) == pytest.approx(counts / counts.sum())


def test_the_verdict_is_wrong_about_as_often_as_it_says() -> None:
    """Alike sides are told apart in about one case of twenty."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        found = difference(random.lognormal(size=9).tolist(), random.lognormal(size=11).tolist())
        assert found is not None
        wrong += found[0] > 0 or found[1] < 0
    assert wrong <= 400 * 0.08


def test_the_loop_s_own_comparison_agrees() -> None:
    """Two implementations, one in control and one here, must not tell people different things."""
    random = np.random.default_rng(2)
    for shift in (0.9, 0.97, 1.0, 1.1):
        before = random.normal(100, 3, 10).tolist()
        after = (shift * random.normal(100, 3, 12)).tolist()
        gain, found = compare(before, after, confidence=0.95), difference(before, after)
        assert found is not None
        assert (gain.low > 0 or gain.high < 0) == (found[1] < 0 or found[0] > 0)


def test_the_table_and_the_json_hold_the_same() -> None:
    """And the JSON is finite."""
    found = compare_runs(run("a[/b]", scales=STEADY), run("b", scales=FASTER, factor=2.0))
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_view(found))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("a[/b]", "step time", "-20.0 %", "all_reduce: transfer", "3 of 5 common entries", "beyond noise"):
        assert part in text
    json.dumps(asdict(found), allow_nan=False)
