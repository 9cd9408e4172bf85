"""Which ranks were traced together: files of several runs or windows in one folder are told apart, never merged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from loopopt.measure.summary import RankSummary

_CLOCKS_NS = 60 * 10**9
"""Clocks of two hosts may be this far apart; windows of one run overlap otherwise."""


@dataclass(slots=True)
class Run:
    """Ranks traced together."""

    summaries: list[RankSummary] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder that all its files share."""
        folders = [os.path.dirname(s.path) for s in self.summaries]
        try:
            common = os.path.commonpath(folders) if len(set(folders)) > 1 else folders[0]
        except ValueError:
            common = folders[0]
        return os.path.basename(common.rstrip("/")) or common or "."

    def overlap_ns(self, summary: RankSummary) -> int:
        """How long the summary's window and this run's overlap, at best with one rank; negative: the gap."""
        return max(min(s.end_ns, summary.end_ns) - max(s.start_ns, summary.start_ns) for s in self.summaries)

    def takes(self, summary: RankSummary) -> bool:
        """Whether the summary can be of this run."""
        sizes = {s.world_size for s in (*self.summaries, summary)} - {0}
        ranks = {s.rank for s in self.summaries}
        if len(sizes) > 1 or (summary.rank is not None and summary.rank in ranks):
            return False
        if summary.rank is None or None in ranks:
            return self.overlap_ns(summary) > 0
        return self.overlap_ns(summary) > -_CLOCKS_NS


def find_runs(summaries: Sequence[RankSummary]) -> list[Run]:
    """Sort the ranks into runs, by time.

    A rank joins the run it overlaps longest with, of those that do not have that rank yet and are of a job of the
    same size; a file that does not say its rank only joins ranks it really overlaps with.
    """
    runs: list[Run] = []
    for summary in sorted(summaries, key=lambda s: (s.start_ns, s.path)):
        fitting = [run for run in runs if run.takes(summary)]
        if fitting:
            max(fitting, key=lambda run: run.overlap_ns(summary)).summaries.append(summary)
        else:
            runs.append(Run([summary]))
    return runs


def run_names(runs: Sequence[Run]) -> list[str]:
    """A name for each; those of one folder are numbered."""
    names = [run.name for run in runs]
    result = []
    for place, name in enumerate(names):
        if names.count(name) > 1:
            result.append(f"{name} #{names[: place + 1].count(name)}")
        else:
            result.append(name)
    return result
