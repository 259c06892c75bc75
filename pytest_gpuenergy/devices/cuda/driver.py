"""Calls of the CUDA driver that bypass Python's modules.

A callable runs in the process that measures it, and may have replaced functions of CuPy or PyTorch,
by accident or to look better.
"""

from __future__ import annotations

import ctypes
import functools

_LIMIT_PERSISTING_L2_CACHE_SIZE = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE, cuda.h


def wait_for_context() -> None:
    """Wait until all streams of the current context are idle, including other libraries'."""
    _call("cuCtxSynchronize")


def reset_persisting_l2(*, disable: bool = False) -> None:
    """Return persisting lines of the L2 cache to ordinary use.

    They would survive the buffers that displace everything else, and the item that created them.

    Args:
        disable: whether to set the part of the cache that may persist to zero, too. A captured
            graph needs this: each replay repeats its launches with the access policies that they
            had when they were captured, which would make lines persist again.
    """
    if disable:
        _call("cuCtxSetLimit", _LIMIT_PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(0))
    _call("cuCtxResetPersistingL2Cache")


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
