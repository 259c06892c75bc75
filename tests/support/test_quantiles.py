"""Quantiles of Student's t distribution."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import student_t

DEGREES = st.integers(1, 500)
PROBABILITIES = st.floats(0.5, 0.999)

# Critical values as every table has them, correctly rounded.
TABLE = [
    *((1, 0.90, 3.078), (1, 0.975, 12.706), (1, 0.999, 318.309), (2, 0.975, 4.303)),
    *((2, 0.999, 22.327), (3, 0.95, 2.353), (3, 0.975, 3.182), (3, 0.999, 10.215)),
    *((4, 0.975, 2.776), (5, 0.99, 3.365), (7, 0.975, 2.365), (10, 0.975, 2.228)),
    *((10, 0.999, 4.144), (30, 0.975, 2.042), (100, 0.975, 1.984)),
]


@pytest.mark.parametrize(("degrees", "probability", "quantile"), TABLE)
def test_quantiles_of_the_table(degrees, probability, quantile):
    assert student_t(degrees, probability) == pytest.approx(quantile, abs=6e-4)


# By scipy.stats.t.ppf.
@pytest.mark.parametrize(
    ("degrees", "tail", "quantile"),
    [(3, 1e-6, 103.299468), (3, 1e-7, 222.571591), (4, 1e-7, 73.985758), (1000, 1e-5, 4.285438)],
)
def test_quantiles_far_out(degrees, tail, quantile):
    assert student_t(degrees, 1 - tail) == pytest.approx(quantile, rel=1e-6)


@given(DEGREES, PROBABILITIES)
def test_more_degrees_give_a_narrower_distribution(degrees, probability):
    assert student_t(degrees + 1, probability) <= student_t(degrees, probability) + 1e-12


@given(DEGREES, PROBABILITIES, PROBABILITIES)
def test_the_quantile_grows_with_the_probability(degrees, first, second):
    low, high = sorted((first, second))
    assert student_t(degrees, low) <= student_t(degrees, high) + 1e-12


@given(DEGREES, PROBABILITIES)
def test_the_distribution_is_symmetric(degrees, probability):
    below, above = student_t(degrees, 1 - probability), student_t(degrees, probability)
    assert below == pytest.approx(-above, rel=1e-9, abs=1e-9)


def test_many_degrees_give_the_normal_distribution():
    assert student_t(10**6) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("degrees", [0, -1])
def test_without_degrees_there_is_no_distribution(degrees):
    with pytest.raises(ValueError, match="at least one degree"):
        student_t(degrees)
