"""Latency and bandwidth from measured transfers: straight lines over ranges of message size.

    time |                       ______/   large: another protocol, the link's bandwidth
         |              ____,---'
         |  ____,------'                   small: latency counts
         +-------------------------------- bytes

Collective libraries change protocol and algorithm with the size (NCCL: LL, LL128, Simple; ring, tree), so one line
seldom holds everywhere. The model is Hockney's, time = latency + bytes / bandwidth (R. W. Hockney, "The communication
challenge for MPP", Parallel Computing 20, 1994), one line per regime. Lines minimise the sum of *relative* absolute
residuals: absolute, so that stragglers do not bend them; relative, so that small messages count as much as large
ones. A range is divided where that lowers the Bayesian information criterion of Laplace-distributed residuals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loopopt.timing import Regime

MAX_REGIMES = 3

MAX_SPREAD = 1.0
"""Half of the samples further from the line than it is long: the time does not depend on the size in any such way."""

_LEAST_SAMPLES = 3
"""Below this a range is not fitted."""

_LEAST_SIZES = 2
"""Distinct sizes without which latency and bandwidth cannot be told apart."""

_MAX_BREAKS = 40
"""Sizes at which a division is tried."""

_NOISE_FLOOR = 0.005
"""Residuals below half a per cent do not argue for another regime."""

_ROUNDS = 40

Values = NDArray[np.float64]


def fit_regimes(message_bytes: NDArray[np.int64], transfer_us: Values) -> tuple[Regime, ...]:
    """Fit lines to matched collectives of one curve.

    Args:
        message_bytes: int64 (n,), one for each collective, any order.
        transfer_us: float64 (n,), microseconds.

    Returns:
        Lines by size, at most `MAX_REGIMES`; none if there are too few samples or sizes to tell latency from
        bandwidth, or if lines say nothing about the samples.
    """
    usable = (transfer_us > 0) & (message_bytes > 0)
    order = np.argsort(message_bytes[usable], kind="stable")
    sizes = message_bytes[usable][order].astype(np.float64)
    times = transfer_us[usable][order]
    if len(sizes) < _LEAST_SAMPLES or len(np.unique(sizes)) < _LEAST_SIZES:
        return ()
    parts = [(0, len(sizes))]
    while len(parts) < MAX_REGIMES:
        gains = [(_best_division(sizes[a:b], times[a:b]), a, b) for a, b in parts]
        (gain, at), a, b = max(gains, key=lambda g: g[0][0])
        if gain <= 0.0:
            break
        parts.remove((a, b))
        parts += [(a, a + at), (a + at, b)]
        parts.sort()
    found = tuple(_regime(sizes[a:b], times[a:b]) for a, b in parts)
    return found if all(r.spread <= MAX_SPREAD for r in found) else ()


def line(sizes: Values, times: Values) -> tuple[float, float]:
    """(latency, slope) with the least sum of relative absolute residuals; neither is negative.

    By iteratively reweighted least squares, which for absolute residuals converges to the weighted median line.
    """
    latency, slope = _weighted(sizes, times, 1.0 / times**2)
    for _ in range(_ROUNDS):
        residuals = np.abs(latency + slope * sizes - times) / times
        fresh = _weighted(sizes, times, 1.0 / (times**2 * np.maximum(residuals, 1e-4)))
        close = np.allclose(fresh, (latency, slope), rtol=1e-6, atol=0.0)
        latency, slope = fresh
        if close:
            break
    return latency, slope


def _weighted(sizes: Values, times: Values, weights: Values) -> tuple[float, float]:
    """Weighted least squares with both coefficients held at zero or above."""
    total = weights.sum()
    x, y = (weights * sizes).sum() / total, (weights * times).sum() / total
    spread = (weights * (sizes - x) ** 2).sum()
    slope = (weights * (sizes - x) * (times - y)).sum() / spread if spread > 0.0 else 0.0
    latency = y - slope * x
    if slope < 0.0:
        return float(y), 0.0
    if latency < 0.0:
        return 0.0, float((weights * sizes * times).sum() / (weights * sizes**2).sum())
    return float(latency), float(slope)


def _residuals(sizes: Values, times: Values) -> Values:
    latency, slope = line(sizes, times)
    relative: Values = (times - (latency + slope * sizes)) / times
    return relative


def _cost(residuals: Values) -> float:
    """Twice the negative log-likelihood of Laplace residuals, up to a constant."""
    return float(2.0 * len(residuals) * np.log(max(float(np.abs(residuals).mean()), _NOISE_FLOOR)))


def _best_division(sizes: Values, times: Values) -> tuple[float, int]:
    """(how much a division lowers the criterion, index where the second part begins)."""
    distinct, first = np.unique(sizes, return_index=True)
    candidates = first[_LEAST_SIZES : len(distinct) - _LEAST_SIZES + 1]
    if len(candidates) > _MAX_BREAKS:
        candidates = candidates[np.linspace(0, len(candidates) - 1, _MAX_BREAKS).astype(int)]
    # Two more coefficients and the place of the division; the best of many places looks good by chance alone.
    penalty = 3.0 * np.log(len(sizes)) + 4.0 * np.log(1 + len(candidates))
    whole = _cost(_residuals(sizes, times))
    best = (0.0, 0)
    for at in candidates.tolist():
        if min(at, len(sizes) - at) < _LEAST_SAMPLES:
            continue
        parts = np.concatenate((_residuals(sizes[:at], times[:at]), _residuals(sizes[at:], times[at:])))
        best = max(best, (whole - _cost(parts) - penalty, at))
    return best


def _regime(sizes: Values, times: Values) -> Regime:
    latency, slope = line(sizes, times)
    low, high = np.percentile(times / np.maximum(latency + slope * sizes, 1e-9) - 1.0, (25, 75))
    return Regime(
        from_bytes=int(sizes[0]),
        latency_us=round(latency, 3),
        us_per_byte=float(f"{slope:.6g}"),
        spread=round(float(high - low) / 2, 4),
        samples=len(sizes),
    )
