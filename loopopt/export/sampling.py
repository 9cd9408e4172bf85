"""Turns one measured window into steps of the counters: the exporter's half of "measured -> exported"."""

from __future__ import annotations

import math
from collections.abc import Iterable

from loopopt.export.catalogue import OTHER, UNKNOWN
from loopopt.export.snapshot import CounterValue
from loopopt.measurement import WindowMeasurement

_By = dict[tuple[str, str], float]


def window_counters(measurement: WindowMeasurement) -> tuple[CounterValue, ...]:
    """What a window adds to the counters, microseconds.

    Communication is a union of intervals, so collectives that ran at once share it in proportion to
    their durations; exposed time is shared by the parts measured for each. Over all labels the shares
    add up to the ranks' totals.

    Example:
        One rank, communication 10 us, exposed 4 us; all_gather ran 9 us (4 exposed), all_reduce 3 us
        (0 exposed): communication 7.5 and 2.5, exposed 4 and 0.
    """
    communication: _By = {}
    exposed: _By = {}
    for rank in measurement.ranks:
        by_duration = [((c.kind, c.group), c.duration_us) for c in rank.collectives]
        by_exposed = [((c.kind, c.group), c.exposed_us) for c in rank.collectives]
        _share(communication, rank.total.communication_us, by_duration)
        _share(exposed, rank.total.exposed_us, by_exposed)
    ranks = measurement.ranks
    plain = {
        "sampled_us": math.fsum(r.total.span_us for r in ranks),
        "sampled_steps": float(sum(len(r.steps) for r in ranks)),
        "compute_us": math.fsum(r.total.compute_us for r in ranks),
        "skew_us": math.fsum(c.skew_us for r in ranks for c in r.collectives),
    }
    labelled = (("communication_us", communication), ("exposed_us", exposed))
    by_collective = tuple(
        CounterValue(key, value, {"collective": kind, "group": group})
        for key, shares in labelled
        for (kind, group), value in shares.items()
    )
    by_rank = tuple(
        CounterValue(key, value, {"rank": str(rank.rank)})
        for rank in ranks
        for key, value in (
            ("rank_sampled_us", rank.total.span_us),
            ("rank_exposed_us", rank.total.exposed_us),
            ("rank_skew_us", math.fsum(c.skew_us for c in rank.collectives)),
        )
    )
    return (*(CounterValue(key, value) for key, value in plain.items()), *by_collective, *by_rank)


def _share(into: _By, total: float, weights: Iterable[tuple[tuple[str, str], float]]) -> None:
    """Add `total`, split in proportion to the weights; without any weight it goes to "other"."""
    parts = [(labels, max(0.0, weight)) for labels, weight in weights]
    whole = math.fsum(weight for _, weight in parts)
    if whole <= 0.0 and total > 0.0:
        parts, whole = [*parts, ((OTHER, UNKNOWN), 1.0)], 1.0
    for labels, weight in parts:
        into[labels] = into.get(labels, 0.0) + (total * weight / whole if whole > 0.0 else 0.0)
