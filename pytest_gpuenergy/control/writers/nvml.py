"""Writes settings from this process, through NVML."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.support import SetpointError, SettingRefusedError

_CAP_SYS_ADMIN = 21  # bit in capabilities(7); the driver requires it, in containers too
_ALL_IDS = 0xFFFFFFFF
_REFUSALS = (
    "NVMLError_FunctionNotFound",
    "NVMLError_InvalidArgument",
    "NVMLError_NoPermission",
    "NVMLError_NotSupported",
)


class NvmlWriter:
    """Writes directly, which requires the capability SYS_ADMIN.

    Only functions whose return code pynvml checks are called: its
    ``nvmlDeviceSetPowerManagementLimit_v2`` reports success whatever NVML answers.
    """

    name = "NVML"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def check_power_limit(self, limit_mw: int) -> None:
        """Does nothing: NVML cannot be asked beforehand."""

    def write_power_limit(self, limit_mw: int) -> None:
        gpu, nvml = self._gpu, self._gpu.nvml
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, limit_mw)
        except nvml.NVMLError as error:
            raise _kind(error)(
                f"The power limit of {gpu.name} cannot be set to {limit_mw / 1e3:g} W ({error}): "
                f"{_advice(error, 'limit', 'powercap')}."
            ) from None

    def check_clock_lock(self, clock_mhz: int) -> None:
        """Does nothing: NVML cannot be asked beforehand."""

    def lock_clocks(self, clock_mhz: int) -> None:
        self._set_clocks(
            f"locked to {clock_mhz} MHz", "nvmlDeviceSetGpuLockedClocks", clock_mhz, clock_mhz
        )

    def unlock_clocks(self) -> None:
        self._set_clocks("unlocked", "nvmlDeviceResetGpuLockedClocks")

    def _set_clocks(self, done: str, function: str, *arguments: int) -> None:
        gpu, nvml = self._gpu, self._gpu.nvml
        try:
            getattr(nvml, function)(gpu.handle, *arguments)
        except nvml.NVMLError as error:
            raise _kind(error)(
                f"The SM clocks of {gpu.name} cannot be {done} ({error}): "
                f"{_advice(error, 'clock', 'smclock')}."
            ) from None


def may_change_settings(proc: Path = Path("/proc/self")) -> bool:
    """Whether this process has SYS_ADMIN in the initial user namespace, as the driver requires."""
    try:
        lines = (proc / "status").read_text().splitlines()
        (effective,) = (line.split()[1] for line in lines if line.startswith("CapEff:"))
        if not int(effective, 16) >> _CAP_SYS_ADMIN & 1:
            return False
    except (OSError, ValueError, IndexError):
        return os.geteuid() == 0
    try:
        first, outside, count = map(int, (proc / "uid_map").read_text().split())
    except (OSError, ValueError):
        return True
    return (first, outside, count) == (0, 0, _ALL_IDS)


def _kind(error: Exception) -> type[SetpointError]:
    """Of an error after which the card is known to be as before, or of any other."""
    return SettingRefusedError if type(error).__name__ in _REFUSALS else SetpointError


def _advice(error: Exception, what: str, option: str) -> str:
    kind = type(error).__name__
    if kind == "NVMLError_NoPermission":
        return "run as root (in a container: with the capability SYS_ADMIN)"
    if kind == "NVMLError_InvalidArgument":
        return f"choose a {what} within the card's constraints"
    if kind in ("NVMLError_NotSupported", "NVMLError_FunctionNotFound"):
        return f"this card's {what} cannot be changed; use --{option} current"
    return "check the card with nvidia-smi"
