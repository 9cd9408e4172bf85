"""FX graphs of real functional collectives as the planner sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from loopopt_agent.torch_graph import read_graph
from torch.fx.experimental.proxy_tensor import make_fx

from loopopt.graphs import COMPUTE, FREE, START, WAIT, Graph, as_it_was, why_not

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def read(function: Callable[..., Any], *inputs: Any) -> Graph:
    return read_graph(make_fx(function, tracing_mode="fake")(*inputs), "forward")


def named(graph: Graph, role: str) -> list[str]:
    return [n.name for n in graph.nodes if n.role == role]


def layer(shard: Any, x: Any) -> Any:
    full = funcol.wait_tensor(funcol.all_gather_tensor(shard, 0, dist.group.WORLD))
    return torch.relu(x @ full.view(8, 8))


def test_roles_sizes_and_dependencies() -> None:
    graph = read(layer, torch.ones(64), torch.ones(4, 8))
    start = next(i for i, n in enumerate(graph.nodes) if n.role == START)
    collective = graph.nodes[start].collective
    assert collective is not None
    assert (collective.kind, collective.group_size, collective.output_bytes) == ("all_gather", 1, 256)
    assert collective.bucket_key
    wait = next(i for i, n in enumerate(graph.nodes) if n.role == WAIT)
    assert graph.nodes[wait].start == start
    mm = next(n for n in graph.nodes if n.name.startswith("mm"))
    assert mm.role == COMPUTE
    assert mm.anchor
    assert mm.key == "aten::mm|[[4,8],[8,8]]|float32"
    assert mm.output_bytes == 4 * 8 * 4
    relu = next(n for n in graph.nodes if n.name.startswith("relu"))
    assert not relu.anchor
    assert relu.kept
    assert any("view" in name for name in named(graph, FREE))
    assert why_not(graph, as_it_was(graph)) == ""
    assert Graph.from_json(graph.to_json()).signature == graph.signature


def test_a_write_stays_behind_the_reads_of_its_storage_and_before_later_ones() -> None:
    def function(x: Any, y: Any) -> Any:
        before = x * 2
        x.view(-1).add_(y.view(-1))
        after = x * 3
        return before, after

    graph = read(function, torch.ones(4, 4), torch.ones(4, 4))
    muls = [i for i, n in enumerate(graph.nodes) if n.name.startswith("mul")]
    write = next(i for i, n in enumerate(graph.nodes) if n.name.startswith("add"))
    assert muls[0] in graph.nodes[write].inputs
    assert write in graph.nodes[muls[1]].inputs


def test_random_numbers_keep_their_order() -> None:
    graph = read(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.ones(3))
    first, second = (i for i, n in enumerate(graph.nodes) if n.name.startswith("rand"))
    assert first in graph.nodes[second].inputs


def test_the_signature_is_of_the_work_not_of_the_rank() -> None:
    def sliced(at: int) -> Callable[[Any, Any], Any]:
        return lambda shard, x: layer(shard, x)[at : at + 1]

    inputs = torch.ones(64), torch.ones(4, 8)
    assert read(sliced(0), *inputs).signature == read(sliced(1), *inputs).signature
    assert read(layer, *inputs).signature != read(layer, torch.ones(64), torch.ones(5, 8)).signature
    assert read(layer, *inputs).signature != read(lambda s, x: layer(s, layer(s, x)), *inputs).signature
