"""What a card is set to, as far as that is known. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.control.lease_record import locked_mhz
from pytest_gpuenergy.control.setpoint import Setpoint
from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.support import DeviceError, SetpointError


@dataclass(frozen=True)
class PowerLimits:
    """A card's constraints and its present limit, in W."""

    min_w: float
    max_w: float
    current_w: float


def read_limits(device: Gpu) -> PowerLimits:
    """The card's constraints and present limit.

    Raises:
        DeviceError: the card has no power management.
    """
    nvml = device.nvml
    try:
        low, high = nvml.nvmlDeviceGetPowerManagementLimitConstraints(device.handle)
        current = nvml.nvmlDeviceGetPowerManagementLimit(device.handle)
    except nvml.NVMLError as error:
        raise DeviceError(
            f"{device.name} does not report its power limits ({error}): use --powercap current."
        ) from None
    return PowerLimits(low / 1e3, high / 1e3, current / 1e3)


def present_limit_mw(gpu: Gpu) -> int:
    """The power limit last requested from the card, by anybody, in mW.

    Raises:
        SetpointError: the card does not report it.
    """
    try:
        return int(gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle))
    except gpu.nvml.NVMLError as error:
        raise SetpointError(
            f"{gpu.name} does not report its power limit ({error}): check it with nvidia-smi, or "
            "use --powercap current."
        ) from None


def enforced_limit_w(gpu: Gpu) -> float | None:
    """The power limit that the card enforces now; None if it does not report it."""
    try:
        return float(gpu.nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle)) / 1e3
    except gpu.nvml.NVMLError:
        return None


def enforced_setpoint(gpu: Gpu) -> Setpoint:
    """What the card enforces now; the power limit may be lower than the requested one.

    A lock of the clocks is the one that we have set: NVML reports none.
    """
    return Setpoint(enforced_limit_w(gpu), sm_clock_mhz=locked_mhz(gpu.uuid))
