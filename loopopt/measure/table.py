"""Measured durations by key, of all ranks: transfer times of matched collectives, durations of compute operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopopt.measure import naming
from loopopt.measure.breakdown import NS_PER_US
from loopopt.measure.fit import fit_regimes
from loopopt.measure.intervals import Times
from loopopt.measure.matching import Matched
from loopopt.measure.samples import Samples
from loopopt.timing import CollectiveCurve, Duration
from loopopt.traces import ProcessGroup

MAX_KEYS = 4000
"""Compute keys kept, those that take most time first: the table travels to every rank."""

MAX_SIBLINGS = 8
"""Groups of one description and size with a curve of each their own; more share one, for the same reason."""

MAX_FITTED = 4000
"""Collectives that a line is fitted to; of more, evenly spaced ones by size."""

_NOT_IN_TABLE = frozenset({naming.UNKNOWN_KIND, "barrier", "send", "recv", "send_recv"})


@dataclass(frozen=True, order=True, slots=True)
class CurveKey:
    """What one curve is for."""

    kind: str
    group: str
    group_size: int
    dtype: str
    topology: str


@dataclass(frozen=True, eq=False, slots=True)
class CurveSamples:
    """Matched collectives of one curve, each int64 (n,): bytes, and last arrival to last completion in ns."""

    key: CurveKey
    message_bytes: Times
    transfer_ns: Times


def curve_samples(
    matched: Sequence[Matched], groups: Mapping[str, ProcessGroup], hosts: Mapping[int, str]
) -> list[CurveSamples]:
    """Sort matched collectives to the curves they belong to.

    Args:
        groups: process groups by name, for their descriptions.
        hosts: host of each rank, "" if unknown.
    """
    siblings: dict[tuple[str, int], set[str]] = defaultdict(set)
    for match in matched:
        known = groups.get(match.group.name)
        if known is not None and known.description:
            siblings[(known.description, match.group.size)].add(match.group.name)
    found: dict[CurveKey, list[tuple[Times, Times]]] = defaultdict(list)
    for match in matched:
        if match.kind in _NOT_IN_TABLE or match.group.size < 2:
            continue
        known = groups.get(match.group.name)
        many = known is not None and len(siblings.get((known.description, match.group.size), ())) > MAX_SIBLINGS
        name = "" if many else match.group.name
        where = topology_of(match.group.members, hosts)
        for number, dtype in enumerate(match.dtypes):
            use = match.chosen & (match.dtype == number) & (match.message_bytes > 0)
            if use.any():
                key = CurveKey(match.kind, name, match.group.size, dtype, where)
                found[key].append((match.message_bytes[use], match.completion_ns[use]))
    return [
        CurveSamples(key, *(np.concatenate([part[i] for part in parts]) for i in (0, 1)))
        for key, parts in sorted(found.items())
    ]


def topology_of(members: Sequence[int], hosts: Mapping[int, str]) -> str:
    """ "local" if all members are on one host, "cross-host" if not, "" if a host is unknown."""
    names = {hosts.get(rank, "") for rank in members}
    if "" in names:
        return ""
    return "local" if len(names) == 1 else "cross-host"


def curve_of(samples: CurveSamples) -> CollectiveCurve:
    """Medians by size, and lines fitted to all samples."""
    key = samples.key
    order = np.argsort(samples.message_bytes, kind="stable")
    sizes, times = samples.message_bytes[order], samples.transfer_ns[order]
    distinct, first = np.unique(sizes, return_index=True)
    few = np.linspace(0, len(sizes) - 1, min(len(sizes), MAX_FITTED)).round().astype(np.intp)
    return CollectiveCurve(
        kind=key.kind,
        group=key.group,
        group_size=key.group_size,
        sizes=tuple(distinct.tolist()),
        durations=tuple(summarize(part) for part in np.split(times, first[1:])),
        dtype=key.dtype,
        topology=key.topology,
        regimes=fit_regimes(sizes[few], times[few] / NS_PER_US),
    )


def summarize(samples_ns: NDArray[np.int64] | Sequence[int], count: int | None = None) -> Duration:
    """Count, median and half the interquartile range, in microseconds to the nanosecond."""
    low, middle, high = np.percentile(np.asarray(samples_ns, np.float64), (25, 50, 75)) / NS_PER_US
    number = len(samples_ns) if count is None else count
    return Duration(number, round(float(middle), 3), round(float(high - low) / 2, 3))


def durations(of_ranks: Iterable[Mapping[str, Samples]], most: int = MAX_KEYS) -> dict[str, Duration]:
    """All ranks' samples as one summary per key; of many keys those that take most time."""
    merged: dict[str, list[Samples]] = defaultdict(list)
    for of_rank in of_ranks:
        for key, samples in of_rank.items():
            merged[key].append(samples)
    chosen = sorted(merged, key=lambda k: (-sum(s.total_ns for s in merged[k]), k))[:most]
    return {
        key: summarize(np.concatenate([s.kept_ns for s in merged[key]]), sum(s.count for s in merged[key]))
        for key in sorted(chosen)
    }
