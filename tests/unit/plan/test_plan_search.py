"""The search: always lawful, within memory, never worse than what there was, and near what can be reached."""

from __future__ import annotations

import pytest
from graphs_at_random import MB, at_random, sharded, table

from loopopt.graphs import as_it_was, lawful, why_not
from loopopt.plan.costs import costs_of
from loopopt.plan.order import Policy, Scheduler
from loopopt.plan.search import search
from loopopt.plan.simulate import Storage, peak_bytes, simulate


@pytest.mark.parametrize("seed", range(20))
def test_every_order_can_be_carried_out(seed: int) -> None:
    graph = at_random(seed, 150)
    scheduler = Scheduler(graph, costs_of(graph, table()), Storage(graph))
    for ahead in (0.0, 500.0, float("inf")):
        found = scheduler.order((), Policy(ahead))
        assert found is not None
        assert why_not(graph, found) == ""


@pytest.mark.parametrize("seed", range(8))
def test_what_is_found_can_be_carried_out_and_is_no_slower_than_its_own_order(seed: int) -> None:
    graph = at_random(seed, 150)
    costs = costs_of(graph, table())
    found = search(graph, costs, tries=40)
    assert all(why_not(graph, f.schedule) == "" for f in found)
    steps = [f.outcome.step_us for f in found]
    assert steps == sorted(steps)
    assert steps[0] <= simulate(graph, as_it_was(graph), costs).step_us
    assert len({(f.schedule.order, f.schedule.buckets) for f in found}) == len(found)


def test_sharded_layers_come_near_the_lower_bound() -> None:
    """Equal compute and communication: all but the ends can be hidden."""
    graph = sharded(16)
    costs = costs_of(graph, table(gather_us_per_mb=60.0, latency_us=10.0))
    own = simulate(graph, as_it_was(graph), costs)
    best = search(graph, costs)[0].outcome
    bound = max(best.compute_us, best.communication_us)
    assert best.step_us <= 1.10 * bound
    assert best.step_us < 0.65 * own.step_us


def test_high_latency_asks_for_buckets_and_low_latency_does_not() -> None:
    graph = sharded(12)
    slow_to_start = search(graph, costs_of(graph, table(gather_us_per_mb=1.0, latency_us=2000.0)))[0]
    assert sum(len(b) for b in slow_to_start.schedule.buckets) >= 20
    assert (
        slow_to_start.outcome.step_us
        < 0.5
        * simulate(graph, as_it_was(graph), costs_of(graph, table(gather_us_per_mb=1.0, latency_us=2000.0))).step_us
    )


def test_memory_is_a_hard_limit() -> None:
    graph = sharded(12)
    costs = costs_of(graph, table())
    own = peak_bytes(graph, as_it_was(graph))
    free = search(graph, costs)[0]
    tight = search(graph, costs, memory_bytes=own + 3 * MB)
    assert free.outcome.peak_bytes > own + 3 * MB
    assert all(f.outcome.peak_bytes <= own + 3 * MB for f in tight)
    assert free.outcome.step_us <= tight[0].outcome.step_us < simulate(graph, as_it_was(graph), costs).step_us
    # The same for what somebody else proposes.
    with_theirs = search(graph, costs, memory_bytes=own + 3 * MB, others=[free.schedule])
    assert free.schedule not in [f.schedule for f in with_theirs]
    # Less than the graph needs by itself cannot be asked for: its own order always remains.
    assert search(graph, costs, memory_bytes=1)[0].outcome.peak_bytes <= own


def test_a_better_schedule_of_somebody_else_is_taken() -> None:
    graph = sharded(4)
    costs = costs_of(graph, table())
    ours = search(graph, costs)[0]
    again = search(graph, costs, others=[ours.schedule], tries=0)
    assert again[0].schedule == ours.schedule


def test_the_same_question_has_the_same_answer() -> None:
    graph = at_random(3, 200)
    costs = costs_of(graph, table())
    assert [f.schedule for f in search(graph, costs, tries=30)] == [f.schedule for f in search(graph, costs, tries=30)]


def test_nothing_to_move_leaves_the_graph_alone() -> None:
    graph = at_random(1, 40, share=0.0)
    found = search(graph, costs_of(graph, table()))
    assert [f.schedule for f in found] == [as_it_was(graph)]


def test_buckets_that_contradict_the_dependencies_are_not_ordered() -> None:
    graph = sharded(2)
    gather = graph.starts()[0]
    scheduler = Scheduler(graph, costs_of(graph, table()), Storage(graph))
    chained = [i for i in graph.starts() if graph.nodes[i].name.startswith("scatter")]
    assert scheduler.order([(gather, chained[0])], Policy()) is None
    assert lawful(graph, range(len(graph.nodes)), [(gather, chained[0])]) is None
