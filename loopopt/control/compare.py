"""Is one set of step times really shorter than another? Order statistics only: outliers cannot decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_MOST_SAMPLES = 400
"""Of longer series the newest are used: the pairs grow with the product."""
_EXACT_UP_TO = 40
"""With more samples on both sides together the normal approximation is as good."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Share of the step time saved, with a confidence interval (0.15: 15 % faster; negative: slower)."""

    value: float
    low: float
    high: float


def compare(before_us: Sequence[float], after_us: Sequence[float], *, confidence: float) -> Gain:
    """1 - median(after) / median(before), with the Mann-Whitney interval of the ratio.

    All pairwise ratios are sorted, and as many are cut off at each end as chance alone would put there. No
    distribution is assumed, and a step that is slow for reasons of its own (a checkpoint, a data stall)
    costs a few pairs, not the interval. The interval is stretched to hold the ratio of the medians.

    Args:
        before_us, after_us: step times, microseconds; at least one each.
        confidence: of the interval, e.g. 0.95. With too few samples for it: -1 to 1.

    >>> compare([100.0] * 8, [80.0] * 8, confidence=0.95)
    Gain(value=0.2, low=0.2, high=0.2)
    """
    before = np.asarray(before_us[-_MOST_SAMPLES:], dtype=np.float64)
    after = np.asarray(after_us[-_MOST_SAMPLES:], dtype=np.float64)
    ratios = np.sort((after[:, None] / before[None, :]).ravel())
    value = 1 - float(np.median(after)) / float(np.median(before))
    cut = _pairs_to_cut(before.size, after.size, confidence)
    low, high = (1 - float(ratios[-cut]), 1 - float(ratios[cut - 1])) if cut else (-1.0, 1.0)
    return Gain(round(value, 9), round(min(low, value), 9), round(max(high, value), 9))


def spread(values_us: Sequence[float]) -> float:
    """Half the interquartile range."""
    low, high = np.quantile(np.asarray(values_us, dtype=np.float64), [0.25, 0.75])
    return float(high - low) / 2


def _pairs_to_cut(n: int, m: int, confidence: float) -> int:
    """k, so that the interval runs from the k-th smallest to the k-th largest pair; 0 if nothing can be said."""
    tail = (1 - confidence) / 2
    if n + m <= _EXACT_UP_TO:
        return int(np.searchsorted(np.cumsum(_chances(n, m)), tail, side="right"))
    deviation = (n * m * (n + m + 1) / 12) ** 0.5
    return max(0, int(n * m / 2 + NormalDist().inv_cdf(tail) * deviation))


def _chances(n: int, m: int) -> NDArray[np.float64]:
    """P(U = 0), P(U = 1), ... of the Mann-Whitney statistic without an effect: a Gaussian binomial, normalised.

    Example:
        n = 3, m = 2: 1 1 2 2 2 1 1, each over 10.
    """
    counts = np.zeros(n * m + 1)
    counts[0] = 1.0
    for i in range(1, n + 1):
        # times (1 - q^(m+i)), divided by (1 - q^i)
        factor = counts.copy()
        factor[m + i :] -= counts[: max(0, counts.size - m - i)]
        for power in range(i, factor.size):
            factor[power] += factor[power - i]
        counts = factor
    return np.asarray(counts / counts.sum())
