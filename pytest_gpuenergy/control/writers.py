"""Who can write a GPU's power limit: this process, the daemon zeusd, or one sudo rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.devices.nvml import deny_writes
from pytest_gpuenergy.support.errors import PowerCapError

_CAP_SYS_ADMIN = 21  # bit in capabilities(7); the driver asks for it, in containers too
_ALL_IDS = 0xFFFFFFFF


class LimitWriter(Protocol):
    """Writes the power limit of one GPU. On a real one, never where the environment forbids it."""

    @property
    def name(self) -> str:
        """As the header and ``gpuenergy doctor`` show it."""

    def check(self, limit_mw: int) -> None:
        """Make sure, without writing, that this limit could be written, as far as one can know.

        Raises:
            PowerCapError: it could not.
        """

    def write(self, limit_mw: int) -> None:
        """Request a limit in mW.

        Raises:
            PowerCapError: it was refused, or nothing is known of what became of it.
        """


class NvmlWriter:
    """Writes directly, which takes the capability SYS_ADMIN."""

    name = "NVML"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def check(self, limit_mw: int) -> None:
        """NVML has no way to ask."""

    def write(self, limit_mw: int) -> None:
        gpu, nvml = self._gpu, self._gpu.nvml
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, limit_mw)
        except nvml.NVMLError as error:
            raise PowerCapError(
                f"The power limit of {gpu.name} cannot be set to {limit_mw / 1e3:g} W ({error}): "
                f"{_advice(error)}."
            ) from None


def choose_writer(gpu: Gpu) -> LimitWriter:
    """The first of NVML, zeusd and sudo that may write the limit of ``gpu``. Writes nothing.

    Raises:
        CapWritesDeniedError: the environment forbids it; nobody is asked.
        PowerCapError: nobody may; the sentence says what to do.
    """
    if gpu.emulated:
        return NvmlWriter(gpu)  # its permissions are emulated too
    deny_writes()
    if may_set_limits():
        return NvmlWriter(gpu)
    from pytest_gpuenergy.control.sudo import find_sudo
    from pytest_gpuenergy.control.zeusd import find_zeusd

    reasons = []
    for found in (find(gpu) for find in (find_zeusd, find_sudo)):
        if not isinstance(found, str):
            return found
        reasons.append(found)
    raise PowerCapError(
        f"Nobody here may set the power limit of {gpu.name} ({'; '.join(reasons)}): run as root "
        "(in a container: with the capability SYS_ADMIN), start zeusd, or add the sudo rule that "
        "gpuenergy doctor prints; or use --powercap current."
    )


def may_set_limits(proc: Path = Path("/proc/self")) -> bool:
    """Whether this process has SYS_ADMIN where the driver looks for it: outside user namespaces."""
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
