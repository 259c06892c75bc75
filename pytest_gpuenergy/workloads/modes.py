"""The modes of sums of products: element types, error bounds, and twins that are exact."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from pytest_gpuenergy.record import (
    CONV_MODES as CONV_MODES,
    FLOAT8_MODES as FLOAT8_MODES,
    MODES as MODES,
    Mode as Mode,
)
from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.inputs import LARGEST_INTEGER
from pytest_gpuenergy.workloads.number_types import stored_as, unit_roundoff, whole
from pytest_gpuenergy.workloads.workload import Tensor, Workload

ElementType = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]

_TYPES: Mapping[Mode, ElementType] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""The element type in modes that name one; it is float32 in all others."""
_OPERANDS: Mapping[Mode, frozenset[str]] = {
    "3xtf32": frozenset({"TF32", "BF16"}),
    "tf32": frozenset({"TF32"}),
    "float16": frozenset({"F16", "TF32"}),
    "bfloat16": frozenset({"BF16", "TF32"}),
}
"""The types to which a kernel may convert operands: those of the elements, or of parts of them."""
_TF32_TRUNCATION = 2.0**-10
"""Largest relative change of a float32 number whose lower 13 bits are ignored (PTX ISA, ``mma``:
operands of type ``.tf32``)."""
_LARGEST_EXACT = 1 << 24
"""Up to this number float32 represents all integers."""


class SumsOfProducts(Workload):
    """A workload whose outputs are sums of products, computed in a mode.

    Attributes:
        mode: ``float32``; ``3xtf32``: as exact, but each element may be split into two TF32
            numbers, for tensor cores; ``tf32``: elements may be rounded to TF32 on the way into the
            product; ``float16`` and ``bfloat16`` elements, added in float32; ``e4m3`` and ``e5m2``
            elements of 8 bits with scales, and outputs in bfloat16, which matrix products have.
    """

    mode: Mode

    @property
    @abstractmethod
    def reduction_length(self) -> int:
        """The terms that are added up for one output."""

    @abstractmethod
    def varied(self, **options: Any) -> SumsOfProducts:
        """Return the same sums with other options, such as ``mode``, named accordingly.

        Raises:
            InputError: an option has no such value.
        """

    @property
    def dtype(self) -> ElementType:
        """Type of the elements that are multiplied."""
        return _TYPES.get(self.mode, "float32")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element that is multiplied."""
        return stored_as(self.dtype).itemsize

    @property
    def output_type(self) -> ElementType:
        """Type of the output's elements."""
        return "bfloat16" if self.mode in FLOAT8_MODES else self.dtype

    @property
    def error_bound(self) -> ErrorBound:
        """That of a sum of products, accumulated in float32.

        In mode ``tf32`` each operand may also lose its lower bits, which changes a product by twice
        as much as an operand.
        """
        bound = ErrorBound.for_reduction(self.reduction_length, self.dtype, "float32")
        if self.mode != "tf32":
            return bound
        lost = 2 * _TF32_TRUNCATION
        return ErrorBound(bound.max_relative + lost, bound.normwise + lost)

    @property
    def allows_tensor_cores(self) -> bool:
        """In all modes but float32, which is for CUDA cores."""
        return self.mode != "float32"

    @property
    def operand_types(self) -> frozenset[str] | None:
        """The types of operands that tensor cores may have, as in names of their instructions."""
        return _OPERANDS.get(self.mode)


class ExactTwin(SumsOfProducts):
    """The same sums of products of small integers, which every right kernel computes exactly.

    A sum of n products is at most 16 n, and float32 represents integers up to 2^24. Half precision
    rounds the result. Classes of twins have this one before their workload's class as a base, and
    draw their inputs as ``integers``.
    """

    @property
    def is_exact(self) -> bool:
        """Whether every sum of these integers is exact."""
        return LARGEST_INTEGER**2 * self.reduction_length <= _LARGEST_EXACT

    @property
    def error_bound(self) -> ErrorBound:
        if not self.is_exact:
            return super().error_bound
        unit = 0.0 if self.output_type == "float32" else unit_roundoff(self.output_type)
        return ErrorBound(unit, unit, unit)

    @property
    def twins(self) -> tuple[Workload, ...]:
        return ()

    def is_judged_by_element(self, _tensor: Tensor) -> bool:
        """No: it would only widen the bound."""
        return False


def check_choice(kind: str, what: str, chosen: object, known: tuple[str, ...]) -> None:
    """Check a word that a workload of ``kind`` is given.

    Raises:
        InputError: it is not one of ``known``.
    """
    if chosen not in known:
        raise InputError(f"{kind} has no {what} {shown(chosen)}: choose one of {', '.join(known)}.")


def switch(kind: str, what: str, value: object) -> bool:
    """Return whether an option of a workload of ``kind`` is on, given as a boolean, 0 or 1.

    Raises:
        InputError: it is neither.
    """
    number = whole(value)
    if isinstance(number, bool | np.bool_) or (type(number) is int and number in (0, 1)):
        return bool(number)
    raise InputError(f"{kind} needs {what} to be 0 or 1, not {shown(number)}.")
