"""Trace directories are kept within their size."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from loopopt.errors import StoreError
from loopopt.store import PruneResult, prune_traces


def make_window(directory: Path, name: str, age: int, size: int = 1000) -> Path:
    """A window of two ranks' files; the higher the age the older."""
    window = directory / name
    window.mkdir(parents=True)
    for rank in range(2):
        (window / f"rank{rank}.pt.trace.json").write_bytes(b"x" * (size // 2))
    os.utime(window, (1_000_000 - age, 1_000_000 - age))
    return window


def test_oldest_windows_go_first_until_the_rest_fits(tmp_path: Path) -> None:
    """Whole windows go, by age and not by name, and no more of them than needed."""
    for name, age in (("a", 1), ("b", 4), ("c", 3), ("d", 2)):
        make_window(tmp_path, name, age)
    assert prune_traces(tmp_path, max_bytes=2500, keep=1) == PruneResult(("b", "c"), 2000, 2000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "d"]
    assert prune_traces(tmp_path, max_bytes=2500, keep=1) == PruneResult((), 0, 2000)


def test_the_newest_are_never_deleted(tmp_path: Path) -> None:
    """Even with no room at all the newest stay."""
    for name, age in (("a", 3), ("b", 2), ("c", 1)):
        make_window(tmp_path, name, age)
    assert prune_traces(tmp_path, max_bytes=0, keep=2) == PruneResult(("a",), 1000, 2000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]


def test_what_is_no_window_is_left_alone(tmp_path: Path) -> None:
    """Files and links beside the windows are neither counted nor touched, nor is what a link points at."""
    traces = tmp_path / "traces"
    elsewhere = make_window(tmp_path, "elsewhere", 9)
    make_window(traces, "old", 5)
    make_window(traces, "new", 1)
    (traces / "notes.txt").write_bytes(b"x" * 5000)
    (traces / "link").symlink_to(elsewhere)
    (traces / "old" / "link").symlink_to(elsewhere)
    os.utime(traces / "old", (1, 1))
    assert prune_traces(traces, max_bytes=0, keep=1).removed == ("old",)
    assert sorted(p.name for p in traces.iterdir()) == ["link", "new", "notes.txt"]
    assert sorted(p.name for p in elsewhere.iterdir()) == ["rank0.pt.trace.json", "rank1.pt.trace.json"]


def test_a_missing_directory_is_empty(tmp_path: Path) -> None:
    """Before the first trace there is nothing to do."""
    assert prune_traces(tmp_path / "traces", max_bytes=0, keep=0) == PruneResult((), 0, 0)


def test_a_deletion_cut_short_is_finished_later(tmp_path: Path) -> None:
    """What an earlier process was deleting when it died goes with the next pruning."""
    make_window(tmp_path, "new", 1)
    make_window(tmp_path, ".leaving-old", 5)
    assert prune_traces(tmp_path, max_bytes=10**6, keep=1) == PruneResult((), 0, 1000)
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_two_prunings_at_once_do_no_harm(tmp_path: Path) -> None:
    """Whoever deletes a window first, the other does not mind."""
    for number in range(60):
        make_window(tmp_path, f"w{number:02}", 100 - number, 100)
    results: list[PruneResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(prune_traces(tmp_path, max_bytes=0, keep=3))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w57", "w58", "w59"]


def test_a_trace_path_that_is_a_file_is_named(tmp_path: Path) -> None:
    """A wrong directory is an error that names it."""
    path = tmp_path / "traces"
    path.touch()
    with pytest.raises(StoreError, match="traces: Not a directory"):
        prune_traces(path, max_bytes=0, keep=0)
