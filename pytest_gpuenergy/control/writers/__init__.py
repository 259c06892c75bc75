"""Ways to write a GPU's settings: from this process, through zeusd, or with a sudo rule."""

from __future__ import annotations

from typing import Protocol

from pytest_gpuenergy.control.setpoint import Setpoint
from pytest_gpuenergy.control.writers.nvml import NvmlWriter, may_change_settings
from pytest_gpuenergy.devices import Gpu, deny_writes
from pytest_gpuenergy.support import SetpointError


class SettingsWriter(Protocol):
    """Writes the settings of one GPU; those of a real one only if the environment permits it."""

    @property
    def name(self) -> str:
        """As the header and ``gpuenergy doctor`` show it."""

    def check_power_limit(self, limit_mw: int) -> None:
        """Check, without writing and as far as possible, that this limit could be written.

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
        """Lock the SM clocks to one that the card supports, in MHz.

        Raises:
            SettingRefusedError: it was refused.
            SetpointError: its outcome is unknown.
        """

    def unlock_clocks(self) -> None:
        """Set the SM clocks to their default, which is unlocked.

        Raises:
            SettingRefusedError: it was refused.
            SetpointError: its outcome is unknown.
        """


def check_setpoint(writer: SettingsWriter, setpoint: Setpoint) -> None:
    """Check, without writing, that ``writer`` could write all of ``setpoint``.

    Raises:
        SetpointError: it could not.
    """
    if setpoint.power_limit_w is not None:
        writer.check_power_limit(round(setpoint.power_limit_w * 1e3))
    if setpoint.sm_clock_mhz is not None:
        writer.check_clock_lock(setpoint.sm_clock_mhz)


def choose_writer(gpu: Gpu) -> SettingsWriter:
    """The first of NVML, zeusd and sudo that may write the settings of ``gpu``. Writes nothing.

    Raises:
        WritesDeniedError: the environment forbids it; none of them is tried.
        SetpointError: none of them may. The message says what to do.
    """
    if gpu.emulated:
        return NvmlWriter(gpu)  # its permissions are emulated too
    deny_writes()
    if may_change_settings():
        return NvmlWriter(gpu)
    from pytest_gpuenergy.control.writers.sudo import find_sudo
    from pytest_gpuenergy.control.writers.zeusd import find_zeusd

    reasons = []
    for found in (find(gpu) for find in (find_zeusd, find_sudo)):
        if not isinstance(found, str):
            return found
        reasons.append(found)
    raise SetpointError(
        f"There is no permission to change the settings of {gpu.name} ({'; '.join(reasons)}): run "
        "as root (in a container: with the capability SYS_ADMIN), start zeusd, add the sudo rule "
        "that gpuenergy doctor prints, or use --powercap current and --smclock current."
    )
