"""The timing table: measured durations by key, and how an unseen size is answered.

Standard library only: the training process imports this module.

Keys
    collective   kind ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", ...),
                 group ("<process group name>" where the trace tells it, else "") and group size.
                 Each holds samples by *message bytes*: the larger of a rank's total input and total
                 output (the output of an all-gather, the input of a reduce-scatter).
    compute      `compute_key(op, shapes, dtype)`, for example
                 ``aten::mm|[[512,256],[256,64]]|float32``.

Units: microseconds and bytes. Unknown stays unknown: every lookup may answer None.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loopopt.errors import WireError


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
        """Transfer time in microseconds at a size: linear between measured sizes.

        Below the smallest size the smallest size's time is a floor for latency (the line through
        the two smallest sizes is followed down but never below half of it); above the largest the
        line through the two largest is followed, never at more than twice the bandwidth
        the largest showed.
        """
        times = [d.median_us for d in self.durations]
        sizes = self.sizes
        if len(sizes) == 1:
            # One point cannot separate latency from bandwidth: scale what is above it, keep what is below.
            return times[0] * max(1.0, message_bytes / max(sizes[0], 1)) if message_bytes else times[0] * 0.5
        if message_bytes <= sizes[0]:
            slope = max(0.0, (times[1] - times[0]) / (sizes[1] - sizes[0]))
            return max(times[0] * 0.5, times[0] - slope * (sizes[0] - message_bytes))
        if message_bytes >= sizes[-1]:
            slope = max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
            return times[-1] + max(slope, 0.5 * times[-1] / sizes[-1]) * (message_bytes - sizes[-1])
        right = bisect_left(sizes, message_bytes)
        left = right - 1
        share = (message_bytes - sizes[left]) / (sizes[right] - sizes[left])
        return times[left] + share * (times[right] - times[left])


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

    def collective_us(self, kind: str, group: str, group_size: int, message_bytes: int) -> float | None:
        """Transfer time, exact group first, then any group of that size; None if never measured."""
        same_kind = [c for c in self.collectives if c.kind == kind and c.sizes]
        for curve in same_kind:
            if curve.group and curve.group == group:
                return curve.at(message_bytes)
        for curve in same_kind:
            if curve.group_size == group_size:
                return curve.at(message_bytes)
        return None

    def compute_us(self, key: str) -> float | None:
        """Median duration of a compute op, microseconds; None if never measured."""
        found = self.compute.get(key)
        return found.median_us if found is not None else None

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return {
            "collectives": [_curve_json(c) for c in self.collectives],
            "compute": {k: _duration_json(d) for k, d in sorted(self.compute.items())},
            "fingerprint": dict(sorted(self.fingerprint.items())),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TimingTable:
        """Inverse of `to_json`.

        Raises:
            WireError: the value does not have the table's form.
        """
        try:
            curves = tuple(
                CollectiveCurve(
                    kind=str(c["kind"]),
                    group=str(c["group"]),
                    group_size=int(c["group_size"]),
                    sizes=tuple(int(s) for s in c["sizes"]),
                    durations=tuple(Duration(int(d[0]), float(d[1]), float(d[2])) for d in c["durations"]),
                )
                for c in data["collectives"]
            )
            compute = {str(k): Duration(int(v[0]), float(v[1]), float(v[2])) for k, v in data["compute"].items()}
            fingerprint = {str(k): str(v) for k, v in data["fingerprint"].items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as err:
            raise WireError(f"timing table: not of the expected form ({err!r})") from err
        return cls(curves, compute, fingerprint)


def _duration_json(duration: Duration) -> list[float]:
    # Numbers are made floats here, so that a table has the same digest before and after its way over the wire.
    return [int(duration.count), float(duration.median_us), float(duration.spread_us)]


def _curve_json(curve: CollectiveCurve) -> dict[str, Any]:
    return {
        "kind": curve.kind,
        "group": curve.group,
        "group_size": curve.group_size,
        "sizes": list(curve.sizes),
        "durations": [_duration_json(d) for d in curve.durations],
    }


def compute_key(op: str, shapes: Sequence[Sequence[int]], dtype: str) -> str:
    """Key of a compute op: name as in traces ("aten::mm"), shapes of its tensor inputs, dtype of the first."""
    return f"{op}|{json.dumps([list(s) for s in shapes], separators=(',', ':'))}|{dtype}"


def canonical_json(value: object) -> bytes:
    """JSON bytes that depend on the content alone: sorted keys, no spaces, shortest floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
