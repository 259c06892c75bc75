"""Tensor maps: how Hopper's tensor memory accelerator (TMA) copies boxes of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal, get_args

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import stored_as, whole_sizes

Swizzle = Literal[0, 32, 64, 128]
MapType = Literal[
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int32",
    "int64",
    "uint8",
    "float8_e4m3fn",
    "float8_e5m2",
]

_MAX_DIMENSIONS = 5
_LARGEST_DIMENSION, _LARGEST_BOX, _MOST_PIXELS = 1 << 32, 256, 1024
_STRIDE_BYTES, _LARGEST_STRIDE = 16, 1 << 40
_LARGEST_TRAVERSAL_STRIDE = 8
_CORNER_BITS = {3: 16, 4: 8, 5: 5}
"""The bits of a coordinate of an im2col bounding box, with its sign, by the tensor's rank."""


@dataclass(frozen=True)
class Im2col:
    """The order in which an im2col tensor map visits the pixels of images, as a convolution does.

    The tensor is NWC, NHWC or NDHWC. The pixels at which the filter's corner may lie form the
    bounding box: in each of W, H and D, from ``lower`` to ``size - 1 + upper``, in steps of
    ``strides``. A load begins at one of these pixels and visits as many pixels as the map's box
    has: along W first, then on to the next row, and the next image. At each pixel it adds the
    offset that the instruction names, and reads the channels there (PTX ISA, "im2col mode"). For a
    convolution, ``lower`` is minus the padding, and ``upper`` is the padding minus ``dilation *
    (filter size - 1)``.

    Attributes:
        lower: the lower corner of the bounding box, relative to the first pixel, for W, H and D.
        upper: the upper corner of the bounding box, relative to the last pixel, for W, H and D.
        strides: the distance from one visited pixel to the next, likewise.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "strides"):
            object.__setattr__(self, name, whole_sizes(getattr(self, name)))

    def problem(self, dims: tuple[int, ...]) -> str | None:
        """Return why images of these dimensions cannot be visited so, or None if they can."""
        sizes, numbers = dims[1:-1], (self.lower, self.upper, self.strides)
        if any(len(each) != len(sizes) for each in numbers):
            return f"im2col needs corners and strides for {len(sizes)} dimensions, all but C and N"
        if any(type(n) is not int for each in numbers for n in each):
            return "one of its im2col corners or strides is no integer"
        limit = 1 << (_CORNER_BITS[len(dims)] - 1)
        if not all(-limit <= n < limit for n in (*self.lower, *self.upper)):
            return (
                f"its im2col corners {self.lower} and {self.upper} are not between {-limit} and "
                f"{limit - 1}"
            )
        if not all(1 <= stride <= _LARGEST_TRAVERSAL_STRIDE for stride in self.strides):
            return (
                f"its im2col strides {self.strides} are not between 1 and "
                f"{_LARGEST_TRAVERSAL_STRIDE}"
            )
        if any(
            size + upper <= lower
            for size, lower, upper in zip(sizes, self.lower, self.upper, strict=True)
        ):
            return f"its im2col corners {self.lower} and {self.upper} have no pixels between them"
        return None


@dataclass(frozen=True)
class TensorMap:
    """A kernel's argument of type ``CUtensorMap``: a tensor in global memory, cut into boxes.

    The limits are those of ``cuTensorMapEncodeTiled`` and ``cuTensorMapEncodeIm2col`` (CUDA driver
    API, "Tensor Map Object Management"). What a box has outside the tensor is read as zeros, and
    not written.

    Attributes:
        name: the name by which launches take the map.
        tensor: the name of the tensor or workspace at whose beginning the map starts.
        dtype: the type of the elements.
        dims: the number of elements in each dimension, the innermost first.
        strides_bytes: the distance from one index to the next, for each dimension but the
            innermost.
        box: the number of elements that are copied at once, in each dimension; for im2col, the
            number of channels and the number of pixels.
        swizzle_bytes: the length of the rows in a box, whose pieces of 16 bytes are permuted in
            shared memory so that columns have no bank conflicts; 0: not permuted.
        im2col: how the pixels of images are visited; None for a map that is cut into tiles.

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
    im2col: Im2col | None = None

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

    @property
    def content(self) -> Mapping[str, object]:
        """The tensor map as JSON values; a map of tiles has no entry ``im2col``."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def _problem(self) -> str | None:
        rank, fewest = len(self.dims), 1 if self.im2col is None else min(_CORNER_BITS)
        largest = (_LARGEST_BOX,) * rank if self.im2col is None else (_LARGEST_BOX, _MOST_PIXELS)
        if self.dtype not in get_args(MapType):
            return f"its type is {self.dtype!r}, not one of {', '.join(get_args(MapType))}"
        if not fewest <= rank <= _MAX_DIMENSIONS:
            return f"it has {rank} dimensions instead of {fewest} to {_MAX_DIMENSIONS}"
        if (len(self.strides_bytes), len(self.box)) != (rank - 1, len(largest)):
            if self.im2col is not None:
                return "it needs a box of channels and pixels, and a stride for all but C"
            return "it needs a size of the box for each dimension, and a stride for all but one"
        if any(type(n) is not int for n in (*self.dims, *self.strides_bytes, *self.box)):
            return "one of its sizes is no integer"
        if not all(1 <= dim <= _LARGEST_DIMENSION for dim in self.dims):
            return f"its dimensions {self.dims} are not between 1 and {_LARGEST_DIMENSION}"
        if not all(1 <= edge <= most for edge, most in zip(self.box, largest, strict=True)):
            if self.im2col is not None:
                return (
                    f"its box {self.box} has not 1 to {_LARGEST_BOX} channels of 1 to "
                    f"{_MOST_PIXELS} pixels"
                )
            return f"its box {self.box} is not between 1 and {_LARGEST_BOX} elements in size"
        if self.im2col is not None and (problem := self.im2col.problem(self.dims)):
            return problem
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
