"""Whether a card kept to its lock, according to the meter of an emulated card."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from msgspec.structs import replace as struct_replace

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.emulator import Demand, EmulatedDevice
from pytest_gpuenergy.energy import EnergyMeter, MeterSettings, Reading
from pytest_gpuenergy.engine import Harness, Station, Subject, keeps_to_lock, lock_flags
from pytest_gpuenergy.record import WorkloadInfo

Make = Callable[..., AbstractContextManager[Repeater]]
SETTINGS = MeterSettings(preheat_s=0.0)


@pytest.fixture
def read(device: EmulatedDevice, repeat: Make) -> Callable[..., Reading]:
    """Measure with the SMs locked to a clock, and with faults."""

    def measure(clock_mhz: int, power_w: float = 419.0, **faults: object) -> Reading:
        device.nvml.nvmlDeviceSetGpuLockedClocks(device.handle, clock_mhz, clock_mhz)
        for what, value in faults.items():
            device.inject(what, value)
        with repeat(power_w=power_w) as repeater:
            return EnergyMeter(device, SETTINGS).measure(repeater)

    return measure


def test_a_card_that_keeps_to_its_lock_has_no_flag(read):
    reading = read(1500)
    assert lock_flags(reading, 1500) == ()
    assert keeps_to_lock(reading, 1500)


def test_a_card_that_is_not_locked_is_not_judged(read):
    reading = read(1500)
    assert lock_flags(reading, None) == ()
    assert not keeps_to_lock(reading, None)


@pytest.mark.parametrize(
    ("faults", "flags"),
    [
        ({"below_lock": {"percent": 5}}, ("clock_below_lock",)),
        ({"below_lock": {"percent": 1}}, ()),
        ({"lock_ignored": True}, ("clock_above_lock",)),
        ({"lock_lost": {"after_s": 0.5}}, ("clock_above_lock",)),
        ({"lock_lost": {"after_s": 1.5}}, ("lock_lost",)),
        ({"clock_locked": {"clock_mhz": 1200, "after_s": 1.5}}, ("clock_below_lock",)),
        ({"thermal_throttle": True}, ()),  # which has a flag of its own
    ],
    ids=str,
)
def test_a_clock_that_is_not_the_lock_is_flagged(read, faults, flags):
    assert lock_flags(read(1500, **faults), 1500) == flags


def test_a_cap_explains_a_clock_below_the_lock(device, read):
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 250_000)
    reading = read(1980, power_w=690.0)
    assert reading.effective_sm_clock_mhz is not None
    assert reading.effective_sm_clock_mhz < 1900
    assert lock_flags(reading, 1980) == ()
    assert not keeps_to_lock(reading, 1980)


def test_without_the_sms_own_clock_nvmls_counts(read):
    reading = replace(read(1500), effective_sm_clock_mhz=None)
    assert lock_flags(reading, 1500) == ()
    assert lock_flags(reading, 1200) == ("clock_above_lock",)


def test_a_clock_that_nobody_knows_is_not_judged(read):
    reading = read(1500)
    blind = struct_replace(reading.begin, sm_clock_mhz=None)
    unknown = replace(reading, effective_sm_clock_mhz=None, begin=blind, end=blind)
    assert lock_flags(unknown, 1200) == ()
    assert not keeps_to_lock(unknown, 1200)


@pytest.mark.parametrize(
    ("clock_mhz", "power_w", "binding"),
    [(None, 445.0, True), (1980, 445.0, False), (1500, 445.0, False), (1980, 690.0, True)],
    ids=["near the cap", "at the lock", "far below the cap", "below the lock"],
)
def test_a_cap_does_not_bind_where_the_lock_does(device, clock_mhz, power_w, binding):
    setpoint = Setpoint(450.0, sm_clock_mhz=clock_mhz)
    with Station(device) as station:
        subject = Subject("test_x", "f", setpoint, station.apply(setpoint))
        found = station.harness(preheat_s=0.0).measure_callable(
            lambda: device.play(Demand(2e-5, power_w)), WorkloadInfo("w", {}, 1, 1), subject, "f"
        )
    assert found.cap_binding is binding
    assert found.sm_clock_mhz == found.locked_sm_clock_min_mhz == clock_mhz
    assert not {"clock_below_lock", "clock_above_lock", "lock_lost"} & {*found.validity}


Repeat = Callable[..., AbstractContextManager[Repeater]]


def test_a_record_has_the_mean_temperature_and_clock_of_the_trials(device, repeat):
    found = Harness(device).measure_callable(
        repeat, WorkloadInfo("w", {}, 10**8, 10**6), Subject("id", "k01"), "callable"
    )
    assert found.begin is not None
    assert found.begin.temperature_c is not None
    assert found.temperature_c == pytest.approx(found.begin.temperature_c, abs=3)
    assert found.effective_sm_clock_mhz == pytest.approx(1980, rel=0.01)
