"""The names of setpoints, and their order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.control import (
    CURRENT,
    UNKNOWN,
    PowerLimits,
    Setpoint,
    enforced_setpoint,
    present_limit_mw,
    read_limits,
)
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.support import DeviceError, SetpointError

watts = st.none() | st.integers(1, 2000).map(float)
clocks = st.none() | st.integers(1, 4000)
setpoints = st.builds(Setpoint, watts, sm_clock_mhz=clocks)


@pytest.mark.parametrize(
    ("setpoint", "label", "folder"),
    [
        (CURRENT, "current", "powercap_current"),
        (Setpoint(450.0, index=3), "450W", "powercap3"),
        (Setpoint(350.0), "350W", "powercap_350W"),
        (Setpoint(325.5), "325.5W", "powercap_325.5W"),
        (Setpoint(sm_clock_mhz=1500), "1500MHz", "powercap_1500MHz"),
        (Setpoint(450.0, sm_clock_mhz=1500), "450W-1500MHz", "powercap_450W-1500MHz"),
        (Setpoint(450.0, sm_clock_mhz=1500, index=3), "450W-1500MHz", "powercap3-1500MHz"),
    ],
)
def test_names_of_a_setpoint(setpoint: Setpoint, label: str, folder: str) -> None:
    assert (setpoint.label, setpoint.folder) == (label, folder)


@given(setpoints, setpoints)
def test_setpoints_that_differ_have_labels_and_folders_that_differ(
    one: Setpoint, other: Setpoint
) -> None:
    assert (one.label == other.label) is (one == other)
    assert (one.folder == other.folder) is (one == other)


@given(st.lists(setpoints))
def test_setpoints_sort_by_power_limit_and_then_by_clock(listed: list[Setpoint]) -> None:
    ordered = sorted(listed, key=lambda setpoint: setpoint.order)
    for lower, higher in pairwise(ordered):
        assert (lower.power_limit_w or 0) <= (higher.power_limit_w or 0)
        if lower.power_limit_w == higher.power_limit_w:
            assert (lower.sm_clock_mhz or 0) <= (higher.sm_clock_mhz or 0)


def test_limits_of_the_card(device: EmulatedDevice) -> None:
    assert read_limits(device) == PowerLimits(200.0, 700.0, 700.0)


def test_a_card_without_limits_is_a_device_error(device: EmulatedDevice) -> None:
    device.inject("nvmlDeviceGetPowerManagementLimitConstraints", "not_supported")
    with pytest.raises(
        DeviceError, match=r"power limits \(Not Supported\): use --powercap current"
    ):
        read_limits(device)


def test_the_enforced_limit_may_be_lower_than_the_one_asked_for(device: EmulatedDevice) -> None:
    device.inject("enforced_limit", {"power_w": 250})
    assert enforced_setpoint(device) == Setpoint(250.0)
    assert present_limit_mw(device) == 700_000


def test_an_enforced_limit_that_is_not_reported_is_unknown(device: EmulatedDevice) -> None:
    device.inject("nvmlDeviceGetEnforcedPowerLimit", "not_supported")
    assert enforced_setpoint(device) == UNKNOWN


def test_a_present_limit_that_is_not_reported_is_an_error(device: EmulatedDevice) -> None:
    device.inject("nvmlDeviceGetPowerManagementLimit", "not_supported")
    with pytest.raises(SetpointError, match="does not report its power limit"):
        present_limit_mw(device)
