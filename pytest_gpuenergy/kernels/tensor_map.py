"""Tensor maps: how Hopper's tensor memory accelerator (TMA) copies boxes of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.number_types import stored_as

MapType = Literal["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"]

_MOST_DIMENSIONS = 5
_LARGEST_SIZE, _LARGEST_BOX = 1 << 32, 256
_DISTANCE_BYTES, _LARGEST_DISTANCE = 16, 1 << 40


@dataclass(frozen=True)
class TensorMap:
    """A kernel's argument of type ``CUtensorMap``: a tensor in global memory, cut into boxes.

    The limits are those of ``cuTensorMapEncodeTiled`` (CUDA driver API, "Tensor Map Object
    Management"). What a box has outside the tensor is read as zeros, and not written.

    Attributes:
        name: by which launches take it.
        tensor: name of the tensor or workspace, at whose beginning it starts.
        dtype: of the elements.
        sizes: of the tensor in elements, the innermost dimension first.
        distances_bytes: from one index to the next, of all dimensions but the innermost.
        box: elements that are copied at once, in each dimension.
        swizzle_bytes: length of the rows in shared memory whose pieces of 16 bytes are permuted, so
            that columns have no bank conflicts; 0: none.

    Raises:
        InputError: no such map exists.
    """

    name: str
    tensor: str
    dtype: MapType
    sizes: tuple[int, ...]
    distances_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: Literal[0, 32, 64, 128] = 0

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise InputError(f"The tensor map {self.name!r} cannot be used: {problem}.")

    def _problem(self) -> str | None:
        dimensions = len(self.sizes)
        row_bytes = self.box[0] * stored_as(self.dtype).itemsize if self.box else 0
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            return f"it has {dimensions} dimensions instead of 1 to {_MOST_DIMENSIONS}"
        if (len(self.distances_bytes), len(self.box)) != (dimensions - 1, dimensions):
            return "it needs a size of the box for each dimension, and a distance for all but one"
        if not all(1 <= size <= _LARGEST_SIZE for size in self.sizes):
            return f"its sizes {self.sizes} are not between 1 and {_LARGEST_SIZE}"
        if not all(1 <= size <= _LARGEST_BOX for size in self.box):
            return f"its box {self.box} is not between 1 and {_LARGEST_BOX} elements in size"
        for distance in self.distances_bytes:
            if distance % _DISTANCE_BYTES or not 0 < distance < _LARGEST_DISTANCE:
                return f"{distance} bytes are no multiple of {_DISTANCE_BYTES} below 2**40"
        if row_bytes % _DISTANCE_BYTES:
            return f"rows of {row_bytes} bytes in the box are no multiple of {_DISTANCE_BYTES}"
        if self.swizzle_bytes and row_bytes > self.swizzle_bytes:
            return f"rows of {row_bytes} bytes do not fit into a swizzle of {self.swizzle_bytes}"
        return None

    @property
    def box_bytes(self) -> int:
        """What a copy of one box adds to the count of a barrier."""
        return math.prod(self.box) * stored_as(self.dtype).itemsize
