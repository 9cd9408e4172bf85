"""Fitted lines: what was put in comes out, and a curve with lines answers sizes it never saw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopopt.measure.fit import MAX_REGIMES, fit_regimes, line
from loopopt.timing import CollectiveCurve, Duration, Regime, TimingTable


def samples(
    sizes: list[int], latency: float, slope: float, noise: float = 0.0, repeat: int = 8, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.repeat(np.array(sizes, np.int64), repeat)
    return x, (latency + slope * x) * (1.0 + noise * rng.standard_normal(len(x)))


def test_one_line_is_found_through_noise_and_stragglers() -> None:
    x, y = samples([2**k for k in range(12, 25)], 30.0, 2e-4, noise=0.05)
    y[::9] *= 6.0
    (found,) = fit_regimes(x, y)
    assert found.latency_us == pytest.approx(30.0, rel=0.1)
    assert found.us_per_byte == pytest.approx(2e-4, rel=0.1)
    assert found.samples == len(x)
    assert 0.01 < found.spread < 0.15


def test_a_change_of_protocol_makes_two_regimes() -> None:
    small = samples([2**k for k in range(10, 16)], 10.0, 1e-3, noise=0.02)
    large = samples([2**k for k in range(16, 26)], 100.0, 1e-5, noise=0.02)
    x, y = np.concatenate((small[0], large[0])), np.concatenate((small[1], large[1]))
    found = fit_regimes(x, y)
    assert [r.from_bytes for r in found] == [2**10, 2**16]
    assert found[0].us_per_byte == pytest.approx(1e-3, rel=0.1)
    assert found[1].us_per_byte == pytest.approx(1e-5, rel=0.1)
    assert found[1].latency_us == pytest.approx(100.0, rel=0.1)


def test_noise_alone_makes_no_second_regime() -> None:
    for seed in range(20):
        x, y = samples([2**k for k in range(12, 25)], 20.0, 1e-4, noise=0.1, repeat=3, seed=seed)
        assert len(fit_regimes(x, y)) == 1


def test_too_little_is_not_fitted() -> None:
    assert fit_regimes(np.array([], np.int64), np.array([])) == ()
    assert fit_regimes(np.array([8, 8, 8, 8]), np.array([1.0, 2.0, 1.0, 2.0])) == ()
    assert fit_regimes(np.array([8, 16]), np.array([1.0, 2.0])) == ()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 2**32), st.floats(0.001, 1e7, allow_nan=False)), min_size=0, max_size=60))
def test_whatever_is_measured_the_lines_are_sane(pairs: list[tuple[int, float]]) -> None:
    x = np.array([p[0] for p in pairs], np.int64)
    y = np.array([p[1] for p in pairs], np.float64)
    found = fit_regimes(x, y)
    assert len(found) <= MAX_REGIMES
    assert sum(r.samples for r in found) in (0, len(pairs))
    assert [r.from_bytes for r in found] == sorted({r.from_bytes for r in found})
    for regime in found:
        assert np.isfinite([regime.latency_us, regime.us_per_byte, regime.spread]).all()
        assert min(regime.latency_us, regime.us_per_byte, regime.spread) >= 0.0


def test_a_line_never_has_negative_latency_or_slope() -> None:
    x = np.array([1e6, 2e6, 3e6, 4e6])
    assert line(x, np.array([1.0, 10.0, 30.0, 60.0]))[0] == 0.0
    latency, slope = line(x, np.array([8.0, 6.0, 4.0, 2.0]))
    assert slope == 0.0
    assert latency > 0.0


def curve(latency: float = 50.0, slope: float = 1e-4, count: int = 10) -> CollectiveCurve:
    sizes = (1 << 16, 1 << 20, 1 << 22)
    durations = tuple(Duration(count, latency + slope * s, 1.0) for s in sizes)
    return CollectiveCurve("all_gather", "0", 2, sizes, durations, regimes=(Regime(1 << 16, latency, slope, 0.05, 30),))


def test_a_curve_answers_by_its_lines() -> None:
    found = curve()
    assert found.at(1 << 18) == pytest.approx(50.0 + 1e-4 * (1 << 18))
    assert found.at(1 << 24) == pytest.approx(50.0 + 1e-4 * (1 << 24))
    assert found.at(0) == pytest.approx(50.0), "the latency is the floor"


def test_medians_of_many_samples_bend_the_line_and_few_do_not() -> None:
    def bent(count: int) -> float:
        plain = curve(count=count)
        middle = Duration(count, plain.durations[1].median_us * 2, 1.0)
        changed = CollectiveCurve(
            "all_gather", "0", 2, plain.sizes, (plain.durations[0], middle, plain.durations[2]), regimes=plain.regimes
        )
        return changed.at(1 << 20) / plain.at(1 << 20)

    assert bent(1000) == pytest.approx(2.0, rel=0.01)
    assert 1.0 < bent(1) < 1.2


def test_bandwidth_above_the_largest_size_is_at_most_twice_what_was_seen() -> None:
    flat = CollectiveCurve(
        "all_gather", "0", 2, (1000, 2000), (Duration(5, 100.0, 1.0), Duration(5, 100.0, 1.0)),
        regimes=(Regime(1000, 100.0, 0.0, 0.1, 10),),
    )  # fmt: skip
    assert flat.at(2_000_000) == pytest.approx(100.0 + 0.5 * 100.0 / 2000 * 1_998_000)


def test_uncertainty_grows_away_from_what_was_measured() -> None:
    found = curve()
    inside = found.uncertainty_us(1 << 20) / found.at(1 << 20)
    assert inside == pytest.approx(0.05)
    assert found.uncertainty_us(1 << 26) / found.at(1 << 26) == pytest.approx(0.05 * 5)
    assert found.uncertainty_us(1 << 14) / found.at(1 << 14) == pytest.approx(0.05 * 3)
    bare = CollectiveCurve("broadcast", "", 2, (8,), (Duration(3, 5.0, 0.5),))
    assert bare.uncertainty_us(100) == 0.5


def test_a_table_prefers_the_group_then_the_element_type_then_the_most_samples() -> None:
    def one(group: str, dtype: str, count: int, us: float) -> CollectiveCurve:
        return CollectiveCurve("all_reduce", group, 4, (1000,), (Duration(count, us, 0.0),), dtype=dtype)

    table = TimingTable((one("a", "float32", 3, 1.0), one("a", "bfloat16", 5, 2.0), one("b", "float32", 9, 3.0)))
    assert table.collective_us("all_reduce", "a", 4, 1000, "float32") == 1.0
    assert table.collective_us("all_reduce", "a", 4, 1000) == 2.0
    assert table.collective_us("all_reduce", "c", 4, 1000) == 3.0
    assert table.collective_us("all_reduce", "c", 4, 1000, "bfloat16") == 2.0
    assert table.collective_us("all_reduce", "c", 8, 1000) is None
    assert TimingTable.from_json(table.to_json()) == table
