"""Where the elements of a tensor are in its buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.search.sizes import evaluate
from pytest_gpuenergy.search.spec import TensorSpec
from pytest_gpuenergy.search.state import Size
from pytest_gpuenergy.support import FormError, InputError


@dataclass(frozen=True)
class Layout:
    """A tensor's shape and the strides of its elements.

    Attributes:
        shape: sizes in elements.
        strides: in elements; None where it is contiguous.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def span(self) -> int:
        """Elements from the first to the last, gaps included."""
        if self.strides is None:
            return math.prod(self.shape)
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))

    @property
    def buffer_shape(self) -> tuple[int, ...]:
        """The shape of the buffer that the kernel gets: flat unless it is contiguous."""
        return self.shape if self.strides is None else (self.span,)

    def view(self, buffer: Any) -> Any:
        """The tensor in an array of `buffer_shape`, without copying."""
        if self.strides is None:
            return buffer
        from numpy.lib.stride_tricks import as_strided

        steps = [step * buffer.itemsize for step in self.strides]
        return as_strided(buffer, self.shape, steps)

    def buffer(self, values: Any) -> Any:
        """An array of `buffer_shape` with these values of the tensor."""
        if self.strides is None:
            return values
        import numpy as np

        found = np.empty(self.span, values.dtype)
        self.view(found)[...] = values
        return found


def layout_of(tensor: TensorSpec, names: Mapping[str, object]) -> Layout:
    """The layout of a tensor with these sizes and constants.

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
    """Whether each element of the buffer belongs to exactly one of the tensor."""
    assert layout.strides is not None
    expected = 1
    axes = zip(layout.strides, layout.shape, strict=True)
    for step, size in sorted(axis for axis in axes if axis[1] > 1):
        if step != expected:
            return False
        expected *= size
    return True
