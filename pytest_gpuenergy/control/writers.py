"""The ways to write a GPU's settings: from this process, through zeusd, or with a sudo rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from pytest_gpuenergy.control.setpoint import Setpoint
from pytest_gpuenergy.control.sudo import find_sudo
from pytest_gpuenergy.control.zeusd import find_zeusd
from pytest_gpuenergy.devices import Gpu, deny_writes
from pytest_gpuenergy.support import SetpointError, SettingRefusedError

_CAP_SYS_ADMIN = 21
"""The bit of the capability in capabilities(7), which the driver requires in containers too."""
_ALL_IDS = 0xFFFFFFFF
_REFUSALS = (
    "NVMLError_FunctionNotFound",
    "NVMLError_InvalidArgument",
    "NVMLError_NoPermission",
    "NVMLError_NotSupported",
)


class SettingsWriter(Protocol):
    """Writes the settings of one GPU; those of a real GPU only if the environment permits it."""

    @property
    def name(self) -> str:
        """The name that the header and ``gpuenergy doctor`` show."""

    def check_power_limit(self, limit_mw: int) -> None:
        """Check, without writing and as far as possible, that a limit could be written.

        Raises:
            SetpointError: it could not.
        """

    def write_power_limit(self, limit_mw: int) -> None:
        """Request a limit in mW.

        Raises:
            SettingRefusedError: it was refused.
            SetpointError: its outcome is unknown.
        """

    def check_clock_lock(self, clock_mhz: int) -> None:
        """Check, without writing and as far as possible, that clocks could be locked and unlocked.

        Raises:
            SetpointError: they could not.
        """

    def lock_clocks(self, clock_mhz: int) -> None:
        """Lock the SM clocks to a clock in MHz that the card supports.

        Raises:
            SettingRefusedError: it was refused.
            SetpointError: its outcome is unknown.
        """

    def unlock_clocks(self) -> None:
        """Unlock the SM clocks, which is their default.

        Raises:
            SettingRefusedError: it was refused.
            SetpointError: its outcome is unknown.
        """


def check_setpoint(writer: SettingsWriter, setpoint: Setpoint) -> None:
    """Check, without writing, that ``writer`` could write all settings of ``setpoint``.

    Raises:
        SetpointError: it could not.
    """
    if setpoint.power_limit_w is not None:
        writer.check_power_limit(round(setpoint.power_limit_w * 1e3))
    if setpoint.sm_clock_mhz is not None:
        writer.check_clock_lock(setpoint.sm_clock_mhz)


def choose_writer(gpu: Gpu) -> SettingsWriter:
    """Return the first of NVML, zeusd and sudo that may write the settings of ``gpu``.

    Nothing is written.

    Raises:
        WritesDeniedError: the environment forbids writes; none of the three is tried.
        SetpointError: none of them may write. The message says what to do.
    """
    if gpu.emulated:
        return NvmlWriter(gpu)  # its permissions are emulated too
    deny_writes()
    if may_change_settings():
        return NvmlWriter(gpu)
    reasons = []
    for writer in (find(gpu) for find in (find_zeusd, find_sudo)):
        if not isinstance(writer, str):
            return writer
        reasons.append(writer)
    raise SetpointError(
        f"There is no permission to change the settings of {gpu.name} ({'; '.join(reasons)}): run "
        "as root (in a container: with the capability SYS_ADMIN), start zeusd, add the sudo rule "
        "that gpuenergy doctor prints, or use --powercap current and --smclock current."
    )


class NvmlWriter:
    """Writes through NVML from this process, which requires the capability SYS_ADMIN.

    Only functions whose return code pynvml checks are called: its
    ``nvmlDeviceSetPowerManagementLimit_v2`` reports success whatever NVML returns.
    """

    name = "NVML"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def check_power_limit(self, limit_mw: int) -> None:
        """Do nothing: NVML cannot be asked beforehand."""

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
        """Do nothing: NVML cannot be asked beforehand."""

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
    """Return whether this process has SYS_ADMIN in the initial user namespace."""
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
    """Return SettingRefusedError if the card is known to be as before, else SetpointError."""
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
