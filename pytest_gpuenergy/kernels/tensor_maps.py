"""Tensor maps: what a kernel is told of a tensor for copies of tiles of it (Hopper's TMA)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.number_types import is_known, stored_as

Swizzle = Literal[0, 32, 64, 128]

_SWIZZLES = (0, 32, 64, 128)
_MOST_DIMENSIONS = 5
_LONGEST_DIMENSION, _LONGEST_STRIDE, _LONGEST_BOX = 2**32, 2**40, 256
_ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class TensorMap:
    """A kernel parameter ``const __grid_constant__ CUtensorMap``, as data.

    Elements out of the tensor are zero when loaded and skipped when stored, as of
    ``cuTensorMapEncodeTiled`` with element strides of 1, without interleaving.

    Attributes:
        name: of the argument.
        tensor: name of the tensor, or workspace, at whose start it begins.
        dtype: of the elements, such as ``bfloat16``; not necessarily the tensor's.
        dims: elements in each dimension, the innermost first.
        strides: bytes between neighbours of dimensions 1 and higher.
        box: elements of a tile in each dimension.
        swizzle: width of the pattern in shared memory in bytes, or 0.

    Raises:
        InputError: CUDA does not allow them (CUDA driver API, ``cuTensorMapEncodeTiled``), or the
            swizzling pattern is wider than a row of a tile, of which CUDA does not say the layout.
    """

    name: str
    tensor: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = 0

    def __post_init__(self) -> None:
        if reason := self._reason():
            raise InputError(f"The tensor map {self.name!r} {reason}.")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return stored_as(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """From the start of the tensor to the end of the last element."""
        ends = zip(self.dims[1:], self.strides, strict=True)
        return self.dims[0] * self.itemsize + sum((dim - 1) * stride for dim, stride in ends)

    @property
    def box_bytes(self) -> int:
        """Of a tile in shared memory, for which a load lets its barrier wait."""
        return prod(self.box) * self.itemsize

    def _reason(self) -> str:
        rank = len(self.dims)
        if not is_known(self.dtype):
            return f"has type {self.dtype!r}: give one such as bfloat16"
        if not 1 <= rank <= _MOST_DIMENSIONS or len(self.box) != rank:
            return f"has {rank} dimensions and a box of {len(self.box)}: give the same, 1 to 5"
        if len(self.strides) != rank - 1:
            return (
                f"has {len(self.strides)} strides: give one for each of {rank} dimensions but one"
            )
        if any(type(n) is not int for n in (*self.dims, *self.strides, *self.box)):
            return "has a size that is no integer"
        if not all(1 <= dim <= _LONGEST_DIMENSION for dim in self.dims):
            return f"has dimensions {self.dims}: give 1 to 2^32 elements"
        if not all(1 <= edge <= _LONGEST_BOX for edge in self.box):
            return f"has a box of {self.box}: give 1 to {_LONGEST_BOX} elements in each dimension"
        rows = (self.dims[0] * self.itemsize, *self.strides)
        if any(stride % _ALIGNMENT_BYTES or stride >= _LONGEST_STRIDE for stride in self.strides):
            return f"has strides {self.strides}: give multiples of 16 bytes below 2^40"
        if any(outer < inner for inner, outer in pairwise(rows)):
            return f"has strides {self.strides} that are less than a row's {rows[0]} bytes"
        row_bytes = self.box[0] * self.itemsize
        if row_bytes % _ALIGNMENT_BYTES:
            return f"has a box whose rows have {row_bytes} bytes: give a multiple of 16"
        if self.swizzle not in _SWIZZLES:
            return f"has swizzle {self.swizzle!r}: give 0, 32, 64 or 128 bytes"
        if self.swizzle and row_bytes != self.swizzle:
            return (
                f"has a box whose rows have {row_bytes} bytes: swizzle={self.swizzle} needs as many"
            )
        return ""
