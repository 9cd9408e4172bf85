"""Label values kept few: a page must not grow with what a job happens to name its process groups."""

from __future__ import annotations

from typing import Final

from loopopt.export.catalogue import (
    COLLECTIVES,
    MAX_GROUPS,
    MAX_RANKS,
    OTHER,
    RANK_STATES,
    TRACE_FAILURE_REASONS,
    UNKNOWN,
)

_MAX_LENGTH: Final = 64
_FIXED: Final[dict[str, frozenset[str]]] = {
    "collective": frozenset(COLLECTIVES),
    "reason": frozenset(TRACE_FAILURE_REASONS),
    "state": frozenset(RANK_STATES),
}


class LabelBounds:
    """Maps label values to a bounded set.

    The first `max_groups` process groups and `max_ranks` ranks keep their names for good. Which those are depends
    only on the order they are met in, so a series never moves into "other" later, which would look like a reset.
    """

    def __init__(self, max_groups: int = MAX_GROUPS, max_ranks: int = MAX_RANKS) -> None:
        self._limits = {"group": max_groups, "rank": max_ranks}
        self._met: dict[str, set[str]] = {name: set() for name in self._limits}

    def bounded(self, name: str, value: str) -> str:
        """The value to export for the label `name`.

        Example:
            ``("collective", "all_gather")`` -> "all_gather"; ``("collective", "my_kernel")`` -> "other";
            ``("group", "")`` -> "unknown"; the 65th group -> "other".
        """
        if name in _FIXED:
            return value if value in _FIXED[name] else OTHER
        if not value:
            return UNKNOWN
        value = value[:_MAX_LENGTH]
        met = self._met.get(name)
        if met is not None and value not in met:
            if len(met) >= self._limits[name]:
                return OTHER
            met.add(value)
        return value
