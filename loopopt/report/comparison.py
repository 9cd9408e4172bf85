"""Two analyses side by side: per quantity the medians, the change, and whether it is beyond noise.

Samples are steps: a step's value is its median over ranks. Ranks of one step wait for each other, so they are not
samples of their own. Nothing is assumed about the distribution: the difference of the medians comes with the
Mann-Whitney interval of the pairwise differences, and is beyond noise if that interval does not hold zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray

from loopopt.analysis import Points, RunAnalysis
from loopopt.measurement import Breakdown
from loopopt.report.analysis_rows import step_rows
from loopopt.timing import CollectiveCurve, Duration, TimingTable

LEAST_SAMPLES = 4
"""With fewer on a side, no order of the samples is unlikely enough to mean anything."""
_CONFIDENCE = 0.95
_MOST_SAMPLES = 400
_EXACT_UP_TO = 40
_TABLE_DEVIATIONS = 4.0
"""A timing table has many keys: with fewer standard errors, some would differ by chance."""

BEYOND = "beyond noise"
WITHIN = "within noise"
TOO_FEW_STEPS = "too few steps to tell"
TOO_FEW = "too few samples to tell"
NO_SAMPLES = "one sum per trace: no noise known"
ONE_SIDE = "only on one side"

_STEP = (
    ("step time", "span_us"),
    ("compute", "compute_us"),
    ("communication", "communication_us"),
    ("exposed", "exposed_us"),
    ("memcpy", "memcpy_us"),
    ("idle", "idle_us"),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """One side's samples: median, quartiles, and how many."""

    median: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity on both sides.

    Attributes:
        name: "exposed", or "all_reduce: transfer".
        unit: "us", or "gbps" (gigabytes, 1e9, a second).
        before, after: None where the side does not have it.
        change: (after - before) / before, None without either or from nothing.
        change_low, change_high: 95 % interval of `change`, None if no interval can be told.
        verdict: one of the constants of this module.
    """

    name: str
    unit: str
    before: Spread | None
    after: Spread | None
    change: float | None
    change_low: float | None
    change_high: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes.

    Attributes:
        before, after: names of the two runs.
        steps: per step.
        collectives: per kind of collective, all groups together.
        table: entries of the timing tables that changed beyond noise, the largest share first.
        table_compared: entries that both tables have.
        remarks: what makes the two hard to compare, one sentence each.
    """

    before: str
    after: str
    steps: tuple[Change, ...]
    collectives: tuple[Change, ...]
    table: tuple[Change, ...]
    table_compared: int
    remarks: tuple[str, ...]


def compare_runs(before: RunAnalysis, after: RunAnalysis) -> Comparison:
    """Compare two runs; neither has to be of the same length, nor of the same job."""
    table, compared = _tables(before.measurement.table, after.measurement.table)
    return Comparison(
        before=before.name,
        after=after.name,
        steps=_per_step(before, after),
        collectives=_per_kind(before, after),
        table=table,
        table_compared=compared,
        remarks=_remarks(before, after),
    )


def difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of how much larger the values of `after` are; None if there are too few to tell.

    All pairwise differences are sorted and as many cut off at each end as chance alone would put there.

    >>> difference([10, 11, 12, 13], [20, 21, 22, 23])
    (7.0, 13.0)
    >>> difference([10, 11, 12], [20, 21, 22]) is None
    True
    """
    if min(len(before), len(after)) < LEAST_SAMPLES:
        return None
    first = np.asarray(before[-_MOST_SAMPLES:], dtype=np.float64)
    second = np.asarray(after[-_MOST_SAMPLES:], dtype=np.float64)
    pairs = np.sort((second[:, None] - first[None, :]).ravel())
    cut = _pairs_to_cut(first.size, second.size)
    return (float(pairs[cut - 1]), float(pairs[-cut])) if cut else None


def spread_of(values: Sequence[float]) -> Spread | None:
    """Median and quartiles; None for no values."""
    if not values:
        return None
    low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), [0.25, 0.5, 0.75])
    return Spread(float(middle), float(low), float(high), len(values))


def _per_step(before: RunAnalysis, after: RunAnalysis) -> tuple[Change, ...]:
    sides = [[row.median for row in step_rows(run)] for run in (before, after)]
    if not all(sides):
        # Without step marks on one of them only whole windows are alike.
        sides = [[_window(run)] if run.measurement.ranks else [] for run in (before, after)]
        names = [(f"whole trace: {name.replace('step time', 'span')}", field) for name, field in _STEP]
    else:
        names = list(_STEP)
    return tuple(
        change(name, "us", *([getattr(b, field) for b in side] for side in sides), few=TOO_FEW_STEPS)
        for name, field in names
    )


def _window(run: RunAnalysis) -> Breakdown:
    totals = [rank.total for rank in run.measurement.ranks]
    return Breakdown(**{f: median(getattr(t, f) for t in totals) for f in Breakdown.__dataclass_fields__})


def change(name: str, unit: str, before: Sequence[float], after: Sequence[float], *, few: str = TOO_FEW) -> Change:
    """One quantity from its samples on each side.

    Args:
        name, unit: as in `Change`.
        before, after: samples; none if the side does not have the quantity.
        few: the verdict if there are too few of them.
    """
    first, second = spread_of(before), spread_of(after)
    if first is None or second is None:
        return Change(name, unit, first, second, None, None, None, ONE_SIDE if first or second else few)
    found = difference(before, after)
    verdict = few if found is None else BEYOND if found[0] > 0 or found[1] < 0 else WITHIN
    if first.median <= 0:
        return Change(name, unit, first, second, None, None, None, verdict)
    share = second.median / first.median - 1
    if found is None:
        return Change(name, unit, first, second, share, None, None, verdict)
    # The median of the differences lies inside; the difference of the medians might not, and is what is shown.
    low, high = min(found[0] / first.median, share), max(found[1] / first.median, share)
    return Change(name, unit, first, second, share, low, high, verdict)


@dataclass(slots=True)
class _Kind:
    """Sums of one kind over all groups of a run; per collective and rank they compare even if windows do not."""

    count: int = 0
    exposed_us: float = 0.0
    skew_us: float = 0.0
    matched: int = 0
    matched_ranks: int = 0
    transfer_us: float = 0.0
    moved_gb: float = 0.0


def _kinds(run: RunAnalysis) -> dict[str, _Kind]:
    found: dict[str, _Kind] = {}
    for row in run.groups:
        kind = found.setdefault(row.kind, _Kind())
        kind.count += row.count
        kind.exposed_us += row.exposed_us
        kind.skew_us += row.skew_us
        kind.matched += row.matched
        kind.matched_ranks += row.matched * max(row.group_size, 1)
        kind.transfer_us += row.transfer_us
        if row.bus_gbps is not None:
            kind.moved_gb += row.bus_gbps * row.transfer_us * 1e-6
    return found


def _per_kind(before: RunAnalysis, after: RunAnalysis) -> tuple[Change, ...]:
    first, second = _kinds(before), _kinds(after)
    order = sorted({*first, *second}, key=lambda k: -sum(side[k].exposed_us for side in (first, second) if k in side))
    changes = []
    for kind in order:
        sides = (first.get(kind), second.get(kind))
        faster = _transfer_verdict(before.points, after.points, kind)
        exposed = [k.exposed_us / k.count if k and k.count else None for k in sides]
        skew = [k.skew_us / k.matched_ranks if k and k.matched_ranks else None for k in sides]
        transfer = [k.transfer_us / k.matched if k and k.matched else None for k in sides]
        bus = [k.moved_gb / (k.transfer_us * 1e-6) if k and k.transfer_us > 0 else None for k in sides]
        changes += [
            _from_sums(f"{kind}: transfer, mean", "us", transfer, faster),
            _from_sums(f"{kind}: skew, mean", "us", skew, NO_SAMPLES),
            _from_sums(f"{kind}: exposed, mean", "us", exposed, NO_SAMPLES),
            _from_sums(f"{kind}: bus bandwidth", "gbps", bus, faster),
        ]
    return tuple(c for c in changes if c.before is not None or c.after is not None)


def _from_sums(name: str, unit: str, values: Sequence[float | None], verdict: str) -> Change:
    """A quantity of which only one number is known on each side."""
    before, after = (Spread(v, v, v, 1) if v is not None else None for v in values)
    if before is None or after is None:
        return Change(name, unit, before, after, None, None, None, ONE_SIDE)
    share = after.median / before.median - 1 if before.median > 0 else None
    return Change(name, unit, before, after, share, None, None, verdict)


def _transfer_verdict(before: Sequence[Points], after: Sequence[Points], kind: str) -> str:
    """Are transfers of the same size on the same kind of group faster or slower beyond noise?

    Each size has its own level, which is divided out; then the sizes can be looked at together.
    """
    first, second = (_by_size(points, kind) for points in (before, after))
    left: list[float] = []
    right: list[float] = []
    for key in sorted(first.keys() & second.keys()):
        level = median([*first[key], *second[key]])
        if level > 0:
            left += [time_us / level for time_us in first[key]]
            right += [time_us / level for time_us in second[key]]
    if not left or not right:
        return "no message size in common"
    found = difference(left, right)
    if found is None:
        return TOO_FEW
    return BEYOND if found[0] > 0 or found[1] < 0 else WITHIN


def _by_size(points: Sequence[Points], kind: str) -> dict[tuple[int, int], list[float]]:
    found: dict[tuple[int, int], list[float]] = {}
    for one in points:
        if one.kind == kind:
            for size, time_us in zip(one.message_bytes, one.transfer_us, strict=True):
                found.setdefault((one.group_size, size), []).append(time_us)
    return found


def _tables(before: TimingTable, after: TimingTable) -> tuple[tuple[Change, ...], int]:
    """Entries of both tables that differ beyond noise, and how many both have."""
    first, second = _entries(before), _entries(after)
    common = first.keys() & second.keys()
    changed = [found for name in common if (found := _entry(name, first[name], second[name])) is not None]
    changed.sort(key=lambda c: (-abs(c.change or 0.0), c.name))
    return tuple(changed), len(common)


def _entries(table: TimingTable) -> dict[str, Duration]:
    found = {f"compute {key}": duration for key, duration in table.compute.items()}
    for curve in table.collectives:
        found.update(zip(_curve_names(curve), curve.durations, strict=True))
    return found


def _curve_names(curve: CollectiveCurve) -> list[str]:
    words = [curve.kind, f"group {curve.group}" if curve.group else "", f"{curve.group_size} ranks", curve.dtype]
    label = ", ".join(word for word in words if word)
    return [f"{label}, {size:,} bytes" for size in curve.sizes]


def _entry(name: str, before: Duration, after: Duration) -> Change | None:
    """The change of one entry if it is beyond noise; only its summary is known, so by the error of a median."""
    if min(before.count, after.count) < LEAST_SAMPLES or before.median_us <= 0:
        return None
    error = math.hypot(_median_error(before), _median_error(after))
    if abs(after.median_us - before.median_us) <= max(_TABLE_DEVIATIONS * error, 1e-3):
        return None
    share = after.median_us / before.median_us - 1
    return Change(name, "us", _summary(before), _summary(after), share, None, None, BEYOND)


def _summary(d: Duration) -> Spread:
    return Spread(d.median_us, max(d.median_us - d.spread_us, 0.0), d.median_us + d.spread_us, d.count)


def _median_error(duration: Duration) -> float:
    """Standard error of a median, as of normal samples with that interquartile range."""
    return 1.2533 * (2 * duration.spread_us / 1.349) / math.sqrt(duration.count)


def _remarks(before: RunAnalysis, after: RunAnalysis) -> tuple[str, ...]:
    remarks = []
    if before.world_size != after.world_size:
        remarks.append(f"The jobs have {before.world_size} and {after.world_size} ranks.")
    seen = tuple(frozenset(rank.rank for rank in run.measurement.ranks) for run in (before, after))
    if seen[0] != seen[1]:
        remarks.append(f"Traces of {len(seen[0])} and {len(seen[1])} ranks are compared, not of the same ranks.")
    devices = tuple(sorted({f.device for f in run.files if f.device}) for run in (before, after))
    if all(devices) and devices[0] != devices[1]:
        remarks.append(f"The devices differ: {', '.join(devices[0])} and {', '.join(devices[1])}.")
    shapes = tuple({(g.kind, g.group_size) for g in run.groups} for run in (before, after))
    if all(shapes) and shapes[0] != shapes[1]:
        remarks.append("The jobs do not use the same collectives on groups of the same size.")
    return tuple(remarks)


def _pairs_to_cut(n: int, m: int) -> int:
    """k, so that the interval runs from the k-th smallest to the k-th largest pair; 0 if nothing can be said."""
    tail = (1 - _CONFIDENCE) / 2
    if n + m <= _EXACT_UP_TO:
        return int(np.searchsorted(np.cumsum(_chances(n, m)), tail, side="right"))
    deviation = (n * m * (n + m + 1) / 12) ** 0.5
    return max(0, int(n * m / 2 + NormalDist().inv_cdf(tail) * deviation))


def _chances(n: int, m: int) -> NDArray[np.float64]:
    """P(U = 0), P(U = 1), ... of the Mann-Whitney statistic if both sides are alike.

    Samples are added one at a time: the largest of all n + m belongs to the first side with chance n / (n + m), and
    is then above all m of the other.
    """
    ways: dict[tuple[int, int], NDArray[np.float64]] = {}
    for i in range(n + 1):
        for j in range(m + 1):
            counts = np.zeros(n * m + 1)
            if not i or not j:
                counts[0] = 1.0
            else:
                counts[j:] += ways[i - 1, j][: counts.size - j]
                counts += ways[i, j - 1]
            ways[i, j] = counts
    return np.asarray(ways[n, m] / ways[n, m].sum())
