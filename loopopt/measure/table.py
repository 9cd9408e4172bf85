"""Measured durations by key: transfer times of matched collectives, durations of compute operators."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from loopopt.measure import naming
from loopopt.measure.activity import Activity, rows_named
from loopopt.measure.breakdown import NS_PER_US
from loopopt.measure.instances import Instance
from loopopt.measure.intervals import Times
from loopopt.measure.matching import Matching
from loopopt.measure.nesting import Rows, enclosing, outermost
from loopopt.timing import CollectiveCurve, Duration, compute_key
from loopopt.traces import NO_ID, Category, RankTrace, Signature

MAX_KEYS = 4000
"""Compute keys kept, those that take most time first: the table travels to every rank."""

# Tensor arguments of operators whose out-variant shows its result as one more input, as compiled code calls them.
_TENSOR_ARGUMENTS = {
    "aten::mm": 2,
    "aten::bmm": 2,
    "aten::mv": 2,
    "aten::dot": 2,
    "aten::_int_mm": 2,
    "aten::addmm": 3,
    "aten::addmv": 3,
    "aten::addbmm": 3,
    "aten::baddbmm": 3,
}

# Views and bare allocations do no work; what they take in eager mode says nothing about compiled code.
_FREE = re.compile(
    r"aten::("
    r"alias|as_strided|as_strided_|chunk|detach|detach_|diagonal|empty|empty_like|empty_strided|expand|"
    r"expand_as|item|lift_fresh|narrow|permute|requires_grad_|reshape|resize_|result_type|select|slice|split|"
    r"split_with_sizes|squeeze|squeeze_|swapaxes|t|transpose|transpose_|unbind|unfold|_unsafe_view|unsqueeze|"
    r"unsqueeze_|view|view_as"
    r")"
)

_NOT_IN_TABLE = frozenset({naming.UNKNOWN_KIND, "barrier", "send", "recv", "send_recv"})


def summarize(samples_ns: Sequence[int]) -> Duration:
    """Count, median and half the interquartile range, in microseconds to the nanosecond."""
    low, middle, high = np.percentile(np.asarray(samples_ns, np.float64), (25, 50, 75)) / NS_PER_US
    return Duration(len(samples_ns), round(float(middle), 3), round(float(high - low) / 2, 3))


def collective_curves(instances: Mapping[int, Sequence[Instance]], matching: Matching) -> tuple[CollectiveCurve, ...]:
    """Transfer time (last arrival to last completion) by message size for each (kind, group, group size)."""
    samples: dict[tuple[str, str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for match in matching.matches:
        its = [instances[rank][index] for rank, index in match.places]
        first = its[0]
        size = max(it.message_bytes for it in its)
        if size and first.kind not in _NOT_IN_TABLE and first.group_size > 1:
            samples[(first.kind, first.group, first.group_size)][size].append(match.completion_ns)
    return tuple(
        CollectiveCurve(
            kind=kind,
            group=group,
            group_size=group_size,
            sizes=tuple(sorted(by_size)),
            durations=tuple(summarize(by_size[size]) for size in sorted(by_size)),
        )
        for (kind, group, group_size), by_size in sorted(samples.items())
    )


def compute_samples(trace: RankTrace, activity: Activity) -> dict[str, list[int]]:
    """Durations (ns) of outermost `aten` operators on the threads that run the step, by `compute_key`.

    On a GPU rank an operator lasts as long as the kernels launched inside it, summed; one that launched none is
    left out. Operators inside a collective's launch are part of that collective.
    """
    operators = rows_named(
        trace, lambda n: n.startswith("aten::") or naming.LAUNCH.fullmatch(n) is not None, Category.OPERATOR
    )
    if not activity.on_device:
        operators = operators[np.isin(trace.thread[operators], activity.step_threads)]
    operators = outermost(trace, operators)
    durations = _kernel_time(trace, operators) if activity.on_device else trace.duration_ns[operators]
    samples: dict[str, list[int]] = defaultdict(list)
    keys: dict[tuple[int, int], str | None] = {}
    for row, duration in zip(operators.tolist(), durations.tolist(), strict=True):
        place = (int(trace.name[row]), int(trace.signature[row]))
        if place not in keys:
            name = trace.names[place[0]]
            known = place[1] != NO_ID and name.startswith("aten::") and not _FREE.fullmatch(name)
            keys[place] = key_of(name, trace.signatures[place[1]]) if known else None
        key = keys[place]
        if key is not None and duration > 0:
            samples[key].append(duration)
    return samples


def compute_durations(samples: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Duration]:
    """All ranks' samples as one summary per key."""
    merged: dict[str, list[int]] = defaultdict(list)
    for of_rank in samples:
        for key, values in of_rank.items():
            merged[key].extend(values)
    chosen = sorted(merged, key=lambda k: (-sum(merged[k]), k))[:MAX_KEYS]
    return {key: summarize(merged[key]) for key in sorted(chosen)}


def key_of(operator: str, signature: Signature) -> str | None:
    """Key of an operator, None if no tensor of known type goes in."""
    shapes: list[tuple[int, ...]] = []
    dtype = ""
    for kind, argument in zip(signature.types, signature.shapes, strict=True):
        tensors = [shape for shape in argument if shape]
        if tensors and not dtype:
            dtype = kind
        shapes.extend(tensors)
    if not shapes or dtype in ("", "?", "TensorList"):
        return None
    return compute_key(operator, shapes[: _TENSOR_ARGUMENTS.get(operator)], naming.dtype_name(dtype))


def _kernel_time(trace: RankTrace, operators: Rows) -> Times:
    """Summed duration of the compute kernels launched inside each operator, ns."""
    total = np.zeros(len(operators), np.int64)
    kernels = np.flatnonzero((trace.category == Category.KERNEL) & (trace.correlation > 0))
    kernels = kernels[~np.isin(kernels, rows_named(trace, naming.COMMUNICATION_KERNEL.search, Category.KERNEL))]
    calls = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation > 0))
    if not len(kernels) or not len(calls) or not len(operators):
        return total
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    ids = trace.correlation[calls]
    place = np.minimum(np.searchsorted(ids, trace.correlation[kernels]), len(ids) - 1)
    linked = ids[place] == trace.correlation[kernels]
    kernels, call = kernels[linked], calls[place[linked]]
    owner = enclosing(trace, operators, trace.thread[call], trace.start_ns[call])
    index = np.full(len(trace), -1, np.intp)
    index[operators] = np.arange(len(operators))
    inside = owner >= 0
    np.add.at(total, index[owner[inside]], trace.duration_ns[kernels[inside]])
    return total
