"""Reads the planner's graph (`loopopt.graphs`) off an FX graph, at the point where the overlap scheduler runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from loopopt.graphs import COMPUTE, FREE, START, WAIT, Graph, Node
from loopopt.timing import compute_key
from loopopt_agent import torch_api

_BYTES_PER_US = 20_000.0
"""Memory bandwidth, to estimate nodes without a measured duration; the planner scales it to what was measured."""


def read_graph(graph_module: Any, kind: str = "inference") -> Graph:
    """The graph as the planner sees it.

    Dependencies are those of data, and the order of writes to a storage among its reads; nodes with other effects
    (random numbers) keep the order they have among themselves.

    Args:
        graph_module: post-grad graph, nodes with `meta["val"]`.
        kind: "forward", "backward" or "inference".
    """
    fx_nodes = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    index = {n: i for i, n in enumerate(fx_nodes)}
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    kept = set(output.all_input_nodes)
    effects = Effects()
    groups: dict[str, str] = {}
    nodes: list[Node] = []
    lines: list[str] = []
    for i, fx in enumerate(fx_nodes):
        effects.storage_of(fx)
        before = {index[n] for n in (*fx.all_input_nodes, *effects.before(fx)) if n in index}
        node = _node(fx, tuple(sorted(before)), index, nodes, fx in kept)
        nodes.append(node)
        lines.append(_line(i, fx, node, groups))
    signature = hashlib.sha256("\n".join([kind, *lines]).encode()).hexdigest()[:16]
    return Graph(signature, tuple(nodes), kind)


def _node(fx: Any, inputs: tuple[int, ...], index: dict[Any, int], nodes: list[Node], kept: bool) -> Node:
    name, value = str(fx.name), fx.meta.get("val")
    if torch_api.is_wait(fx):
        begun = fx.args[0]
        while isinstance(begun, torch.fx.Node) and begun in index and nodes[index[begun]].role == FREE:
            begun = begun.args[0]
        start = index.get(begun, -1)
        if start < 0 or nodes[start].role != START:
            return Node(name, FREE, inputs, kept=kept)
        return Node(name, WAIT, inputs, kept=kept, start=start)
    moved = torch_api.collective_node(fx)
    writes = bool(torch_api.written_arguments(fx))
    size = 0 if writes else torch_api.tensor_bytes(value)
    if moved is not None:
        collective = replace(moved, bucket_key=torch_api.bucket_key(fx))
        return Node(name, START, inputs, output_bytes=size, kept=kept, collective=collective)
    if (not size and not writes) or torch_api.is_view(fx):
        return Node(name, FREE, inputs, kept=kept)
    found = torch_api.compute_node(fx)
    touched = torch_api.tensor_bytes(value) + sum(torch_api.tensor_bytes(n.meta.get("val")) for n in fx.all_input_nodes)
    return Node(
        name,
        COMPUTE,
        inputs,
        compute_key(*found) if found is not None else "",
        size,
        torch_api.is_anchor(fx),
        touched / _BYTES_PER_US,
        kept,
    )


def _line(i: int, fx: Any, node: Node, groups: dict[str, str]) -> str:
    """What makes a node the same on all ranks: not its rank's constants, not the name of a sibling group."""
    shape = [(tuple(str(s) for s in t.shape), str(t.dtype)) for t in torch_api.tensors(fx.meta.get("val"))]
    line = f"{i}|{fx.target}|{node.role}|{node.inputs}|{shape}|{node.kept}"
    if node.collective is not None:
        group = groups.setdefault(node.collective.group, f"group{len(groups)}")
        line += f"|{node.collective.kind}|{group}|{node.collective.group_size}"
    return line


class Effects:
    """Who must come before whom although no data flows between them: feed it the nodes in the graph's order."""

    def __init__(self) -> None:
        self._root: dict[Any, Any] = {}
        self._reads: dict[Any, list[Any]] = {}
        self._write: dict[Any, Any] = {}
        self._last: Any = None

    def storage_of(self, fx: Any) -> Any:
        """The node whose memory a node's value lives in."""
        if fx not in self._root:
            source = torch_api.aliased_argument(fx)
            self._root[fx] = fx if source is None else self.storage_of(source)
        return self._root[fx]

    def before(self, fx: Any) -> list[Any]:
        """Nodes that must stay before this one; notes what this one reads and writes."""
        found: list[Any] = []
        written = torch_api.written_arguments(fx)
        for argument in written:
            root = self.storage_of(argument)
            found += self._reads.pop(root, [])
            if root in self._write:
                found.append(self._write[root])
            self._write[root] = fx
        for argument in fx.all_input_nodes:
            root = self.storage_of(argument)
            if argument in written:
                continue
            if root in self._write and self._write[root] is not fx:
                found.append(self._write[root])
            self._reads.setdefault(root, []).append(fx)
        if torch_api.has_other_effects(fx):
            if self._last is not None:
                found.append(self._last)
            self._last = fx
        return found
