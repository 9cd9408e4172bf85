"""A compiled graph as the planner sees it, and a schedule for it. Standard library only.

The agent reads a `Graph` off Inductor's post-grad FX graph at the point where the overlap scheduler runs, and
writes a `Schedule` back there. In between nothing knows PyTorch.

Nodes are named by their place in the graph as it was (0, 1, 2, ...): dependencies point to smaller numbers. Inputs,
constants and the output are no nodes. Units: microseconds and bytes, of one rank.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loopopt.errors import WireError

COMPUTE, START, WAIT, FREE = "compute", "start", "wait", "free"
"""Roles of nodes: runs a kernel; starts a collective; waits for one; costs nothing (views, tuple items)."""

_MOST_BYTES = 1 << 48
"""A value of more is no tensor's size but damage; so many still add up in 64 bits."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What a start node moves.

    Attributes:
        kind, group, group_size, dtype: as in `loopopt.timing`.
        input_bytes, output_bytes: of this rank's tensors.
        bucket_key: starts with the same key may be merged into one; "" if it cannot be merged.
    """

    kind: str
    group: str
    group_size: int
    input_bytes: int
    output_bytes: int
    dtype: str = ""
    bucket_key: str = ""

    @property
    def message_bytes(self) -> int:
        """The size the timing table goes by."""
        return max(self.input_bytes, self.output_bytes)


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        name: in the FX graph.
        role: COMPUTE, START, WAIT or FREE.
        inputs: nodes that must come first: data, and the order of reads and writes of one storage.
        key: `loopopt.timing.compute_key` of a compute node, "" otherwise.
        output_bytes: memory it allocates (a view: none).
        anchor: becomes a kernel of its own (a matmul, an attention), so that other nodes can be held before or
            after it; pointwise nodes are fused and cannot.
        estimate_us: the compiler's own estimate for a compute node.
        kept: its memory outlives the graph (an output).
        start: of a WAIT, the node it waits for; else -1.
        collective: of a START.
    """

    name: str
    role: str
    inputs: tuple[int, ...] = ()
    key: str = ""
    output_bytes: int = 0
    anchor: bool = False
    estimate_us: float = 0.0
    kept: bool = False
    start: int = -1
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """One compiled graph.

    Attributes:
        signature: the same on all ranks that run the same graph (group names and rank constants left out).
        nodes: in the order of the graph as it was.
        kind: "forward", "backward" or "inference".
    """

    signature: str
    nodes: tuple[Node, ...]
    kind: str = "inference"

    def starts(self) -> list[int]:
        """Nodes that start a collective, in order."""
        return [i for i, n in enumerate(self.nodes) if n.role == START]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return {"signature": self.signature, "kind": self.kind, "nodes": [_node_json(n) for n in self.nodes]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Graph:
        """Inverse of `to_json`.

        Raises:
            WireError: the value does not have the graph's form, or a node depends on a later one.
        """
        try:
            nodes = tuple(_node(n) for n in data["nodes"])
            graph = cls(str(data["signature"]), nodes, str(data.get("kind", "inference")))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as err:
            raise WireError(f"graph: not of the expected form ({err!r})") from err
        for i, node in enumerate(nodes):
            if any(not 0 <= j < i for j in node.inputs):
                raise WireError(f"graph: node {i} ({node.name}) depends on a node that is not before it")
            if node.role not in (COMPUTE, START, WAIT, FREE):
                raise WireError(f"graph: node {i} ({node.name}) has the unknown role {node.role!r}")
            moved = (node.collective.input_bytes, node.collective.output_bytes) if node.collective else ()
            if not all(0 <= size < _MOST_BYTES for size in (node.output_bytes, *moved)):
                raise WireError(f"graph: node {i} ({node.name}): no tensor has so many bytes")
            if not 0 <= node.estimate_us < math.inf:
                raise WireError(f"graph: node {i} ({node.name}): its estimate is not finite, or negative")
            if (node.role == START) != (node.collective is not None):
                raise WireError(f"graph: node {i} ({node.name}): a start, and only a start, has a collective")
            if node.role == WAIT and not (0 <= node.start < i and nodes[node.start].role == START):
                raise WireError(f"graph: node {i} ({node.name}) waits for no collective")
        return graph


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order for a graph's nodes, and buckets.

    Attributes:
        signature: of the graph it is for.
        order: every node once. The starts of a bucket stand together, and so do its waits.
        buckets: starts that are merged into one collective, at least two each.
    """

    signature: str
    order: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return {"signature": self.signature, "order": list(self.order), "buckets": [list(b) for b in self.buckets]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Schedule:
        """Inverse of `to_json`.

        Raises:
            WireError: the value does not have the schedule's form.
        """
        try:
            buckets = tuple(tuple(int(i) for i in bucket) for bucket in data["buckets"])
            return cls(str(data["signature"]), tuple(int(i) for i in data["order"]), buckets)
        except (KeyError, TypeError, ValueError, OverflowError) as err:
            raise WireError(f"schedule: not of the expected form ({err!r})") from err


def as_it_was(graph: Graph) -> Schedule:
    """The graph's own order."""
    return Schedule(graph.signature, tuple(range(len(graph.nodes))))


def waits_of(graph: Graph) -> dict[int, list[int]]:
    """Start -> the nodes that wait for it."""
    found: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if node.role == WAIT:
            found.setdefault(node.start, []).append(i)
    return found


def units_of(graph: Graph, buckets: Sequence[Sequence[int]]) -> list[int]:
    """Node -> its unit: nodes of a unit stay together. A unit is named by its first node.

    The starts of a bucket are one unit and its waits another; all other nodes are alone.
    """
    unit = list(range(len(graph.nodes)))
    waits = waits_of(graph) if buckets else {}
    for bucket in buckets:
        first = min(bucket)
        members = [w for start in bucket for w in waits.get(start, ())]
        for start in bucket:
            unit[start] = first
        for wait in members:
            unit[wait] = min(members)
    return unit


class Contracted(NamedTuple):
    """The graph of units.

    Attributes:
        unit: node -> its unit, as `units_of` gives it.
        users: unit -> units that need it, once for each dependency.
        missing: unit -> number of dependencies on other units.
    """

    unit: list[int]
    users: dict[int, list[int]]
    missing: dict[int, int]


def contract(graph: Graph, buckets: Sequence[Sequence[int]]) -> Contracted:
    """The graph with each bucket's starts, and its waits, drawn together."""
    unit = units_of(graph, buckets)
    users: dict[int, list[int]] = {u: [] for u in unit}
    missing = dict.fromkeys(unit, 0)
    for i, node in enumerate(graph.nodes):
        for j in node.inputs:
            if unit[j] != unit[i]:
                users[unit[j]].append(unit[i])
                missing[unit[i]] += 1
    return Contracted(unit, users, missing)


def lawful(graph: Graph, wish: Sequence[int], buckets: Sequence[Sequence[int]]) -> Schedule | None:
    """The order nearest to a wish that respects all dependencies and keeps buckets together.

    Args:
        graph: the graph.
        wish: every node once, in any order.
        buckets: starts to be merged.

    Returns:
        None if the buckets contradict the dependencies (one member needs another's result).
    """
    nodes = graph.nodes
    unit, users, missing = contract(graph, buckets)
    rank = [len(nodes)] * len(nodes)
    members: dict[int, list[int]] = {}
    for place, i in enumerate(wish):
        rank[unit[i]] = min(rank[unit[i]], place)
        members.setdefault(unit[i], []).append(i)
    ready = [(rank[u], u) for u, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, u = heapq.heappop(ready)
        order += members[u]
        for v in users[u]:
            missing[v] -= 1
            if not missing[v]:
                heapq.heappush(ready, (rank[v], v))
    if len(order) != len(nodes):
        return None
    return Schedule(graph.signature, tuple(order), tuple(sorted(tuple(sorted(b)) for b in buckets if len(b) > 1)))


def why_not(graph: Graph, schedule: Schedule) -> str:
    """Empty if the schedule can be carried out on the graph, else the first reason against it."""
    nodes = graph.nodes
    if schedule.signature != graph.signature:
        return f"it is for graph {schedule.signature}, not {graph.signature}"
    if sorted(schedule.order) != list(range(len(nodes))):
        return f"its order does not have each of the {len(nodes)} nodes once"
    taken: set[int] = set()
    for bucket in schedule.buckets:
        if len(bucket) < 2:
            return f"bucket {bucket} has fewer than two members"
        keys = set()
        for start in bucket:
            if not 0 <= start < len(nodes) or nodes[start].collective is None:
                return f"node {start} in a bucket starts no collective"
            if start in taken:
                return f"node {start} is in two buckets"
            taken.add(start)
            collective = nodes[start].collective
            keys.add(collective.bucket_key if collective else "")
        if len(keys) != 1 or "" in keys:
            return f"bucket {bucket} mixes collectives that cannot be merged"
    unit = units_of(graph, schedule.buckets)
    place = [0] * len(nodes)
    for at, i in enumerate(schedule.order):
        place[i] = at
    span: dict[int, list[int]] = {}
    for i in range(len(nodes)):
        span.setdefault(unit[i], []).append(place[i])
    for u, places in span.items():
        if max(places) - min(places) != len(places) - 1:
            return f"the bucket at node {u} is not together"
    for i, node in enumerate(nodes):
        for j in node.inputs:
            if unit[i] == unit[j]:
                return f"node {i} and node {j} are in one bucket, but one needs the other"
            if place[j] > place[i]:
                return f"node {i} stands before node {j}, which it needs"
    return ""


def _node_json(node: Node) -> dict[str, Any]:
    content: dict[str, Any] = {"name": node.name, "role": node.role, "inputs": list(node.inputs)}
    if node.key:
        content["key"] = node.key
    if node.output_bytes:
        content["bytes"] = node.output_bytes
    if node.anchor:
        content["anchor"] = True
    if node.estimate_us:
        content["estimate_us"] = round(float(node.estimate_us), 3)
    if node.kept:
        content["kept"] = True
    if node.start >= 0:
        content["start"] = node.start
    if node.collective is not None:
        c = node.collective
        content["collective"] = [c.kind, c.group, c.group_size, c.input_bytes, c.output_bytes, c.dtype, c.bucket_key]
    return content


def _node(content: dict[str, Any]) -> Node:
    c = content.get("collective")
    moves = Collective(str(c[0]), str(c[1]), int(c[2]), int(c[3]), int(c[4]), str(c[5]), str(c[6])) if c else None
    return Node(
        name=str(content["name"]),
        role=str(content["role"]),
        inputs=tuple(int(i) for i in content["inputs"]),
        key=str(content.get("key", "")),
        output_bytes=int(content.get("bytes", 0)),
        anchor=bool(content.get("anchor", False)),
        estimate_us=float(content.get("estimate_us", 0.0)),
        kept=bool(content.get("kept", False)),
        start=int(content.get("start", -1)),
        collective=moves,
    )
