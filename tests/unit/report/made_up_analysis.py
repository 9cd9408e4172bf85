"""Analyses with known numbers, and hostile names."""

from __future__ import annotations

from dataclasses import replace

from loopopt.analysis import (
    Analysis,
    Coverage,
    ExposedCollective,
    FailedFile,
    GroupTotals,
    LateRank,
    Points,
    RunAnalysis,
    TraceFile,
)
from loopopt.measurement import Breakdown, CollectiveTotals, RankMeasurement, TimelineSpan, WindowMeasurement
from loopopt.timing import CollectiveCurve, Duration, Regime, TimingTable

HOSTILE = "evil</script><script>alert(1)</script>[/bold]\x1b[2J'\""
"""A kernel's name that would end a script, close markup and clear the screen."""


def breakdown(scale: float = 1.0) -> Breakdown:
    """600 compute + 300 exposed + 20 exposed memcpy + 80 idle = 1000, times `scale`."""
    parts = (1000.0, 600.0, 500.0, 300.0, 30.0, 20.0, 80.0)
    return Breakdown(*(part * scale for part in parts))


def rank(number: int, scales: tuple[float, ...]) -> RankMeasurement:
    """A rank whose steps are `scales` milliseconds long, numbered from 3."""
    spans = (
        TimelineSpan("compute", "compute", 0.0, 600.0),
        TimelineSpan("communication", HOSTILE, 500.0, 1000.0),
        TimelineSpan("exposed", "all_reduce", 600.0, 900.0),
    )
    return RankMeasurement(
        rank=number,
        total=breakdown(sum(scales) + 0.01 * number),
        steps=tuple(breakdown(scale) for scale in scales),
        collectives=(CollectiveTotals("all_reduce", "0", 2, 4, 4096, 200.0, 100.0, 20.0, 300.0),),
        timeline=spans if scales else (),
        step_numbers=tuple(range(3, 3 + len(scales))),
    )


def table(factor: float = 1.0) -> TimingTable:
    """A curve with two regimes, one without any, and two operators."""
    return TimingTable(
        collectives=(
            CollectiveCurve(
                "all_reduce",
                "0",
                2,
                (1024, 1 << 20),
                (Duration(8, 20.0 * factor, 0.1), Duration(8, 120.0 * factor, 0.5)),
                dtype="float32",
                topology="local",
                regimes=(Regime(1024, 19.0, 0.0, 0.05, 8), Regime(65536, 15.0, 1e-4, 0.1, 8)),
            ),
            CollectiveCurve("broadcast", "", 2, (8,), (Duration(1, 9.0, 0.0),)),
        ),
        compute={
            "aten::mm|[[2,2]]|float32": Duration(10, 50.0 * factor, 0.2),
            "aten::add|[[2,2]]|float32": Duration(10, 5.0, 0.2),
        },
        fingerprint={"world": "2"},
    )


def run(
    name: str = "night", ranks: int = 2, scales: tuple[float, ...] = (1.0, 1.1, 0.9), factor: float = 1.0
) -> RunAnalysis:
    """A run; `factor` makes its transfers and its matrix product slower."""
    numbers = range(ranks)
    return RunAnalysis(
        name=name,
        files=tuple(
            TraceFile(f"/t/{name}/rank{n}.json", n, "node0", "NVIDIA H100", ranks, 1000, 1, 0.0, 3000.0)
            for n in numbers
        ),
        world_size=ranks,
        measurement=WindowMeasurement(
            ranks=tuple(rank(n, scales) for n in numbers),
            table=table(factor),
            matched=8,
            unmatched=3,
            notes=("rank 1: no marks [/x]",),
        ),
        groups=(
            GroupTotals(
                kind="all_reduce",
                group="0",
                group_size=2,
                description="mesh_dp",
                topology="local",
                ranks=ranks,
                count=8 * ranks,
                message_bytes=64_000_000,
                duration_us=2000.0,
                exposed_us=900.0,
                matched=8,
                matched_bytes=32_000_000,
                transfer_us=800.0 * factor,
                skew_us=160.0,
                algorithm_gbps=40.0 / factor,
                bus_gbps=40.0 / factor,
            ),
            GroupTotals("broadcast", "", 2, "", "", 1, 1, 8, 9.0, 0.0, 0, 0, 0.0, 0.0, None, None),
        ),
        worst=(
            ExposedCollective(
                1, 4, "all_reduce", "0", 2, "float32", 1 << 20, 123.0, 140.0, 120.0, 100.0, 20.0, HOSTILE, ""
            ),
            ExposedCollective(0, None, "broadcast", "", 2, "", 0, 456.0, 9.0, 9.0, None, None, "", "=cmd()"),
        ),
        late=(LateRank(1, 8, 6, 120.0, 3.0), LateRank(0, 8, 1, 5.0, 120.0)),
        points=(
            Points(
                "all_reduce",
                "0",
                2,
                "float32",
                "local",
                (1024,) * 5 + (1 << 20,) * 5,
                tuple(factor * t for t in (19.0, 20.0, 20.5, 21.0, 20.1, 118.0, 119.0, 120.0, 121.0, 122.0)),
            ),
            Points("broadcast", "", 2, "", "", (8,), (9.0,)),
        ),
        coverage=Coverage(0.95, 0.5, (("broadcast, 2 ranks", 9.0), (HOSTILE, 1.0))),
        unmatched={"not on every rank": 2, "cut off by the window": 1},
        clock_us={0: 0.0, 1: -12.5},
    )


def analysis(*runs: RunAnalysis, failed: bool = False) -> Analysis:
    """One run by default."""
    broken = (FailedFile("/t/torn.json", "ends early: expected ']'", 512),)
    return Analysis(runs or (run(),), broken if failed else ())


def without_drawings(one: Analysis) -> Analysis:
    """As it comes back from JSON."""
    runs = tuple(
        replace(
            r, measurement=replace(r.measurement, ranks=tuple(replace(x, timeline=()) for x in r.measurement.ranks))
        )
        for r in one.runs
    )
    return replace(one, runs=runs)
