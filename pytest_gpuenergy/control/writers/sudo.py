"""Sets limits and clocks through narrow sudoers rules: ``nvidia-smi -i UUID -pl WATTS``, no more.

``sudo -n -l`` with the exact command reports whether the rule exists. sudo is always called with
``-n``, so that it never prompts.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from pytest_gpuenergy.control.writers.sudo_rule import (
    limit_command,
    lock_command,
    safe_program,
    unlock_command,
)
from pytest_gpuenergy.devices import Gpu, deny_writes
from pytest_gpuenergy.support import SetpointError, SettingRefusedError

_TIMEOUT_S = 60.0  # without persistence mode nvidia-smi first loads the driver


class SudoWriter:
    """Has ``sudo -n nvidia-smi`` write the limit, in whole watts, or lock and unlock the clocks."""

    def __init__(self, gpu: Gpu, sudo: str, nvidia_smi: str) -> None:
        self._gpu = gpu
        self._sudo = sudo
        self._nvidia_smi = nvidia_smi
        self._allowed: set[tuple[str, ...]] = set()

    @property
    def name(self) -> str:
        return f"sudo {self._nvidia_smi}"

    def check_power_limit(self, limit_mw: int) -> None:
        self._check(self._limit_command(limit_mw), "powercap")

    def write_power_limit(self, limit_mw: int) -> None:
        self._write(self._limit_command(limit_mw), "powercap")

    def check_clock_lock(self, clock_mhz: int) -> None:
        for command in (self._lock_command(clock_mhz), self._unlock_command()):
            self._check(command, "smclock")

    def check_clock_unlock(self) -> None:
        """As `check_clock_lock`, but that clocks could be unlocked."""
        self._check(self._unlock_command(), "smclock")

    def lock_clocks(self, clock_mhz: int) -> None:
        self._write(self._lock_command(clock_mhz), "smclock")

    def unlock_clocks(self) -> None:
        self._write(self._unlock_command(), "smclock")

    def _check(self, command: list[str], option: str) -> None:
        if tuple(command) in self._allowed:
            return  # sudo logs every query
        if _run([self._sudo, "-n", "-l", *command]).returncode:
            raise SetpointError(
                f"sudo does not allow {' '.join(command)}: add the rule that gpuenergy doctor "
                f"prints, or use --{option} current."
            )
        self._allowed.add(tuple(command))

    def _write(self, command: list[str], option: str) -> None:
        deny_writes()
        done = _run([self._sudo, "-n", *command])
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:200] or "without a reason"
            raise SettingRefusedError(
                f"sudo {' '.join(command)} failed ({said}): run gpuenergy doctor, or use "
                f"--{option} current."
            )

    def _lock_command(self, clock_mhz: int) -> list[str]:
        return lock_command(self._nvidia_smi, self._gpu.uuid, str(clock_mhz))

    def _unlock_command(self) -> list[str]:
        return unlock_command(self._nvidia_smi, self._gpu.uuid)

    def _limit_command(self, limit_mw: int) -> list[str]:
        if limit_mw % 1000:
            raise SetpointError(
                f"The sudo rule takes whole watts, not {limit_mw / 1e3:g} W: round it, or set "
                "limits as root or through zeusd."
            )
        return limit_command(self._nvidia_smi, self._gpu.uuid, str(limit_mw // 1000))


def find_sudo(gpu: Gpu) -> SudoWriter | str:
    """A writer through sudo if that lets this user restore the limit, or the clocks; or why not."""
    sudo, nvidia_smi = shutil.which("sudo"), _nvidia_smi()
    if sudo is None or nvidia_smi is None:
        return f"no {'nvidia-smi' if sudo else 'sudo'} on the PATH"
    writer = SudoWriter(gpu, sudo, nvidia_smi)
    try:
        present_mw = int(gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle))
        writer.check_power_limit(present_mw)
    except gpu.nvml.NVMLError as error:
        return f"the present limit cannot be read: {error}"
    except SetpointError as error:
        try:
            writer.check_clock_unlock()
        except SetpointError:
            return str(error).partition(":")[0]
    return writer


def _nvidia_smi() -> str | None:
    """The program for which ``gpuenergy doctor`` gives a rule, else the first on the PATH."""
    try:
        return safe_program("nvidia-smi")
    except SetpointError:
        return shutil.which("nvidia-smi")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C must not interrupt a write
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetpointError(f"{' '.join(command)} does not work: {error}.") from None
