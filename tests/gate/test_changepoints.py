"""Changes of level in a series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpuenergy.gate import MIN_LEVEL_RUNS, change_points

LEVELS = st.lists(st.floats(-1e3, 1e3), max_size=25)


def test_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(1)
    values = [*rng.normal(100, 0.3, 12), *rng.normal(105, 0.3, 9)]
    (change,) = change_points(values)
    assert change.index == 12
    assert change.p <= 0.01


def test_two_steps_are_found() -> None:
    rng = np.random.default_rng(2)
    values = [rng.normal(level, 0.3, 15) for level in (100, 105, 95)]
    assert [c.index for c in change_points(np.concatenate(values).tolist())] == [15, 30]


def test_an_outlier_is_no_change() -> None:
    values = np.random.default_rng(3).normal(100, 0.3, 20).tolist()
    values[10] = 1e6
    assert change_points(values) == []


def test_noise_seldom_has_changes() -> None:
    rng = np.random.default_rng(4)
    runs = 300
    found = sum(bool(change_points(rng.normal(0, 1, 20).tolist())) for _ in range(runs))
    assert found / runs <= 0.01 + 4 * (0.01 * 0.99 / runs) ** 0.5


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 30, [1.0, 2.0] * 2])
def test_nothing_to_find(values: list[float]) -> None:
    assert change_points(values) == []


@pytest.mark.slow
@settings(deadline=None)
@given(LEVELS, st.floats(0.1, 10), st.floats(-10, 10))
def test_only_the_order_of_values_matters(values: list[float], scale: float, offset: float) -> None:
    rounded = [round(value) for value in values]
    moved = [scale * value + offset for value in rounded]
    assert change_points(moved) == change_points(rounded)


@settings(deadline=None)
@given(LEVELS)
def test_changes_leave_enough_on_either_side(values: list[float]) -> None:
    cuts = [0, *(change.index for change in change_points(values)), len(values)]
    if len(cuts) > 2:
        assert min(np.diff(cuts)) >= MIN_LEVEL_RUNS
