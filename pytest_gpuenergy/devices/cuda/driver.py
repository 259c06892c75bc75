"""Calls of the operating system and the CUDA driver that bypass Python's modules.

A callable runs in the process that measures it, and may have replaced `time.monotonic` or functions
of CuPy or PyTorch, by accident (a test that freezes the time) or to look better.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import re
from pathlib import Path

_CLOCK_MONOTONIC = 1
_LIMIT_PERSISTING_L2_CACHE_SIZE = 6
_CUPTI = re.compile(r"\S+/libcupti\.so[.\d]*$", re.MULTILINE)
_ACTIVITY_KINDS = range(1, 100)
_FLUSH_FORCED = 1
"""CUPTI's flag to return also buffers that are not full."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_clock_gettime = ctypes.CDLL(None).clock_gettime


def monotonic_s() -> float:
    """Return what `time.monotonic` returns if nobody has replaced it, in seconds."""
    now = _Timespec()
    _clock_gettime(_CLOCK_MONOTONIC, ctypes.byref(now))
    return float(now.seconds + now.nanoseconds * 1e-9)


def wait_for_context() -> None:
    """Wait until all streams of the current context are idle, including other libraries'."""
    _call("cuCtxSynchronize")


def end_persistence(*, forbid: bool = False) -> None:
    """Return persisting lines of the L2 cache to ordinary use.

    They would survive the buffers that displace everything else, and the item that created them.

    Args:
        forbid: whether to give up the set-aside part of the cache too, for graphs captured so far.
    """
    if forbid:
        _call("cuCtxSetLimit", _LIMIT_PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(0))
    _call("cuCtxResetPersistingL2Cache")


@functools.cache
def stop_tracing_at_exit() -> None:
    """Have CUPTI, which PyTorch's profiler uses, return its buffers before the process ends.

    CUPTI stays attached when a profile ends, and asks for a buffer when it records something later,
    such as the loading of a kernel. At exit, the profiler's library frees the buffers that it has
    lent. CUPTI, which was loaded earlier and ends later, then writes into them and returns them:
    "double free or corruption".
    """

    def stop() -> None:
        maps = Path("/proc/self/maps")
        with contextlib.suppress(OSError, AttributeError, ValueError):
            for path in sorted(set(_CUPTI.findall(maps.read_text(errors="replace")))):
                library = ctypes.CDLL(path)
                wait_for_context()
                for kind in _ACTIVITY_KINDS:  # CUPTI ignores kinds that it does not have
                    library.cuptiActivityDisable(kind)
                library.cuptiActivityFlushAll(_FLUSH_FORCED)

    atexit.register(stop)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the driver; do nothing if the driver does not have it."""
    if (function := getattr(_driver(), name, None)) is not None:
        function(*arguments)


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """Load the driver library; return None if it is missing, because there is no context then."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
