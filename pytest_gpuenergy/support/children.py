"""Commands that end when this process does, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpuenergy.support.signals import uninterrupted

PATIENCE_S = 20.0
"""How long a command may take to restore everything once it has received SIGTERM."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


def run_child(
    command: Sequence[str],
    folder: Path,
    *,
    shown: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in ``folder`` and return its exit code and its combined output.

    Its environment is that of this process unless one is given.

    If it is ``shown``, its output goes where this process's goes, and is not returned.

    An interrupt of this process also ends the command: with SIGTERM and, after `PATIENCE_S`, with
    SIGKILL to its process group. If this process is killed, the kernel sends the SIGTERM.

    Raises:
        OSError: the command cannot be started.
    """
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        stderr=None if shown else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that we decide whether to pass on a Ctrl-C
        preexec_fn=die_with_parent,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        with uninterrupted():
            _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
