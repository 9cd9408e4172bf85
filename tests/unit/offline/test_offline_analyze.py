"""Files to analysis: what is found, what is told apart, and that every executor gives the same."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopopt.analysis import Analysis, RunAnalysis, Selection
from loopopt.errors import TraceError, UnsupportedError, UsageError
from loopopt.measure import measure_window
from loopopt.offline import analyze
from loopopt.offline.executors import open_executor
from loopopt.offline.find import find_traces
from loopopt.parse import parse_trace

DATA = Path(__file__).parents[2] / "data" / "traces"
TWO, FOUR = DATA / "gloo_2ranks", DATA / "gloo_4ranks_2x2"


def one(*patterns: object, **options: Any) -> RunAnalysis:
    (run,) = analyze([str(p) for p in patterns], **options).runs
    return run


# ---------------------------------------------------------------- finding


def test_folders_globs_and_files_each_file_once(tmp_path: Path) -> None:
    for name in ("b.json", "a.json.gz", "deep/c.json.zst", "deep/.hidden.json", "notes.txt", "trace.json.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    os.symlink(tmp_path / "b.json", tmp_path / "link.json")

    def names(*patterns: str) -> list[str]:
        return [os.path.relpath(p, tmp_path) for p in find_traces([str(tmp_path / p) for p in patterns])]

    assert names(".") == ["./a.json.gz", "./b.json", "./deep/c.json.zst"] or names(".") == [
        "a.json.gz",
        "b.json",
        "deep/c.json.zst",
    ]
    assert names("*.json*") == ["a.json.gz", "b.json", "trace.json.tmp"]
    assert names("**/c.*", "b.json", "b.json") == ["deep/c.json.zst", "b.json"]
    assert names("notes.txt") == ["notes.txt"], "a file that is named outright may be called anything"


@pytest.mark.parametrize("pattern", ["nowhere", "*.none", "."])
def test_a_pattern_without_a_file_is_named(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        find_traces([str(tmp_path / pattern)])


def test_urls_are_read_through_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in sorted(TWO.glob("*.json*")):
        memory.pipe(f"/job/{path.name}", path.read_bytes())
    by_url = one("memory://job", executor="serial")
    assert by_url.measurement == one(TWO).measurement
    assert all(f.path.startswith("memory://") for f in by_url.files)
    with pytest.raises(UsageError, match="memory://none"):
        find_traces(["memory://none"])
    with pytest.raises((UsageError, UnsupportedError), match="nosuch"):
        find_traces(["nosuch://bucket/x"])


# ---------------------------------------------------------------- the same numbers as the loop's


@pytest.mark.parametrize("folder", [TWO, FOUR])
def test_an_offline_analysis_measures_what_the_loop_measures(folder: Path) -> None:
    found = one(folder).measurement
    traces = [parse_trace(p) for p in sorted(folder.glob("*.json*"))]
    loops = measure_window(traces, fingerprint=found.table.fingerprint)
    assert found == loops


def test_parts_add_up_and_lists_are_consistent() -> None:
    run = one(TWO)
    for rank in run.measurement.ranks:
        parts = rank.total
        assert parts.compute_us + parts.exposed_us + parts.exposed_memcpy_us + parts.idle_us == pytest.approx(
            parts.span_us
        )
        assert sum(c.exposed_us for c in rank.collectives) == pytest.approx(parts.exposed_us)
        assert len(rank.steps) == len(rank.step_numbers)
    assert sum(g.exposed_us for g in run.groups) == pytest.approx(
        sum(r.total.exposed_us for r in run.measurement.ranks)
    )
    assert [w.exposed_us for w in run.worst] == sorted((w.exposed_us for w in run.worst), reverse=True)
    assert {late.rank for late in run.late} == {0, 1}
    assert sum(g.matched for g in run.groups) == run.measurement.matched


def test_selected_steps_are_measured_alone() -> None:
    whole = one(TWO)
    (first, *_), rank = whole.measurement.ranks[0].step_numbers, whole.measurement.ranks[0]
    part = one(TWO, selection=Selection(steps=frozenset({first})))
    (breakdown,) = part.measurement.ranks[0].steps
    assert part.measurement.ranks[0].step_numbers == (first,)
    assert breakdown == part.measurement.ranks[0].total == rank.steps[0]
    shares = sum(c.exposed_us for c in part.measurement.ranks[0].collectives)
    assert shares == pytest.approx(breakdown.exposed_us)
    assert sum(c.count for c in part.measurement.ranks[0].collectives) < sum(c.count for c in rank.collectives)
    both = one(TWO, selection=Selection(steps=frozenset(rank.step_numbers)))
    assert both.measurement.ranks[0].total.exposed_us == pytest.approx(sum(s.exposed_us for s in rank.steps))


def test_selected_ranks_and_groups_are_listed_alone_but_matched_with_all() -> None:
    whole, part = one(TWO), one(TWO, selection=Selection(ranks=frozenset({1})))
    assert [r.rank for r in part.measurement.ranks] == [1]
    assert part.measurement.ranks[0] == whole.measurement.ranks[1]
    assert part.measurement.matched == whole.measurement.matched
    groups = {g.group for g in one(FOUR).groups} - {""}
    chosen = sorted(groups)[0]
    assert {g.group for g in one(FOUR, selection=Selection(groups=frozenset({chosen}))).groups} == {chosen}


@pytest.mark.parametrize(
    "selection",
    [Selection(steps=frozenset({9999})), Selection(ranks=frozenset({77})), Selection(groups=frozenset({"nobody"}))],
)
def test_a_selection_of_nothing_is_refused(selection: Selection) -> None:
    with pytest.raises(UsageError, match=r"9999|77|nobody"):
        analyze([str(TWO)], selection=selection)


# ---------------------------------------------------------------- wrong files


def test_wrong_files_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    for path in TWO.glob("*.json*"):
        shutil.copy(path, tmp_path)
    whole = sorted(tmp_path.glob("*.json.gz"))[0].read_bytes()
    (tmp_path / "torn.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    (tmp_path / "empty.json").write_text("")
    found = analyze([str(tmp_path)])
    assert len(found.runs) == 1
    assert found.runs[0].measurement == one(TWO).measurement
    assert [os.path.basename(f.path) for f in found.failed] == ["empty.json", "settings.json", "torn.json.gz"]
    assert "empty" in found.failed[0].reason
    assert "torn" in found.failed[2].reason


def test_without_any_good_file_the_first_error_is_raised(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text("")
    with pytest.raises(TraceError, match=r"a\.json.*1 more"):
        analyze([str(tmp_path)])


# ---------------------------------------------------------------- several runs


def shifted(source: Path, target: Path, seconds: float) -> None:
    """A copy of a trace that was taken at another time."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt") as file:
        content = json.load(file)
    content["baseTimeNanoseconds"] = int(content.get("baseTimeNanoseconds", 0)) + int(seconds * 1e9)
    target.write_text(json.dumps(content))


@pytest.mark.parametrize("seconds", [0.5, 4000.0])
def test_two_runs_in_one_folder_are_told_apart(tmp_path: Path, seconds: float) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for path in sorted(TWO.glob("*.json*")):
        shutil.copy(path, folder)
        shifted(path, folder / f"again-{path.name.removesuffix('.gz')}", seconds)
    found = analyze([str(folder)])
    assert [run.name for run in found.runs] == ["traces #1", "traces #2"]
    assert [[f.rank for f in run.files] for run in found.runs] == [[0, 1], [0, 1]]
    assert ["again" in f.path for run in found.runs for f in run.files] == [False, False, True, True]
    expected = one(TWO).measurement
    assert all(run.measurement.ranks == expected.ranks for run in found.runs)


def test_jobs_of_different_sizes_are_told_apart() -> None:
    found = analyze([str(DATA)])
    assert sorted((run.name, run.world_size) for run in found.runs) == [("gloo_2ranks", 2), ("gloo_4ranks_2x2", 4)]
    assert not found.failed


# ---------------------------------------------------------------- executors


def same(found: Analysis) -> Analysis:
    return replace(found, runs=tuple(found.runs))


def test_processes_give_what_this_process_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["loopopt.offline.analyze"], "_SMALL_BYTES", 0)
    seen: list[tuple[int, int, str]] = []
    parallel = analyze([str(DATA)], executor="processes", workers=2, progress=lambda *now: seen.append(now))
    assert same(parallel) == same(analyze([str(DATA)], executor="serial"))
    assert [s[0] for s in seen] == list(range(7))
    assert {s[1] for s in seen} == {6}


def test_a_dask_cluster_gives_what_this_process_gives() -> None:
    distributed = pytest.importorskip("distributed", reason="needs dask's distributed (extra `dask`)")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        where = "dask://" + cluster.scheduler_address.removeprefix("tcp://")
        spread = analyze([str(DATA)], executor=where)
    assert same(spread) == same(analyze([str(DATA)], executor="serial"))


def test_an_executor_that_cannot_be_had_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="serial, processes or dask"), open_executor("threads"):
        pass
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="no Dask scheduler"), open_executor("dask://127.0.0.1:9"):
        pass
