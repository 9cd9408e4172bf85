"""`RankSummary`s of one run -> `RunAnalysis`: what takes more than one rank to know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loopopt.analysis import (
    ExposedCollective,
    GroupTotals,
    LateRank,
    Points,
    RunAnalysis,
    Selection,
    TraceFile,
)
from loopopt.errors import TraceError
from loopopt.measure.breakdown import NS_PER_US
from loopopt.measure.columns import Collectives, GroupKey, collectives_of
from loopopt.measure.groups import resolve_groups
from loopopt.measure.intervals import Times
from loopopt.measure.matching import Matched, Matching, RankColumns, match_ranks
from loopopt.measure.summary import RankSummary
from loopopt.measure.table import CurveSamples, curve_of, curve_samples, durations, topology_of
from loopopt.measurement import CollectiveTotals, Coverage, RankMeasurement, WindowMeasurement
from loopopt.timing import TimingTable
from loopopt.traces import ProcessGroup

MAX_POINTS = 400
"""Collectives of one curve kept for drawing."""

MAX_UNKNOWN = 20

_LEAST_MARGIN_NS = 1_000
"""Nobody is called late by less than this: it is the resolution of older traces."""


@dataclass(frozen=True, eq=False, slots=True)
class _Times:
    """Per collective of one rank, ns, int64 (n,); -1 where it could not be matched."""

    skew: Times
    transfer: Times


def merge_ranks(
    summaries: Sequence[RankSummary],
    *,
    name: str = "",
    fingerprint: Mapping[str, str] | None = None,
    selection: Selection | None = None,
    worst: int = 50,
) -> RunAnalysis:
    """Put the ranks of one run together.

    Args:
        summaries: one per rank, in any order; ranks may be missing, then collectives they take part in stay
            unmatched. A rank the trace does not name gets the lowest free number, with a note.
        name: what to call the run.
        fingerprint: hardware and software the numbers belong to, kept in the table.
        selection: ranks and groups to list (steps were selected when the ranks were summarised).
        worst: exposed collectives to list.

    Raises:
        TraceError: no trace, the same rank twice, or traces of jobs of different sizes.
    """
    notes: list[str] = []
    by_rank = number_ranks(summaries, notes)
    columns = _with_groups(by_rank)
    matching = match_ranks(
        {rank: RankColumns(s.host, columns[rank], s.steps) for rank, s in by_rank.items()},
    )
    notes += matching.notes
    notes += _notes(by_rank)
    times = _times(columns, matching)
    hosts = {rank: s.host for rank, s in by_rank.items()}
    groups = {g.name: g for s in by_rank.values() for g in s.groups.values()}
    samples = curve_samples(matching.matched, groups, hosts)
    table = TimingTable(
        collectives=tuple(curve_of(s) for s in samples),
        compute=durations(s.compute.in_situ for s in by_rank.values()),
        isolated=durations(s.compute.isolated for s in by_rank.values()),
        regions=durations(s.compute.regions for s in by_rank.values()),
        fingerprint=dict(fingerprint or {}),
    )
    listed = [r for r in by_rank if selection is None or selection.ranks is None or r in selection.ranks]
    shows = _shows(selection, groups)
    chosen_matches = sum(int(m.chosen.sum()) for m in matching.matched)
    in_all = sum(len(c) for c in columns.values())
    measurement = WindowMeasurement(
        ranks=tuple(_rank(r, by_rank[r], columns[r], times[r], shows) for r in listed),
        table=table,
        matched=chosen_matches,
        unmatched=in_all - sum(m.index.size for m in matching.matched),
        notes=tuple(notes),
        coverage=_coverage(by_rank, columns, table),
    )
    return RunAnalysis(
        name=name,
        files=tuple(_file(rank, s) for rank, s in by_rank.items()),
        world_size=max([len(by_rank), *(s.world_size for s in by_rank.values())]),
        measurement=measurement,
        groups=_groups(columns, times, matching, groups, hosts, shows, listed),
        worst=_worst(by_rank, columns, times, matching.clock_ns, shows, listed, worst),
        late=_late(matching, times),
        points=tuple(_points(s) for s in samples),
        coverage=measurement.coverage,
        unmatched=dict(matching.unmatched),
        clock_us={rank: ns / NS_PER_US for rank, ns in matching.clock_ns.items()},
    )


def number_ranks(summaries: Sequence[RankSummary], notes: list[str]) -> dict[int, RankSummary]:
    """Summaries by rank; see `merge_ranks` for what is refused."""
    if not summaries:
        raise TraceError("(no file)", "a window needs the trace of at least one rank")
    found: dict[int, RankSummary] = {}
    for summary in summaries:
        if summary.rank is None:
            continue
        if summary.rank in found:
            raise TraceError(
                summary.path, f"rank {summary.rank} again; {found[summary.rank].path} already is that rank's"
            )
        found[summary.rank] = summary
    free = (r for r in range(len(found) + len(summaries)) if r not in found)
    nameless = [s for s in summaries if s.rank is None]
    for rank, summary in list(zip(free, nameless, strict=False)):
        found[rank] = summary
        notes.append(f"{summary.path} does not say which rank it is; taken for rank {rank}.")
    sizes = {s.world_size: s for s in summaries if s.world_size}
    if len(sizes) > 1:
        (first, a), (second, b) = sorted(sizes.items())[:2]
        raise TraceError(b.path, f"from a job of {second} ranks, but {a.path} is from one of {first}: not one window")
    outside = [r for r, s in found.items() if s.world_size and r >= s.world_size]
    if outside:
        summary = found[outside[0]]
        raise TraceError(summary.path, f"rank {outside[0]} in a job of {summary.world_size} ranks")
    return dict(sorted(found.items()))


def _with_groups(by_rank: Mapping[int, RankSummary]) -> dict[int, Collectives]:
    """Columns of every rank, with the process groups that only the ranks together tell."""
    columns = {rank: s.collectives for rank, s in by_rank.items()}
    if all(c.all_grouped for c in columns.values()):
        return columns
    resolved = resolve_groups(
        {rank: c.instances() for rank, c in columns.items()}, {rank: s.groups for rank, s in by_rank.items()}
    )
    return {rank: collectives_of(resolved[rank], c.exposed_ns, c.chosen) for rank, c in columns.items()}


def _notes(by_rank: Mapping[int, RankSummary]) -> list[str]:
    notes = [
        f"rank {rank}: {s.path} holds no events that can be measured." for rank, s in by_rank.items() if not s.events
    ]
    unmarked = [rank for rank, s in by_rank.items() if s.events and not s.steps]
    if unmarked:
        shown = ", ".join(map(str, unmarked[:8])) + (f", ... ({len(unmarked)} in all)" if len(unmarked) > 8 else "")
        notes.append(f"rank {shown}: no step marks, so there is no breakdown per step.")
    dropped = sum(s.dropped for s in by_rank.values())
    if dropped:
        notes.append(f"{dropped} events were open at the window's edge and are left out.")
    return notes


def _times(columns: Mapping[int, Collectives], matching: Matching) -> dict[int, _Times]:
    found = {rank: _Times(*(np.full(len(c), -1, np.int64) for _ in range(2))) for rank, c in columns.items()}
    for match in matching.matched:
        for row, rank in enumerate(match.ranks.tolist()):
            found[rank].skew[match.index[row]] = match.skews_ns[row]
            found[rank].transfer[match.index[row]] = match.transfers_ns[row]
    return found


_Shows = Callable[[GroupKey], bool]


def _shows(selection: Selection | None, groups: Mapping[str, ProcessGroup]) -> _Shows:
    wanted = selection.groups if selection is not None else None
    if wanted is None:
        return lambda group: True

    def shown(group: GroupKey) -> bool:
        known = groups.get(group.name)
        return group.name in wanted or (known is not None and known.description in wanted)

    return shown


def _file(rank: int, summary: RankSummary) -> TraceFile:
    return TraceFile(
        path=summary.path,
        rank=rank,
        host=summary.host,
        device=summary.device,
        world_size=summary.world_size,
        events=summary.events,
        dropped=summary.dropped,
        start_us=summary.start_ns / NS_PER_US,
        span_us=(summary.end_ns - summary.start_ns) / NS_PER_US,
    )


# ---------------------------------------------------------------- per rank


@dataclass(slots=True)
class _Sums:
    count: int = 0
    message_bytes: int = 0
    duration: int = 0
    transfer: int = 0
    skew: int = 0
    exposed: int = 0


def _sums(columns: Collectives, times: _Times, shows: _Shows) -> dict[tuple[str, GroupKey], _Sums]:
    """Sums over the chosen collectives of one rank, by (kind, group).

    Exposed time is that of the chosen steps, whenever the collective began, so that it adds up to theirs.
    """
    use = np.flatnonzero(columns.chosen | (columns.exposed_ns > 0))
    if not len(use):
        return {}
    width = len(columns.groups)
    labels, inverse = np.unique(columns.kind[use].astype(np.int64) * width + columns.group[use], return_inverse=True)
    chosen = columns.chosen[use].astype(np.int64)
    values = (
        chosen,
        columns.message_bytes[use] * chosen,
        (columns.end_ns[use] - columns.start_ns[use]) * chosen,
        np.maximum(times.transfer[use], 0) * chosen,
        np.maximum(times.skew[use], 0) * chosen,
        columns.exposed_ns[use],
    )
    totals = np.zeros((len(values), len(labels)), np.int64)
    for row, column in zip(totals, values, strict=True):
        np.add.at(row, inverse, column)
    found = {}
    for place, label in enumerate(labels.tolist()):
        group = columns.groups[label % width]
        if shows(group):
            found[(columns.kinds[label // width], group)] = _Sums(*totals[:, place].tolist())
    return found


def _rank(rank: int, summary: RankSummary, columns: Collectives, times: _Times, shows: _Shows) -> RankMeasurement:
    # Groups that differ only in what the traces tell of their members are one to the reader.
    totals: dict[tuple[str, str, int], _Sums] = defaultdict(_Sums)
    for (kind, group), sums in _sums(columns, times, shows).items():
        known = totals[(kind, group.name, group.size)]
        for field in known.__slots__:
            setattr(known, field, getattr(known, field) + getattr(sums, field))
    return RankMeasurement(
        rank=rank,
        total=summary.total,
        steps=summary.per_step,
        collectives=tuple(
            CollectiveTotals(
                kind=kind,
                group=group,
                group_size=size,
                count=sums.count,
                message_bytes=sums.message_bytes,
                duration_us=sums.duration / NS_PER_US,
                transfer_us=sums.transfer / NS_PER_US,
                skew_us=sums.skew / NS_PER_US,
                exposed_us=sums.exposed / NS_PER_US,
            )
            for (kind, group, size), sums in sorted(totals.items())
        ),
        timeline=summary.timeline,
        step_numbers=tuple(s.number for s in summary.steps),
    )


# ---------------------------------------------------------------- over all ranks


def bus_factor(kind: str, group_size: int) -> float:
    """Share of a message that crosses a link, as nccl-tests' PERFORMANCE.md counts bus bandwidth."""
    if group_size < 2:
        return 1.0
    if kind == "all_reduce":
        return 2.0 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (group_size - 1) / group_size
    return 1.0


def _groups(
    columns: Mapping[int, Collectives],
    times: Mapping[int, _Times],
    matching: Matching,
    groups: Mapping[str, ProcessGroup],
    hosts: Mapping[int, str],
    shows: _Shows,
    listed: Sequence[int],
) -> tuple[GroupTotals, ...]:
    key_of = _Labels()
    sums: dict[tuple[str, str, int], _Sums] = defaultdict(_Sums)
    ranks: dict[tuple[str, str, int], int] = defaultdict(int)
    for rank in listed:
        seen = set()
        for (kind, group), mine in _sums(columns[rank], times[rank], shows).items():
            key = key_of(kind, group)
            total = sums[key]
            for field in total.__slots__:
                setattr(total, field, getattr(total, field) + getattr(mine, field))
            seen.add(key)
        for key in seen:
            ranks[key] += 1
    matched: dict[tuple[str, str, int], list[Matched]] = defaultdict(list)
    where: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for match in matching.matched:
        matched[key_of(match.kind, match.group)].append(match)
    for key, group in key_of.first.items():
        where[key].add(topology_of(group.members, hosts) if group.members else "")
    result = []
    for key, total in sums.items():
        kind, group_name, size = key
        known = groups.get(group_name)
        use = [(m.message_bytes[m.chosen], m.completion_ns[m.chosen]) for m in matched[key]]
        sent = sum(int(b.sum()) for b, _ in use)
        took = sum(int(c.sum()) for _, c in use)
        bandwidth = sent / took if took and sent else None
        places = where[key]
        result.append(
            GroupTotals(
                kind=kind,
                group=group_name,
                group_size=size,
                description=known.description if known is not None else "",
                topology=next(iter(places)) if len(places) == 1 else "",
                ranks=ranks[key],
                count=total.count,
                message_bytes=total.message_bytes,
                duration_us=total.duration / NS_PER_US,
                exposed_us=total.exposed / NS_PER_US,
                matched=sum(len(b) for b, _ in use),
                matched_bytes=sent,
                transfer_us=took / NS_PER_US,
                skew_us=total.skew / NS_PER_US,
                # Bytes per nanosecond are gigabytes a second.
                algorithm_gbps=bandwidth,
                bus_gbps=bandwidth * bus_factor(kind, size) if bandwidth is not None else None,
            )
        )
    return tuple(sorted(result, key=lambda g: (-g.exposed_us, -g.duration_us, g.kind, g.group)))


class _Labels:
    """(kind, group name, group size), remembering one group of each."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str, int], GroupKey] = {}

    def __call__(self, kind: str, group: GroupKey) -> tuple[str, str, int]:
        key = (kind, group.name, group.size)
        self.first.setdefault(key, group)
        return key


def _worst(
    by_rank: Mapping[int, RankSummary],
    columns: Mapping[int, Collectives],
    times: Mapping[int, _Times],
    clock_ns: Mapping[int, int],
    shows: _Shows,
    listed: Iterable[int],
    most: int,
) -> tuple[ExposedCollective, ...]:
    begin = min((s.start_ns - clock_ns[r] for r, s in by_rank.items() if s.events), default=0)
    candidates: list[tuple[int, int, int]] = []
    for rank in listed:
        exposed = columns[rank].exposed_ns
        for index in np.argsort(-exposed, kind="stable")[:most].tolist():
            if exposed[index] > 0 and shows(columns[rank].groups[columns[rank].group[index]]):
                candidates.append((-int(exposed[index]), rank, index))
    found = []
    for negative, rank, index in sorted(candidates)[:most]:
        own, summary = columns[rank], by_rank[rank]
        group = own.groups[own.group[index]]
        start = int(own.start_ns[index])
        skew, transfer = int(times[rank].skew[index]), int(times[rank].transfer[index])
        before, after = summary.neighbours.get(index, ("", ""))
        found.append(
            ExposedCollective(
                rank=rank,
                step=next((s.number for s in summary.steps if s.start_ns <= start < s.end_ns), None),
                kind=own.kinds[own.kind[index]],
                group=group.name,
                group_size=group.size,
                dtype=own.dtypes[own.dtype[index]],
                message_bytes=int(own.message_bytes[index]),
                start_us=(start - clock_ns[rank] - begin) / NS_PER_US,
                duration_us=(int(own.end_ns[index]) - start) / NS_PER_US,
                exposed_us=-negative / NS_PER_US,
                transfer_us=transfer / NS_PER_US if transfer >= 0 else None,
                skew_us=skew / NS_PER_US if skew >= 0 else None,
                before=before,
                after=after,
            )
        )
    return tuple(found)


def _late(matching: Matching, times: Mapping[int, _Times]) -> tuple[LateRank, ...]:
    matched: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    caused: dict[int, int] = defaultdict(int)
    for match in matching.matched:
        if len(match.ranks) < 2:
            continue
        use = match.chosen
        for rank in match.ranks.tolist():
            matched[rank] += int(use.sum())
        doubt = np.array([matching.scatter_ns[r] for r in match.ranks.tolist()], np.int64)
        clear = use & (match.margin_ns > np.maximum(doubt[match.last], _LEAST_MARGIN_NS))
        waited = match.skews_ns.max(axis=0)
        for row in np.unique(match.last[clear]).tolist():
            mine = clear & (match.last == row)
            last[int(match.ranks[row])] += int(mine.sum())
            caused[int(match.ranks[row])] += int(waited[mine].sum())
    found = [
        LateRank(
            rank=rank,
            matched=matched[rank],
            last=last[rank],
            caused_wait_us=caused[rank] / NS_PER_US,
            own_wait_us=int(np.maximum(times[rank].skew, 0).sum()) / NS_PER_US,
        )
        for rank in matched
        if matched[rank]
    ]
    return tuple(sorted(found, key=lambda r: (-r.caused_wait_us, r.rank)))


def _points(samples: CurveSamples) -> Points:
    order = np.argsort(samples.message_bytes, kind="stable")
    few = order[np.linspace(0, len(order) - 1, min(len(order), MAX_POINTS)).round().astype(np.intp)]
    key = samples.key
    return Points(
        kind=key.kind,
        group=key.group,
        group_size=key.group_size,
        dtype=key.dtype,
        topology=key.topology,
        message_bytes=tuple(samples.message_bytes[few].tolist()),
        transfer_us=tuple((samples.transfer_ns[few] / NS_PER_US).tolist()),
    )


def _coverage(by_rank: Mapping[int, RankSummary], columns: Mapping[int, Collectives], table: TimingTable) -> Coverage:
    total = sum(s.compute.total_ns for s in by_rank.values())
    known = sum(s.compute.known_ns for s in by_rank.values())
    unknown: dict[str, int] = defaultdict(int)
    for summary in by_rank.values():
        for name, took in summary.compute.unknown_ns.items():
            unknown[name] += took
    communication, answered = 0, 0
    for own in columns.values():
        took_all = np.where(own.chosen, own.end_ns - own.start_ns, 0)
        width = max(len(own.groups), 1)
        labels = own.kind.astype(np.int64) * width + own.group
        for label in np.unique(labels).tolist():
            kind, group = own.kinds[label // width], own.groups[label % width]
            took = int(took_all[labels == label].sum())
            communication += took
            if table.curve(kind, group.name, group.size) is not None:
                answered += took
            else:
                unknown[f"{kind} on {group.name or 'an unknown group'}"] += took
    longest = sorted(unknown, key=lambda n: (-unknown[n], n))[:MAX_UNKNOWN]
    return Coverage(
        compute=known / total if total else None,
        communication=answered / communication if communication else None,
        unknown=tuple((name, unknown[name] / NS_PER_US) for name in longest if unknown[name]),
    )


def without_timelines(run: RunAnalysis) -> RunAnalysis:
    """The same without what is only for drawing."""
    ranks = tuple(replace(r, timeline=()) for r in run.measurement.ranks)
    return replace(run, points=(), measurement=replace(run.measurement, ranks=ranks))
