"""bfloat16, which NumPy does not have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.workloads import BFLOAT16, largest, numbers, rounded_to, unit_roundoff

BITS = np.arange(1 << 16, dtype=np.uint16)
FINITE = np.isfinite(numbers(BITS, BFLOAT16))
VALUES = np.unique(numbers(BITS[FINITE], BFLOAT16).astype(np.float64))


def rounded(value: float) -> float:
    return float(numbers(rounded_to(np.array([value]), BFLOAT16), BFLOAT16)[0])


def test_every_number_comes_back():
    values = numbers(BITS[FINITE], BFLOAT16).astype(np.float64)
    np.testing.assert_array_equal(rounded_to(values, BFLOAT16), BITS[FINITE])


@given(st.floats(-3e38, 3e38))
def test_a_number_is_rounded_to_the_nearest(value):
    found = rounded(value)
    assert abs(found - value) == np.abs(VALUES - value).min()


@given(st.integers(0, len(VALUES) - 2))
def test_ties_go_to_the_even_one(place):
    low, high = VALUES[place : place + 2]
    found = rounded((low + high) / 2)
    bits = rounded_to(np.array([found]), BFLOAT16)[0]
    assert bits % 2 == 0 or found == 0


@given(st.integers(0, len(VALUES) - 2), st.sampled_from([-1, 1]))
def test_numbers_next_to_a_tie_are_rounded_once(place, side):
    low, high = VALUES[place : place + 2]
    beside = math.nextafter((low + high) / 2, side * math.inf)
    assert rounded(beside) == (low if side < 0 else high)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.4e38])
def test_what_is_not_finite_stays_so(value):
    expected = math.inf if value == 3.4e38 else value
    assert rounded(value) == pytest.approx(expected, nan_ok=True)


def test_its_limits_are_those_of_eight_digits():
    assert unit_roundoff(BFLOAT16) == 2**-8
    assert largest(BFLOAT16) == VALUES.max()
