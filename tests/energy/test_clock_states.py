"""States of a card, from samples of its clock that are made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from points import MORE

from pytest_gpuenergy.devices import CLOCK_SPAN_S, ClockSamples
from pytest_gpuenergy.energy import MIN_STEP, clock_states, has_clock_step, step_indices

BASE_MHZ = 1977.8
TRIALS = 13
Floats = npt.NDArray[np.float64]
SEEDS = st.integers(0, 2**32 - 1)
COUNTS = st.integers(28, 120)
SIZES = st.floats(0.001, 0.006) | st.floats(-0.006, -0.001)


def samples_of(factors: Floats) -> ClockSamples:
    """Return samples over spans of 50 ms of a run that begins at 0."""
    edges_s = CLOCK_SPAN_S * np.arange(len(factors) + 1)
    return ClockSamples(edges_s[:-1], edges_s[1:], BASE_MHZ * factors)


def states_of(factors: Floats) -> Any:
    """Return the states of a run whose last `TRIALS` samples are of the trials."""
    samples = samples_of(factors)
    return clock_states(samples, 0.0, samples.begin_s[-TRIALS], samples.end_s[-1])


def noise(seed: int, count: int, relative: float) -> Floats:
    return 1 + relative * np.random.default_rng(seed).normal(size=count)


def walk(seed: int, count: int, relative: float) -> Floats:
    return 1 + relative * np.cumsum(np.random.default_rng(seed).normal(size=count))


@given(SEEDS, COUNTS, st.floats(0, 1e-4))
def test_a_constant_clock_is_one_state(seed, count, relative):
    (state,) = states_of(noise(seed, count, relative))
    assert state.clock_mhz == pytest.approx(BASE_MHZ, rel=2e-4)
    assert state.name == f"{state.clock_mhz:.1f} MHz"
    assert state.share == 1.0


@given(SEEDS, COUNTS, SIZES, st.integers(2, TRIALS - 2), st.floats(0, 1))
def test_a_step_within_the_trials_is_found(seed, count, size, after, part):
    factors = noise(seed, count, 2e-5)
    factors[-after:] *= 1 + size
    factors[-after - 1] *= 1 + part * size  # it happens within a span
    before, later = states_of(factors)
    assert before.clock_mhz == pytest.approx(BASE_MHZ, rel=1e-4)
    assert later.clock_mhz / before.clock_mhz == pytest.approx(1 + size, abs=1e-4)
    assert later.share == pytest.approx(after / TRIALS, abs=1.01 / TRIALS)
    assert before.share + later.share == pytest.approx(1)
    assert has_clock_step((before, later))


@given(SEEDS, COUNTS, SIZES)
def test_a_step_within_the_heat_up_is_listed_and_no_more(seed, count, size):
    factors = noise(seed, count, 2e-5)
    factors[: count - TRIALS - 3] *= 1 + size
    before, later = states = states_of(factors)
    assert (before.share, later.share) == (0.0, 1.0)
    assert not has_clock_step(states)


@given(SEEDS)
def test_a_restless_clock_within_the_heat_up_hides_nothing_of_the_trials(seed):
    factors = noise(seed, 60, 2e-5)
    factors[:30] = 1.02 + 0.002 * np.sin(np.arange(30))
    factors[-6:] *= 0.997
    before, after = (state for state in states_of(factors) if state.share)
    assert after.clock_mhz / before.clock_mhz == pytest.approx(0.997, abs=1e-4)


@given(SEEDS, SIZES)
def test_a_state_that_comes_again_is_the_same(seed, size):
    factors = noise(seed, 60, 2e-5)
    factors[20:40] *= 1 + size
    first, second = states_of(factors)
    assert (first.share, second.share) == (1.0, 0.0)


@given(SEEDS, SIZES)
def test_a_moment_at_the_beginning_of_the_trials_is_no_mixture(seed, size):
    factors = noise(seed, 60, 2e-5)
    factors[:40] *= 1 + size
    samples = samples_of(factors)
    states = clock_states(samples, 0.0, samples.end_s[39] - 0.02, samples.end_s[-1])
    assert [state.share for state in states] == pytest.approx([0.02, 0.98], abs=0.001)
    assert not has_clock_step(states)


@given(SEEDS, st.integers(14, 200), st.floats(-0.01, 0.01), st.floats(0, 2e-5))
def test_a_steady_drift_has_no_steps(seed, count, total, relative):
    factors = noise(seed, count, relative) * (1 + total * np.linspace(0, 1, count))
    assert step_indices(np.log(factors)) == []
    assert not has_clock_step(states_of(factors))


@given(COUNTS, st.floats(5e-4, 0.02), st.floats(0.05, 1.5), st.floats(0, 6))
def test_a_clock_that_swings_has_no_steps(count, size, pace, phase):
    assert step_indices(size * np.sin(pace * np.arange(count) + phase)) == []


@pytest.mark.parametrize("relative", [2e-5, MORE(1e-4), 3e-4, MORE(1e-3), 5e-3])
@pytest.mark.parametrize("make", [noise, walk])
def test_a_restless_clock_is_hardly_ever_flagged(make, relative):
    flagged = sum(has_clock_step(states_of(make(seed, 34, relative))) for seed in range(400))
    assert flagged <= 4


def test_a_restless_clock_has_no_states():
    assert states_of(walk(1, 60, 1e-3)) == ()
    assert states_of(noise(1, 60, 1e-3)) == ()


@given(SEEDS, COUNTS, st.data())
def test_outliers_are_no_steps(seed, count, data):
    factors = noise(seed, count, 2e-5)
    for begin in range(0, count - 6, 12):  # apart from one another
        factors[begin + data.draw(st.integers(0, 5))] *= data.draw(st.sampled_from([0.9, 1.02, 5]))
    (state,) = states_of(factors)
    assert state.share == 1.0


def test_a_smaller_change_is_no_step():
    factors = np.ones(60)
    factors[-6:] += MIN_STEP / 2
    assert len(states_of(factors)) == 1


def test_the_clock_of_the_first_moments_does_not_count():
    factors = np.ones(40)
    factors[:6] = 0.2
    assert [state.name for state in states_of(factors)] == ["1977.8 MHz"]


@pytest.mark.parametrize("count", [0, 1, 5, 11])
def test_a_few_samples_have_no_states(count):
    samples = samples_of(np.ones(count))
    assert clock_states(samples, 0.0, 0.0, 60.0) == ()
    assert clock_states(None, 0.0, 0.0, 60.0) == ()


def test_states_of_a_run_without_trials_are_unknown():
    assert clock_states(samples_of(np.ones(60)), 0.0, 3.0, 4.0) == ()
