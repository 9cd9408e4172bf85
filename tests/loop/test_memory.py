"""The daemon's memory: what it tells after many windows, after a restart, and without a disk."""

from __future__ import annotations

from pathlib import Path

from loopopt.control import Trial
from loopopt.daemon.memory import Memory
from loopopt.plans import BASELINE
from loopopt.store import WindowRow


def _window(number: int, plan_id: str) -> WindowRow:
    return WindowRow(f"w{number}", plan_id, number, 2, float(number), {"ranks": []})


def test_the_window_before_is_found_however_many_came_after(tmp_path: Path) -> None:
    """The picture of before and after needs the baseline's window, also hours later and after a restart."""
    memory = Memory(tmp_path / "state.sqlite", lambda _: None)
    memory.window(_window(1, "as-it-was"))
    for number in range(2, 30):
        memory.window(_window(number, "abc"))
    memory.close()
    again = Memory(tmp_path / "state.sqlite", lambda _: None)
    told = again.windows(5, ("as-it-was", "abc"))
    assert [w["window_id"] for w in told] == ["w1", "w25", "w26", "w27", "w28", "w29"]
    assert [w["window_id"] for w in again.windows(2)] == ["w28", "w29"]


def test_a_trial_cut_off_by_a_kill_is_given_up_when_the_daemon_is_back(tmp_path: Path) -> None:
    """It is not shown as running for ever, and the database says the same."""
    memory = Memory(tmp_path / "state.sqlite", lambda _: None)
    memory.trial(Trial("1.0", BASELINE, 5.0))
    memory.close()
    for _ in range(2):
        again = Memory(tmp_path / "state.sqlite", lambda _: None)
        again.load_trials()
        assert again.trials["1.0"].verdict == "unused"
        assert "given up" in again.trials["1.0"].reason
        again.close()


def test_without_a_disk_it_counts_in_memory_and_says_so(tmp_path: Path) -> None:
    """A path that cannot be a database: notes, counters, trials, no exception."""
    notes: list[str] = []
    (tmp_path / "state.sqlite").mkdir()
    memory = Memory(tmp_path / "state.sqlite", notes.append)
    memory.count("rollbacks")
    memory.count("rollbacks", 2.0)
    memory.trial(Trial("1.0", BASELINE, 5.0))
    assert [(c.key, c.value) for c in memory.counters()] == [("rollbacks", 3.0)]
    assert memory.trials["1.0"].verdict == "running"
    assert memory.windows(5, ("as-it-was",)) == []
    assert len(notes) == 1
