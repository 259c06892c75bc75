"""Means and their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st
from points import each_once

from pytest_gpuenergy.devices import ClockSamples, Repeater, Timeline
from pytest_gpuenergy.emulator import EmulatedDevice, VirtualRepeater
from pytest_gpuenergy.energy import (
    EnergyMeter,
    MeterSettings,
    Reading,
    Settling,
    cut_windows,
    estimate,
    mean_clock_mhz,
    placement_variance,
    settling_gains,
    variance_of_mean,
)
from pytest_gpuenergy.record import Estimate, Metric

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.thorough)])
def test_the_interval_covers_the_mean_as_often_as_it_says(count):
    draws = np.random.default_rng(20).normal(400.0, 8.0, (4000, count))
    intervals = [estimate(row) for row in draws.tolist()]
    covered = sum(found.low <= 400.0 <= found.high for found in intervals)
    # Four standard deviations of a binomial with p = 0.95.
    assert covered / 4000 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def swinging(count: int, amplitude: float, rng: np.random.Generator) -> list[float]:
    """Return values that swing about 690 with a period of ten values, and fall a bit slower."""
    phase = rng.uniform(0, 2 * np.pi)
    angles = phase + 2 * np.pi * np.arange(count) / 10.3
    return (690 + amplitude * np.sin(angles) + rng.normal(0.0, 2.0, count)).tolist()


@pytest.mark.parametrize("amplitude", [0.0, 15.0, 60.0])
def test_the_mean_of_whole_swings_is_known_although_they_are_wide(amplitude):
    rng = np.random.default_rng(23)
    found = [estimate(swinging(20, amplitude, rng), swing=10) for _ in range(400)]
    assert np.mean([one.low <= 690 <= one.high for one in found]) >= 0.93
    assert np.median([one.relative_half_width for one in found]) < 0.01


def test_one_swing_counts_with_what_such_means_are_off_by():
    wide = swinging(10, 60.0, np.random.default_rng(25))
    found = estimate(wide, successive=True, swing=10, one_swing=0.002)
    assert found.relative_half_width == pytest.approx(1.96 * 0.002, rel=1e-3)
    steady = [690.0 + 0.01 * (place % 2) for place in range(10)]
    assert estimate(steady, successive=True, swing=10, one_swing=0.002).half_width < 0.1


def test_a_drift_over_swings_widens_the_interval():
    rng = np.random.default_rng(24)
    values = swinging(20, 30.0, rng)
    drifting = [value + 2.0 * place for place, value in enumerate(values)]
    steady, drifts = (estimate(row, swing=10).half_width for row in (values, drifting))
    assert drifts > 2 * steady


def test_an_error_shared_by_all_values_widens_the_interval():
    generator = np.random.default_rng(21)
    rows = generator.normal(400.0, 1.0, (4000, 8)) + generator.normal(0.0, 5.0, (4000, 1))
    intervals = [estimate(row, extra_variance=25.0) for row in rows.tolist()]
    assert sum(found.low <= 400.0 <= found.high for found in intervals) / 4000 >= 0.95


@pytest.mark.parametrize(("scatter", "count"), each_once([0.5, 5.0, 50.0], [2, 8]))
def test_an_error_known_beforehand_widens_it_by_no_more_than_it_must(count, scatter):
    generator = np.random.default_rng(22)
    rows = generator.normal(400.0, scatter, (4000, count)) + generator.normal(0.0, 5.0, (4000, 1))
    intervals = [estimate(row, known_variance=25.0) for row in rows.tolist()]
    covered = sum(found.low <= 400.0 <= found.high for found in intervals) / 4000
    assert 0.94 <= covered <= 0.99


@given(VALUES)
def test_the_interval_is_centred_on_the_mean(values):
    found = estimate(values)
    assert found.low <= found.value <= found.high
    assert found.value - found.low == pytest.approx(found.high - found.value, rel=1e-6, abs=1e-6)


@given(st.floats(-1e6, 1e6), st.integers(2, 20))
def test_equal_values_leave_no_doubt(value, count):
    found = estimate([value] * count)
    assert (found.low, found.value, found.high) == pytest.approx((value, value, value))


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]], ids=repr)
def test_an_interval_needs_two_finite_values(values):
    with pytest.raises(ValueError, match="two finite values"):
        estimate(values)


def test_relative_half_width_of_a_negative_mean_is_positive():
    assert Estimate(-10.0, -11.0, -9.0).relative_half_width == pytest.approx(0.1)


def test_relative_half_width_of_zero_is_infinite():
    assert Estimate(0.0, -1.0, 1.0).relative_half_width == math.inf


def shared_edges(rng: np.random.Generator, count: int) -> list[float]:
    """Draw trials between edges whose times are uncertain."""
    return (1 + np.diff(0.0064 * rng.standard_normal(count + 1))).tolist()


def wandering(rng: np.random.Generator, count: int) -> list[float]:
    """Draw trials that are each similar to the trial before."""
    values = rng.standard_normal(count)
    for i in range(1, count):
        values[i] = 0.5 * values[i - 1] + math.sqrt(0.75) * values[i]
    return (1 + 0.003 * values).tolist()


@pytest.mark.parametrize(
    ("count", "draw", "least"),
    each_once([6, 24], {"edges": (shared_edges, 0.95), "wandering": (wandering, 0.75)}),
)
def test_intervals_of_successive_values_hold_the_truth(draw, least, count):
    rng = np.random.default_rng(count)
    for earlier in (0, 7):
        series = [draw(rng, earlier + count) for _ in range(1000)]
        found = [estimate(one[earlier:], successive=True, before=one[:earlier]) for one in series]
        assert sum(one.low <= 1 <= one.high for one in found) >= 1000 * least


def test_values_from_before_tell_of_the_scatter_and_are_no_part_of_the_mean():
    rng = np.random.default_rng(5)
    widths = []
    for _ in range(200):
        values = shared_edges(rng, 13)
        known, alone = (
            estimate(values[7:], successive=True, before=before) for before in (values[:7], ())
        )
        assert known.value == alone.value
        widths.append((known.relative_half_width, alone.relative_half_width))
    with_before, without = np.mean(widths, axis=0)
    assert with_before < 0.75 * without


def test_values_that_wander_are_less_certain_than_independent_ones():
    rng = np.random.default_rng(3)
    drawn = [wandering(rng, 24) for _ in range(200)]
    plain = np.mean([np.var(values, ddof=1) / 24 for values in drawn])
    assert np.mean([variance_of_mean(values) for values in drawn]) > 1.3 * plain


def test_errors_of_edges_partly_drop_out_of_the_mean():
    rng = np.random.default_rng(4)
    drawn = [shared_edges(rng, 24) for _ in range(200)]
    plain = np.mean([np.var(values, ddof=1) / 24 for values in drawn])
    assert np.mean([variance_of_mean(values) for values in drawn]) < 0.5 * plain


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30),
    st.lists(st.floats(-1e6, 1e6), max_size=9),
)
def test_the_variance_of_a_mean_is_that_of_the_ends_at_least(values, before):
    least = np.var([*before, *values], ddof=1) / len(values) ** 2
    assert variance_of_mean(values, before) >= least * (1 - 1e-9) - 1e-9


SETTLINGS = st.builds(
    Settling,
    temperature_c=st.floats(30, 80),
    settled_c=st.floats(30, 80),
    error_k=st.floats(0.3, 5),
    open_k=st.just(0.3),
    per_k=st.floats(0.002, 0.006),
    per_k_error=st.floats(0.0002, 0.0012),
)


@given(settling=SETTLINGS, headroom=st.floats(0, 0.2))
def test_the_power_rises_no_further_than_its_limit(settling, headroom):
    assert settling_gains(settling, headroom)[Metric.ENERGY].factor <= 1 + headroom + 1e-12


@given(settling=SETTLINGS)
def test_far_from_the_limit_energy_and_edp_follow_the_power(settling):
    found = settling_gains(settling, math.inf)
    assert found[Metric.ENERGY] == found[Metric.EDP]
    assert found[Metric.ENERGY] == (1 + settling.gain, settling.gain_error)
    assert found[Metric.TIME] == (1.0, 0.0)


@given(settling=SETTLINGS)
def test_at_the_limit_nobody_knows_how_much_faster_a_cooler_card_is(settling):
    found = settling_gains(settling, 0.0)
    assert {gain.factor for gain in found.values()} == {1.0}
    assert found[Metric.EDP].error == pytest.approx(2 * found[Metric.TIME].error)
    assert 0 < found[Metric.ENERGY].error < math.hypot(settling.gain, settling.gain_error)


def test_without_a_temperature_nothing_changes():
    assert set(settling_gains(None, 0.1).values()) == {(1.0, 0.0)}


def ascending(least: int = 2) -> st.SearchStrategy[list[float]]:
    steps = st.lists(st.floats(0.01, 1.0), min_size=least, max_size=30)
    return steps.map(lambda values: np.cumsum(values).tolist())


@given(ascending(), ascending(), ascending(), st.integers(0, 2**32))
def test_trials_add_up_to_the_whole_window(batches_s, edges_s, counts, seed):
    count = min(len(batches_s), len(counts))
    time_s, launches = np.array(batches_s[:count]), np.array(counts[:count])
    timeline = Timeline(time_s, launches, 0.9 * time_s)
    energies_mj = np.random.default_rng(seed).integers(1, 10**6, len(edges_s)).cumsum()
    trials = cut_windows(edges_s, energies_mj.tolist(), timeline)
    ends_s = [edges_s[0], edges_s[-1]]
    assert len(trials) == len(edges_s) - 1
    assert sum(t.seconds for t in trials) == pytest.approx(edges_s[-1] - edges_s[0])
    assert sum(t.joules for t in trials) == pytest.approx((energies_mj[-1] - energies_mj[0]) / 1e3)
    for name, column in (("launches", launches), ("busy_seconds", timeline.busy_s)):
        inside = np.diff(np.interp(ends_s, time_s, column))[0]
        assert sum(getattr(t, name) for t in trials) == pytest.approx(inside, abs=1e-9)


def test_a_trial_of_a_known_rate():
    timeline = Timeline(np.array([0.0, 10.0]), np.array([0.0, 1000.0]), np.array([0.0, 9.0]))
    (trial,) = cut_windows([2.0, 4.0], [5000, 6000], timeline)
    assert (trial.seconds, trial.joules, trial.launches) == pytest.approx((2.0, 1.0, 200.0))
    assert (trial.time_ms, trial.energy_mj) == pytest.approx((9.0, 5.0))


def turns(times_s: list[float], rounds: int, *, launches: int = 100) -> Timeline:
    """Return a timeline whose batches take each of ``times_s`` per launch in turn."""
    busy_s = np.cumsum(launches * np.array(times_s * rounds))
    count = launches * np.arange(1.0, len(busy_s) + 1)
    return Timeline(busy_s, count, busy_s, placements=len(times_s))


@given(st.lists(st.floats(1e-6, 2e-6), min_size=2, max_size=12), st.integers(2, 9))
def test_places_that_differ_leave_the_mean_unsure(times_s, rounds):
    timeline = turns(times_s, rounds)
    expected = np.var(times_s, ddof=1) / len(times_s) / np.mean(times_s) ** 2
    found = placement_variance(timeline, 0.0, float(timeline.time_s[-1]))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-15)


def test_one_place_says_nothing_of_others():
    timeline = turns([1e-6], 20)
    assert placement_variance(timeline, 0.0, float(timeline.time_s[-1])) == 0.0


def test_batches_before_and_after_the_trials_do_not_count():
    slow, fast = turns([9e-6, 1e-6], 4), turns([2e-6, 2e-6], 4)
    time_s = np.concatenate([slow.time_s, slow.time_s[-1] + fast.time_s])
    launches = np.concatenate([slow.launches, slow.launches[-1] + fast.launches])
    both = Timeline(time_s, launches, time_s, placements=2)
    begin_s, end_s = float(slow.time_s[-1]), float(time_s[-1])
    assert placement_variance(both, begin_s, end_s) == pytest.approx(0.0, abs=1e-15)
    assert placement_variance(both, 0.0, begin_s) > 0.1


def test_a_place_that_had_no_turn_is_left_out():
    timeline = turns([1e-6, 2e-6, 3e-6], 1)
    assert placement_variance(timeline, float(timeline.time_s[1]), float(timeline.time_s[2])) == 0.0


Repeat = Callable[..., AbstractContextManager[Repeater]]
UNHEATED = MeterSettings(preheat_s=0.0)


def test_the_temperature_is_the_mean_over_the_trials(device, repeat):
    with repeat(power_w=680.0) as repeater:
        reading = EnergyMeter(device, UNHEATED).measure(repeater)
    assert reading.start.temperature_c is not None
    assert reading.begin.temperature_c is not None
    assert reading.end.temperature_c is not None
    assert reading.temperature_c is not None
    assert reading.temperature_c > reading.start.temperature_c
    assert reading.begin.temperature_c <= reading.temperature_c <= reading.end.temperature_c


def test_a_card_without_a_thermometer_has_no_temperature(device, repeat):
    device.inject("temperature", "not_supported")
    with repeat() as repeater:
        assert EnergyMeter(device, UNHEATED).measure(repeater).temperature_c is None


def test_the_clock_is_that_of_the_trials_alone(device, repeat):
    device.inject("thermal_throttle", {"lasts_s": 0.8})
    with repeat() as repeater:
        reading = EnergyMeter(device, UNHEATED).measure(repeater)
    assert reading.effective_sm_clock_mhz == pytest.approx(1980, rel=0.01)
    assert reading.effective_sm_clock_mhz != 1980


def test_the_clock_follows_the_cap(device, repeat):
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 250_000)
    with repeat() as repeater:
        reading = EnergyMeter(device, UNHEATED).measure(repeater)
    assert reading.end.sm_clock_mhz is not None
    assert reading.end.sm_clock_mhz < 1500
    assert reading.effective_sm_clock_mhz == pytest.approx(reading.end.sm_clock_mhz, rel=0.01)


def test_where_the_clock_cannot_be_noted_it_is_unknown(device, repeat):
    stop = VirtualRepeater.stop
    with (
        patch.object(VirtualRepeater, "stop", lambda self: replace(stop(self), clocks=None)),
        repeat() as repeater,
    ):
        reading = EnergyMeter(device, UNHEATED).measure(repeater)
    assert reading.effective_sm_clock_mhz is None
    assert reading.flags == ()


def run_warm(device: EmulatedDevice, repeat: Repeat, after_s: float) -> Reading:
    """Measure on a card above 42 degrees whose clock steps some time after the start."""
    with repeat(power_w=650.0) as repeater:
        repeater.start()
        device.clock.sleep_s(60.0)
        repeater.stop()
        EnergyMeter(device, UNHEATED).measure(repeater)
        device.inject("clock_states", {"after_s": after_s})
        return EnergyMeter(device, UNHEATED).measure(repeater)


def test_a_step_within_the_trials_is_flagged_and_named(device, repeat):
    reading = run_warm(device, repeat, 1.4)
    assert "clock_step" in reading.flags
    before, after = reading.clock_states
    assert after.clock_mhz / before.clock_mhz == pytest.approx(0.998, abs=1e-4)
    assert before.share + after.share == pytest.approx(1)
    assert reading.effective_sm_clock_mhz == pytest.approx(
        before.share * before.clock_mhz + after.share * after.clock_mhz, rel=2e-4
    )


def test_a_step_within_the_heat_up_is_named_only(device, repeat):
    reading = run_warm(device, repeat, 0.6)
    assert "clock_step" not in reading.flags
    assert [state.share for state in reading.clock_states] == [0.0, 1.0]


def test_under_a_cap_that_binds_there_are_no_states(device, repeat):
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 450_000)
    reading = run_warm(device, repeat, 1.4)
    assert (reading.clock_states, "clock_step" in reading.flags) == ((), False)


def test_a_slowdown_is_no_state(device, repeat):
    device.inject("thermal_throttle", {"after_s": 1.4})
    with repeat() as repeater:
        reading = EnergyMeter(device, UNHEATED).measure(repeater)
    assert "sw_thermal_slowdown" in reading.flags
    assert (reading.clock_states, "clock_step" in reading.flags) == ((), False)


@given(
    clocks=st.lists(st.floats(100, 3000), min_size=2, max_size=30),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_mean_clock_is_cycles_over_time(clocks, ends):
    edges_s = 10 + 0.05 * np.arange(len(clocks) + 1)
    samples = ClockSamples(edges_s[:-1], edges_s[1:], np.array(clocks))
    begin_s, end_s = (10 + part * (edges_s[-1] - 10) for part in sorted(ends))
    if end_s - begin_s < 0.001:
        return
    cycles = np.interp([begin_s, end_s], edges_s, np.cumsum([0, *np.multiply(clocks, 0.05)]))
    expected = (cycles[1] - cycles[0]) / (end_s - begin_s)
    assert mean_clock_mhz(samples, begin_s, end_s) == pytest.approx(expected)


@pytest.mark.parametrize(("end_s", "known"), [(1.0, True), (1.9, True), (2.1, False)])
def test_samples_of_less_than_half_of_the_time_do_not_tell(end_s, known):
    samples = ClockSamples(np.array([0.0]), np.array([1.0]), np.array([1980.0]))
    assert (mean_clock_mhz(samples, 0.0, end_s) is not None) == known
    assert mean_clock_mhz(None, 0.0, end_s) is None
