"""Microseconds as written in a trace -> whole nanoseconds, exactly.

A float64 holds microseconds with three decimals only below 2**43 (about 100 days). Traces before the relative
time base of 2024 count from 1970, where float64 keeps a quarter of a microsecond: those are read as decimals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT_BELOW_US = 2.0**43
"""Float64 spacing below this is under 0.001 us, so the nearest nanosecond is the one that was written."""

MAX_NS = 2**62
"""Times beyond (the year 2116) are refused; sums of two stay inside int64."""


def needs_decimals(values: Sequence[int | float]) -> bool:
    """Whether a float among the values is too large to be told to the nanosecond."""
    floats = [v for v in values if type(v) is float]
    return bool(floats) and not -EXACT_BELOW_US < min(floats) <= max(floats) < EXACT_BELOW_US


def first_out_of_range(values: Sequence[int | float | Decimal]) -> int | None:
    """Index of the first time (us) that does not fit, or None."""
    bound = MAX_NS // 1000
    if not values or -bound < min(values) <= max(values) < bound:
        return None
    for index, value in enumerate(values):
        if not -bound < value < bound:
            return index
    return None


def to_ns(values: Sequence[int | float | Decimal]) -> NDArray[np.int64]:
    """Nanoseconds, int64 (len(values),), of microseconds that `first_out_of_range` accepted.

    More than three decimals are rounded to the nearest nanosecond.
    """
    kinds = set(map(type, values))
    if Decimal in kinds:
        exact = [int((Decimal(v) * 1000).to_integral_value()) for v in values]
        return np.array(exact, dtype=np.int64)
    if kinds <= {int}:
        return np.array(values, dtype=np.int64) * 1000
    floats = np.array(values, dtype=np.float64)
    if int in kinds and not -EXACT_BELOW_US < floats.min() <= floats.max() < EXACT_BELOW_US:
        # An integer beyond 2**53 would lose digits in the float path.
        whole = np.array([int(v // 1) for v in values], dtype=np.int64)
        part = np.array([v - int(v // 1) for v in values], dtype=np.float64)
    else:
        floor = np.floor(floats)
        whole, part = floor.astype(np.int64), floats - floor
    return whole * 1000 + np.rint(part * 1000).astype(np.int64)


_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?")


class NeedsDecimalsError(Exception):
    """The times have to be read as decimals: float64 does not hold their nanoseconds."""


class NotATimeError(ValueError):
    """A value is no time.

    Args:
        index: of the value.
        value: as it was read.
    """

    def __init__(self, index: int, value: object) -> None:
        super().__init__(value)
        self.index = index
        self.value = value


def read_times(values: list[Any]) -> NDArray[np.int64]:
    """Nanoseconds, int64 (len(values),), of microseconds as integers, floats, decimals or text of one of these.

    Raises:
        NeedsDecimalsError: decode the text again, with decimals.
        NotATimeError: a value is absent, no number, or out of range.
    """
    kinds = set(map(type, values))
    if type(None) in kinds:
        raise NotATimeError(values.index(None), None)
    if str in kinds:
        values = [_number(index, value) for index, value in enumerate(values)]
    if Decimal not in kinds and needs_decimals(values):
        raise NeedsDecimalsError
    bad = first_out_of_range(values)
    if bad is not None:
        raise NotATimeError(bad, values[bad])
    return to_ns(values)


def _number(index: int, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _NUMBER.fullmatch(value):
        raise NotATimeError(index, value)
    return Decimal(value) if "." in value else int(value)
