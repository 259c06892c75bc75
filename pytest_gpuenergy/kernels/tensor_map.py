"""Tensor maps: how Hopper's tensor memory accelerator (TMA) copies boxes of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import stored_as, whole_sizes

Swizzle = Literal[0, 32, 64, 128]
MapType = Literal["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"]

_MAX_DIMENSIONS = 5
_LARGEST_DIMENSION, _LARGEST_BOX = 1 << 32, 256
_STRIDE_BYTES, _LARGEST_STRIDE = 16, 1 << 40


@dataclass(frozen=True)
class TensorMap:
    """A kernel's argument of type ``CUtensorMap``: a tensor in global memory, cut into boxes.

    The limits are those of ``cuTensorMapEncodeTiled`` (CUDA driver API, "Tensor Map Object
    Management"). What a box has outside the tensor is read as zeros, and not written.

    Attributes:
        name: the name by which launches take the map.
        tensor: the name of the tensor or workspace at whose beginning the map starts.
        dtype: the type of the elements.
        dims: the number of elements in each dimension, the innermost first.
        strides_bytes: the distance from one index to the next, for each dimension but the
            innermost.
        box: the number of elements that are copied at once, in each dimension.
        swizzle_bytes: the length of the rows in a box, whose pieces of 16 bytes are permuted in
            shared memory so that columns have no bank conflicts; 0: not permuted.

    Raises:
        InputError: no such map exists.
    """

    name: str
    tensor: str
    dtype: MapType
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: Swizzle = 0

    def __post_init__(self) -> None:
        for name in ("dims", "strides_bytes", "box"):
            object.__setattr__(self, name, whole_sizes(getattr(self, name)))
        if problem := self._problem():
            raise InputError(f"The tensor map {self.name!r} cannot be used: {problem}.")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return stored_as(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """The number of bytes from the beginning of the tensor to the end of its last element."""
        last = sum(
            (dim - 1) * stride
            for dim, stride in zip(self.dims[1:], self.strides_bytes, strict=True)
        )
        return self.dims[0] * self.itemsize + last

    def _problem(self) -> str | None:
        rank = len(self.dims)
        if self.dtype not in get_args(MapType):
            return f"its type is {self.dtype!r}, not one of {', '.join(get_args(MapType))}"
        if not 1 <= rank <= _MAX_DIMENSIONS:
            return f"it has {rank} dimensions instead of 1 to {_MAX_DIMENSIONS}"
        if (len(self.strides_bytes), len(self.box)) != (rank - 1, rank):
            return "it needs a size of the box for each dimension, and a stride for all but one"
        if any(type(n) is not int for n in (*self.dims, *self.strides_bytes, *self.box)):
            return "one of its sizes is no integer"
        if not all(1 <= dim <= _LARGEST_DIMENSION for dim in self.dims):
            return f"its dimensions {self.dims} are not between 1 and {_LARGEST_DIMENSION}"
        if not all(1 <= edge <= _LARGEST_BOX for edge in self.box):
            return f"its box {self.box} is not between 1 and {_LARGEST_BOX} elements in size"
        if any(
            stride % _STRIDE_BYTES or stride >= _LARGEST_STRIDE for stride in self.strides_bytes
        ):
            return f"its strides {self.strides_bytes} are not multiples of 16 bytes below 2**40"
        rows = (self.dims[0] * self.itemsize, *self.strides_bytes)
        if any(outer < inner for inner, outer in pairwise(rows)):
            return f"its strides {self.strides_bytes} are less than a row of {rows[0]} bytes"
        row_bytes = self.box[0] * self.itemsize
        if row_bytes % _STRIDE_BYTES:
            return f"rows of {row_bytes} bytes in the box are no multiple of {_STRIDE_BYTES}"
        if self.swizzle_bytes not in get_args(Swizzle):
            return f"its swizzle is {self.swizzle_bytes!r} instead of 0, 32, 64 or 128 bytes"
        if self.swizzle_bytes and row_bytes != self.swizzle_bytes:
            return f"rows of {row_bytes} bytes in the box do not fill {self.swizzle_bytes} bytes"
        return None
