"""Runs commands as child processes that end with this one; tells apart processes of one ID."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Literal

from pytest_gpuenergy.support.signals import uninterrupted

PATIENCE_S = 20.0
"""The time that a command has to restore everything once it has received SIGTERM."""

_POLL_S = 0.1
_POLLS_AFTER_FAILURE = 50
"""The number of times that the other commands are polled after one has failed, and then ended."""

_STDERR = 2
"""The file descriptor of the error output."""

_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None, use_errno=True), 1  # see prctl(2)


def start_ticks(pid: int) -> int | None:
    """Return when process ``pid`` started, in clock ticks since boot; None if it is not running.

    A process ID and its start time together identify a process, although IDs are used again.
    These are fields 3 (state; a zombie is not running) and 22 (start time) of ``/proc/PID/stat``.
    They are counted from the end of the command's name, which is in parentheses and may contain
    anything, see proc_pid_stat(5).
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send a signal to this process when the thread that started it ends.

    Args:
        parent: the ID of the process that has started this one; it may have ended already.
        number: the signal.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run_child(
    command: Sequence[str],
    folder: Path,
    *,
    shown: bool | Literal["as errors"] = False,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in ``folder`` and return its exit code and its combined output.

    An interrupt of this process also ends the command: with SIGTERM and, after `PATIENCE_S`, with
    SIGKILL to its process group. If this process is killed, the kernel sends the SIGTERM.

    Args:
        command: the command.
        folder: its working directory.
        shown: whether its output goes where this process's goes, instead of being returned; ``as
            errors`` if all of it goes to the error output.
        environment: all of its variables; by default those of this process.
        timeout_s: the time limit; by default there is none.

    Raises:
        OSError: the command cannot be started.
        subprocess.TimeoutExpired: the command did not end in time, and has been terminated.
    """
    process = _start(command, folder, shown=shown, environment=environment)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        with uninterrupted():
            _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def run_captured(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout_s: float | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    ignores_interrupts: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command that needs no input, and return its exit code and both of its outputs.

    Args:
        command: the command.
        timeout_s: the time limit; by default there is none.
        folder: the working directory; by default that of this process.
        environment: all of its variables; by default those of this process.
        ignores_interrupts: whether a Ctrl-C in the terminal leaves the command alone.

    Raises:
        OSError: the command cannot be started.
        subprocess.TimeoutExpired: the command did not end in time, and has been killed.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        start_new_session=ignores_interrupts,
    )


def run_together(
    command: Sequence[str],
    folder: Path,
    environments: Sequence[Mapping[str, str]],
    errors: Sequence[IO[str] | None],
) -> list[int | None]:
    """Run ``command`` once in each environment, all at the same time, and show what they print.

    A few seconds after one of them fails, the others are terminated as `run_child` does it.

    Args:
        command: the command.
        folder: its working directory.
        environments: the variables of each process.
        errors: a file for the standard error of each process; None to share this process's.

    Returns:
        The exit codes; None for each process that was terminated because another one failed.

    Raises:
        OSError: the command cannot be started.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(
            _start(command, folder, shown=True, environment=environment, errors=file)
            for environment, file in zip(environments, errors, strict=True)
        )
        polls_left = _POLLS_AFTER_FAILURE
        while True:
            codes = [process.poll() for process in processes]
            if None not in codes or not polls_left:
                break
            polls_left -= any(codes)
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes[codes.index(None)].wait(timeout=_POLL_S)
    except BaseException:
        with uninterrupted():
            _end_all(processes)
        raise
    _end_all(processes)
    return codes


def _end_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.terminate()  # all of them first, because they wait for one another
    for process in processes:
        _end(process)


def _start(
    command: Sequence[str],
    folder: Path,
    *,
    shown: bool | Literal["as errors"],
    environment: Mapping[str, str] | None,
    errors: IO[str] | None = None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=_STDERR if shown == "as errors" else None if shown else subprocess.PIPE,
        stderr=errors if shown else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that we decide whether to pass on a Ctrl-C
        preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
