"""Schedules written back to real FX graphs: same numbers, the order and the buckets that were asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from loopopt_agent.torch_graph import read_graph
from loopopt_agent.torch_rewrite import write_schedule
from torch.fx.experimental.proxy_tensor import make_fx

from loopopt.errors import UnsupportedError
from loopopt.graphs import START, WAIT, Graph, Schedule, as_it_was, lawful

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore::FutureWarning")]

LAYERS = 4


def step(x: Any, *shards: Any) -> Any:
    """Gather and multiply per layer, then reduce something of each layer's size, then writes in place."""
    reduced = []
    for shard in shards:
        full = funcol.wait_tensor(funcol.all_gather_tensor(shard, 0, dist.group.WORLD))
        x = torch.relu(x @ full.view(8, 8))
        gradient = x.t() @ x
        reduced.append(funcol.wait_tensor(funcol.reduce_scatter_tensor(gradient.flatten(), "sum", 0, dist.group.WORLD)))
    shards[0].add_(reduced[0])
    shards[1].mul_(2.0)  # after the gather that reads it, though no data says so
    return x, *reduced


def inputs() -> list[Any]:
    torch.manual_seed(3)
    return [torch.randn(4, 8), *(torch.randn(64) for _ in range(LAYERS))]


@pytest.fixture
def module() -> Any:
    return make_fx(step, tracing_mode="fake")(*inputs())


def collectives(module: Any) -> list[str]:
    """Names of the collectives in the order in which the graph starts them, inside control dependencies too."""
    found = []
    for node in module.graph.nodes:
        target = node.target
        if str(target) == "control_deps":
            inner = getattr(module, node.args[1].target)
            target = next(n for n in inner.graph.nodes if n.op == "call_function").target
        name = str(target)
        if "_c10d_functional" in name and "wait_tensor" not in name:
            found.append(name.split(".")[1])
    return found


def assert_same_numbers(module: Any) -> None:
    mine, theirs = inputs(), inputs()
    expected, found = step(*mine), module(*theirs)
    for a, b in zip((*expected, *mine), (*found, *theirs), strict=True):
        assert torch.equal(a, b)


def starts_of(graph: Graph, kind: str) -> list[int]:
    return [i for i, n in enumerate(graph.nodes) if n.collective is not None and n.collective.kind == kind]


def test_its_own_order_changes_nothing(module: Any) -> None:
    graph = read_graph(module)
    write_schedule(module, graph, as_it_was(graph))
    assert collectives(module) == ["all_gather_into_tensor", "reduce_scatter_tensor"] * LAYERS
    assert_same_numbers(module)


def test_gathers_first_in_the_order_asked_for(module: Any) -> None:
    graph = read_graph(module)
    schedule = lawful(graph, sorted(range(len(graph.nodes)), key=lambda i: (graph.nodes[i].role != START, i)), ())
    assert schedule is not None
    write_schedule(module, graph, schedule)
    assert collectives(module)[:LAYERS] == ["all_gather_into_tensor"] * LAYERS
    assert_same_numbers(module)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_a_bucket_is_one_collective(module: Any, kind: str) -> None:
    graph = read_graph(module)
    schedule = lawful(graph, range(len(graph.nodes)), [starts_of(graph, kind)])
    assert schedule is not None
    write_schedule(module, graph, schedule)
    assert sum(kind in name for name in collectives(module)) == 1
    assert len(collectives(module)) == LAYERS + 1
    assert_same_numbers(module)


@pytest.mark.parametrize("seed", range(8))
def test_any_lawful_schedule_gives_the_same_numbers(module: Any, seed: int) -> None:
    graph = read_graph(module)
    rng = random.Random(seed)
    wish = list(range(len(graph.nodes)))
    rng.shuffle(wish)
    gathers = starts_of(graph, "all_gather")
    rng.shuffle(gathers)
    schedule = lawful(graph, wish, [gathers[:2], gathers[2:]])
    assert schedule is not None
    write_schedule(module, graph, schedule)
    assert_same_numbers(module)


def test_what_does_not_fit_is_refused(module: Any) -> None:
    graph = read_graph(module)
    other = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.ones(2))
    with pytest.raises(UnsupportedError, match="not the one"):
        write_schedule(other, graph, as_it_was(graph))
    with pytest.raises(UnsupportedError, match="cannot be carried out"):
        write_schedule(module, graph, Schedule(graph.signature, tuple(reversed(range(len(graph.nodes))))))


def test_the_order_is_held_against_the_scheduler_that_comes_after(module: Any) -> None:
    """Gathers before the first matmul, each wait behind the matmul before it, all starts one after the other."""
    graph = read_graph(module)
    schedule = lawful(graph, sorted(range(len(graph.nodes)), key=lambda i: (graph.nodes[i].role != START, i)), ())
    assert schedule is not None
    write_schedule(module, graph, schedule)
    held = {n.name: [d.name for d in n.args[0]] for n in module.graph.nodes if str(n.target) == "control_deps"}
    starts = [graph.nodes[i].name for i in schedule.order if graph.nodes[i].role == START]
    first_matmul = next(graph.nodes[i].name for i in schedule.order if graph.nodes[i].anchor)
    assert held[first_matmul] == starts[:LAYERS]
    assert [held.get(name) for name in starts] == [None, *([name] for name in starts[:-1])]
    place = {i: at for at, i in enumerate(schedule.order)}
    matmuls = [at for at, i in enumerate(schedule.order) if graph.nodes[i].anchor]
    for i, node in enumerate(graph.nodes):
        between = [at for at in matmuls if node.role == WAIT and place[node.start] < at < place[i]]
        if node.role == WAIT:
            assert held.get(node.name) == ([graph.nodes[schedule.order[between[-1]]].name] if between else None)
