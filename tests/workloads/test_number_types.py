"""bfloat16 and the 8-bit types, which NumPy does not have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.workloads import (
    BFLOAT16,
    FLOAT8,
    is_floating,
    is_known,
    largest,
    least,
    numbers,
    rounded_to,
    stored,
    stored_as,
    unit_roundoff,
)

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


BYTES = np.arange(256, dtype=np.uint8)
FLOAT8_TYPES = pytest.mark.parametrize("dtype", FLOAT8)


def finite_bytes(dtype: str) -> np.ndarray:
    return BYTES[np.isfinite(numbers(BYTES, dtype))]


@pytest.mark.parametrize(
    ("dtype", "known"),
    [
        ("float8_e4m3fn", {0x01: 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x39: 1.125, 0xFE: -448.0}),
        ("float8_e5m2", {0x01: 2.0**-16, 0x04: 2.0**-14, 0x3C: 1.0, 0x3D: 1.25, 0xFB: -57344.0}),
    ],
)
def test_8_bit_types_have_the_numbers_of_their_definition(dtype, known):
    every = numbers(BYTES, dtype)
    assert {bits: float(every[bits]) for bits in known} == known
    assert np.isnan(every[0x7F])
    assert np.isinf(every[0x7C]) == (dtype == "float8_e5m2")


@FLOAT8_TYPES
def test_every_8_bit_number_comes_back(dtype):
    finite = finite_bytes(dtype)
    np.testing.assert_array_equal(stored(numbers(finite, dtype), dtype), finite)


@FLOAT8_TYPES
@given(value=st.floats(-6e4, 6e4) | st.floats(-1, 1) | st.floats(-1e-4, 1e-4))
def test_a_number_is_rounded_to_the_nearest_of_8_bits_or_to_the_even_one(dtype, value):
    finite = finite_bytes(dtype)
    values = numbers(finite, dtype).astype(np.float64)
    bits = rounded_to(np.array([value]), dtype)
    found = float(numbers(bits, dtype)[0])
    distances = np.abs(values - value)
    assert abs(found - value) == distances.min()
    nearest = finite[distances == distances.min()]
    assert bits[0] % 2 == 0 or len(set(nearest & 0x7F)) == 1


@FLOAT8_TYPES
def test_too_large_numbers_become_the_largest_of_8_bits(dtype):
    found = numbers(rounded_to(np.array([1e9, -math.inf, math.nan]), dtype), dtype)
    np.testing.assert_array_equal(found, [largest(dtype), least(dtype), math.nan])


@FLOAT8_TYPES
def test_8_bit_types_are_floating_point_types_of_a_byte(dtype):
    assert is_known(dtype)
    assert is_floating(dtype)
    assert stored_as(dtype) == np.uint8
    one = int(rounded_to(np.array(1.0), dtype))
    assert numbers(np.array([one + 1], np.uint8), dtype)[0] - 1 == 2 * unit_roundoff(dtype)
