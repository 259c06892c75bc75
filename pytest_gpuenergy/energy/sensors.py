"""The card's other readings: power samples, temperature, clocks, event reasons and processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pytest_gpuenergy.devices import Device, unavailable_errors
from pytest_gpuenergy.energy.power_log import CardSamples
from pytest_gpuenergy.record import Conditions
from pytest_gpuenergy.support import DeviceError, KernelFault

SW_POWER_CAP = 0x4
INVALIDATING_REASONS = {
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
}
RESTRAINING_REASONS = sum(INVALIDATING_REASONS.values()) | SW_POWER_CAP
"""The clock-event reasons that lower the clock continuously."""

DRIFT_K = 8
"""The largest change of temperature during a measurement that raises no flag."""


class Restraint(NamedTuple):
    """The readings that show whether something slows the card; None if they are not reported."""

    event_reasons: int | None
    power_limit_mw: int | None

    @property
    def by_power_limit(self) -> bool:
        """Whether the power limit lowers the clock."""
        return bool((self.event_reasons or 0) & SW_POWER_CAP)


def condition_flags(
    begin: Conditions, end: Conditions, meanwhile: Iterable[Restraint] = ()
) -> dict[str, bool]:
    """Return the validity flags of a measurement that ran from ``begin`` to ``end``, by name."""
    reasons = all_reasons(begin, end, *meanwhile)
    flags = {name: bool(reasons & bit) for name, bit in INVALIDATING_REASONS.items()}
    begin_c, end_c = begin.temperature_c, end.temperature_c
    flags["temperature_drift"] = (
        begin_c is not None and end_c is not None and abs(end_c - begin_c) > DRIFT_K
    )
    return flags


def all_reasons(*moments: Conditions | Restraint) -> int:
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
    restraint = read_restraint(device)
    return Conditions(
        temperature_c=read_temperature(device),
        sm_clock_mhz=_ask(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        event_reasons=restraint.event_reasons,
        power_limit_mw=restraint.power_limit_mw,
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
        DeviceError: it does not.
    """
    if not responds(device):
        raise DeviceError(
            f"{device.name} does not respond any more ({fault}): check it with nvidia-smi, then "
            "continue with --resume."
        ) from None


def read_restraint(device: Device) -> Restraint:
    """Return the present clock-event reasons and power limit."""
    reasons = _ask(device, "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # drivers before 535 use the older name
        reasons = _ask(device, "nvmlDeviceGetCurrentClocksThrottleReasons")
    return Restraint(reasons, _ask(device, "nvmlDeviceGetPowerManagementLimit"))


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
    nvml = device.nvml
    try:
        return int(getattr(nvml, function)(device.handle, *arguments))
    except unavailable_errors(nvml):
        return None
    except nvml.NVMLError as error:
        raise DeviceError(
            f"{device.name} fails in {function} ({error}): check the card with nvidia-smi."
        ) from None


_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h


def processes_on(device: Device) -> frozenset[int]:
    """Return NVML's IDs of the processes with a CUDA context on the device; empty if unknown."""
    nvml = device.nvml
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
    except nvml.NVMLError:
        return frozenset()
    return frozenset(int(process.pid) for process in running)


class ProcessWatch:
    """Notices other users of a card. It must be created before the first kernel runs.

    The driver reports the host's process IDs, which in a container differ from ours. In a
    container, when some of our processes start to use the card and as many new IDs appear on it,
    these are assumed to be ours.

    Args:
        device: the card.
        same_numbers: whether the driver's process IDs are the same as ours; None to detect it.
    """

    def __init__(self, device: Device, *, same_numbers: bool | None = None) -> None:
        self._device = device
        self._same_numbers = _in_initial_namespace() if same_numbers is None else same_numbers
        self._same_numbers = self._same_numbers or device.emulated
        self._accounted: frozenset[int] = frozenset()  # our IDs of our processes on the card
        self._taken: frozenset[int] = frozenset()  # the driver's IDs that are assumed to be these
        self._at_start: frozenset[int] = frozenset()
        self._at_start = self.strangers()

    def strangers(self) -> frozenset[int]:
        """Return the processes on the card that are not ours, while a kernel of ours is loaded."""
        ours, listed = self._device.processes, processes_on(self._device)
        others = listed - ours - {os.getpid()}
        if self._same_numbers or others != listed:
            return others
        new, came = ours - self._accounted, others - self._at_start - self._taken
        if new and len(new) == len(came):
            self._accounted |= new
            self._taken |= came
        return others - self._taken


def _in_initial_namespace() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_NAMESPACE
    except OSError:
        return False
