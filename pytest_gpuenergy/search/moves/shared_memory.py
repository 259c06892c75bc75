"""Sizes of the arrays in a CUDA kernel's shared memory."""

from __future__ import annotations

import math

from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import BYTES, Variable

SHARED_BYTES = 48 << 10
"""A block's static shared memory (CUDA C++ Programming Guide)."""


def dims_of(kernel: CudaKernel, array: Variable) -> tuple[int, ...] | None:
    """The dimensions of an array; None if they are not numbers."""
    found = []
    for node in array.dims:
        size = None if node is None else kernel.polynomial(node)
        if size is None or size.value is None:
            return None
        found.append(size.value)
    return tuple(found)


def bytes_of(kernel: CudaKernel, array: Variable) -> int | None:
    """The size of an array; None if unknown."""
    dims = dims_of(kernel, array)
    return None if dims is None or array.type not in BYTES else math.prod(dims) * BYTES[array.type]


def shared_bytes(kernel: CudaKernel) -> int | None:
    """The size of all of a kernel's shared memory; None if unknown, or if some is dynamic."""
    total = 0
    for array in kernel.text.variables:
        is_dynamic = array.dims == (None,)  # extern, and as long as the launch says
        size = bytes_of(kernel, array) if array.shared and not is_dynamic else 0
        if size is None:
            return None
        total += size
    return total if kernel.launch.shared_bytes == 0 else None
