"""Cards that another program seems to have locked are refused."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from power_cards import as_real

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.devices import ClockSamples
from pytest_gpuenergy.engine import Station, pinned_at, refuse_locked
from pytest_gpuenergy.record import Conditions
from pytest_gpuenergy.support import KernelFault, SetpointError

CLOCK = Setpoint(sm_clock_mhz=1500)


def told(*clocks_mhz: int | None, reasons: int | None = 0) -> list[Conditions]:
    """Return the readings of NVML."""
    return [Conditions(40, mhz, 3201, reasons, 700_000) for mhz in clocks_mhz]


def own(*clocks_mhz: float) -> ClockSamples:
    """Return the clock counted by an SM."""
    begin = np.arange(len(clocks_mhz)) * 0.05
    return ClockSamples(begin, begin + 0.05, np.array(clocks_mhz))


@pytest.mark.parametrize(
    ("readings", "achieved", "pinned"),
    [
        (told(1200, 1200, 1200), own(1201.0, 1199.8), 1200),
        (told(1200, 1200), None, 1200),
        (told(None, None), own(1200.4, 1200.1), 1200.4),
        (told(1980, 1980), own(1976.3, 1976.5), None),
        (told(1200, 1215, 1230), own(1200.0, 1230.0), None),
        (told(1200, 1200), own(1980.1, 1980.3), None),
        (told(1200, 1200, reasons=0x4), own(1200.0), None),
        (told(1200, 1200, reasons=0x20), own(1200.0), None),
        (told(345, 345, reasons=0x1), own(345.0), None),
        (told(1200, 1200, reasons=None), own(1200.0), 1200),
        (told(None), None, None),
        ([], own(), None),
    ],
)
def test_a_clock_that_stays_below_the_highest_for_no_reason_is_pinned(readings, achieved, pinned):
    assert pinned_at(readings, achieved, 1980) == pinned


@given(st.lists(st.integers(1945, 1980), max_size=9), st.integers(0, 1 << 9))
def test_a_card_that_reaches_its_highest_clock_is_never_pinned(clocks_mhz, reasons):
    assert pinned_at(told(*clocks_mhz, 1980, reasons=reasons), None, 1980) is None


def test_a_card_at_its_defaults_is_locked(device):
    with Station(device) as station:
        assert station.apply(CLOCK).sm_clock_mhz == 1500


@pytest.mark.parametrize("watts", [200.0, None])
def test_a_card_that_somebody_has_locked_is_refused(device, watts):
    device.inject("clock_locked", {"clock_mhz": 1200})
    with Station(device) as station:
        with pytest.raises(SetpointError) as raised:
            station.apply(Setpoint(watts, sm_clock_mhz=1500))
        station.apply(Setpoint(300.0))  # other setpoints go on
    assert "they stay at 1200 MHz of 1980 MHz, and NVML gives no reason" in str(raised.value)
    assert "give --gpuenergy-allow clocks" in str(raised.value)
    with device.state.change() as card:
        assert card.lock_mhz == (1200, 1200)


def test_it_is_locked_and_unlocked_where_that_is_allowed(device):
    device.inject("clock_locked", {"clock_mhz": 1200})
    with Station(device, allow_clocks=True) as station:
        assert station.apply(CLOCK).sm_clock_mhz == 1500
    with device.state.change() as card:
        assert card.lock_mhz is None


@pytest.mark.parametrize("fault", ["thermal_throttle", "power_brake"])
def test_a_low_clock_that_nvml_explains_is_no_lock(device, fault):
    device.inject(fault)
    with Station(device) as station:
        assert station.apply(CLOCK).sm_clock_mhz == 1500


def test_a_card_opened_for_its_settings_alone_is_not_refused(device):
    device.inject("clock_locked", {"clock_mhz": 1200})
    began_s = device.clock.now_s()
    refuse_locked(as_real(device))
    assert device.clock.now_s() == began_s  # no load has run


def test_a_card_that_runs_no_load_is_refused(device, monkeypatch):
    def fails() -> AbstractContextManager[Any]:
        raise KernelFault("runtime", "no kernel image is available")

    monkeypatch.setattr(device, "light_load", fails)
    with pytest.raises(SetpointError, match=r"cannot be seen \(no kernel image .*allow clocks"):
        refuse_locked(device)
