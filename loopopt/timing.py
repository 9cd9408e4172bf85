"""The timing table: measured durations by key, and how an unseen size is answered.

Standard library only: the training process imports this module.

Keys
    collective   kind ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", ...),
                 group ("<process group name>" where the trace tells it, else "") and group size.
                 Each holds samples by *message bytes*: the larger of a rank's total input and total
                 output (the output of an all-gather, the input of a reduce-scatter).
    compute      `compute_key(op, shapes, dtype, strides)`, for example
                 ``aten::mm|[[512,256],[256,64]]|float32``: all runs of that op on those shapes; with strides that
                 are not contiguous added (``|[[256,1],[1,256]]``), those runs alone.

Units: microseconds and bytes. Unknown stays unknown: every lookup may answer None.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log2
from typing import Any

from loopopt.errors import WireError

_PRIOR_SAMPLES = 4.0
"""Samples that a fitted line counts for against the measured median at a size."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Summary of one key's samples.

    Attributes:
        count: number of samples.
        median_us: median duration, microseconds.
        spread_us: half the interquartile range, microseconds.
    """

    count: int
    median_us: float
    spread_us: float


@dataclass(frozen=True, slots=True)
class Regime:
    """A straight line that holds from one message size up to the next regime.

    Attributes:
        from_bytes: smallest message size it was fitted to.
        latency_us: intercept, microseconds, never negative.
        us_per_byte: slope, never negative; its inverse is the bandwidth in megabytes (1e6) a second.
        spread: half the interquartile range of the relative residuals: 0.1 stands for ten per cent either way.
        samples: collectives it was fitted to.
    """

    from_bytes: int
    latency_us: float
    us_per_byte: float
    spread: float
    samples: int

    def at(self, message_bytes: int) -> float:
        """Transfer time on the line, microseconds."""
        return self.latency_us + self.us_per_byte * message_bytes


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """Transfer time of one kind of collective on one group, by message size.

    Attributes:
        kind: "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", ...
        group: process group name, "" if the trace does not say.
        group_size: ranks in the group.
        sizes: message bytes, strictly rising.
        durations: transfer time at each size, same length as `sizes`.
        dtype: element type as PyTorch names it, "" if mixed or unknown.
        topology: "local" if all members are on one host, "cross-host", "" if unknown.
        regimes: fitted lines, by size; empty where too little was measured.
    """

    kind: str
    group: str
    group_size: int
    sizes: tuple[int, ...]
    durations: tuple[Duration, ...]
    dtype: str = ""
    topology: str = ""
    regimes: tuple[Regime, ...] = ()

    def at(self, message_bytes: int) -> float:
        """Transfer time in microseconds at a size.

        With fitted lines: the line of the size's regime, drawn towards the measured medians around it the more
        the more samples those have. Without: linear between measured sizes.

        Below the smallest size the line is followed down, but never below its latency nor below half of the
        smallest size's time; above the largest it is followed up, never at more than twice the bandwidth that
        the largest size showed.
        """
        sizes = self.sizes
        if self.regimes:
            low = max(self.regimes[0].latency_us, 0.5 * self._drawn(sizes[0]))
            if message_bytes <= sizes[0]:
                return max(low, self._drawn(message_bytes))
            if message_bytes <= sizes[-1]:
                return self._drawn(message_bytes)
            last = self._drawn(sizes[-1])
            slope = max(self.regimes[-1].us_per_byte, 0.5 * last / sizes[-1])
            return last + slope * (message_bytes - sizes[-1])
        times = [d.median_us for d in self.durations]
        if len(sizes) == 1:
            # One point cannot separate latency from bandwidth: scale what is above it, keep what is below.
            return times[0] * max(1.0, message_bytes / max(sizes[0], 1)) if message_bytes else times[0] * 0.5
        if message_bytes <= sizes[0]:
            slope = max(0.0, (times[1] - times[0]) / (sizes[1] - sizes[0]))
            return max(times[0] * 0.5, times[0] - slope * (sizes[0] - message_bytes))
        if message_bytes >= sizes[-1]:
            slope = max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
            return times[-1] + max(slope, 0.5 * times[-1] / sizes[-1]) * (message_bytes - sizes[-1])
        left, share = self._between(message_bytes)
        return times[left] + share * (times[left + 1] - times[left])

    def uncertainty_us(self, message_bytes: int) -> float:
        """Half the width of the range in which the middle half of transfers of a size are expected, microseconds.

        It grows by the relative spread of the nearest regime for every doubling beyond the measured sizes.
        Without fitted lines it is the spread of the nearest measured size.
        """
        sizes = self.sizes
        nearest = min(max(message_bytes, sizes[0]), sizes[-1])
        if not self.regimes:
            left, share = self._between(nearest) if len(sizes) > 1 else (0, 0.0)
            return self.durations[left + round(share)].spread_us
        big, small = max(message_bytes, nearest), max(min(message_bytes, nearest), 1)
        return self.at(message_bytes) * self._regime(message_bytes).spread * (1.0 + log2(max(big, 1) / small))

    def _regime(self, message_bytes: int) -> Regime:
        inside = [r for r in self.regimes if r.from_bytes <= message_bytes]
        return inside[-1] if inside else self.regimes[0]

    def _between(self, message_bytes: int) -> tuple[int, float]:
        """(index of the measured size at or below, share of the way to the next), for sizes within the range."""
        right = min(max(bisect_left(self.sizes, message_bytes), 1), len(self.sizes) - 1)
        left = right - 1
        return left, (message_bytes - self.sizes[left]) / (self.sizes[right] - self.sizes[left])

    def _drawn(self, message_bytes: int) -> float:
        """The line at a size times what the medians around it say of the line there."""
        line = self._regime(message_bytes).at(message_bytes)
        nearest = min(max(message_bytes, self.sizes[0]), self.sizes[-1])
        left, share = self._between(nearest) if len(self.sizes) > 1 else (0, 0.0)
        bent = self._bend(left) * (1.0 - share)
        return line * (bent + (self._bend(left + 1) * share if share else 0.0))

    def _bend(self, index: int) -> float:
        """Measured median over line at a measured size, drawn to 1 where the median is of few samples."""
        found = self.durations[index]
        line = self._regime(self.sizes[index]).at(self.sizes[index])
        if line <= 0.0 or found.median_us <= 0.0:
            return 1.0
        trust = found.count / (found.count + _PRIOR_SAMPLES)
        return float((found.median_us / line) ** trust)


@dataclass(frozen=True, slots=True)
class TimingTable:
    """All measured durations of a job, one content, one digest, the same on every rank.

    Attributes:
        collectives: curves, sorted by (kind, group, group_size).
        compute: `compute_key` -> duration in situ, with whatever ran beside it.
        fingerprint: hardware and software the numbers belong to ("world", "torch", "device", ...).
        isolated: `compute_key` -> duration of those runs during which no communication was in flight.
        regions: compiled region -> device time of the kernels it launched, per run of the region.
    """

    collectives: tuple[CollectiveCurve, ...] = ()
    compute: dict[str, Duration] = field(default_factory=dict)
    fingerprint: dict[str, str] = field(default_factory=dict)
    isolated: dict[str, Duration] = field(default_factory=dict)
    regions: dict[str, Duration] = field(default_factory=dict)

    def curve(self, kind: str, group: str, group_size: int, dtype: str = "") -> CollectiveCurve | None:
        """The curve that fits best; None if nothing like it was measured.

        The exact group is better than another of its size; within those the same element type is better than
        another, and then the curve with the most samples.
        """
        fitting = [
            c
            for c in self.collectives
            if c.kind == kind and c.sizes and ((c.group and c.group == group) or c.group_size == group_size)
        ]

        def merit(c: CollectiveCurve) -> tuple[bool, bool, int]:
            same_group = bool(c.group) and c.group == group
            return same_group, bool(dtype) and c.dtype == dtype, sum(d.count for d in c.durations)

        return max(fitting, key=merit, default=None)

    def collective_us(
        self, kind: str, group: str, group_size: int, message_bytes: int, dtype: str = ""
    ) -> float | None:
        """Transfer time, microseconds, from the curve that fits best (see `curve`); None if never measured."""
        found = self.curve(kind, group, group_size, dtype)
        return found.at(message_bytes) if found is not None else None

    def compute_us(self, key: str) -> float | None:
        """Median duration of a compute op in situ, microseconds; None if never measured.

        A key with strides that was not measured is answered by the same op with any strides.
        """
        found = self.compute.get(key) or self.compute.get(without_strides(key))
        return found.median_us if found is not None else None

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON of what a scheduler reads.

        Isolated durations and regions are for people: a plan does not depend on them.
        """
        return hashlib.sha256(canonical_json(self.for_scheduling().to_json())).hexdigest()[:16]

    def for_scheduling(self) -> TimingTable:
        """The part that travels to every rank."""
        return replace(self, isolated={}, regions={}) if self.isolated or self.regions else self

    def completed(self, older: TimingTable) -> TimingTable:
        """With what only an older table of the same hardware and software knows; this one wins everywhere else.

        An older table with another fingerprint, or without one, adds nothing.
        """
        if not older.fingerprint or older.fingerprint != self.fingerprint:
            return self

        def of(curve: CollectiveCurve) -> tuple[str, str, int, str, str]:
            return curve.kind, curve.group, curve.group_size, curve.dtype, curve.topology

        known = {of(c) for c in self.collectives}
        return replace(
            self,
            collectives=tuple(
                sorted((*self.collectives, *(c for c in older.collectives if of(c) not in known)), key=of)
            ),
            compute={**older.compute, **self.compute},
            isolated={**older.isolated, **self.isolated},
            regions={**older.regions, **self.regions},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        content: dict[str, Any] = {
            "collectives": [_curve_json(c) for c in self.collectives],
            "compute": {k: _duration_json(d) for k, d in sorted(self.compute.items())},
            "fingerprint": dict(sorted(self.fingerprint.items())),
        }
        # What is empty is left out, so that a table without it keeps the digest it always had.
        for name, durations in (("isolated", self.isolated), ("regions", self.regions)):
            if durations:
                content[name] = {k: _duration_json(d) for k, d in sorted(durations.items())}
        return content

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TimingTable:
        """Inverse of `to_json`.

        Raises:
            WireError: the value does not have the table's form.
        """
        try:
            curves = tuple(_curve(c) for c in data["collectives"])
            compute, isolated, regions = (
                {str(k): Duration(int(v[0]), float(v[1]), float(v[2])) for k, v in data.get(name, {}).items()}
                for name in ("compute", "isolated", "regions")
            )
            if "compute" not in data:
                raise KeyError("compute")
            fingerprint = {str(k): str(v) for k, v in data["fingerprint"].items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as err:
            raise WireError(f"timing table: not of the expected form ({err!r})") from err
        return cls(curves, compute, fingerprint, isolated, regions)


def _duration_json(duration: Duration) -> list[float]:
    # Numbers are made floats here, so that a table has the same digest before and after its way over the wire.
    return [int(duration.count), float(duration.median_us), float(duration.spread_us)]


def _curve_json(curve: CollectiveCurve) -> dict[str, Any]:
    content: dict[str, Any] = {
        "kind": curve.kind,
        "group": curve.group,
        "group_size": curve.group_size,
        "sizes": list(curve.sizes),
        "durations": [_duration_json(d) for d in curve.durations],
    }
    if curve.dtype:
        content["dtype"] = curve.dtype
    if curve.topology:
        content["topology"] = curve.topology
    if curve.regimes:
        content["regimes"] = [
            [int(r.from_bytes), float(r.latency_us), float(r.us_per_byte), float(r.spread), int(r.samples)]
            for r in curve.regimes
        ]
    return content


def _curve(content: dict[str, Any]) -> CollectiveCurve:
    curve = CollectiveCurve(
        kind=str(content["kind"]),
        group=str(content["group"]),
        group_size=int(content["group_size"]),
        sizes=tuple(int(s) for s in content["sizes"]),
        durations=tuple(Duration(int(d[0]), float(d[1]), float(d[2])) for d in content["durations"]),
        dtype=str(content.get("dtype", "")),
        topology=str(content.get("topology", "")),
        regimes=tuple(
            Regime(int(r[0]), float(r[1]), float(r[2]), float(r[3]), int(r[4])) for r in content.get("regimes", ())
        ),
    )
    if len(curve.sizes) != len(curve.durations) or list(curve.sizes) != sorted(set(curve.sizes)):
        raise ValueError(f"{curve.kind}: sizes must rise, with one duration each")
    return curve


def compute_key(op: str, shapes: Sequence[Sequence[int]], dtype: str, strides: Sequence[Sequence[int]] = ()) -> str:
    """Key of a compute op.

    Args:
        op: name as in traces ("aten::mm").
        shapes: of its tensor inputs.
        dtype: of the first one.
        strides: of its tensor inputs; left out of the key where unknown or all contiguous.
    """
    key = f"{op}|{_compact(shapes)}|{dtype}"
    if len(strides) != len(shapes) or all(map(_is_contiguous, shapes, strides)):
        return key
    return f"{key}|{_compact(strides)}"


def without_strides(key: str) -> str:
    """The key of the same op, shapes and dtype with any strides."""
    return "|".join(key.split("|", 3)[:3])


def _compact(rows: Sequence[Sequence[int]]) -> str:
    return json.dumps([list(row) for row in rows], separators=(",", ":"))


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return len(shape) == len(strides) or not strides


def canonical_json(value: object) -> bytes:
    """JSON bytes that depend on the content alone: sorted keys, no spaces, shortest floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
