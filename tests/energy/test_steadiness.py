"""The slope of power from edges of the energy, and what a card remembers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.energy import Slope, former_power_effect, power_slope

watts = st.floats(1.0, 1000.0)


def energies_mj(times_s: np.ndarray, power_w: float, slope_per_s: float) -> np.ndarray:
    middle_s = times_s - times_s.mean()
    return 1e3 * power_w * (middle_s + slope_per_s / 2 * middle_s**2)


@given(watts, st.floats(-0.2, 0.2), st.integers(5, 40), st.floats(0.02, 1.0))
def test_a_slope_is_found(power_w, slope, count, period_s):
    times_s = period_s * np.arange(count)
    slope /= times_s[-1]
    found = power_slope(times_s.tolist(), energies_mj(times_s, power_w, slope).tolist())
    assert found.per_s == pytest.approx(slope, abs=1e-6)
    assert found.error_per_s == pytest.approx(0.0, abs=1e-6)


def test_the_error_of_a_slope_is_that_of_repeated_fits():
    rng = np.random.default_rng(1)
    times_s = 0.1 * np.arange(11)
    found = []
    for _ in range(400):
        shaken_s = times_s + 0.00064 * rng.standard_normal(11)
        found.append(power_slope(times_s.tolist(), energies_mj(shaken_s, 300.0, 0.0).tolist()))
    typical = np.sqrt(np.mean([slope.error_per_s**2 for slope in found]))
    assert np.std([slope.per_s for slope in found]) == pytest.approx(typical, rel=0.1)


@pytest.mark.parametrize(
    ("slope", "exceeds"),
    [(Slope(0.02, 0.001), True), (Slope(-0.02, 0.001), True), (Slope(0.009, 0.0001), False)],
)
def test_a_slope_exceeds_a_limit_in_either_direction(slope, exceeds):
    assert slope.exceeds(0.01) is exceeds


def test_a_slope_within_its_error_exceeds_nothing():
    assert not Slope(0.03, 0.02).exceeds(0.01)


@pytest.mark.parametrize("energies", [[0, 1, 2], [5, 5, 5, 5]])
def test_a_slope_takes_edges_and_energy(energies):
    with pytest.raises(ValueError, match="four edges"):
        power_slope(list(range(len(energies))), energies)


@given(watts, watts, st.floats(0, 10), st.floats(0.1, 10))
def test_what_was_before_is_forgotten(before_w, power_w, since_s, more_s):
    there = former_power_effect(before_w, power_w, since_s)
    assert 0 <= former_power_effect(before_w, power_w, since_s + more_s) <= there


@given(watts, st.floats(0, 10))
def test_the_same_power_before_is_settled(power_w, since_s):
    assert former_power_effect(power_w, power_w, since_s) == 0
    assert former_power_effect(None, power_w, since_s) == 0
