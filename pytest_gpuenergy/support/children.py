"""Child processes that end with this one, and how to tell a process from a later one of its ID."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from pytest_gpuenergy.support.signals import uninterrupted


def start_ticks(pid: int) -> int | None:
    """When process ``pid`` started, in clock ticks since boot; None if it is not running.

    Uses fields 3 (state; a zombie is not running) and 22 (start time) of ``/proc/PID/stat``,
    counted from the end of the command's name, which is in parentheses and may contain anything:
    see proc_pid_stat(5).
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


PATIENCE_S = 20.0
"""How long a command may take to restore everything once it has received SIGTERM."""

_LOOK_AGAIN_S = 0.1
_ROUNDS_TO_NOTICE = 50
_PR_SET_PDEATHSIG = 1  # prctl(2)


def run_child(
    command: Sequence[str],
    folder: Path,
    *,
    shown: bool = False,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in ``folder`` and return its exit code and its combined output.

    Its environment is that of this process unless one is given.

    If it is ``shown``, its output goes where this process's goes, and is not returned.

    An interrupt of this process also ends the command: with SIGTERM and, after `PATIENCE_S`, with
    SIGKILL to its process group. If this process is killed, the kernel sends the SIGTERM.

    Raises:
        OSError: the command cannot be started.
        subprocess.TimeoutExpired: it did not end in time, and was ended likewise.
    """
    process = _start(command, folder, shown=shown, environment=environment)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        with uninterrupted():
            _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def run_together(
    command: Sequence[str],
    folder: Path,
    environments: Sequence[Mapping[str, str]],
    errors: Sequence[IO[str] | None],
) -> list[int | None]:
    """Run ``command`` once in each environment, all at the same time, and show what they print.

    Soon after one of them fails, the others are ended as by an interrupt, see `run_child`.

    Args:
        command: to run.
        folder: to run it in.
        environments: one for each.
        errors: a file for the standard error of each; None: where that of this process goes.

    Returns:
        Their exit codes, with None for those that had to be ended since another had failed.

    Raises:
        OSError: the command cannot be started.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(
            _start(command, folder, shown=True, environment=environment, errors=file)
            for environment, file in zip(environments, errors, strict=True)
        )
        codes = _until_one_fails(processes)
    except BaseException:
        with uninterrupted():
            _end_all(processes)
        raise
    _end_all(processes)
    return codes


def _until_one_fails(processes: Sequence[subprocess.Popen[str]]) -> list[int | None]:
    """Wait; others of one that fails have a while to notice, and to end by themselves."""
    rounds = _ROUNDS_TO_NOTICE
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or not rounds:
            return codes
        rounds -= any(codes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[codes.index(None)].wait(timeout=_LOOK_AGAIN_S)


def _end_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.terminate()  # at once: they wait for one another
    for process in processes:
        _end(process)


def _start(
    command: Sequence[str],
    folder: Path,
    *,
    shown: bool,
    environment: Mapping[str, str] | None,
    errors: IO[str] | None = None,
) -> subprocess.Popen[str]:
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        stderr=errors if shown else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that we decide whether to pass on a Ctrl-C
        preexec_fn=die_with_parent,
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
