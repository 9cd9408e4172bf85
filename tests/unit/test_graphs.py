"""Graphs and schedules as values: their JSON, what is lawful, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from loopopt.errors import WireError
from loopopt.graphs import COMPUTE, START, WAIT, Collective, Graph, Node, Schedule, as_it_was, lawful, why_not

GATHER = Collective("all_gather", "0", 2, 512, 1024, "float32", "all_gather|0|float32")


def layers(n: int, *, chained: bool = False) -> Graph:
    """`n` layers, each gathered, waited for and multiplied; `chained`, a gather needs the layer before."""
    nodes: list[Node] = []
    for layer in range(n):
        at = len(nodes)
        before = (at - 1,) if layer else ()
        nodes += [
            Node(f"ag{layer}", START, before if chained else (), output_bytes=1024, collective=GATHER),
            Node(f"wait{layer}", WAIT, (at,), start=at),
            Node(f"mm{layer}", COMPUTE, (at + 1, *before), "aten::mm|[[2,2],[2,2]]|float32", 64, anchor=True),
        ]
    return Graph("s1", tuple(nodes), "forward")


def test_values_survive_their_json() -> None:
    graph = layers(3)
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    schedule = Schedule("s1", (0, 3, 1, 4, 2, 5, 6, 7, 8), ((0, 3),))
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_its_own_order_can_be_carried_out() -> None:
    assert why_not(layers(4), as_it_was(layers(4))) == ""


def test_a_wish_is_bent_to_the_dependencies_and_keeps_buckets_together() -> None:
    graph = layers(3)
    found = lawful(graph, [8, 5, 2, 7, 4, 1, 6, 3, 0], [(3, 6)])
    assert found is not None
    assert why_not(graph, found) == ""
    assert found.buckets == ((3, 6),)
    place = {i: at for at, i in enumerate(found.order)}
    assert abs(place[3] - place[6]) == 1
    assert abs(place[4] - place[7]) == 1


def test_any_wish_becomes_an_order_that_can_be_carried_out() -> None:
    rng = random.Random(5)
    for _ in range(200):
        graph = layers(rng.randrange(1, 6))
        wish = list(range(len(graph.nodes)))
        rng.shuffle(wish)
        starts = graph.starts()
        rng.shuffle(starts)
        buckets = [tuple(starts[: rng.randrange(2, len(starts) + 1)])] if len(starts) > 1 else []
        found = lawful(graph, wish, buckets)
        assert found is not None
        assert why_not(graph, found) == ""


def test_a_wish_that_is_lawful_stays_as_it_is() -> None:
    wish = (0, 3, 6, 1, 2, 4, 5, 7, 8)
    found = lawful(layers(3), wish, ())
    assert found is not None
    assert found.order == wish


def test_a_bucket_whose_member_needs_anothers_result_is_refused() -> None:
    graph = layers(2, chained=True)
    assert lawful(graph, range(6), [(0, 3)]) is None


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (Schedule("other", tuple(range(6))), "it is for graph other"),
        (Schedule("s1", (0, 1, 2, 3, 4)), "each of the 6 nodes once"),
        (Schedule("s1", (0, 0, 1, 2, 3, 4)), "each of the 6 nodes once"),
        (Schedule("s1", (1, 0, 2, 3, 4, 5)), "node 1 stands before node 0"),
        (Schedule("s1", tuple(range(6)), ((0,),)), "fewer than two"),
        (Schedule("s1", tuple(range(6)), ((0, 2),)), "starts no collective"),
        (Schedule("s1", tuple(range(6)), ((0, 99),)), "starts no collective"),
        (Schedule("s1", tuple(range(6)), ((0, 3),)), "not together"),
        (Schedule("s1", (0, 3, 1, 4, 2, 5), ((0, 3), (0, 3))), "in two buckets"),
    ],
)
def test_what_cannot_be_carried_out_is_named(schedule: Schedule, reason: str) -> None:
    assert reason in why_not(layers(2), schedule)


def test_collectives_that_cannot_be_merged_are_no_bucket() -> None:
    graph = layers(2)
    other = replace(graph.nodes[3], collective=replace(GATHER, bucket_key="all_gather|1|float32"))
    mixed = replace(graph, nodes=(*graph.nodes[:3], other, *graph.nodes[4:]))
    assert "mixes" in why_not(mixed, Schedule("s1", (0, 3, 1, 4, 2, 5), ((0, 3),)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": [4]}, "not before it"),
        ({"inputs": [-1]}, "not before it"),
        ({"role": "dance"}, "unknown role"),
        ({"role": "start"}, "has a collective"),
        ({"role": "wait", "start": 2}, "waits for no collective"),
        ({"inputs": "x"}, "not of the expected form"),
        ({"inputs": [float("inf")]}, "not of the expected form"),
        ({"bytes": -1}, "no tensor has"),
        ({"bytes": 10**30}, "no tensor has"),
        ({"estimate_us": float("nan")}, "finite"),
        ({"estimate_us": float("inf")}, "finite"),
    ],
)
def test_a_malformed_graph_is_refused(change: dict[str, object], reason: str) -> None:
    body = layers(2).to_json()
    body["nodes"][2].update(change)
    with pytest.raises(WireError, match=reason):
        Graph.from_json(body)


@pytest.mark.parametrize("size", [-5, 1e308])
def test_a_collective_of_impossible_size_is_refused(size: float) -> None:
    body = layers(2).to_json()
    body["nodes"][0]["collective"][3] = size
    with pytest.raises(WireError, match=r"node 0 .*no tensor has"):
        Graph.from_json(body)


def test_a_malformed_schedule_is_refused() -> None:
    for order in (["x"], [float("inf")], 3):
        with pytest.raises(WireError, match="schedule"):
            Schedule.from_json({"signature": "s1", "order": order, "buckets": []})
