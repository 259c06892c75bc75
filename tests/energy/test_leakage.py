"""How a card's power depends on its temperature: in proportion, and in steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.energy import Leakage, Settling, step_error


@given(nearer=st.floats(0, 100), farther=st.floats(0, 100))
def test_the_farther_a_temperature_the_less_is_known_of_the_steps_on_the_way(
    nearer: float, farther: float
) -> None:
    nearer, farther = sorted((nearer, farther))
    assert 0 <= step_error(nearer) <= step_error(farther)


def test_at_the_present_temperature_there_is_no_step() -> None:
    assert step_error(0.0) == 0.0


@given(away_k=st.floats(0.1, 4))
def test_the_error_is_that_of_a_staircase_of_unknown_phase(away_k: float) -> None:
    step, spacing_k = 0.012, 8.0
    starts_k = np.linspace(0, spacing_k, 4001)
    crossed = np.floor((starts_k + away_k) / spacing_k)
    error = np.std(step * (crossed - away_k / spacing_k))
    assert step_error(away_k) == pytest.approx(error, rel=0.02)


@given(to_go_k=st.floats(2, 10), error_k=st.floats(0.1, 5))
def test_a_gain_counts_both_the_slope_and_the_steps(to_go_k: float, error_k: float) -> None:
    steady, stepping = (
        Settling(50.0, 50.0 + to_go_k, error_k, 0.0, per_k, 0.0) for per_k in (0.0, 0.004)
    )
    assert steady.gain_error > 0.9 * step_error(to_go_k - 0.3)
    assert stepping.gain_error == pytest.approx(math.hypot(steady.gain_error, 0.004 * error_k))


@given(per_k=st.floats(0.001, 0.008), drift=st.floats(-0.002, 0.002))
def test_a_run_that_warms_the_card_by_far_shows_the_slope(per_k: float, drift: float) -> None:
    temperatures_c = np.linspace(50, 65, 300)
    powers_w = 500 * (1 + per_k * (temperatures_c - 50) + np.linspace(0, drift, 300))
    found = Leakage().plus(powers_w, temperatures_c)
    assert found.per_k == pytest.approx(per_k, rel=0.1, abs=5e-4)


@given(drift=st.floats(-0.003, 0.003), count=st.integers(30, 3000))
def test_a_drift_at_almost_one_temperature_is_not_taken_for_the_slope(
    drift: float, count: int
) -> None:
    found = Leakage().plus(500 * (1 + np.linspace(0, drift, count)), np.linspace(50, 50.3, count))
    assert abs(found.per_k - Leakage().per_k) < Leakage().error / 2
