"""Calls of the operating system and the CUDA driver that bypass Python's modules.

A callable runs in the process that measures it, and may have replaced `time.monotonic`, functions
of CuPy or those of PyTorch, by accident (a test that freezes the time) or to look better.
"""

from __future__ import annotations

import ctypes
import functools

_CLOCK_MONOTONIC = 1
_LIMIT_PERSISTING_L2_CACHE_SIZE = 6


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_clock_gettime = ctypes.CDLL(None).clock_gettime


def monotonic_s() -> float:
    """Return what `time.monotonic` returns if nobody has replaced it, in seconds."""
    now = _Timespec()
    _clock_gettime(_CLOCK_MONOTONIC, ctypes.byref(now))
    return float(now.seconds + now.nanoseconds * 1e-9)


def wait_for_context() -> None:
    """Wait until all streams of the current context are idle, those of other libraries included."""
    _call("cuCtxSynchronize")


def end_persistence(*, forbid: bool = False) -> None:
    """Return cache lines that were set aside as persisting to the L2 cache's ordinary use.

    They would outlive the buffers that displace everything else, and the item that made them.

    Args:
        forbid: also give up the part of the cache that is set aside, for graphs captured so far.
    """
    if forbid:
        _call("cuCtxSetLimit", _LIMIT_PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(0))
    _call("cuCtxResetPersistingL2Cache")


def _call(name: str, *arguments: object) -> None:
    """Call a function of the driver; GPUs and drivers without it have nothing to do."""
    if (function := getattr(_driver(), name, None)) is not None:
        function(*arguments)


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """Load the driver library; None where there is none, and so no context."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
