"""Sets power limits through one narrow sudoers rule: ``nvidia-smi -i UUID -pl WATTS``, no more.

``sudo -n -l`` with the exact command reports whether the rule exists. sudo is always called with
``-n``, so that it never prompts.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Sequence

from pytest_gpuenergy.control.limits import PowerLimits
from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.devices.nvml import deny_writes
from pytest_gpuenergy.support.errors import SetpointError

_TIMEOUT_S = 60.0  # without persistence mode nvidia-smi first loads the driver
_DEFAULT_PATH = "/usr/bin/nvidia-smi"


class SudoWriter:
    """Has ``sudo -n nvidia-smi`` write the limit, in whole watts."""

    def __init__(self, gpu: Gpu, sudo: str, nvidia_smi: str) -> None:
        self._gpu = gpu
        self._sudo = sudo
        self._nvidia_smi = nvidia_smi
        self._allowed_mw: set[int] = set()

    @property
    def name(self) -> str:
        return f"sudo {self._nvidia_smi}"

    def check_power_limit(self, limit_mw: int) -> None:
        command = self._command(limit_mw)
        if limit_mw in self._allowed_mw:
            return  # sudo logs every query
        if _run([self._sudo, "-n", "-l", *command]).returncode:
            raise SetpointError(
                f"sudo does not allow {' '.join(command)}: add the rule that gpuenergy doctor "
                "prints, or use --powercap current."
            )
        self._allowed_mw.add(limit_mw)

    def write_power_limit(self, limit_mw: int) -> None:
        deny_writes()
        command = self._command(limit_mw)
        done = _run([self._sudo, "-n", *command])
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:200] or "without a reason"
            raise SetpointError(
                f"sudo {' '.join(command)} failed ({said}): run gpuenergy doctor, or use "
                "--powercap current."
            )

    def _command(self, limit_mw: int) -> list[str]:
        if limit_mw % 1000:
            raise SetpointError(
                f"The sudo rule takes whole watts, not {limit_mw / 1e3:g} W: round it, or set "
                "limits as root or through zeusd."
            )
        return _limit_command(self._nvidia_smi, self._gpu.uuid, str(limit_mw // 1000))


def find_sudo(gpu: Gpu) -> SudoWriter | str:
    """A writer through sudo if sudo lets this user restore the present limit; otherwise why not."""
    sudo, nvidia_smi = shutil.which("sudo"), shutil.which("nvidia-smi")
    if sudo is None or nvidia_smi is None:
        return f"no {'nvidia-smi' if sudo else 'sudo'} on the PATH"
    writer = SudoWriter(gpu, sudo, nvidia_smi)
    try:
        present_mw = int(gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle))
        writer.check_power_limit(present_mw)
    except gpu.nvml.NVMLError as error:
        return f"the present limit cannot be read: {error}"
    except SetpointError as error:
        return str(error).partition(":")[0]
    return writer


def sudoers_line(uuid: str, limits: PowerLimits) -> str:
    """The rule for ``visudo``: this user, this GPU, whole watts within its constraints."""
    program = shutil.which("nvidia-smi") or _DEFAULT_PATH
    lowest, highest = -int(-limits.min_w // 1), int(limits.max_w)
    commands = [
        " ".join(_limit_command(program, uuid, pattern))
        for pattern in digit_patterns(lowest, highest)
    ]
    return f"{getpass.getuser()} ALL=(root) NOPASSWD: {', '.join(commands)}"


def digit_patterns(lowest: int, highest: int) -> list[str]:
    """Shell patterns that together match exactly the whole numbers from ``lowest`` to ``highest``.

    Only digits and ranges of digits: a ``*`` in sudoers would match further arguments as well.
    """
    patterns = []
    for length in range(len(str(lowest)), len(str(highest)) + 1):
        first = max(lowest, 10 ** (length - 1) if length > 1 else 0)
        last = min(highest, 10**length - 1)
        patterns += _of_one_length(str(first), str(last))
    return patterns


def _of_one_length(first: str, last: str) -> list[str]:
    if first == last:
        return [first]
    rest = len(first) - 1
    if first[0] == last[0]:
        return [first[0] + pattern for pattern in _of_one_length(first[1:], last[1:])]
    low, high = int(first[0]), int(last[0])
    before, after = [], []
    if first[1:] != "0" * rest:
        before = [first[0] + pattern for pattern in _of_one_length(first[1:], "9" * rest)]
        low += 1
    if last[1:] != "9" * rest:
        after = [last[0] + pattern for pattern in _of_one_length("0" * rest, last[1:])]
        high -= 1
    whole = [(str(low) if low == high else f"[{low}-{high}]") + "[0-9]" * rest]
    return [*before, *(whole if low <= high else []), *after]


def _limit_command(nvidia_smi: str, uuid: str, watts: str) -> list[str]:
    """By UUID, because the index of a GPU may change at a reboot."""
    return [nvidia_smi, "-i", uuid, "-pl", watts]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C must not interrupt a write
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetpointError(f"{' '.join(command)} does not work: {error}.") from None
