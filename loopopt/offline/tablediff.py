"""Two timing tables side by side: what is in one only, what changed, and by more than it varies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from loopopt.timing import CollectiveCurve, Duration, TimingTable


@dataclass(frozen=True, slots=True)
class Change:
    """One key that both tables have.

    Attributes:
        section: "collectives", "compute", "isolated" or "regions".
        key: what was measured, in words.
        before, after: durations, microseconds.
        beyond: whether the medians are further apart than the two spreads together.
    """

    section: str
    key: str
    before: Duration
    after: Duration
    beyond: bool

    @property
    def ratio(self) -> float | None:
        """After over before, None if before is 0."""
        return self.after.median_us / self.before.median_us if self.before.median_us else None


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through one curve.

    Attributes:
        latency_us: at no bytes, never negative.
        gbps: bandwidth at large messages, gigabytes (1e9) a second; None if time does not grow with size.
    """

    latency_us: float
    gbps: float | None


@dataclass(frozen=True, slots=True)
class CurveChange:
    """One curve that both tables have; lines are None where a curve has too few sizes to fit one."""

    curve: str
    before: Line | None
    after: Line | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What differs between two tables.

    Attributes:
        digests: of the two tables.
        fingerprint: entries that differ, "" where a table lacks one.
        only_before, only_after: (section, key) that the other table lacks.
        changes: keys that both have and whose median differs, largest factor first, those beyond the spreads first.
        same: keys with the same median in both.
        curves: latency and bandwidth of every curve that both have.
    """

    digests: tuple[str, str]
    fingerprint: dict[str, tuple[str, str]]
    only_before: tuple[tuple[str, str], ...]
    only_after: tuple[tuple[str, str], ...]
    changes: tuple[Change, ...]
    same: int
    curves: tuple[CurveChange, ...]

    def to_json(self) -> dict[str, object]:
        """Plain JSON values; microseconds and gigabytes a second as in the attributes."""
        return {
            "digests": list(self.digests),
            "fingerprint": {k: list(v) for k, v in self.fingerprint.items()},
            "only_before": [list(k) for k in self.only_before],
            "only_after": [list(k) for k in self.only_after],
            "changes": [
                {
                    "section": c.section,
                    "key": c.key,
                    "before": [c.before.count, c.before.median_us, c.before.spread_us],
                    "after": [c.after.count, c.after.median_us, c.after.spread_us],
                    "ratio": c.ratio,
                    "beyond_spread": c.beyond,
                }
                for c in self.changes
            ],
            "same": self.same,
            "curves": [
                {"curve": c.curve, "before": _line_json(c.before), "after": _line_json(c.after)} for c in self.curves
            ],
        }


def diff(before: TimingTable, after: TimingTable) -> TableDiff:
    """Compare two tables key by key."""
    old, new = dict(_entries(before)), dict(_entries(after))
    changes = []
    same = 0
    for key in old.keys() & new.keys():
        a, b = old[key], new[key]
        if a.median_us == b.median_us:
            same += 1
        else:
            beyond = abs(a.median_us - b.median_us) > a.spread_us + b.spread_us
            changes.append(Change(*key, a, b, beyond))
    changes.sort(key=lambda c: (not c.beyond, -_factor(c), c.section, c.key))
    prints = before.fingerprint, after.fingerprint
    return TableDiff(
        digests=(before.digest, after.digest),
        fingerprint={
            key: (prints[0].get(key, ""), prints[1].get(key, ""))
            for key in sorted({*prints[0], *prints[1]})
            if prints[0].get(key) != prints[1].get(key)
        },
        only_before=tuple(sorted(old.keys() - new.keys())),
        only_after=tuple(sorted(new.keys() - old.keys())),
        changes=tuple(changes),
        same=same,
        curves=tuple(_curve_changes(before, after)),
    )


def _factor(change: Change) -> float:
    ratio = change.ratio
    return max(ratio, 1 / ratio) if ratio else float("inf")


def _entries(table: TimingTable) -> Iterator[tuple[tuple[str, str], Duration]]:
    for curve in table.collectives:
        for size, duration in zip(curve.sizes, curve.durations, strict=True):
            yield ("collectives", f"{_name(curve)}, {size} bytes"), duration
    sections: Mapping[str, Mapping[str, Duration]] = {
        "compute": table.compute,
        "isolated": table.isolated,
        "regions": table.regions,
    }
    for section, durations in sections.items():
        for key, duration in durations.items():
            yield (section, key), duration


def _name(curve: CollectiveCurve) -> str:
    parts = [f"{curve.kind} on group {curve.group or '-'} of {curve.group_size}", curve.dtype, curve.topology]
    return ", ".join(filter(None, parts))


def _curve_changes(before: TimingTable, after: TimingTable) -> Iterator[CurveChange]:
    new = {_name(c): c for c in after.collectives}
    for curve in before.collectives:
        other = new.get(_name(curve))
        if other is not None:
            # Fitted lines and lines drawn here differ in kind: only like is compared with like.
            fitted = bool(curve.regimes) and bool(other.regimes)
            yield CurveChange(_name(curve), _line(curve, fitted), _line(other, fitted))


def _line(curve: CollectiveCurve, fitted: bool) -> Line | None:
    if fitted:
        return Line(curve.regimes[0].latency_us, _gbps(curve.regimes[-1].us_per_byte))
    if len(curve.sizes) < 2:
        return None
    sizes = np.array(curve.sizes, np.float64)
    times = np.array([d.median_us for d in curve.durations], np.float64)
    # Weighted by 1 / time, so that the residuals that count are relative ones and latency shows.
    slope, latency = np.polyfit(sizes, times, 1, w=1.0 / np.maximum(times, 1e-3))
    if latency < 0:
        slope, latency = float((sizes * times).sum() / (sizes * sizes).sum()), 0.0
    return Line(float(latency), _gbps(float(slope)))


def _gbps(us_per_byte: float) -> float | None:
    return 1e-3 / us_per_byte if us_per_byte > 0 else None


def _line_json(line: Line | None) -> dict[str, float | None] | None:
    return None if line is None else {"latency_us": line.latency_us, "gbps": line.gbps}
