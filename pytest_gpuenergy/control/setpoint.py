"""The settings of a card as one value, and the power limits that the card reports."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import TYPE_CHECKING

from pytest_gpuenergy.control.lease_record import locked_mhz
from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.record import setpoint_folder
from pytest_gpuenergy.support import DeviceError, SetpointError

if TYPE_CHECKING:
    from pytest_gpuenergy.record import Measurement


@dataclass(frozen=True)
class Setpoint:
    """The settings of a card that affect time and energy.

    In a requested setpoint, None leaves a setting unchanged; in an enforced one, it means that the
    card does not report the setting.

    Attributes:
        power_limit_w: the power limit in watts.
        sm_clock_mhz: the frequency to which the SM clocks are locked.
        index: the position of the power limit in the GPU's cap table, 1 = lowest; None if it is not
            in the table.
        unavailable: a clause that says why this card cannot be set to it; None if it can.
    """

    power_limit_w: float | None = None
    _: KW_ONLY
    sm_clock_mhz: int | None = None
    index: int | None = None
    unavailable: str | None = None

    @classmethod
    def asked_for(cls, measurement: Measurement) -> Setpoint:
        """Return the setpoint requested when ``measurement`` was made."""
        return cls(
            measurement.power_limit_w,
            sm_clock_mhz=measurement.sm_clock_mhz,
            index=measurement.cap_index,
        )

    @classmethod
    def enforced_for(cls, measurement: Measurement) -> Setpoint:
        """Return the setpoint enforced when ``measurement`` was made."""
        return cls(
            measurement.enforced_power_limit_w, sm_clock_mhz=measurement.locked_sm_clock_max_mhz
        )

    @property
    def label(self) -> str:
        """The label in item ids: ``300W``, ``1500MHz``, ``300W-1500MHz``, or ``current``."""
        parts = []
        if self.power_limit_w is not None:
            parts.append(f"{self.power_limit_w:g}W")
        if self.sm_clock_mhz is not None:
            parts.append(f"{self.sm_clock_mhz}MHz")
        return "-".join(parts) or "current"

    @property
    def folder(self) -> str:
        """The folder in the classic CSV tree, see `setpoint_folder`."""
        return setpoint_folder(self.label, self.index)

    @property
    def order(self) -> tuple[float, float]:
        """The sort key: by power limit, then by clock; unchanged first, then from the lowest."""
        return (
            -inf if self.power_limit_w is None else self.power_limit_w,
            -inf if self.sm_clock_mhz is None else self.sm_clock_mhz,
        )


CURRENT = Setpoint()
"""The setpoint that leaves the card as it is."""

UNKNOWN = Setpoint()
"""The enforced setpoint of a card that does not report its settings."""


@dataclass(frozen=True)
class PowerLimits:
    """A card's constraints and its present limit, in W."""

    min_w: float
    max_w: float
    current_w: float


def read_limits(device: Gpu) -> PowerLimits:
    """Return the card's constraints and present limit.

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
    """Return the power limit last requested from the card, by anybody, in mW.

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
    """Return the power limit that the card enforces now; None if it does not report it."""
    try:
        return float(gpu.nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle)) / 1e3
    except gpu.nvml.NVMLError:
        return None


def enforced_setpoint(gpu: Gpu) -> Setpoint:
    """Return what the card enforces now; the power limit may be lower than the requested limit.

    The lock of the clocks is taken from our record, because NVML does not report it.
    """
    return Setpoint(enforced_limit_w(gpu), sm_clock_mhz=locked_mhz(gpu.uuid))
