"""Calls of the CUDA driver that bypass Python's modules.

A callable runs in the process that measures it, and may have replaced functions of CuPy or PyTorch,
by accident or to look better.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_gpuenergy.support import KernelFault

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


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute`` of cuda.h, with a value that is a number."""

    _fields_ = (("id", ctypes.c_int), ("value", ctypes.c_int * 17))


class _Configuration(ctypes.Structure):
    """``CUlaunchConfig`` of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of CUlaunchAttributeID, cuda.h


class EarlyLaunch:
    """A launch whose blocks may begin while the launch before it on the stream ends.

    Its arguments are arrays of CuPy, of which the kernel gets the address, and numbers and records
    of NumPy. They are packed once, since a graph holds thousands of launches. The function and the
    arguments are kept: CuPy unloads a module with the last of its functions.

    Args:
        function: the function, of CuPy.
        grid: the blocks in each dimension.
        block: the threads of a block in each dimension.
        shared_bytes: the dynamic shared memory of a block.
        arguments: the arguments of the function.

    Raises:
        KernelFault: the driver is too old.
    """

    def __init__(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        arguments: Sequence[object],
    ) -> None:
        launch = getattr(_driver(), "cuLaunchKernelEx", None)
        if launch is None:
            raise KernelFault(
                "constraints", "Early launches need a driver of CUDA 12 or later: update it."
            )
        self._launch, self._handle = launch, ctypes.c_void_p(function.ptr)
        self._kept = function, arguments
        self._values = [
            np.asarray(argument.data.ptr, np.uint64)
            if hasattr(argument, "data") and hasattr(argument.data, "ptr")
            else np.asarray(argument)
            for argument in arguments
        ]
        addresses = (value.ctypes.data for value in self._values)
        self._parameters = (ctypes.c_void_p * len(self._values))(*addresses)
        attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[1] = 1  # behind the padding that aligns it
        three = ctypes.c_uint * 3
        self._configuration = _Configuration(
            three(*grid), three(*block), shared_bytes, None, ctypes.pointer(attribute), 1
        )

    def __call__(self, stream: int) -> None:
        """Enqueue the launch on a stream of this address.

        Raises:
            KernelFault: the driver refuses it.
        """
        self._configuration.stream = stream
        status = self._launch(
            ctypes.byref(self._configuration), self._handle, self._parameters, None
        )
        if status:
            raise KernelFault("runtime", f"The driver refuses an early launch (error {status}).")


def parameter_bytes(function: int, number: int) -> int | None:
    """Return the size of a kernel's parameter in bytes; ``number`` counts from 0.

    It is None if there is no such parameter, or the driver is older than that of CUDA 12.4.
    """
    info = getattr(_driver(), "cuFuncGetParamInfo", None)
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    if info is None or info(
        ctypes.c_void_p(function),
        ctypes.c_size_t(number),
        ctypes.byref(offset),
        ctypes.byref(size),
    ):
        return None
    return size.value


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
