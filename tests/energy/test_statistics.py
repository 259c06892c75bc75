"""Means and their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.energy import estimate, variance_of_mean
from pytest_gpuenergy.record import Estimate

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@pytest.mark.parametrize("count", [2, 4, 10])
def test_the_interval_covers_the_mean_as_often_as_it_says(count: int) -> None:
    draws = np.random.default_rng(20).normal(400.0, 8.0, (4000, count))
    intervals = [estimate(row) for row in draws.tolist()]
    covered = sum(found.low <= 400.0 <= found.high for found in intervals)
    # Four standard deviations of a binomial with p = 0.95.
    assert covered / 4000 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_an_error_shared_by_all_values_widens_the_interval() -> None:
    generator = np.random.default_rng(21)
    rows = generator.normal(400.0, 1.0, (4000, 8)) + generator.normal(0.0, 5.0, (4000, 1))
    intervals = [estimate(row, extra_variance=25.0) for row in rows.tolist()]
    assert sum(found.low <= 400.0 <= found.high for found in intervals) / 4000 >= 0.95


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("scatter", [0.5, 5.0, 50.0])
def test_an_error_known_beforehand_widens_it_by_no_more_than_it_must(
    count: int, scatter: float
) -> None:
    generator = np.random.default_rng(22)
    rows = generator.normal(400.0, scatter, (4000, count)) + generator.normal(0.0, 5.0, (4000, 1))
    intervals = [estimate(row, known_variance=25.0) for row in rows.tolist()]
    covered = sum(found.low <= 400.0 <= found.high for found in intervals) / 4000
    assert 0.94 <= covered <= 0.99


@given(VALUES)
def test_the_interval_is_centred_on_the_mean(values: list[float]) -> None:
    found = estimate(values)
    assert found.low <= found.value <= found.high
    assert found.value - found.low == pytest.approx(found.high - found.value, rel=1e-6, abs=1e-6)


@given(st.floats(-1e6, 1e6), st.integers(2, 20))
def test_equal_values_leave_no_doubt(value: float, count: int) -> None:
    found = estimate([value] * count)
    assert (found.low, found.value, found.high) == pytest.approx((value, value, value))


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]], ids=repr)
def test_an_interval_needs_two_finite_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="two finite values"):
        estimate(values)


def test_relative_half_width_of_a_negative_mean_is_positive() -> None:
    assert Estimate(-10.0, -11.0, -9.0).relative_half_width == pytest.approx(0.1)


def test_relative_half_width_of_zero_is_infinite() -> None:
    assert Estimate(0.0, -1.0, 1.0).relative_half_width == math.inf


def shared_edges(rng: np.random.Generator, count: int) -> list[float]:
    """Trials between edges whose moments are uncertain."""
    return (1 + np.diff(0.0064 * rng.standard_normal(count + 1))).tolist()


def wandering(rng: np.random.Generator, count: int) -> list[float]:
    """Trials each of which is like the one before."""
    values = rng.standard_normal(count)
    for i in range(1, count):
        values[i] = 0.5 * values[i - 1] + math.sqrt(0.75) * values[i]
    return (1 + 0.003 * values).tolist()


@pytest.mark.parametrize(("draw", "least"), [(shared_edges, 0.95), (wandering, 0.75)])
@pytest.mark.parametrize("count", [6, 12, 24])
def test_intervals_of_successive_values_hold_the_truth(
    draw: Callable[[np.random.Generator, int], list[float]], least: float, count: int
) -> None:
    rng = np.random.default_rng(count)
    for earlier in (0, 7):
        series = [draw(rng, earlier + count) for _ in range(1000)]
        found = [estimate(one[earlier:], successive=True, before=one[:earlier]) for one in series]
        assert sum(one.low <= 1 <= one.high for one in found) >= 1000 * least


def test_values_from_before_tell_of_the_scatter_and_are_no_part_of_the_mean() -> None:
    rng = np.random.default_rng(5)
    widths = []
    for _ in range(200):
        values = shared_edges(rng, 13)
        known, alone = (
            estimate(values[7:], successive=True, before=before) for before in (values[:7], ())
        )
        assert known.value == alone.value
        widths.append((known.relative_half_width, alone.relative_half_width))
    with_before, without = np.mean(widths, axis=0)
    assert with_before < 0.75 * without


def test_values_that_wander_are_less_certain_than_independent_ones() -> None:
    rng = np.random.default_rng(3)
    drawn = [wandering(rng, 24) for _ in range(200)]
    plain = np.mean([np.var(values, ddof=1) / 24 for values in drawn])
    assert np.mean([variance_of_mean(values) for values in drawn]) > 1.3 * plain


def test_errors_of_edges_partly_drop_out_of_the_mean() -> None:
    rng = np.random.default_rng(4)
    drawn = [shared_edges(rng, 24) for _ in range(200)]
    plain = np.mean([np.var(values, ddof=1) / 24 for values in drawn])
    assert np.mean([variance_of_mean(values) for values in drawn]) < 0.5 * plain


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30),
    st.lists(st.floats(-1e6, 1e6), max_size=9),
)
def test_the_variance_of_a_mean_is_that_of_the_ends_at_least(
    values: list[float], before: list[float]
) -> None:
    least = np.var([*before, *values], ddof=1) / len(values) ** 2
    assert variance_of_mean(values, before) >= least * (1 - 1e-9) - 1e-9
