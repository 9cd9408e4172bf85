"""What the tables, pages and files of an analysis share: shares, medians over ranks, names that are safe to print.

Pure functions of the records in `loopopt.analysis`; microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import median

from loopopt.analysis import GroupTotals, RunAnalysis
from loopopt.measurement import Breakdown, RankMeasurement
from loopopt.timing import Regime

LEAST_COVERAGE = 0.9
"""A timing table that knows a smaller share of the time than this is complained about."""

BREAKDOWN_FIELDS = tuple(f.name for f in fields(Breakdown))


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step over all ranks that have it.

    Attributes:
        step: its number.
        ranks: ranks that have it whole.
        median: each part's own median over those ranks; medians of parts need not add up to the span's.
        longest_rank: the rank whose step took longest.
        longest_us: and how long.
    """

    step: int
    ranks: int
    median: Breakdown
    longest_rank: int
    longest_us: float


def numbered_steps(rank: RankMeasurement) -> list[tuple[int, Breakdown]]:
    """A rank's steps with their numbers; counted from 0 where the trace's marks have none.

    >>> one = Breakdown(10.0, 6.0, 5.0, 2.0, 0.0, 0.0, 2.0)
    >>> [number for number, _ in numbered_steps(RankMeasurement(0, one, (one, one), step_numbers=(7, 8)))]
    [7, 8]
    >>> [number for number, _ in numbered_steps(RankMeasurement(0, one, (one, one)))]
    [0, 1]
    """
    if len(rank.step_numbers) == len(rank.steps):
        return list(zip(rank.step_numbers, rank.steps, strict=True))
    return list(enumerate(rank.steps))


def step_rows(run: RunAnalysis) -> list[StepRow]:
    """Steps by number, each as the median over the ranks that have it."""
    found: dict[int, list[tuple[int, Breakdown]]] = {}
    for rank in run.measurement.ranks:
        for number, step in numbered_steps(rank):
            found.setdefault(number, []).append((rank.rank, step))
    rows = []
    for number, of_ranks in sorted(found.items()):
        rank_number, longest = max(of_ranks, key=lambda item: item[1].span_us)
        middle = median_breakdown([step for _, step in of_ranks])
        rows.append(StepRow(number, len(of_ranks), middle, rank_number, longest.span_us))
    return rows


def median_breakdown(breakdowns: Sequence[Breakdown]) -> Breakdown:
    """Each part's own median; at least one breakdown."""
    return over(breakdowns, median)


def over(breakdowns: Sequence[Breakdown], which: Callable[[Iterable[float]], float]) -> Breakdown:
    """A breakdown of `which` (min, median, max) of each part.

    >>> over([Breakdown(1, 1, 0, 0, 0, 0, 0), Breakdown(3, 2, 0, 0, 0, 0, 1)], max).compute_us
    2
    """
    return Breakdown(**{name: which([getattr(b, name) for b in breakdowns]) for name in BREAKDOWN_FIELDS})


def exposed_share(breakdown: Breakdown) -> float | None:
    """Exposed communication as a share of the span; None for an empty span."""
    return breakdown.exposed_us / breakdown.span_us if breakdown.span_us > 0 else None


def hidden_share(breakdown: Breakdown) -> float | None:
    """The share of communication that runs behind computation; None without communication."""
    return 1.0 - breakdown.exposed_us / breakdown.communication_us if breakdown.communication_us > 0 else None


def group_label(group: str, group_size: int, description: str = "", topology: str = "") -> str:
    """A process group in a few words.

    >>> group_label("0", 8, "default_pg", "cross-host"), group_label("", 2)
    ('0 default_pg, 8 ranks, cross-host', '2 ranks')
    """
    name = " ".join(word for word in (group, description if description != group else "") if word)
    size = f"{group_size} ranks" if group_size else ""
    return printable(", ".join(word for word in (name, size, topology) if word)) or "-"


def totals_label(totals: GroupTotals) -> str:
    """`group_label` of a row."""
    return group_label(totals.group, totals.group_size, totals.description, totals.topology)


def bandwidth_gbps(regime: Regime) -> float | None:
    """What the line's slope stands for, gigabytes (1e9) a second; None if the time did not grow with the size."""
    return 1e-3 / regime.us_per_byte if regime.us_per_byte > 0 else None


def is_covered(run: RunAnalysis, least: float = LEAST_COVERAGE) -> bool:
    """Whether the timing table knows enough of both; what was not seen cannot be missing."""
    found = run.coverage
    return all(share is None or share >= least for share in (found.compute, found.communication))


def corrected_clocks(run: RunAnalysis) -> list[tuple[int, float]]:
    """Ranks whose clock was corrected, the largest correction first; microseconds."""
    moved = [(rank, offset) for rank, offset in run.clock_us.items() if offset]
    return sorted(moved, key=lambda item: (-abs(item[1]), item[0]))


def facts(run: RunAnalysis) -> str:
    """What was read, in a sentence without a full stop.

    Example:
        "2 of 8 ranks, 1 host, NVIDIA H100, 3 steps, 12,345 events (4 left out)"
    """
    seen = len(run.measurement.ranks)
    hosts = len({f.host for f in run.files if f.host})
    devices = sorted({printable(f.device) for f in run.files if f.device})
    steps = len(step_rows(run))
    dropped = sum(f.dropped for f in run.files)
    words = [
        f"{seen} of {run.world_size} ranks" if run.world_size > seen else count(seen, "rank"),
        count(hosts, "host") if hosts else "",
        ", ".join(devices),
        count(steps, "step") if steps else "no step marks",
        f"{sum(f.events for f in run.files):,} events" + (f" ({dropped:,} left out)" if dropped else ""),
    ]
    return ", ".join(word for word in words if word)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "rank"), count(3, "rank")
    ('1 rank', '3 ranks')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str, longest: int = 0) -> str:
    """Text from a trace without control characters (a name could move the cursor); shortened in the middle.

    >>> printable("a" + chr(27) + "[2Jb") == "a" + chr(0xFFFD) + "[2Jb"
    True
    >>> printable("ncclDevKernel_AllGather_RING_LL", 20)
    'ncclDevKer…r_RING_LL'
    """
    shown = text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
    if longest and len(shown) > longest:
        head = longest // 2
        return f"{shown[:head]}…{shown[len(shown) - (longest - head - 1) :]}"
    return shown


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them.

    >>> number_ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
