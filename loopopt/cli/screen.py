"""The console that tables are printed on."""

from __future__ import annotations

import sys

from rich.console import Console

_WIDTH_ELSEWHERE = 120


def console(stderr: bool = False) -> Console:
    """As wide as the terminal; where there is none (a log, a pipe) wide enough for the tables."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _WIDTH_ELSEWHERE)
