"""The tensors of a spec: their layout in memory, and inputs that do not depend on a seed."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pytest_gpuenergy.search.spec.kernel_spec import TensorSpec
from pytest_gpuenergy.search.spec.sizes import Size, evaluate
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.workloads import (
    Array,
    is_floating,
    largest,
    least,
    numbers,
    rounded_to,
    stored_as,
)

_MAX_BYTES = 1 << 28
"""The limit on a tensor whose elements a spec contains."""
_CONSTANT: dict[str, Callable[[TensorSpec, tuple[int, ...]], Any]] = {
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
    "full": lambda tensor, shape: np.full(shape, tensor.value),
    "arange": lambda _, shape: np.arange(math.prod(shape), dtype=np.float64).reshape(shape),
}


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor in a buffer.

    Attributes:
        shape: the sizes of the dimensions, in elements.
        strides: the distances between elements along each dimension, in elements; None if the
            tensor is contiguous.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def span(self) -> int:
        """The number of elements from the first to the last, including gaps."""
        if self.strides is None:
            return math.prod(self.shape)
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))

    @property
    def buffer_shape(self) -> tuple[int, ...]:
        """The shape of the buffer that the kernel gets: flat unless the tensor is contiguous."""
        return self.shape if self.strides is None else (self.span,)

    def view(self, buffer: Any) -> Any:
        """Return the tensor in an array of `buffer_shape`, without copying."""
        if self.strides is None:
            return buffer
        steps = [step * buffer.itemsize for step in self.strides]
        return as_strided(buffer, self.shape, steps)

    def buffer(self, values: Any) -> Any:
        """Return an array of `buffer_shape` that holds these values of the tensor."""
        if self.strides is None:
            return values
        found = np.empty(self.span, values.dtype)
        self.view(found)[...] = values
        return found


def tensor_layout(tensor: TensorSpec, names: Mapping[str, object]) -> Layout:
    """Return the layout of a tensor with these sizes and constants.

    Raises:
        FormError: a size or stride is out of range, or the elements of an output overlap or have
            gaps between them.
        InputError: an expression cannot be computed.
    """
    shape = _values(tensor, "shape", tensor.shape, names, least=1)
    if tensor.strides is None:
        return Layout(shape)
    found = Layout(shape, _values(tensor, "strides", tensor.strides, names, least=0))
    if tensor.is_written and not _is_dense(found):
        raise FormError(
            f"tensor {tensor.name} is an output whose strides overlap or leave gaps: only inputs "
            "can have those"
        )
    return found


def _values(
    tensor: TensorSpec,
    what: str,
    sizes: tuple[Size, ...],
    names: Mapping[str, object],
    *,
    least: int,
) -> tuple[int, ...]:
    found = []
    for size in sizes:
        try:
            found.append(evaluate(size, names))
        except InputError as error:
            raise InputError(f"tensor {tensor.name}, {what}: {error}") from None
        if found[-1] < least:
            raise FormError(
                f"tensor {tensor.name} has {found[-1]} in its {what} instead of a number from "
                f"{least}"
            )
    return tuple(found)


def _is_dense(layout: Layout) -> bool:
    """Return whether each element of the buffer belongs to exactly one of the tensor."""
    assert layout.strides is not None
    expected = 1
    axes = zip(layout.strides, layout.shape, strict=True)
    for step, size in sorted(axis for axis in axes if axis[1] > 1):
        if step != expected:
            return False
        expected *= size
    return True


def fixed_input(tensor: TensorSpec, shape: tuple[int, ...]) -> Array | None:
    """Return the elements of an input that are the same for all seeds; None if they are drawn.

    Raises:
        FormError: its ``data`` cannot be used.
    """
    if tensor.data is not None:
        return inline_data(tensor, shape)
    if tensor.init not in _CONSTANT:
        return None
    check_constant(tensor, shape)
    values = _CONSTANT[tensor.init](tensor, shape)
    if is_floating(tensor.dtype):
        return rounded_to(values, tensor.dtype)
    found: Array = values.astype(tensor.dtype)
    return found


def check_constant(tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    """Check that the dtype can represent the values of ``full`` and ``arange``."""
    values = {"full": tensor.value, "arange": float(math.prod(shape) - 1)}
    value = values.get(tensor.init, 0.0)
    whole = is_floating(tensor.dtype) or value.is_integer()
    if not whole or not least(tensor.dtype) <= value <= largest(tensor.dtype):
        raise FormError(
            f"tensor {tensor.name} has the init {tensor.init} with {value:g}, which "
            f"{tensor.dtype} cannot represent"
        )


def inline_data(tensor: TensorSpec, shape: tuple[int, ...]) -> Array:
    """Decode the ``data`` of an input: a nested list, or base64 of zlib-compressed bytes.

    The bytes are the elements in row-major order, little-endian; a bfloat16 is given by its bits.
    """
    if isinstance(tensor.data, str):
        return _unpack(tensor, shape)
    try:
        values = np.array(tensor.data)
    except (ValueError, OverflowError):  # lists of different lengths
        values = np.array(None)
    if values.dtype.kind not in "iufb" or values.shape != shape:
        raise FormError(
            f"the data of tensor {tensor.name} is no list of numbers with the shape {shape}"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        if is_floating(tensor.dtype):
            rounded = rounded_to(values.astype(np.float64), tensor.dtype)
            _check_finite(tensor, rounded)
            return rounded
        found: Array = values.astype(tensor.dtype)
    if (found != values).any():
        raise FormError(
            f"the data of tensor {tensor.name} has numbers that {tensor.dtype} cannot represent"
        )
    return found


def _unpack(tensor: TensorSpec, shape: tuple[int, ...]) -> Array:
    dtype = stored_as(tensor.dtype)
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > _MAX_BYTES:
        raise FormError(
            f"tensor {tensor.name} is larger than {_MAX_BYTES >> 20} MiB, too large to be "
            "given as data: use init"
        )
    unpacker = zlib.decompressobj()
    try:
        packed = base64.b64decode(tensor.data, validate=True)
        plain = unpacker.decompress(packed, wanted + 1)  # no more, whatever it would expand to
    except (binascii.Error, zlib.error, ValueError):
        raise FormError(
            f"the data of tensor {tensor.name} is not base64 of zlib-compressed bytes"
        ) from None
    if len(plain) != wanted or not unpacker.eof or unpacker.unused_data:
        raise FormError(
            f"the data of tensor {tensor.name} does not have the {wanted} bytes of {tensor.dtype} "
            f"{shape}"
        )
    values = np.frombuffer(plain, dtype).reshape(shape).copy()
    if is_floating(tensor.dtype):
        _check_finite(tensor, values)
    return values


def _check_finite(tensor: TensorSpec, values: Array) -> None:
    if not np.isfinite(numbers(values, tensor.dtype)).all():
        raise FormError(
            f"the data of tensor {tensor.name} has numbers that are no finite {tensor.dtype}"
        )
