"""The simulator against steps that can be worked out by hand, and against a slow second opinion."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from graphs_at_random import MATMUL, MB, at_random, sharded, table

from loopopt.graphs import COMPUTE, START, WAIT, Collective, Graph, Node, Schedule, as_it_was, lawful, why_not
from loopopt.plan.costs import WhatIf, costs_of
from loopopt.plan.simulate import items_of, peak_bytes, run_items, simulate, spans_of
from loopopt.timing import Duration


def test_without_overlap_all_communication_is_exposed() -> None:
    graph = sharded(3)
    outcome = simulate(graph, as_it_was(graph), costs_of(graph, table()))
    # Nine collectives of 2 MB at 50 us + 100 us/MB; nine matmuls of 200 us.
    assert outcome.communication_us == pytest.approx(9 * 250)
    assert outcome.exposed_us == pytest.approx(9 * 250)
    assert outcome.step_us == pytest.approx(9 * 250 + 9 * 200)


def test_a_prefetched_gather_hides_behind_the_matmul_before_it() -> None:
    graph = sharded(1)
    order = lawful(graph, [0, 4, 1, 2, 3, 5, 6, 7, 8, 9, 10], ())
    assert order is not None
    outcome = simulate(graph, order, costs_of(graph, table()))
    # gather 0..250, matmul 250..450; second gather 250..500: 50 exposed; two matmuls; the scatter all exposed.
    assert outcome.exposed == pytest.approx({0: 250.0, 4: 50.0, 9: 250.0})
    assert outcome.step_us == pytest.approx(250 + 200 + 50 + 400 + 250)
    # Gather, gather behind it on the link, both backward matmuls, the scatter.
    assert [graph.nodes[i].name for i in outcome.critical] == [
        "gather_f0",
        "gather_b0",
        "mm_b0",
        "grad_b0",
        "scatter_b0",
    ]


def test_a_bucket_pays_the_latency_once() -> None:
    graph = sharded(2)
    starts = [i for i in graph.starts() if graph.nodes[i].name.startswith("gather_f")]
    bucketed = lawful(graph, range(len(graph.nodes)), [starts])
    assert bucketed is not None
    outcome = simulate(graph, bucketed, costs_of(graph, table()))
    assert outcome.communication_us == pytest.approx(6 * 250 - 50)


def test_compute_beside_a_transfer_is_slower_by_the_measured_factor() -> None:
    measured = replace(table(), isolated={MATMUL: Duration(50, 100.0, 1.0)})
    graph = sharded(1)
    order = lawful(graph, [0, 4, 1, 2, 3, 5, 6, 7, 8, 9, 10], ())
    assert order is not None
    costs = costs_of(graph, measured)
    assert costs.slowdown == pytest.approx(2.0)
    # Alone 100 us. The first matmul runs wholly beside the second gather (250 us): 200; the next two alone.
    assert simulate(graph, order, costs).compute_us == pytest.approx(200 + 100 + 100)


def test_links_of_different_groups_run_side_by_side_and_one_link_queues() -> None:
    def graph(second: str) -> Graph:
        one, two = (Collective("all_gather", g, 2, MB, 2 * MB, "float32") for g in ("0", second))
        nodes = (
            Node("a", START, (), collective=one),
            Node("b", START, (), collective=two),
            Node("wa", WAIT, (0,), start=0),
            Node("wb", WAIT, (1,), start=1),
        )
        return Graph("g", nodes)

    for second, expected in (("0", 500.0), ("1", 250.0)):
        made = graph(second)
        assert simulate(made, as_it_was(made), costs_of(made, table())).step_us == pytest.approx(expected)


def test_what_if_scales_what_it_says() -> None:
    graph = sharded(2)

    def priced(**factors: float) -> tuple[float, float]:
        outcome = simulate(graph, as_it_was(graph), costs_of(graph, table(), what_if=WhatIf(**factors)))
        return outcome.communication_us, outcome.compute_us

    # The table says 75 us for no bytes: half of what the smallest measured size takes.
    assert priced(bandwidth=0.5) == pytest.approx((6 * (75 + 350), 6 * 200))
    assert priced(latency=2.0) == pytest.approx((6 * (150 + 175), 6 * 200))
    assert priced(compute=0.5) == pytest.approx((6 * 250, 6 * 100))


def test_what_the_table_does_not_know_is_scaled_to_what_was_measured() -> None:
    nodes = (
        Node("mm", COMPUTE, (), MATMUL, anchor=True),
        Node("p", COMPUTE, (0,), "aten::relu|[[1]]|float32", estimate_us=10.0),
        Node("q", COMPUTE, (1,), "", estimate_us=30.0),
    )
    graph = Graph("g", nodes)
    assert costs_of(graph, table()).us == pytest.approx((200.0, 10.0, 30.0))
    costs = costs_of(graph, table(), compute_us=280.0)
    assert costs.us == pytest.approx((200.0, 20.0, 60.0))
    assert costs.unknown[0] == 2
    assert costs_of(graph, table(), compute_us=100.0).us == pytest.approx((200.0, 0.0, 0.0))


def test_memory_is_freed_after_the_last_use_and_views_hold_it() -> None:
    graph = sharded(3)
    costs = costs_of(graph, table())
    one_at_a_time = peak_bytes(graph, as_it_was(graph))
    early = lawful(graph, sorted(range(len(graph.nodes)), key=lambda i: (graph.nodes[i].role != START, i)), ())
    assert early is not None
    outcome = simulate(graph, early, costs)
    gathers = sum(1 for n in graph.nodes if n.name.startswith("gather"))
    assert outcome.peak_bytes >= gathers * 2 * MB > one_at_a_time
    # A layer at a time: its gathered weights, its gradient, scattered halves that stay, two small activations.
    assert one_at_a_time <= 2 * 2 * MB + 3 * MB + MB


@pytest.mark.parametrize("seed", range(30))
def test_both_simulations_agree_and_the_parts_add_up(seed: int) -> None:
    graph = at_random(seed, 120)
    measured = replace(table(), isolated={MATMUL: Duration(5, 150.0, 1.0)})
    costs = costs_of(graph, measured)
    wish = sorted(range(len(graph.nodes)), key=lambda i: (i * 7919 + seed) % 101)
    schedule = lawful(graph, wish, ())
    assert schedule is not None
    assert why_not(graph, schedule) == ""
    outcome = simulate(graph, schedule, costs)
    quick = run_items(items_of(graph, schedule, costs), costs.slowdown, max(costs.links) + 1)
    assert quick == pytest.approx((outcome.step_us, outcome.exposed_us))
    assert outcome.compute_us + outcome.exposed_us == pytest.approx(outcome.step_us)
    assert sum(outcome.exposed.values()) == pytest.approx(outcome.exposed_us)
    spans = spans_of(graph, schedule, costs)
    for lane in {s.lane for s in spans}:
        along = [s for s in spans if s.lane == lane]
        assert all(a.end_us <= b.start_us + 1e-6 for a, b in pairwise(along))
    on_queue = sum(s.end_us - s.start_us for s in spans if s.lane in ("compute", "exposed"))
    assert on_queue == pytest.approx(outcome.step_us)


@pytest.mark.parametrize("seed", range(10))
def test_the_critical_path_is_as_long_as_the_step(seed: int) -> None:
    """Without contention, what is on the path adds up to the step: nothing else held it up."""
    graph = at_random(seed, 80)
    costs = costs_of(graph, table())
    outcome = simulate(graph, as_it_was(graph), costs)
    starts = {s.node: s for s in spans_of(graph, as_it_was(graph), costs) if s.lane.startswith("link")}
    length = 0.0
    for node in outcome.critical:
        length += starts[node].end_us - starts[node].start_us if node in starts else costs.us[node]
    assert length == pytest.approx(outcome.step_us)


def test_members_of_a_bucket_are_one_collective_whatever_is_between_them() -> None:
    graph = sharded(2)
    starts = [i for i in graph.starts() if graph.nodes[i].name.startswith("gather_f")]
    schedule = lawful(graph, range(len(graph.nodes)), [starts])
    assert schedule is not None
    items = items_of(graph, schedule, costs_of(graph, table()))
    assert sum(1 for kind, *_ in items if kind == 1) == len(graph.starts()) - 1
    assert sum(1 for kind, *_ in items if kind == 2) == len(graph.starts()) - 1
    assert isinstance(schedule, Schedule)
