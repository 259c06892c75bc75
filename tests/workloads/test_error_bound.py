"""The error bound of a reduction: wide enough for rounding, far too narrow for a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.workloads import ErrorBound

TYPES = ("float16", "float32", "float64")


@given(st.integers(1, 10**7), st.sampled_from(TYPES))
def test_longer_sums_may_err_more(length, dtype):
    shorter, longer = (ErrorBound.for_reduction(n, dtype) for n in (length, length + 1))
    assert shorter.max_relative < longer.max_relative
    assert shorter.normwise < longer.normwise < longer.max_relative


@pytest.mark.parametrize("length", [0, 1])
def test_without_a_sum_only_rounding_is_left(length):
    assert ErrorBound.for_reduction(length).max_relative == pytest.approx(10 * 2**-24)


@given(st.integers(1, 4096), st.integers(0, 2**32), st.booleans())
def test_honest_sums_stay_within(length, seed, pairwise):
    generator = np.random.default_rng(seed)
    a, b = (generator.standard_normal((200, length)).astype(np.float32) for _ in range(2))
    products = a * b
    got = products.sum(axis=1) if pairwise else np.cumsum(products, axis=1, dtype=np.float32)[:, -1]
    exact = (a.astype(np.float64) * b).sum(axis=1)
    bound = ErrorBound.for_reduction(length)
    assert np.abs(got - exact).max() / np.abs(exact).max() <= bound.max_relative
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) <= bound.normwise


@pytest.mark.parametrize("length", [288, 4608, 16384])
def test_a_dropped_term_is_far_outside(length):
    # One product of standard normal values against the largest of many sums of `length` of them.
    typical = 1 / (4 * np.sqrt(length))
    assert typical > 10 * ErrorBound.for_reduction(length).max_relative


def half_products(length: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(length)
    a, b = (generator.standard_normal((300, length)).astype(np.float16) for _ in range(2))
    return a, b


def errors(found: Any, exact: Any) -> tuple[float, Any]:
    """The largest error as a fraction of the largest value, and what each element may be off by."""
    off = np.abs(found.astype(np.float64) - exact)
    return float(off.max() / np.abs(exact).max()), off


@pytest.mark.parametrize("length", [1, 64, 4096])
def test_half_sums_accumulated_in_single_stay_within_the_bound_of_each_element(length):
    a, b = half_products(length)
    exact = (a.astype(np.float64) * b).sum(axis=1)
    found = np.cumsum(a.astype(np.float32) * b, axis=1, dtype=np.float32)[:, -1].astype(np.float16)
    bound = ErrorBound.for_reduction(length, "float16")
    _, off = errors(found, exact)
    sums = bound.max_relative - bound.rounding
    assert (off <= sums * np.abs(exact).max() + bound.rounding * np.abs(exact) + 2**-24).all()


@pytest.mark.parametrize("length", [64, 4096])
def test_half_accumulators_are_far_outside_unless_they_are_declared(length):
    a, b = half_products(length)
    exact = (a.astype(np.float64) * b).sum(axis=1)
    total = np.zeros(len(a), np.float16)
    for column in range(length):
        total += a[:, column] * b[:, column]
    largest, _ = errors(total, exact)
    assert largest > ErrorBound.for_reduction(length, "float16").max_relative
    assert largest < ErrorBound.for_reduction(length, "float16", "float16").max_relative


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_bound_of_a_long_sum_in_single_has_little_to_do_with_the_outputs_type(dtype):
    bound = ErrorBound.for_reduction(4096, dtype)
    single = ErrorBound.for_reduction(4096)
    assert bound.max_relative - bound.rounding == pytest.approx(single.max_relative)


def test_a_double_sum_must_be_added_up_in_double():
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((300, 1000)).astype(np.float32) for _ in range(2))
    exact = (a.astype(np.float64) * b).sum(axis=1)
    in_single, _ = errors((a * b).sum(axis=1), exact)
    in_double, _ = errors(np.cumsum(a.astype(np.float64) * b, axis=1)[:, -1], exact)
    bound = ErrorBound.for_reduction(1000, "float64")
    assert in_double <= bound.max_relative < in_single
