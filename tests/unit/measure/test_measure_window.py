"""Windows with known times: what is measured is what was put in."""

from __future__ import annotations

import json
from dataclasses import replace

import made_up as mu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopopt.errors import TraceError, WireError
from loopopt.measure import measure_window, measurement_from_json, measurement_to_json
from loopopt.measure.matching import best_shift
from loopopt.measurement import Breakdown, RankMeasurement
from loopopt.timing import compute_key
from loopopt.traces import Category


def parts(b: Breakdown) -> float:
    return b.compute_us + b.exposed_us + b.exposed_memcpy_us + b.idle_us


def alone(events: list[mu.Ev], backend: str = "nccl") -> RankMeasurement:
    return measure_window([mu.trace(events, world=1, backend=backend)]).ranks[0]


def test_kernels_make_communication_compute_and_exposed_time() -> None:
    """On a GPU rank the sets are those of kernels; copies hide nothing and are told apart."""
    rank = alone(
        [
            mu.step(1, 0, 100),
            mu.kernel("gemm", 0, 30),
            mu.nccl("all_reduce", 20, 60),
            mu.Ev("Memcpy HtoD", 50, 70, Category.MEMCPY, thread=52),
            mu.kernel("gemm", 65, 90),
            mu.kernel("empty", 95, 95),
        ]
    )
    assert rank.steps == (Breakdown(100, 55, 40, 30, 20, 5, 10),)


def test_a_cpu_rank_computes_in_operators_but_not_while_it_waits() -> None:
    """Compute is time inside operators and compiled regions of step threads, waits taken out."""
    rank = alone(
        [
            mu.step(1, 0, 100),
            mu.Ev("## Call CompiledFxGraph abc ##", 5, 90, Category.ANNOTATION),
            mu.Ev("aten::mm", 10, 20),
            mu.gather(20, 22, 64),
            mu.Ev("_c10d_functional::wait_tensor", 30, 60),
            mu.gloo("all_gather", 21, 55, 64),
            mu.Ev("aten::copy_", 50, 54, thread=9),
            mu.Ev("aten::pin_memory", 0, 100, thread=3),
        ],
        backend="gloo",
    )
    assert rank.steps == (Breakdown(100, 55, 34, 25, 0, 0, 20),)


def test_backward_threads_run_the_step_too() -> None:
    """A thread of the autograd engine hides communication like the main thread."""
    rank = alone(
        [
            mu.step(1, 0, 100),
            mu.gloo("all_reduce", 0, 50, 64),
            mu.Ev("autograd::engine::evaluate_function: X", 10, 40, thread=4),
        ],
        backend="gloo",
    )
    assert (rank.steps[0].compute_us, rank.steps[0].exposed_us) == (30, 20)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(0, 20)), min_size=1, max_size=25),
    st.integers(0, 40),
)
def test_parts_add_up_to_the_span_and_shares_to_the_exposed_time(spans: list[tuple[int, int, int]], cut: int) -> None:
    """Whatever overlaps what, parts add up to each span, steps to the total, shares to exposed time."""
    events = [mu.step(1, 0, cut), mu.step(2, cut, 120)]
    for sort, start, length in spans:
        end = start + length
        events.append(
            [
                mu.kernel("gemm", start, end),
                mu.nccl("all_gather", start, end),
                mu.nccl("all_reduce", start, end),
                mu.Ev("Memset", start, end, Category.MEMSET, thread=52),
            ][sort]
        )
    rank = alone(events)
    for breakdown in (rank.total, *rank.steps):
        assert parts(breakdown) == pytest.approx(breakdown.span_us, abs=1e-6)
    assert sum(c.exposed_us for c in rank.collectives) == pytest.approx(rank.total.exposed_us, abs=1e-6)
    if cut:
        for name in ("compute_us", "communication_us", "exposed_us", "exposed_memcpy_us", "idle_us"):
            assert sum(getattr(s, name) for s in rank.steps) == pytest.approx(getattr(rank.total, name), abs=1e-6)


def test_exposed_time_goes_to_the_earliest_started_collective() -> None:
    """The rule of the docstring: the gather owns [0, 10), the scatter what is left."""
    rank = alone([mu.nccl("all_gather", 0, 10), mu.nccl("reduce_scatter", 5, 15), mu.kernel("gemm", 0, 4)])
    assert {c.kind: c.exposed_us for c in rank.collectives} == {"all_gather": 6, "reduce_scatter": 5}


def two(first: list[mu.Ev], second: list[mu.Ev], shift: float = 0, host: str = "a"):  # type: ignore[no-untyped-def]
    return measure_window([mu.trace(second, rank=1, shift=shift, host=host), mu.trace(first, rank=0)])


def test_transfer_begins_with_the_last_arrival() -> None:
    """A raw duration is waiting plus transfer; only the transfer enters the table."""
    window = two([mu.nccl("all_reduce", 0, 50)], [mu.nccl("all_reduce", 40, 50)])
    assert [r.rank for r in window.ranks] == [0, 1]
    (early,), (late,) = (r.collectives for r in window.ranks)
    assert (early.duration_us, early.skew_us, early.transfer_us) == (50, 40, 10)
    assert (late.skew_us, late.transfer_us) == (0, 10)
    (curve,) = window.table.collectives
    assert (curve.kind, curve.group, curve.group_size, curve.sizes) == ("all_reduce", "0", 2, (1024,))
    assert (curve.durations[0].count, curve.durations[0].median_us) == (1, 10)
    assert (window.matched, window.unmatched) == (1, 0)


def series(start: int, count: int, seq: bool, late: float = 0) -> list[mu.Ev]:
    """Instances `start`.. of one endless series of alternating sizes, 100 us apart."""
    return [
        mu.nccl("all_reduce", 100 * k + late, 100 * k + 20, elements=64 * (1 + k % 2), seq=k if seq else -1)
        for k in range(start, start + count)
    ]


@pytest.mark.parametrize("seq", [True, False])
def test_windows_that_begin_at_different_instances_are_lined_up(seq: bool) -> None:
    """By sequence number, or without one by sizes and completion times: index 0 is not index 0."""
    window = two(series(0, 12, seq), series(3, 12, seq, late=5))
    assert (window.matched, window.unmatched) == (9, 6)
    assert [d.median_us for d in window.table.collectives[0].durations] == [15, 15]


@given(st.integers(0, 6), st.integers(5, 20), st.integers(1, 4))
def test_the_offset_is_found_in_a_periodic_series(offset: int, length: int, period: int) -> None:
    """Sizes that repeat leave several offsets; the completions tell which."""
    k = np.arange(40)
    ends, sizes = (k * 1000).astype(np.int64), (k % period + 1).astype(np.int64)
    offset = min(offset, length // 2)
    assert (
        best_shift(ends[:length], sizes[:length], ends[offset : offset + length] + 30, sizes[offset : offset + length])
        == -offset
    )


def test_clocks_of_two_hosts_are_corrected_and_one_hosts_clock_is_not() -> None:
    """Completions are simultaneous, so a constant difference between hosts is the clocks'."""
    first = [mu.step(k, 1000 * k, 1000 * k + 1000) for k in range(6)]
    first += [mu.nccl("all_reduce", 1000 * k + 100, 1000 * k + 200, seq=k) for k in range(6)]
    second = [replace(e, start=e.start + 60) if "nccl" in e.name else e for e in first]
    for shift in (700, 40_000, -3_000_000):
        window = two(first, second, shift=shift, host="b")
        assert window.matched == 6, shift
        assert window.table.collectives[0].durations[0].median_us == pytest.approx(40)
    assert two(first, second, shift=700).matched == 0, "on one host such a difference means it is no match"


def test_a_missing_rank_leaves_its_collectives_out_of_the_table() -> None:
    """Without every member's arrival the transfer time is unknown, and the notes say so."""
    window = measure_window([mu.trace([mu.nccl("all_reduce", 0, 50)])])
    assert (window.matched, window.unmatched, window.table.collectives) == (0, 1, ())
    assert window.ranks[0].total.exposed_us == 50
    assert any("rank 1" in n for n in window.notes)


def gloo_rank(late: float) -> list[mu.Ev]:
    scatter = mu.tensors((512,), values=("sum", "2", ""))
    return [
        mu.gather(0, 5, 100),
        mu.gather(5, 8, 300),
        mu.Ev("_c10d_functional::reduce_scatter_tensor", 8, 20, signature=scatter),
        mu.Ev("c10d::reduce_scatter_tensor_coalesced_", 9, 20),
        mu.Ev("_c10d_functional::all_reduce", 20, 22, signature=mu.tensors((512,), values=("sum", ""))),
        # Two backend threads: the second gather happens to begin first.
        mu.gloo("all_gather", 10 + late, 60, 300),
        mu.gloo("all_gather", 11 + late, 50, 100, thread=10),
        mu.gloo("all_reduce", 61, 90, 512),
        mu.gloo("all_reduce", 91, 99, 512),
    ]


def test_gloo_events_get_kind_and_size_from_their_launch() -> None:
    """A reduce-scatter that runs as all-reduce is a reduce-scatter; message bytes are the larger side's."""
    window = measure_window([mu.trace(gloo_rank(0), 0, backend="gloo"), mu.trace(gloo_rank(7), 1, backend="gloo")])
    assert (window.matched, window.unmatched) == (4, 0)
    curves = {
        c.kind: dict(zip(c.sizes, (d.median_us for d in c.durations), strict=True)) for c in window.table.collectives
    }
    assert curves == {"all_gather": {800: 32, 2400: 43}, "reduce_scatter": {2048: 29}, "all_reduce": {2048: 8}}
    assert {(c.group, c.group_size) for c in window.table.collectives} == {("0", 2)}


def test_compute_durations_on_a_cpu_rank() -> None:
    """Outermost operators of step threads count, with the result argument of an out-variant left off."""
    events = [
        mu.step(1, 0, 100),
        mu.Ev("aten::mm", 0, 10, signature=mu.tensors((2, 3), (3, 4), (2, 4))),
        mu.Ev("aten::copy_", 2, 4, signature=mu.tensors((2, 4), (2, 4))),
        mu.Ev("aten::mm", 20, 34, signature=mu.tensors((2, 3), (3, 4))),
        mu.Ev("aten::view", 40, 41, signature=mu.tensors((2, 3))),
        mu.Ev("aten::mm", 50, 90, thread=9, signature=mu.tensors((2, 3), (3, 4))),
        mu.gloo("all_reduce", 45, 95, 8),
        mu.Ev("aten::sum", 60, 63, signature=mu.tensors((5,), dtype="c10::BFloat16")),
    ]
    table = measure_window([mu.trace(events, world=1, backend="gloo")]).table
    assert {k: (d.count, d.median_us) for k, d in table.compute.items()} == {
        compute_key("aten::mm", [[2, 3], [3, 4]], "float32"): (2, 12),
        compute_key("aten::sum", [[5]], "bfloat16"): (1, 3),
    }


def test_compute_durations_on_a_gpu_rank_are_those_of_the_kernels() -> None:
    """An operator lasts as long as the kernels launched inside it, however late they run."""
    events = [
        mu.Ev("aten::addmm", 0, 10, signature=mu.tensors((4,), (2, 3), (3, 4))),
        mu.Ev("aten::mm", 2, 8, signature=mu.tensors((2, 3), (3, 4))),
        mu.Ev("cudaLaunchKernel", 3, 4, Category.RUNTIME, correlation=1),
        mu.Ev("cudaLaunchKernel", 5, 6, Category.RUNTIME, correlation=2),
        mu.kernel("gemm", 100, 130, correlation=1),
        mu.kernel("bias", 130, 135, correlation=2),
    ]
    table = measure_window([mu.trace(events, world=1)]).table
    assert {k: d.median_us for k, d in table.compute.items()} == {"aten::addmm|[[4],[2,3],[3,4]]|float32": 35}


def test_timeline_is_bounded_and_within_the_step() -> None:
    """A step of thousands of kernels draws as a bounded number of spans of three lanes."""
    events = [mu.step(1, 0, 100_000), mu.step(2, 100_000, 200_000)]
    for k in range(100_500, 199_000, 20):
        events += [mu.kernel("gemm", k, k + 9), mu.nccl("all_gather", k + 5, k + 15)]
    spans = alone(events).timeline
    assert 100 < len(spans) <= 2000
    assert {s.lane for s in spans} == {"compute", "communication", "exposed"}
    assert {s.name for s in spans} == {"compute", "all_gather"}
    assert all(0 <= s.start_us < s.end_us <= 100_000 for s in spans)


def test_our_step_marks_win_over_the_profilers() -> None:
    """With both kinds of marks the loop's own count; without any there is a note and no step."""
    ours = alone([mu.step(3, 0, 10), mu.Ev("ProfilerStep#1", 0, 5, Category.ANNOTATION), mu.kernel("k", 0, 1)])
    assert [s.span_us for s in ours.steps] == [10]
    window = measure_window([mu.trace([mu.kernel("k", 0, 1)])])
    assert window.ranks[0].steps == ()
    assert any("no step marks" in n for n in window.notes)


def test_mixed_up_traces_are_refused() -> None:
    """No trace, a rank twice, jobs of two sizes, a rank outside the job: errors that name the file."""
    one = mu.trace([mu.kernel("k", 0, 1)])
    for traces, reason in (
        ([], "at least one"),
        ([one, replace(one, path="b.json")], "b.json: rank 0 again"),
        ([one, mu.trace([], rank=1, world=4)], "not one window"),
        ([mu.trace([], rank=5)], "in a job of 2 ranks"),
    ):
        with pytest.raises(TraceError, match=reason):
            measure_window(traces)


def test_empty_and_nameless_traces_are_measured_with_a_note() -> None:
    """A trace without events or without a rank is no error."""
    window = measure_window([mu.trace([], rank=None, world=0), mu.trace([mu.kernel("k", 0, 1)], rank=0, world=0)])
    assert [r.rank for r in window.ranks] == [0, 1]
    assert window.ranks[1].total.span_us == 0
    assert len(window.notes) == 3


def test_measurements_survive_json() -> None:
    """A measurement comes back equal from JSON text; another form is an error."""
    window = two(series(0, 12, True), [mu.step(1, 0, 900), *series(3, 12, True, late=5)])
    data = json.loads(json.dumps(measurement_to_json(window)))
    assert measurement_from_json(data) == window
    del data["ranks"][0]["total"]
    with pytest.raises(WireError):
        measurement_from_json(data)
