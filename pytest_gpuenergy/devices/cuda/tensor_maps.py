"""Encodes tensor maps, by the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytest_gpuenergy.kernels import MapType, TensorMap
from pytest_gpuenergy.support import KernelFault

# Enumerations of cuda.h.
_TYPES: Mapping[MapType, int] = {
    "uint8": 0,
    "int32": 3,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NO_INTERLEAVE, _L2_PROMOTION_256_BYTES, _ZEROS_OUTSIDE = 0, 3, 0

_BYTES, _ALIGNMENT = 128, 64
_RECORD = np.dtype([("opaque", np.uint64, _BYTES // 8)])
Encode = Callable[..., int]


def encoded(one: TensorMap, address: int, encode: Encode | None = None) -> Any:
    """A map of the memory at ``address``, as an argument of 128 bytes that is passed by value.

    Args:
        one: the map.
        address: of its tensor in the GPU's memory.
        encode: the driver's ``cuTensorMapEncodeTiled``.

    Raises:
        KernelFault: ``constraints``; the driver refuses it, or is too old.
    """
    room = np.zeros(_BYTES + _ALIGNMENT, np.uint8)
    at = -room.ctypes.data % _ALIGNMENT
    dimensions = len(one.dims)
    status = (encode or _driver_function())(
        ctypes.c_void_p(room.ctypes.data + at),
        ctypes.c_int(_TYPES[one.dtype]),
        ctypes.c_uint32(dimensions),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * dimensions)(*one.dims),
        (ctypes.c_uint64 * max(1, dimensions - 1))(*one.strides_bytes),
        (ctypes.c_uint32 * dimensions)(*one.box),
        (ctypes.c_uint32 * dimensions)(*[1] * dimensions),
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(_SWIZZLES[one.swizzle_bytes]),
        ctypes.c_int(_L2_PROMOTION_256_BYTES),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )
    if status:
        raise KernelFault(
            "constraints", f"The driver refuses the tensor map {one.name!r} (error {status})."
        )
    return room[at : at + _BYTES].view(_RECORD)[0]


@functools.cache
def _driver_function() -> Encode:
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        raise KernelFault(
            "constraints", "Tensor maps need a driver of CUDA 12 or later: update it."
        ) from None
