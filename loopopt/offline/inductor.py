"""A timing table as the Chrome trace that Inductor's own profile-guided estimator reads.

PyTorch has an estimator that takes durations from a profile
(`torch._inductor.config.aten_distributed_optimizations.profile_guided_estimations_profile_path`). Given one rank's
profile it takes raw kernel durations, waiting for peers included. Given this one it finds transfer times measured
across ranks, at every message size where the line between two points would be off otherwise, and median durations
of operators.

What it looks for (torch 2.13):

    collective   kernel event with "Collective name", the group's ranks, the *output* elements of a rank, and the
                 element type. Sizes in between: a straight line in log(elements), log(duration). Far beyond the
                 largest: the group's best bandwidth.
    operator     `cpu_op` event with shapes, strides and types of its inputs; its duration is that of the kernels
                 with the same "External id". Exact matches only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log, prod, sqrt
from typing import Any

from loopopt.offline.tablefile import TableFile
from loopopt.timing import CollectiveCurve, Duration, TimingTable

LARGEST_BYTES = 16 << 30
"""Largest message that durations are written for; beyond the estimator uses a bandwidth."""

ACCURACY = 0.005
"""How far the estimator's line between two written sizes may be from the table's answer."""

_MOST_POINTS = 400
_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")

# Element types: PyTorch's name -> (the collective's name for it, the profiler's, bytes).
_TYPES = {
    "float32": ("Float", "float", 4),
    "float64": ("Double", "double", 8),
    "float16": ("Half", "c10::Half", 2),
    "bfloat16": ("BFloat16", "c10::BFloat16", 2),
    "int64": ("Long", "long int", 8),
    "int32": ("Int", "int", 4),
    "int16": ("Short", "int16", 2),
    "int8": ("Char", "signed char", 1),
    "uint8": ("Byte", "unsigned char", 1),
    "bool": ("Bool", "bool", 1),
    "complex64": ("ComplexFloat", "c10::complex<float>", 8),
    "complex128": ("ComplexDouble", "c10::complex<double>", 16),
}
_USUAL_TYPES = ("float32", "bfloat16", "float16")

# Operators whose inputs are matrices that come transposed as often as not.
_MATRICES = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::_int_mm"})
_ATTENTION = "aten::_scaled_dot_product"


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile for Inductor.

    Attributes:
        content: the trace as JSON values; it also holds the table file, so that it can be imported again.
        collectives: (kind, group, element type) combinations in it.
        operators: operator durations in it.
        notes: what of the table it cannot say, one sentence each.
    """

    content: dict[str, Any]
    collectives: int
    operators: int
    notes: tuple[str, ...]


def profile(file: TableFile) -> Profile:
    """Write a table down as a profile."""
    notes: list[str] = []
    groups = _groups(file)
    clock = _Clock()
    events: list[dict[str, Any]] = []
    written: set[tuple[str, ...]] = set()
    for key, event in _collective_events(file.table, groups, notes):
        written.add(key)
        events.append(clock.placed(event))
    operators = 0
    for op_events in _operator_events(file.table, notes):
        operators += 1
        events.extend(clock.placed(e) for e in op_events)
    for name, durations in (("isolated durations", file.table.isolated), ("compiled regions", file.table.regions)):
        if durations:
            notes.append(f"{len(durations)} {name} are left out: Inductor's estimator knows operators only.")
    content = {
        "schemaVersion": 1,
        **file.to_json(),
        "distributedInfo": {
            "pg_config": [
                {"pg_name": f"loopopt_{i}", "pg_desc": name, "pg_size": len(ranks), "ranks": list(ranks)}
                for i, (name, ranks) in enumerate(groups)
            ]
        },
        "traceEvents": events,
    }
    return Profile(content, len(written), operators, tuple(notes))


class _Clock:
    """Puts one event after the other, so that a viewer shows them side by side."""

    def __init__(self) -> None:
        self._now = 0.0

    def placed(self, event: dict[str, Any]) -> dict[str, Any]:
        event["ts"] = self._now
        if event["cat"] == "kernel":
            self._now += event["dur"] + 1.0
        return event


def _groups(file: TableFile) -> list[tuple[str, tuple[int, ...]]]:
    """(name, ranks) of the groups whose ranks are known, each set of ranks and name once."""
    found = {(g.name, g.ranks): None for g in file.groups if len(g.ranks) > 1}
    # A job's table says "world_size", one from traces "world".
    world = file.table.fingerprint.get("world_size") or file.table.fingerprint.get("world", "")
    if world.isdecimal() and 1 < int(world) <= 1 << 20:
        everybody = tuple(range(int(world)))
        if everybody not in {ranks for _, ranks in found}:
            named = {c.group for c in file.table.collectives if c.group_size == len(everybody)}
            # If the job's table shows one group of that size, that is the one.
            found[(named.pop() if len(named) == 1 else "", everybody)] = None
    return list(found)


def _collective_events(
    table: TimingTable, groups: Sequence[tuple[str, tuple[int, ...]]], notes: list[str]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    used: set[int] = set()
    done: set[tuple[str, tuple[int, ...], str]] = set()
    for place, (name, ranks) in enumerate(groups):
        for kind in _KINDS:
            for dtype, curve in _curves(table, kind, name, len(ranks)):
                used.add(id(curve))
                if dtype not in _TYPES:
                    notes.append(f"{kind} of {dtype}: left out, Inductor's estimator has no such element type.")
                    continue
                if (kind, ranks, dtype) in done:
                    continue
                done.add((kind, ranks, dtype))
                for event in _points_of(curve, kind, dtype, f"loopopt_{place}", len(ranks)):
                    yield (kind, str(place), dtype), event
    for curve in table.collectives:
        if curve.kind not in _KINDS:
            notes.append(f"{curve.kind} on group {curve.group or '-'}: left out, Inductor's estimator does not ask.")
        elif id(curve) not in used:
            notes.append(
                f"{curve.kind} on group {curve.group or '-'} of {curve.group_size}: left out, Inductor's estimator "
                "matches groups by their ranks, and the table does not tell those (build it from traces)."
            )


def _curves(table: TimingTable, kind: str, group: str, size: int) -> list[tuple[str, CollectiveCurve]]:
    """(element type, curve) that the table answers with for a group; all usual types where it tells none."""
    fitting = [c for c in table.collectives if c.kind == kind and c.sizes]
    mine = [c for c in fitting if c.group and c.group == group] or [c for c in fitting if c.group_size == size]
    known = {c.dtype for c in mine if c.dtype}
    if any(not c.dtype for c in mine):
        known |= set(_USUAL_TYPES)
    found = []
    for dtype in sorted(known):
        same = [c for c in mine if c.dtype == dtype] or [c for c in mine if not c.dtype]
        found.append((dtype, max(same, key=lambda c: sum(d.count for d in c.durations))))
    return found


def _points_of(curve: CollectiveCurve, kind: str, dtype: str, group: str, size: int) -> Iterator[dict[str, Any]]:
    """Kernel events of one curve: at measured sizes, and where else a line between them would be wrong."""
    spelled, _, width = _TYPES[dtype]
    # A reduce-scatter's message is its input; the estimator counts a rank's output.
    step = width * (size if kind == "reduce_scatter" else 1)
    measured = {s // step: d for s, d in zip(curve.sizes, curve.durations, strict=True) if s // step}

    def at(elements: int) -> float:
        return max(curve.at(elements * step), 1e-3)

    for elements in _refined(at, sorted({1, *measured, LARGEST_BYTES // step})):
        found: Duration | None = measured.get(elements)
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": f"loopopt: {kind}",
            "pid": 0,
            "tid": group,
            "dur": round(at(elements), 6),
            "args": {
                "Collective name": kind,
                "Process Group Name": group,
                "Group size": size,
                "In msg nelems": elements // size if kind == "all_gather" else elements * step // width,
                "Out msg nelems": elements,
                "dtype": spelled,
                "samples": found.count if found else 0,
            },
        }


def _refined(at: Any, elements: list[int]) -> list[int]:
    """Add sizes until a straight line in (log size, log duration) between neighbours is good everywhere."""
    done = elements[:1]
    todo = elements[:0:-1]
    while todo:
        left, right = done[-1], todo[-1]
        middle = round(sqrt(left * right))
        if left < middle < right and len(done) + len(todo) < _MOST_POINTS:
            share = log(middle / left) / log(right / left)
            line = at(left) ** (1 - share) * at(right) ** share
            if abs(line / at(middle) - 1) > ACCURACY:
                todo.append(middle)
                continue
        done.append(todo.pop())
    return done


# ---------------------------------------------------------------- operators


def _operator_events(table: TimingTable, notes: list[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(operator, kernel) events, one pair for each layout of the inputs."""
    layouts: dict[tuple[str, str, str], dict[str, Duration]] = {}
    unusable: dict[str, int] = {}
    for key, duration in table.compute.items():
        parts = key.split("|")
        if len(parts) < 3 or parts[2] not in _TYPES or duration.median_us <= 0:
            what = parts[2] if len(parts) > 2 and parts[2] not in _TYPES else parts[0]
            unusable[what] = unusable.get(what, 0) + 1
            continue
        layouts.setdefault((parts[0], parts[1], parts[2]), {})[parts[3] if len(parts) > 3 else ""] = duration
    if unusable:
        listed = ", ".join(f"{what} ({count})" for what, count in sorted(unusable.items()))
        notes.append(f"operators left out, of element types that Inductor's estimator does not know: {listed}.")
    number = itertools.count(1)
    for (name, shapes, dtype), known in sorted(layouts.items()):
        dims = json.loads(shapes)
        strided = {strides: duration for strides, duration in known.items() if strides}
        anyhow = known.get("")
        if anyhow is not None:
            for layout in _usual_layouts(name, dims):
                strided.setdefault(json.dumps(layout, separators=(",", ":")), anyhow)
        for strides, duration in sorted(strided.items()):
            yield _operator(next(number), name, dims, json.loads(strides), dtype, duration)


def _operator(
    number: int, name: str, dims: list[list[int]], strides: list[list[int]], dtype: str, duration: Duration
) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {"ph": "X", "dur": duration.median_us}
    kinds = [_TYPES[dtype][1]] * len(dims)
    operator = {
        **common,
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "args": {"External id": number, "Input Dims": dims, "Input Strides": strides, "Input type": kinds},
    }
    kernel = {
        **common,
        "cat": "kernel",
        "name": f"loopopt: {name}",
        "pid": 0,
        "tid": "compute",
        "args": {"External id": number, "samples": duration.count},
    }
    return operator, kernel


def _usual_layouts(name: str, dims: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Strides of the inputs that a duration measured over all of them is written for."""
    plain = [_contiguous(d) for d in dims]
    if name in _MATRICES:
        choices = [[s, _swapped(d, -1, -2)] if len(d) > 1 else [s] for d, s in zip(dims, plain, strict=True)]
        return _distinct(list(map(list, itertools.product(*choices))))
    if name.startswith(_ATTENTION) and all(len(d) == 4 for d in dims[:3]):
        # (batch, heads, tokens, width) is a view of (batch, tokens, heads, width) in most models.
        return _distinct([plain, [_swapped(d, 1, 2) if len(d) == 4 else s for d, s in zip(dims, plain, strict=True)]])
    return [plain]


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _swapped(shape: Sequence[int], a: int, b: int) -> list[int]:
    """Strides of a view of this shape on a tensor in which the two dimensions are stored the other way round."""
    stored = list(shape)
    stored[a], stored[b] = stored[b], stored[a]
    strides = _contiguous(stored)
    strides[a], strides[b] = strides[b], strides[a]
    return strides


def _distinct(layouts: Iterable[list[list[int]]]) -> list[list[list[int]]]:
    found: list[list[list[int]]] = []
    for layout in layouts:
        if layout not in found:
            found.append(layout)
    return found
