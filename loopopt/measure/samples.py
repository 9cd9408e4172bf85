"""Durations of compute operators and compiled regions on one rank, by key.

In situ and isolated durations are kept apart: beside a collective that takes memory bandwidth and cores, the same
matrix product runs up to 30-40 % slower. A run is isolated if no communication was in flight during any of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loopopt.measure import naming
from loopopt.measure.activity import Activity, rows_named
from loopopt.measure.intervals import Intervals, Times
from loopopt.measure.nesting import Rows, enclosing, outermost
from loopopt.timing import compute_key
from loopopt.traces import NO_ID, Category, RankTrace, Signature

MAX_UNKNOWN = 20
"""Names of uncovered compute kept for each rank."""

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

_GENERATED = re.compile(r"triton_|cpp_fused_")
"""Names that Inductor gives to the kernels it generates."""

_REGION = re.compile(r"## Call CompiledFxGraph (\w+) ##|(Torch-Compiled Region: \S+)")


@dataclass(frozen=True, eq=False, slots=True)
class Samples:
    """Durations of one key on one rank, nanoseconds.

    Attributes:
        count, total_ns: of all of them.
        kept_ns: int64, rising; all of them, or evenly spaced ones of many.
    """

    count: int
    total_ns: int
    kept_ns: Times


@dataclass(frozen=True, eq=False, slots=True)
class ComputeSamples:
    """What one rank's compute took.

    Attributes:
        in_situ: by `loopopt.timing.compute_key`.
        isolated: the same, of runs without communication in flight.
        regions: by compiled region: on a GPU rank the device time of the kernels launched in one run of it, on a
            CPU rank the compute time within it.
        total_ns, known_ns: device time of all compute kernels and of those that `in_situ` accounts for; on a CPU
            rank the compute time and the part of it inside operators that `in_situ` accounts for.
        unknown_ns: what makes up most of the difference, by name.
    """

    in_situ: Mapping[str, Samples] = field(default_factory=dict)
    isolated: Mapping[str, Samples] = field(default_factory=dict)
    regions: Mapping[str, Samples] = field(default_factory=dict)
    total_ns: int = 0
    known_ns: int = 0
    unknown_ns: Mapping[str, int] = field(default_factory=dict)


def compute_samples(
    trace: RankTrace, activity: Activity, within: Intervals | None = None, limit: int = 512
) -> ComputeSamples:
    """Durations of outermost operators on the threads that run the step.

    On a GPU rank an operator lasts as long as the kernels launched inside it, summed; one that launched none is
    left out. Operators inside a collective's launch are part of that collective.

    Args:
        within: only what begins in this set counts; everything by default.
        limit: durations kept for each key.
    """
    operators = _operators(trace, activity)
    regions = _regions(trace, activity)
    if within is not None:
        operators, regions = (rows[_begins(trace, rows, within)] for rows in (operators, regions))
    launched = _launched(trace, activity, within) if activity.on_device else None
    durations, beside = _durations(trace, activity, operators, launched)
    keys = _keys(trace, operators)
    in_situ: dict[str, list[int]] = defaultdict(list)
    isolated: dict[str, list[int]] = defaultdict(list)
    known = np.zeros(len(operators), bool)
    for index, (names, duration, overlap) in enumerate(zip(keys, durations.tolist(), beside.tolist(), strict=True)):
        if not names or duration <= 0:
            continue
        known[index] = True
        for key in names:
            in_situ[key].append(duration)
            if not overlap:
                isolated[key].append(duration)
    total, known_ns, unknown = _coverage(trace, activity, operators, known, launched, within)
    return ComputeSamples(
        in_situ={key: _kept(values, limit) for key, values in in_situ.items()},
        isolated={key: _kept(values, limit) for key, values in isolated.items()},
        regions=_region_samples(trace, activity, regions, launched, limit),
        total_ns=total,
        known_ns=known_ns,
        unknown_ns=unknown,
    )


def named_compute(trace: RankTrace, activity: Activity) -> Rows:
    """Rows that tell people what was computed, by start: compute kernels, or outermost operators on a CPU rank."""
    if activity.on_device:
        return _compute_kernels(trace, activity)
    rows = rows_named(trace, lambda n: n.startswith("aten::") or _GENERATED.match(n), Category.OPERATOR)
    return outermost(trace, rows[np.isin(trace.thread[rows], activity.step_threads)])


def key_of(operator: str, signature: Signature) -> str | None:
    """Key of an operator, None if no tensor of known type goes in."""
    shapes: list[tuple[int, ...]] = []
    strides: list[tuple[int, ...]] = []
    dtype = ""
    known = getattr(signature, "strides", ())
    for place, (kind, argument) in enumerate(zip(signature.types, signature.shapes, strict=True)):
        told = known[place] if place < len(known) and len(known[place]) == len(argument) else None
        for position, shape in enumerate(argument):
            if shape:
                dtype = dtype or kind
                shapes.append(shape)
                strides += [told[position]] if told is not None else []
    if not shapes or dtype in ("", "?", "TensorList"):
        return None
    if len(strides) != len(shapes):
        strides = []
    arguments = _TENSOR_ARGUMENTS.get(operator)
    return compute_key(operator, shapes[:arguments], naming.dtype_name(dtype), strides[:arguments])


# ---------------------------------------------------------------- operators


def _operators(trace: RankTrace, activity: Activity) -> Rows:
    def counts(name: str) -> bool:
        return name.startswith("aten::") or bool(_GENERATED.match(name)) or naming.LAUNCH.fullmatch(name) is not None

    rows = rows_named(trace, counts, Category.OPERATOR)
    if not activity.on_device:
        rows = rows[np.isin(trace.thread[rows], activity.step_threads)]
    return outermost(trace, rows)


def _keys(trace: RankTrace, operators: Rows) -> list[tuple[str, ...]]:
    """Keys of each operator: with any strides, and with its own where they are not contiguous."""
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    places = list(zip(trace.name[operators].tolist(), trace.signature[operators].tolist(), strict=True))
    for name, signature in set(places):
        text = trace.names[name]
        is_compute = not naming.LAUNCH.fullmatch(text) and not _FREE.fullmatch(text)
        key = key_of(text, trace.signatures[signature]) if is_compute and signature != NO_ID else None
        if key is None:
            found[(name, signature)] = ()
        else:
            plain = "|".join(key.split("|", 3)[:3])
            found[(name, signature)] = (key,) if key == plain else (plain, key)
    return [found[place] for place in places]


def _durations(
    trace: RankTrace, activity: Activity, operators: Rows, launched: tuple[Rows, Rows] | None
) -> tuple[Times, Times]:
    """(duration, time of it with communication in flight) of each operator, ns."""
    if launched is None:
        starts: Times = trace.start_ns[operators]
        durations: Times = trace.duration_ns[operators]
        return durations, activity.communication.within(starts, starts + durations)
    kernels, calls = launched
    owner = _owner(trace, operators, calls)
    durations, beside = np.zeros(len(operators), np.int64), np.zeros(len(operators), np.int64)
    inside = owner >= 0
    starts = trace.start_ns[kernels[inside]]
    lengths: Times = trace.duration_ns[kernels[inside]]
    np.add.at(durations, owner[inside], lengths)
    np.add.at(beside, owner[inside], activity.communication.within(starts, starts + lengths))
    return durations, beside


# ---------------------------------------------------------------- kernels and what launched them


def _compute_kernels(trace: RankTrace, activity: Activity) -> Rows:
    kernels = np.flatnonzero(trace.category == Category.KERNEL)
    return np.setdiff1d(kernels, activity.collective_rows, assume_unique=True)


def _launched(trace: RankTrace, activity: Activity, within: Intervals | None) -> tuple[Rows, Rows]:
    """Compute kernels that a runtime call in the trace launched, and those calls; same length."""
    kernels = _compute_kernels(trace, activity)
    kernels = kernels[trace.correlation[kernels] > 0]
    if within is not None:
        kernels = kernels[_begins(trace, kernels, within)]
    calls = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation > 0))
    if not len(kernels) or not len(calls):
        return kernels[:0], calls[:0]
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    ids = trace.correlation[calls]
    place = np.minimum(np.searchsorted(ids, trace.correlation[kernels]), len(ids) - 1)
    linked = ids[place] == trace.correlation[kernels]
    return kernels[linked], calls[place[linked]]


def _owner(trace: RankTrace, rows: Rows, calls: Rows) -> Rows:
    """Position in `rows` of the event that each call lies in, -1 if in none."""
    if not len(rows) or not len(calls):
        return np.full(len(calls), -1, np.intp)
    holder = enclosing(trace, rows, trace.thread[calls], trace.start_ns[calls])
    # Rows are sorted, so their positions can be looked up.
    return np.where(holder >= 0, np.searchsorted(rows, holder), -1)


def _begins(trace: RankTrace, rows: Rows, within: Intervals) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    starts: Times = trace.start_ns[rows]
    return within.within(starts, starts + 1) > 0


# ---------------------------------------------------------------- compiled regions


def _regions(trace: RankTrace, activity: Activity) -> Rows:
    rows = rows_named(trace, _REGION.search, Category.ANNOTATION, Category.OPERATOR)
    if not activity.on_device:
        rows = rows[np.isin(trace.thread[rows], activity.step_threads)]
    # A region of Dynamo holds the calls of its graphs; the graph's own name outlives a change of the frame.
    graphs = rows[[_REGION.search(trace.names[n]).group(1) is not None for n in trace.name[rows]]]  # type: ignore[union-attr]
    return outermost(trace, graphs if len(graphs) else rows)


def _region_samples(
    trace: RankTrace, activity: Activity, regions: Rows, launched: tuple[Rows, Rows] | None, limit: int
) -> dict[str, Samples]:
    if not len(regions):
        return {}
    if launched is None:
        starts: Times = trace.start_ns[regions]
        durations = activity.compute.within(starts, starts + trace.duration_ns[regions])
    else:
        kernels, calls = launched
        owner = _owner(trace, regions, calls)
        durations = np.zeros(len(regions), np.int64)
        np.add.at(durations, owner[owner >= 0], trace.duration_ns[kernels[owner >= 0]])
    found: dict[str, list[int]] = defaultdict(list)
    for name, duration in zip(trace.name[regions].tolist(), durations.tolist(), strict=True):
        match = _REGION.search(trace.names[name])
        if match is not None and duration > 0:
            found[f"CompiledFxGraph {match.group(1)}" if match.group(1) else match.group(2)].append(duration)
    return {key: _kept(values, limit) for key, values in found.items()}


# ---------------------------------------------------------------- coverage


def _coverage(
    trace: RankTrace,
    activity: Activity,
    operators: Rows,
    known: np.ndarray[tuple[int], np.dtype[np.bool_]],
    launched: tuple[Rows, Rows] | None,
    within: Intervals | None,
) -> tuple[int, int, dict[str, int]]:
    """(all compute, the part of it with a key, what makes up the rest), ns."""
    if launched is None:
        mine = operators[~_is_launch(trace, operators)]
        keyed = operators[known]
        total = activity.compute.length if within is None else _shared(activity.compute, within)
        known_ns = min(int(trace.duration_ns[keyed].sum()), total)
        rest = np.setdiff1d(mine, keyed, assume_unique=True)
        unknown = _by_name(trace, rest, trace.duration_ns[rest])
        between = total - known_ns - sum(unknown.values())
        if between > 0:
            unknown["between operators (generated code, Python)"] = between
        return total, known_ns, _longest(unknown)
    kernels = _compute_kernels(trace, activity)
    if within is not None:
        kernels = kernels[_begins(trace, kernels, within)]
    rows, calls = launched
    owner = _owner(trace, operators, calls)
    covered = rows[(owner >= 0) & known[np.maximum(owner, 0)]] if len(operators) else rows[:0]
    rest = np.setdiff1d(kernels, covered)
    total = int(trace.duration_ns[kernels].sum())
    unknown = _by_name(trace, rest, trace.duration_ns[rest])
    return total, int(trace.duration_ns[covered].sum()), _longest(unknown)


def _is_launch(trace: RankTrace, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    launches = np.array([naming.LAUNCH.fullmatch(n) is not None for n in trace.names], bool)
    return launches[trace.name[rows]] if len(rows) else np.zeros(0, bool)


def _shared(a: Intervals, b: Intervals) -> int:
    return int(a.within(b.starts, b.ends).sum())


def _by_name(trace: RankTrace, rows: Rows, durations: Times) -> dict[str, int]:
    total = np.zeros(len(trace.names), np.int64)
    np.add.at(total, trace.name[rows], durations)
    return {trace.names[i]: int(total[i]) for i in np.flatnonzero(total).tolist()}


def _longest(found: Mapping[str, int]) -> dict[str, int]:
    chosen = sorted(found, key=lambda n: (-found[n], n))[:MAX_UNKNOWN]
    return {name: found[name] for name in chosen}


def _kept(values: Sequence[int], limit: int) -> Samples:
    ordered = np.sort(np.array(values, np.int64))
    total = int(ordered.sum())
    if len(ordered) > limit:
        ordered = ordered[np.linspace(0, len(ordered) - 1, limit).round().astype(np.intp)]
    return Samples(len(values), total, ordered)
