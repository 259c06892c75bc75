"""Writes settings from this process, through NVML."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.support.errors import SetpointError

_CAP_SYS_ADMIN = 21  # bit in capabilities(7); the driver requires it, in containers too
_ALL_IDS = 0xFFFFFFFF


class NvmlWriter:
    """Writes directly, which requires the capability SYS_ADMIN."""

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
            raise SetpointError(
                f"The power limit of {gpu.name} cannot be set to {limit_mw / 1e3:g} W ({error}): "
                f"{_advice(error)}."
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


def _advice(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "NVMLError_NoPermission":
        return "run as root (in a container: with the capability SYS_ADMIN)"
    if kind == "NVMLError_InvalidArgument":
        return "choose a limit within the card's constraints"
    if kind == "NVMLError_NotSupported":
        return "this card's limit cannot be changed; use --powercap current"
    return "check the card with nvidia-smi"
