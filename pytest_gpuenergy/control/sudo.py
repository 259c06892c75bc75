"""Sets limits and clocks through narrow sudo rules, and writes these rules.

A rule allows one user ``nvidia-smi -i UUID -pl WATTS`` and nothing more. ``sudo -n -l`` with the
exact command reports whether the rule exists. sudo is always called with ``-n``, so that it never
prompts.

A rule must not let its user run something else as root. Therefore the user's name is looked up from
the process's user ID instead of ``LOGNAME``, and a program that ``PATH`` finds is accepted only if
nobody but root can change it.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuenergy.control.setpoint import PowerLimits
from pytest_gpuenergy.devices import Gpu, deny_writes
from pytest_gpuenergy.support import SetpointError, SettingRefusedError, roots_alone, run_captured

_TIMEOUT_S = 60.0  # without persistence mode nvidia-smi first loads the driver


class SudoWriter:
    """Runs ``sudo -n nvidia-smi`` to set the limit, in whole watts, and to lock the clocks."""

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
        """Check, without writing, that clocks could be unlocked.

        Raises:
            SetpointError: they could not.
        """
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
            reason = " ".join((done.stderr or done.stdout).split())[:200] or "without a reason"
            raise SettingRefusedError(
                f"sudo {' '.join(command)} failed ({reason}): run gpuenergy doctor, or use "
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
    """Return a writer through sudo, or a clause that says why it is not allowed.

    It is returned if this user may restore the present limit or unlock the clocks.
    """
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
    """Return the program that ``gpuenergy doctor`` puts in the rule, or the first on the PATH."""
    try:
        return safe_program("nvidia-smi")
    except SetpointError:
        return shutil.which("nvidia-smi")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        # Ctrl-C must not interrupt a write.
        return run_captured(command, timeout_s=_TIMEOUT_S, ignores_interrupts=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetpointError(f"{' '.join(command)} does not work: {error}.") from None


# Other names could be read as an alias (in capitals), a group (%), or several words.
_PLAIN_USER = re.compile("[a-z_][a-z0-9_-]{0,63}")
_PLAIN_PATH = re.compile("/[A-Za-z0-9/._+-]+")
_PLAIN_UUID = re.compile("[A-Za-z0-9-]+")


def limit_rule(
    uuid: str, limits: PowerLimits, *, user: str | None = None, program: str | None = None
) -> str:
    """Return the sudo rule that lets a user set whole watts within the constraints of a GPU.

    Args:
        uuid: the UUID of the GPU.
        limits: its constraints.
        user: the user; by default `own_name`.
        program: the path of nvidia-smi; by default `safe_program`.

    Raises:
        SetpointError: no such rule would be safe, or ``uuid`` is not a GPU's UUID.
    """
    user, program = user or own_name(), program or safe_program("nvidia-smi")
    patterns = digit_patterns(-int(-limits.min_w // 1), int(limits.max_w))
    return _rule(user, uuid, [limit_command(program, uuid, pattern) for pattern in patterns])


def clock_rule(
    uuid: str,
    clocks_mhz: Sequence[int],
    *,
    user: str | None = None,
    program: str | None = None,
) -> str:
    """Return the sudo rule that lets a user lock and unlock the SM clocks of a GPU.

    Args:
        uuid: the UUID of the GPU.
        clocks_mhz: the clocks that the GPU supports, ascending; the rule allows their range.
        user: see `limit_rule`.
        program: see `limit_rule`.

    Raises:
        SetpointError: see `limit_rule`.
    """
    user, program = user or own_name(), program or safe_program("nvidia-smi")
    patterns = digit_patterns(clocks_mhz[0], clocks_mhz[-1])
    locks = [lock_command(program, uuid, pattern) for pattern in patterns]
    return _rule(user, uuid, [*locks, unlock_command(program, uuid)])


def _rule(user: str, uuid: str, commands: Sequence[Sequence[str]]) -> str:
    if not _PLAIN_UUID.fullmatch(uuid):
        raise SetpointError(f"{uuid!r} is not the UUID of a GPU.")
    return f"{user} ALL=(root) NOPASSWD: {', '.join(map(' '.join, commands))}"


def own_name() -> str:
    """Return the user of this process as sudoers(5) writes it: its name, or ``#`` and its ID.

    The ID is used where the name has a meaning of its own in sudoers or belongs to another ID too.

    Raises:
        SetpointError: sudo cannot know the user.
    """
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
        its_own = pwd.getpwnam(name).pw_uid == uid
    except KeyError:
        raise SetpointError(f"User {uid} has no name, which sudo requires.") from None
    return name if its_own and _PLAIN_USER.fullmatch(name) else f"#{uid}"


def safe_program(name: str) -> str:
    """Return the path of the first program ``name`` on the PATH that only root can change.

    The program, and every folder and link on the way to it, must belong to root and not be writable
    for its group or for others.

    Raises:
        SetpointError: there is no such program; the message says why the first one is not safe.
    """
    problems = []
    for folder in os.get_exec_path():
        path = Path(folder, name)
        if not os.access(path, os.X_OK):
            continue
        problem = _problem_of(path)
        if problem is None:
            return str(path)
        problems.append(f"{path} cannot be used, because {problem}.")
    raise SetpointError((problems or [f"There is no {name} on the PATH."])[0])


def _problem_of(path: Path) -> str | None:
    """Return a clause that says why a rule for the program ``path`` would let others be root."""
    if not path.is_absolute() or ".." in path.parts or not _PLAIN_PATH.fullmatch(str(path)):
        return "its path is not a plain absolute one"
    try:
        status = roots_alone(path).stat()
    except OSError as error:
        return error.strerror
    return None if stat.S_ISREG(status.st_mode) else "it is not a file"


def digit_patterns(lowest: int, highest: int) -> list[str]:
    """Return shell patterns that match exactly the whole numbers from ``lowest`` to ``highest``.

    They consist of digits and ranges of digits: a ``*`` in sudoers would also match arguments.
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


def limit_command(nvidia_smi: str, uuid: str, watts: str) -> list[str]:
    """Return the command that sets the limit of a GPU, whose index may change at a reboot."""
    return [nvidia_smi, "-i", uuid, "-pl", watts]


def lock_command(nvidia_smi: str, uuid: str, megahertz: str) -> list[str]:
    """Return the command that locks the SM clocks of a GPU to one value."""
    return [nvidia_smi, "-i", uuid, "-lgc", megahertz]


def unlock_command(nvidia_smi: str, uuid: str) -> list[str]:
    """Return the command that unlocks the SM clocks of a GPU."""
    return [nvidia_smi, "-i", uuid, "-rgc"]
