"""The error bound of a reduction: wide enough for rounding, far too narrow for a mistake."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuenergy.workloads import ErrorBound

TYPES = ("float16", "float32", "float64")


@given(st.integers(1, 10**7), st.sampled_from(TYPES))
def test_longer_sums_may_err_more(length: int, dtype: str) -> None:
    shorter, longer = (ErrorBound.for_reduction(n, dtype) for n in (length, length + 1))
    assert shorter.max_relative < longer.max_relative
    assert shorter.normwise < longer.normwise < longer.max_relative


@pytest.mark.parametrize("length", [0, 1])
def test_without_a_sum_only_rounding_is_left(length: int) -> None:
    assert ErrorBound.for_reduction(length).max_relative == pytest.approx(10 * 2**-24)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4096), st.integers(0, 2**32), st.booleans())
def test_honest_sums_stay_within(length: int, seed: int, pairwise: bool) -> None:
    generator = np.random.default_rng(seed)
    a, b = (generator.standard_normal((200, length)).astype(np.float32) for _ in range(2))
    products = a * b
    got = products.sum(axis=1) if pairwise else np.cumsum(products, axis=1, dtype=np.float32)[:, -1]
    exact = (a.astype(np.float64) * b).sum(axis=1)
    bound = ErrorBound.for_reduction(length)
    assert np.abs(got - exact).max() / np.abs(exact).max() <= bound.max_relative
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) <= bound.normwise


@pytest.mark.parametrize("length", [288, 4608, 16384])
def test_a_dropped_term_is_far_outside(length: int) -> None:
    # One product of standard normal values against the largest of many sums of `length` of them.
    typical = 1 / (4 * np.sqrt(length))
    assert typical > 10 * ErrorBound.for_reduction(length).max_relative
