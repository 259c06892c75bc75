"""The temperature and the effective clock of the trials, on an emulated card."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import ClockSamples, Repeater
from pytest_gpuenergy.emulator import EmulatedDevice, VirtualRepeater
from pytest_gpuenergy.energy import EnergyMeter, MeterSettings, Reading, mean_clock_mhz

Repeat = Callable[..., AbstractContextManager[Repeater]]


def test_the_temperature_is_the_mean_over_the_trials(
    device: EmulatedDevice, repeat: Repeat
) -> None:
    with repeat(power_w=680.0) as repeater:
        reading = EnergyMeter(device).measure(repeater)
    assert reading.start.temperature_c is not None
    assert reading.begin.temperature_c is not None
    assert reading.end.temperature_c is not None
    assert reading.temperature_c is not None
    assert reading.temperature_c > reading.start.temperature_c
    assert reading.begin.temperature_c <= reading.temperature_c <= reading.end.temperature_c


def test_a_card_without_a_thermometer_has_no_temperature(
    device: EmulatedDevice, repeat: Repeat
) -> None:
    device.inject("temperature", "not_supported")
    with repeat() as repeater:
        assert EnergyMeter(device).measure(repeater).temperature_c is None


def test_the_clock_is_that_of_the_trials_alone(device: EmulatedDevice, repeat: Repeat) -> None:
    device.inject("thermal_throttle", {"lasts_s": 0.8})
    with repeat() as repeater:
        reading = EnergyMeter(device).measure(repeater)
    assert reading.effective_sm_clock_mhz == pytest.approx(1980, rel=0.01)
    assert reading.effective_sm_clock_mhz != 1980


def test_the_clock_follows_the_cap(device: EmulatedDevice, repeat: Repeat) -> None:
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 250_000)
    with repeat() as repeater:
        reading = EnergyMeter(device).measure(repeater)
    assert reading.end.sm_clock_mhz is not None
    assert reading.end.sm_clock_mhz < 1500
    assert reading.effective_sm_clock_mhz == pytest.approx(reading.end.sm_clock_mhz, rel=0.01)


def test_where_the_clock_cannot_be_noted_it_is_unknown(
    device: EmulatedDevice, repeat: Repeat
) -> None:
    stop = VirtualRepeater.stop
    with (
        patch.object(VirtualRepeater, "stop", lambda self: replace(stop(self), clocks=None)),
        repeat() as repeater,
    ):
        reading = EnergyMeter(device).measure(repeater)
    assert reading.effective_sm_clock_mhz is None
    assert reading.flags == ()


def run_warm(device: EmulatedDevice, repeat: Repeat, after_s: float) -> Reading:
    """Of a card above 42 degrees, whose clock steps so long after the start."""
    with repeat(power_w=650.0) as repeater:
        repeater.start()
        device.clock.sleep_s(60.0)
        repeater.stop()
        EnergyMeter(device).measure(repeater)
        device.inject("clock_states", {"after_s": after_s})
        return EnergyMeter(device, MeterSettings(preheat_s=0.0)).measure(repeater)


def test_a_step_within_the_trials_is_flagged_and_named(
    device: EmulatedDevice, repeat: Repeat
) -> None:
    reading = run_warm(device, repeat, 1.4)
    assert "clock_step" in reading.flags
    before, after = reading.clock_states
    assert after.clock_mhz / before.clock_mhz == pytest.approx(0.998, abs=1e-4)
    assert before.share + after.share == pytest.approx(1)
    assert reading.effective_sm_clock_mhz == pytest.approx(
        before.share * before.clock_mhz + after.share * after.clock_mhz, rel=2e-4
    )


def test_a_step_within_the_heat_up_is_named_only(device: EmulatedDevice, repeat: Repeat) -> None:
    reading = run_warm(device, repeat, 0.6)
    assert "clock_step" not in reading.flags
    assert [state.share for state in reading.clock_states] == [0.0, 1.0]


def test_under_a_cap_that_binds_there_are_no_states(device: EmulatedDevice, repeat: Repeat) -> None:
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 450_000)
    reading = run_warm(device, repeat, 1.4)
    assert (reading.clock_states, "clock_step" in reading.flags) == ((), False)


def test_a_slowdown_is_no_state(device: EmulatedDevice, repeat: Repeat) -> None:
    device.inject("thermal_throttle", {"after_s": 1.4})
    with repeat() as repeater:
        reading = EnergyMeter(device).measure(repeater)
    assert "sw_thermal_slowdown" in reading.flags
    assert (reading.clock_states, "clock_step" in reading.flags) == ((), False)


@given(
    clocks=st.lists(st.floats(100, 3000), min_size=2, max_size=30),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_mean_clock_is_cycles_over_time(clocks: list[float], ends: tuple[float, float]) -> None:
    edges_s = 10 + 0.05 * np.arange(len(clocks) + 1)
    samples = ClockSamples(edges_s[:-1], edges_s[1:], np.array(clocks))
    begin_s, end_s = (10 + part * (edges_s[-1] - 10) for part in sorted(ends))
    if end_s - begin_s < 0.001:
        return
    cycles = np.interp([begin_s, end_s], edges_s, np.cumsum([0, *np.multiply(clocks, 0.05)]))
    expected = (cycles[1] - cycles[0]) / (end_s - begin_s)
    assert mean_clock_mhz(samples, begin_s, end_s) == pytest.approx(expected)


@pytest.mark.parametrize(("end_s", "known"), [(1.0, True), (1.9, True), (2.1, False)])
def test_samples_of_less_than_half_of_the_time_do_not_tell(end_s: float, known: bool) -> None:
    samples = ClockSamples(np.array([0.0]), np.array([1.0]), np.array([1980.0]))
    assert (mean_clock_mhz(samples, 0.0, end_s) is not None) == known
    assert mean_clock_mhz(None, 0.0, end_s) is None
