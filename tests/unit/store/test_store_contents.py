"""What is put into the store comes out of it, also after reopening."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopopt.errors import StoreError
from loopopt.store import CounterRow, HistogramRow, StepRun, Store, TrialRow, WindowRow
from loopopt.store.database import STEPS_PER_ROW


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "state.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


def window(name: str, filler: str = "") -> WindowRow:
    return WindowRow(name, "as-it-was", 10, 4, 1000.5, {"ranks": [{"rank": 0, "span_us": 1.25}], "filler": filler})


TRIAL = TrialRow(
    trial_id="t1",
    plan_id="abc",
    label="schedule",
    knobs={"scheduling": True, "bucket_mode": None, "bucket_cap_mb": 25.5},
    table_digest="d1",
    started_s=12.5,
    verdict="running",
    predicted_step_us=900.0,
)


def test_state_round_trips_and_is_replaced_whole(store: Store, path: Path) -> None:
    """State is None before it is set, then exactly the last value set, also for another reader."""
    assert store.get_state("loop") is None
    store.set_state("loop", {"phase": "baseline", "old": 1})
    store.set_state("loop", {"phase": "verify", "samples": [1.5, 2.0], "plan": None})
    expected = {"phase": "verify", "samples": [1.5, 2.0], "plan": None}
    assert store.get_state("loop") == expected
    with Store.open(path) as other:
        assert other.get_state("loop") == expected


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_any_json_state_round_trips(store: Store, value: dict[str, Any]) -> None:
    """Whatever JSON can say survives as state."""
    if _has_lone_surrogate(value):
        return
    store.set_state("loop", value)
    assert store.get_state("loop") == value


def _has_lone_surrogate(value: object) -> bool:
    return any(0xD800 <= ord(char) <= 0xDFFF for char in repr(value))


def test_state_without_a_json_form_is_refused_by_name(store: Store) -> None:
    """A value JSON cannot hold is an error that names the key, and the old value stays."""
    store.set_state("loop", {"phase": "baseline"})
    with pytest.raises(StoreError, match="state 'loop'"):
        store.set_state("loop", {"phase": object()})
    assert store.get_state("loop") == {"phase": "baseline"}


def test_windows_come_newest_first_and_by_id(store: Store) -> None:
    """The newest windows are found in order, one by its id, and a second of the same id replaces the first."""
    for name in ("w1", "w2", "w3"):
        store.add_window(window(name))
    assert [w.window_id for w in store.latest_windows(2)] == ["w3", "w2"]
    assert store.window("w1") == window("w1")
    assert store.window("nope") is None
    store.add_window(window("w1", "again"))
    assert [w.window_id for w in store.latest_windows(9)] == ["w1", "w3", "w2"]
    assert store.window("w1") == window("w1", "again")


def test_trials_are_added_updated_and_listed_in_order(store: Store) -> None:
    """A trial round trips with all its fields, and an update changes that trial alone."""
    store.add_trial(TRIAL)
    other = replace(TRIAL, trial_id="t2", table_digest=None, verdict="baseline")
    store.add_trial(other)
    assert store.trials() == (TRIAL, other)
    done = replace(
        TRIAL,
        ended_s=20.0,
        verdict="kept",
        reason="12 % faster",
        median_step_us=880.0,
        spread_us=3.5,
        samples=40,
        gain=0.12,
        gain_low=0.1,
        gain_high=0.14,
        compile_us=4e6,
        exposed_us=100.0,
        communication_us=400.0,
    )
    store.update_trial(done)
    assert store.trials() == (done, other)


def test_wrong_trials_are_refused(store: Store) -> None:
    """A second trial of one id, an update of none, and an unknown verdict are errors that name the trial."""
    store.add_trial(TRIAL)
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add_trial(TRIAL)
    with pytest.raises(StoreError, match="'t9'"):
        store.update_trial(replace(TRIAL, trial_id="t9"))
    with pytest.raises(StoreError, match="'great'"):
        store.update_trial(replace(TRIAL, verdict="great"))  # type: ignore[arg-type]
    assert store.trials() == (TRIAL,)


def test_tables_are_kept_by_digest(store: Store) -> None:
    """A table is found by digest, and the latest is the one put last, also when it was known."""
    assert store.table("d1") is None
    assert store.latest_table() is None
    store.put_table("d1", {"compute": {"aten::mm": [1, 2.5, 0.1]}}, 1.0)
    store.put_table("d2", {"compute": {}}, 2.0)
    assert store.table("d1") == {"compute": {"aten::mm": [1, 2.5, 0.1]}}
    assert store.latest_table() == ("d2", {"compute": {}})
    store.put_table("d1", {"compute": {"aten::mm": [1, 2.5, 0.1]}}, 3.0)
    assert store.latest_table() == ("d1", {"compute": {"aten::mm": [1, 2.5, 0.1]}})


def test_consecutive_steps_join_into_one_run(store: Store) -> None:
    """Steps that go on where the last ended are one run; another plan, kind, rank or attempt begins a new one."""
    store.add_steps(0, 0, "as-it-was", "plain", [1.0, 2.0])
    store.add_steps(1, 0, "as-it-was", "plain", [9.0])
    store.add_steps(0, 2, "as-it-was", "plain", [3.0])
    store.add_steps(0, 3, "p1", "compiling", [40.0])
    store.add_steps(0, 4, "p1", "plain", [0.5])
    store.add_steps(0, 0, "as-it-was", "plain", [7.0], attempt=1)
    assert store.steps_since() == (
        StepRun(0, 0, 0, "as-it-was", "plain", (1.0, 2.0, 3.0)),
        StepRun(1, 0, 0, "as-it-was", "plain", (9.0,)),
        StepRun(0, 0, 3, "p1", "compiling", (40.0,)),
        StepRun(0, 0, 4, "p1", "plain", (0.5,)),
        StepRun(0, 1, 0, "as-it-was", "plain", (7.0,)),
    )


def test_steps_since_cuts_and_filters(store: Store) -> None:
    """A run that began earlier is cut to the asked step, and every filter narrows."""
    store.add_steps(0, 10, "p1", "plain", [1.0, 2.0, 3.0])
    store.add_steps(0, 13, "p1", "traced", [4.0])
    store.add_steps(1, 10, "p1", "plain", [5.0])
    assert store.steps_since(12, rank=0) == (
        StepRun(0, 0, 12, "p1", "plain", (3.0,)),
        StepRun(0, 0, 13, "p1", "traced", (4.0,)),
    )
    assert store.steps_since(kind="traced") == (StepRun(0, 0, 13, "p1", "traced", (4.0,)),)
    assert store.steps_since(rank=1, plan_id="p1", attempt=0) == (StepRun(1, 0, 10, "p1", "plain", (5.0,)),)
    assert store.steps_since(plan_id="p2") == ()


def test_long_runs_are_split_without_a_gap(store: Store) -> None:
    """However many steps come at once, none is lost and their numbers go on."""
    total = 2 * STEPS_PER_ROW + 7
    store.add_steps(0, 0, "p", "plain", [float(i) for i in range(5)])
    store.add_steps(0, 5, "p", "plain", [float(i) for i in range(5, total)])
    runs = store.steps_since()
    assert len(runs) == 3
    assert [d for run in runs for d in run.durations_us] == [float(i) for i in range(total)]
    assert [run.first_step for run in runs] == [0, STEPS_PER_ROW, 2 * STEPS_PER_ROW]


def test_step_rows_are_capped_oldest_first(path: Path) -> None:
    """Beyond the cap the oldest rows go."""
    with Store.open(path, max_step_rows=3) as store:
        for step in range(0, 50, 10):  # gaps, so that nothing joins
            store.add_steps(0, step, "p", "plain", [1.0])
        assert [run.first_step for run in store.steps_since()] == [20, 30, 40]


def test_counters_survive_reopening(path: Path) -> None:
    """Counters add up over restarts, keep their labels apart, and stay in the order they were first known."""
    with Store.open(path) as store:
        store.increment("z_us", {"group": "0", "collective": "all_gather"}, 1.5)
        store.increment("rollbacks", by=0)
        store.increment("z_us", {"group": "1", "collective": "all_gather"}, 8)
    with Store.open(path) as store:
        store.increment("z_us", {"collective": "all_gather", "group": "0"}, 2)
        assert store.counters() == (
            CounterRow("z_us", {"group": "0", "collective": "all_gather"}, 3.5),
            CounterRow("rollbacks", {}, 0.0),
            CounterRow("z_us", {"group": "1", "collective": "all_gather"}, 8.0),
        )


@pytest.mark.parametrize("by", [-1.0, float("nan"), float("inf")])
def test_counters_only_rise(store: Store, by: float) -> None:
    """A step that is no rise is refused by the counter's name."""
    with pytest.raises(StoreError, match="'steps'"):
        store.increment("steps", by=by)
    assert store.counters() == ()


def test_histograms_count_in_buckets_and_survive(path: Path) -> None:
    """Observations fall into the bucket of the first bound not below them, over restarts."""
    bounds = [1.0, 10.0]
    with Store.open(path) as store:
        store.observe("steps_us", [0.5, 1.0, 1.5], bounds)
    with Store.open(path) as store:
        store.observe("steps_us", [10.0, 99.0], bounds)
        assert store.histograms() == (HistogramRow("steps_us", {}, (1.0, 10.0), (2, 2, 1), 112.0),)


def test_a_histogram_with_other_bounds_starts_over(store: Store) -> None:
    """Counts of one set of buckets are never mixed with another's."""
    store.observe("steps_us", [0.5], [1.0, 10.0])
    store.observe("steps_us", [3.0], [2.0, 4.0])
    assert store.histograms() == (HistogramRow("steps_us", {}, (2.0, 4.0), (0, 1, 0), 3.0),)


def test_wrong_histograms_are_refused(store: Store) -> None:
    """Bounds that do not rise and observations that are no numbers are errors."""
    for bounds in ([], [2.0, 1.0], [1.0, 1.0]):
        with pytest.raises(StoreError, match="must rise"):
            store.observe("steps_us", [1.0], bounds)
    with pytest.raises(StoreError, match="finite"):
        store.observe("steps_us", [float("nan")], [1.0])
    assert store.histograms() == ()


def test_a_batch_is_all_or_nothing(store: Store, path: Path) -> None:
    """Of a batch that fails nothing is kept, of one that ends everything; nobody else sees half of it."""
    with Store.open(path) as reader:

        def half() -> None:
            with store.batch():
                store.increment("a")
                store.set_state("loop", {"phase": "half"})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            half()
        assert store.counters() == ()
        assert store.get_state("loop") is None
        with store.batch():
            store.increment("a")
            with store.batch():
                store.set_state("loop", {"phase": "whole"})
            assert reader.get_state("loop") is None
        assert reader.get_state("loop") == {"phase": "whole"}
        assert reader.counters() == (CounterRow("a", {}, 1.0),)


def test_threads_share_a_store(store: Store) -> None:
    """Increments from several threads, single and in batches, all count."""

    def work() -> None:
        for _ in range(25):
            store.increment("single")
            with store.batch(durable=False):
                store.increment("batched")
                store.increment("batched")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {c.name: c.value for c in store.counters()} == {"single": 100.0, "batched": 200.0}


def test_prune_forgets_the_oldest_and_keeps_what_matters(store: Store, path: Path) -> None:
    """Within bounds after pruning: the file shrinks, the newest window, state, trials and counters stay."""
    noise = "".join(chr(0x21 + (i * i * 7919 + i // 13) % 90) for i in range(30_000))
    store.set_state("loop", {"phase": "watch"})
    store.add_trial(TRIAL)
    store.put_table("d1", {"x": 1}, 1.0)
    store.put_table("unused", {"x": 2}, 2.0)
    store.put_table("latest", {"x": 3}, 3.0)
    store.increment("a")
    for number in range(40):
        store.add_window(window(f"w{number}", f"{number}{noise[number * 31 :]}{noise[: number * 97]}"))
        store.add_steps(number, 0, "p", "plain", [float(i) for i in range(500)])
    before = store.size_bytes()
    limit = before // 3
    assert store.prune(max_bytes=limit, max_windows=30) <= limit
    assert 0 < len(store.latest_windows(99)) <= 30
    assert store.latest_windows(1)[0].window_id == "w39"
    assert path.stat().st_size <= limit
    assert path.with_name(path.name + "-wal").stat().st_size == 0

    store.prune(max_bytes=0, max_windows=30)
    assert [w.window_id for w in store.latest_windows(99)] == ["w39"]
    assert len(store.steps_since()) == 1
    assert store.table("unused") is None
    assert store.table("d1") == {"x": 1}
    assert store.latest_table() == ("latest", {"x": 3})
    assert store.get_state("loop") == {"phase": "watch"}
    assert store.trials() == (TRIAL,)
    assert store.counters() == (CounterRow("a", {}, 1.0),)


def test_prune_within_bounds_forgets_nothing_but_extra_windows(store: Store) -> None:
    """A file within its size only loses windows beyond their number."""
    for name in ("w1", "w2", "w3"):
        store.add_window(window(name))
    store.add_steps(0, 0, "p", "plain", [1.0])
    store.add_steps(0, 5, "p", "plain", [1.0])
    store.prune(max_bytes=10**9, max_windows=2)
    assert [w.window_id for w in store.latest_windows(9)] == ["w3", "w2"]
    assert len(store.steps_since()) == 2


def test_a_closed_store_says_so(path: Path) -> None:
    """After closing, every call is an error that names the path; closing again is nothing."""
    store = Store.open(path)
    store.close()
    store.close()
    for call in (lambda: store.set_state("a", {}), lambda: store.get_state("a"), lambda: store.prune(1, 1)):
        with pytest.raises(StoreError, match=r"state\.sqlite: the store was closed"):
            call()


def test_content_damaged_inside_its_row_is_named(store: Store, path: Path) -> None:
    """A row whose bytes do not decompress is an error naming the window, not a crash."""
    store.add_window(window("w1"))
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE windows SET measurement = x'00112233'")
    raw.close()
    with pytest.raises(StoreError, match="window 'w1' is damaged"):
        store.window("w1")
