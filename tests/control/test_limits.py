"""What a card reports of its power limit."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.control import (
    UNKNOWN,
    PowerLimits,
    Setpoint,
    enforced_setpoint,
    present_limit_mw,
    read_limits,
)
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.support import DeviceError, SetpointError


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
