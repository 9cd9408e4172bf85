"""Claims about the comparison of step times."""

from __future__ import annotations

import numpy as np
import pytest

from loopopt.control import compare, spread

TRIES = 200


def _steps(random: np.random.Generator, typical_us: float, noise: float, outliers: float = 0.0) -> list[float]:
    steps = typical_us * np.exp(random.normal(0, noise, 10))
    return list(np.where(random.random(10) < outliers, 4 * steps, steps))


def test_the_gain_is_the_share_of_the_median_that_is_saved() -> None:
    """Half the time is a gain of one half, twice the time a gain of minus one."""
    before = [99.0, 100.0, 101.0, 100.0, 100.0]
    half = compare(before, [s / 2 for s in before], confidence=0.95)
    twice = compare(before, [s * 2 for s in before], confidence=0.95)
    assert half.value == pytest.approx(0.5)
    assert twice.value == pytest.approx(-1.0)
    assert half.low > 0.4
    assert twice.high < -0.9


def test_the_same_steps_always_give_the_same_verdict() -> None:
    """Nothing but the samples decides."""
    random = np.random.default_rng(1)
    before, after = _steps(random, 100, 0.1), _steps(random, 95, 0.1)
    assert compare(before, after, confidence=0.9) == compare(before, after, confidence=0.9)


def test_more_confidence_gives_a_wider_interval() -> None:
    """The interval of the higher level contains that of the lower."""
    random = np.random.default_rng(2)
    before, after = _steps(random, 100, 0.1), _steps(random, 95, 0.1)
    narrow, wide = compare(before, after, confidence=0.8), compare(before, after, confidence=0.99)
    assert wide.low < narrow.low <= narrow.value <= narrow.high < wide.high


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_equal_plans_are_rarely_taken_for_better(noise: float) -> None:
    """Over many draws without any effect, hardly one interval lies above a gain of one percent."""
    random = np.random.default_rng(3)
    kept = sum(
        compare(_steps(random, 100, noise, 0.05), _steps(random, 100, noise, 0.05), confidence=0.95).low > 0.01
        for _ in range(TRIES)
    )
    assert kept / TRIES <= 0.05


def test_a_real_gain_is_seen_through_noise_and_outliers() -> None:
    """Ten steps are enough for fifteen percent under five percent of noise, with outliers on both sides."""
    random = np.random.default_rng(4)
    seen = sum(
        compare(_steps(random, 100, 0.05, 0.1), _steps(random, 85, 0.05, 0.1), confidence=0.95).low > 0.01
        for _ in range(TRIES)
    )
    assert seen / TRIES >= 0.9


def test_one_outlier_does_not_move_the_gain() -> None:
    """A checkpoint in one step changes neither verdict nor size of the gain."""
    before = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.0]
    after = [80.0, 81.0, 79.0, 80.5, 79.5, 80.2, 79.8, 80.0]
    calm = compare(before, after, confidence=0.95)
    shaken = compare(before, [*after[:-1], 5000.0], confidence=0.95)
    assert shaken.value == pytest.approx(calm.value, abs=0.005)
    assert shaken.low > 0.15


def test_a_slow_drift_within_the_noise_is_not_a_gain() -> None:
    """A machine that gets faster by two percent over both series does not make a plan look better."""
    random = np.random.default_rng(5)
    drift = np.linspace(1.0, 0.98, 20)
    kept = 0
    for _ in range(TRIES):
        steps = 100 * drift * np.exp(random.normal(0, 0.03, 20))
        kept += compare(list(steps[:10]), list(steps[10:]), confidence=0.95).low > 0.01
    assert kept / TRIES <= 0.1


def test_the_spread_is_half_the_interquartile_range() -> None:
    """1 to 5: the middle half lies between 2 and 4."""
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.0)


def test_too_few_steps_prove_nothing() -> None:
    """With two steps a side no interval of 95 % has a lower end, however large the gain."""
    gain = compare([100.0, 101.0], [10.0, 11.0], confidence=0.95)
    assert gain.value > 0.8
    assert gain.low < 0


@pytest.mark.parametrize("count", [10, 21, 100])
def test_the_interval_holds_the_truth_as_often_as_it_says(count: int) -> None:
    """At 90 %, the true gain lies inside in about nine of ten draws, for few samples and for many."""
    random = np.random.default_rng(6)
    inside = 0
    for _ in range(TRIES):
        before = list(100 * np.exp(random.normal(0, 0.05, count)))
        after = list(90 * np.exp(random.normal(0, 0.05, count)))
        gain = compare(before, after, confidence=0.9)
        inside += gain.low <= 0.1 <= gain.high
    assert 0.84 <= inside / TRIES <= 0.98
