"""Changes as logarithms of ratios, with intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.energy import estimate
from pytest_gpuenergy.record import Estimate, SessionMean, log_excess, log_ratio, paired_log_ratio
from pytest_gpuenergy.support import NORMAL

MEANS = st.floats(1e-6, 1e6)
ERRORS = st.floats(0, 0.1)
DEGREES = st.integers(1, 50)
SAMPLES = st.builds(SessionMean, MEANS, ERRORS, DEGREES)
SDS = st.floats(0, 0.1)
TAILS = st.floats(1e-6, 0.4)


def of(values: list[float]) -> SessionMean:
    found = estimate(values)
    return SessionMean.of(found, len(values))


@given(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=20), st.floats(0, 0.1))
def test_what_all_trials_share_is_left_out(values, shared):
    mean = math.fsum(values) / len(values)
    found = estimate(values, known_variance=(shared * mean) ** 2)
    sample = SessionMean.of(found, len(values), shared=shared)
    assert sample.relative_error == pytest.approx(of(values).relative_error, abs=1e-6)
    assert sample.degrees == of(values).degrees


@given(SAMPLES, SAMPLES, st.floats(0, 0.01), st.floats(0, 0.01), TAILS)
def test_what_trials_share_is_part_of_the_deviation_between_sessions(one, other, shared, sd, tail):
    sides = [replace(side, shared_error=shared) for side in (one, other)]
    found = log_ratio(*sides, session_sd=sd, tail=tail)
    assert found == log_ratio(one, other, session_sd=max(sd, shared), tail=tail)


def test_an_error_that_trials_share_is_no_larger_than_the_interval():
    sample = SessionMean.of(Estimate(1.0, 0.99, 1.01), 5, shared=1e300)
    assert sample.relative_error == 0.0
    assert sample.shared_error == pytest.approx(0.01 / NORMAL)


@given(SAMPLES, SAMPLES, SDS, TAILS)
def test_swapping_the_sides_turns_the_change_round(one, other, sd, tail):
    there = log_ratio(one, other, session_sd=sd, tail=tail)
    back = log_ratio(other, one, session_sd=sd, tail=tail)
    assert back.value == pytest.approx(-there.value, abs=1e-12)
    assert back.low == pytest.approx(-there.high, rel=1e-9, abs=1e-9)
    assert back.high == pytest.approx(-there.low, rel=1e-9, abs=1e-9)


@given(SAMPLES, SAMPLES, SDS, TAILS, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(one, other, sd, tail, unit):
    scaled = [SessionMean(s.mean * unit, s.relative_error, s.degrees) for s in (one, other)]
    change = log_ratio(one, other, session_sd=sd, tail=tail)
    again = log_ratio(*scaled, session_sd=sd, tail=tail)
    for name in ("value", "low", "high"):
        expected = getattr(change, name)
        assert getattr(again, name) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(SAMPLES, SAMPLES, SDS, SDS, TAILS)
def test_more_noise_between_sessions_widens_the_interval(one, other, first, second, tail):
    # Only for the same quantile: a known variance also adds degrees of freedom.
    one, other = (SessionMean(s.mean, s.relative_error, math.inf) for s in (one, other))
    less, more = sorted((first, second))
    narrow = log_ratio(one, other, session_sd=less, tail=tail)
    wide = log_ratio(one, other, session_sd=more, tail=tail)
    assert wide.high - wide.low >= (narrow.high - narrow.low) * (1 - 1e-9)


@given(SAMPLES, SAMPLES, SDS, TAILS, TAILS)
def test_more_certainty_widens_the_interval(one, other, sd, first, second):
    less, more = sorted((first, second))
    wide = log_ratio(one, other, session_sd=sd, tail=less)
    narrow = log_ratio(one, other, session_sd=sd, tail=more)
    assert wide.high >= narrow.high - 1e-12


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    sd, runs, truth = 0.004, 3000, math.log(1.03)
    missed = 0
    for _ in range(runs):
        shifts = np.exp(sd * rng.standard_normal(2)) * [1, 1.03]
        base, new = (
            of((100 * shift * (1 + 0.003 * rng.standard_normal(4))).tolist()) for shift in shifts
        )
        change = log_ratio(base, new, session_sd=sd, tail=0.025)
        missed += not change.low <= truth <= change.high
    assert missed / runs == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / runs))


def test_paired_rounds_cover_the_truth_whatever_they_share():
    rng = np.random.default_rng(4)
    runs, missed = 3000, 0
    for _ in range(runs):
        drift = np.cumsum(rng.standard_normal(6)) * 0.05
        ratios = (drift + 0.01 + 0.002 * rng.standard_normal(6)) - drift
        change = paired_log_ratio(ratios.tolist(), tail=0.025)
        missed += not change.low <= 0.01 <= change.high
    assert missed / runs == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / runs))


def test_a_known_number_has_no_noise_of_its_own():
    sample = SessionMean(1.05, 0.0, 3)
    exact = log_excess(sample, 1.0, session_sd=0.01, tail=0.025)
    assert exact.value == pytest.approx(math.log(1.05))
    assert exact.high - exact.low == pytest.approx(2 * 1.959964 * 0.01, rel=0.01)


@pytest.mark.parametrize(("mean", "trials"), [(1.0, 1), (0.0, 4), (-1.0, 4), (math.nan, 4)])
def test_a_sample_needs_trials_and_a_positive_mean(mean, trials):
    with pytest.raises(ValueError, match="two trials and a mean above zero"):
        SessionMean.of(Estimate(mean, 0.9, 1.1), trials)


def test_a_mean_that_is_next_to_nothing_is_no_sample():
    with pytest.raises(ValueError, match="almost infinite"):
        SessionMean.of(Estimate(1e-320, 0.9, 1.1), 4)


def test_one_round_is_no_pair():
    with pytest.raises(ValueError, match="two rounds"):
        paired_log_ratio([0.1], tail=0.01)


@pytest.mark.parametrize(("low", "high"), [(1e200, 0.0), (1e308, -1e308)])
def test_an_interval_that_is_upside_down_is_no_sample(low, high):
    with pytest.raises(ValueError, match="ends are swapped"):
        SessionMean.of(Estimate(1.0, low, high), 4)


@given(*[st.floats(5e-324, 1.7e308)] * 2, st.integers(1, 3), st.floats(1e-9, 0.4))
def test_a_change_is_a_number_however_far_apart_the_sides_are(one, other, degrees, tail):
    base, new = (SessionMean(mean, 0.5, degrees) for mean in (one, other))
    for change in (
        log_ratio(base, new, session_sd=0.0, tail=tail),
        log_excess(new, one, session_sd=0.0, tail=tail),
    ):
        assert 0 < math.exp(change.low) <= math.exp(change.high) < math.inf
