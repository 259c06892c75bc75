"""Reads the GPU's temperature, clocks and throttle reasons, and its own power samples."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from pytest_gpuenergy.devices import Device, unavailable_errors
from pytest_gpuenergy.energy.power_log import CardSamples
from pytest_gpuenergy.record import Conditions
from pytest_gpuenergy.support import DeviceError, KernelFault

SW_POWER_CAP = 0x4
"""The clock-event reason that says that the power limit lowers the clock."""

INVALIDATING_REASONS = {
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
}
"""The clock-event reasons that make a measurement invalid, by the name of their flag."""

THROTTLE_REASONS = sum(INVALIDATING_REASONS.values()) | SW_POWER_CAP
"""The clock-event reasons, as bits, that lower the clock continuously."""

MAX_DRIFT_K = 8
"""The largest change of temperature during a measurement that raises no flag."""


class ThrottleState(NamedTuple):
    """The readings that show whether something slows the card; None if they are not reported."""

    event_reasons: int | None
    power_limit_mw: int | None

    @property
    def by_power_limit(self) -> bool:
        """Whether the power limit lowers the clock."""
        return bool((self.event_reasons or 0) & SW_POWER_CAP)


def condition_flags(
    begin: Conditions, end: Conditions, meanwhile: Iterable[ThrottleState] = ()
) -> dict[str, bool]:
    """Return the validity flags of a measurement that ran from ``begin`` to ``end``, by name."""
    reasons = all_reasons(begin, end, *meanwhile)
    flags = {name: bool(reasons & bit) for name, bit in INVALIDATING_REASONS.items()}
    begin_c, end_c = begin.temperature_c, end.temperature_c
    flags["temperature_drift"] = (
        begin_c is not None and end_c is not None and abs(end_c - begin_c) > MAX_DRIFT_K
    )
    return flags


def all_reasons(*moments: Conditions | ThrottleState) -> int:
    """Return the clock-event reasons of all moments combined."""
    found = 0
    for moment in moments:
        found |= moment.event_reasons or 0
    return found


def read_conditions(device: Device) -> Conditions:
    """Return the card's present temperature, clocks, clock-event reasons and power limit.

    Raises:
        DeviceError: the card does not respond.
    """
    nvml = device.nvml
    throttle = read_throttle_state(device)
    return Conditions(
        temperature_c=read_temperature(device),
        sm_clock_mhz=_ask(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        event_reasons=throttle.event_reasons,
        power_limit_mw=throttle.power_limit_mw,
    )


def read_temperature(device: Device) -> int | None:
    """Return the GPU's temperature in degrees Celsius; None if the card does not report it."""
    return _ask(device, "nvmlDeviceGetTemperature", device.nvml.NVML_TEMPERATURE_GPU)


def responds(device: Device) -> bool:
    """Return whether the card responds at all."""
    try:
        read_temperature(device)
    except DeviceError:
        return False
    return True


def check_responds(device: Device, fault: KernelFault) -> None:
    """Check that the card still responds after ``fault``, which is then the kernel's own.

    Raises:
        DeviceError: the card does not respond.
    """
    if not responds(device):
        raise DeviceError(
            f"{device.name} does not respond any more ({fault}): check it with nvidia-smi, then "
            "continue with --resume."
        ) from None


def read_throttle_state(device: Device) -> ThrottleState:
    """Return the present clock-event reasons and power limit."""
    reasons = _ask(device, "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # drivers before 535 use the older name
        reasons = _ask(device, "nvmlDeviceGetCurrentClocksThrottleReasons")
    return ThrottleState(reasons, _ask(device, "nvmlDeviceGetPowerManagementLimit"))


def power_by_samples_w(device: Device, window_s: float) -> float | None:
    """Return the mean power in W over the last ``window_s`` by the card's own samples, or None.

    The buffer holds about two seconds, so only the end of a longer window is covered.
    """
    try:
        samples = CardSamples(device).new()
    except DeviceError:
        return None
    latest = [
        sample for sample in samples if samples[-1].stamp_us - sample.stamp_us < window_s * 1e6
    ]
    return fmean(sample.power_w for sample in latest) if latest else None


def _ask(device: Device, function: str, *arguments: object) -> int | None:
    """Return what a function of NVML answers for the card; None if it is not available.

    Raises:
        DeviceError: the function fails otherwise.
    """
    nvml = device.nvml
    try:
        return int(getattr(nvml, function)(device.handle, *arguments))
    except unavailable_errors(nvml):
        return None
    except nvml.NVMLError as error:
        raise DeviceError(
            f"{device.name} fails in {function} ({error}): check the card with nvidia-smi."
        ) from None
