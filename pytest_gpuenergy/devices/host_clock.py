"""The host's clock, read from the operating system, past Python's modules.

A callable runs in the process that measures it, and may have replaced `time.monotonic`, by accident
(a test that freezes the time) or to look better.
"""

from __future__ import annotations

import ctypes
from time import sleep

_CLOCK_MONOTONIC = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_clock_gettime = ctypes.CDLL(None).clock_gettime


def monotonic_s() -> float:
    """Return what `time.monotonic` returns if nobody has replaced it, in seconds."""
    now = _Timespec()
    _clock_gettime(_CLOCK_MONOTONIC, ctypes.byref(now))
    return float(now.seconds + now.nanoseconds * 1e-9)


class HostClock:
    """The machine's monotonic clock, shared by all its processes."""

    def now_s(self) -> float:
        """Return the time in seconds since some fixed moment."""
        return monotonic_s()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep in real time."""
        sleep(max(0.0, duration_s))
