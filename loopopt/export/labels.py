"""Label values kept few: a page must not grow with what a job happens to name its process groups."""

from __future__ import annotations

from typing import Final

from loopopt.export.catalogue import COLLECTIVES, MAX_GROUPS, OTHER, RANK_STATES, TRACE_FAILURE_REASONS, UNKNOWN

_MAX_LENGTH: Final = 64
_FIXED: Final[dict[str, frozenset[str]]] = {
    "collective": frozenset(COLLECTIVES),
    "reason": frozenset(TRACE_FAILURE_REASONS),
    "state": frozenset(RANK_STATES),
}


class LabelBounds:
    """Maps label values to a bounded set.

    The first `max_groups` process groups keep their names for good. Which those are depends only on the
    order they are met in, so a series never moves into "other" later, which would look like a reset.
    """

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._max_groups = max_groups
        self._groups: set[str] = set()

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
        if name == "group" and value not in self._groups:
            if len(self._groups) >= self._max_groups:
                return OTHER
            self._groups.add(value)
        return value
