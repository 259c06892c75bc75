"""What tests ask about processes that are not their own children."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from pathlib import Path


def has_ended(pid: int, within_s: float = 60.0) -> bool:
    """Wait for a process to end; a killed one may run on for a while on a busy machine."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def stop(pid: int) -> None:
    """Stop a process, and wait until none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            while thread.read_text().rpartition(")")[2].split()[0] not in "TZX":
                pause()


def said_through(fifo: Path, within_s: float = 120.0) -> str:
    """What another process writes into ``fifo``; waits for it, but not for one that has ended."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([descriptor], [], [], within_s)[0], "nothing was written"
        return os.read(descriptor, 100).decode()
    finally:
        os.close(descriptor)


KILLED_UNDER_A_CAP = """
import os, signal
from pytest_gpuenergy.control import Lease
from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.opening import open_device

Lease(open_device("emulated")).set(Setpoint(200.0))
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A program that is killed while the emulated GPU is under a limit of 200 W."""


def pause() -> None:
    """Between two looks at what other processes do, which need the processor for it."""
    threading.Event().wait(0.02)
