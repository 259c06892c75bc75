"""Matrix products C = A B in the layouts and precisions that tuned libraries are compared in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.distributions import (
    LARGEST_INTEGER,
    NORMAL,
    check_distribution,
)
from pytest_gpuenergy.workloads.number_types import Array, unit_roundoff, whole
from pytest_gpuenergy.workloads.workload import Tensor, Workload

Layout = Literal["nn", "nt"]
Mode = Literal["float32", "3xtf32", "tf32", "float16", "bfloat16"]
ElementType = Literal["float32", "float16", "bfloat16"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
MODES: tuple[Mode, ...] = get_args(Mode)

_TYPES: Mapping[Mode, ElementType] = {"float16": "float16", "bfloat16": "bfloat16"}
"""Of the matrices in modes that say so."""
_MOST_ELEMENTS = (1 << 31) - 1
"""In one matrix: kernels use 32-bit indices."""
_LARGEST_EXACT = 1 << 24
_TF32_TRUNCATION = 2.0**-10
"""Largest relative change of a float32 number whose lower 13 bits are ignored (PTX ISA, ``mma``:
operands of type ``.tf32``)."""


@dataclass(frozen=True)
class Gemm(Workload):
    """C = A B with A of M x K, B of K x N and C of M x N elements, all row-major.

    Attributes:
        M: rows of A and C.
        N: columns of B and C.
        K: columns of A and rows of B.
        layout: ``nn``: A is stored as M rows of ``lda`` elements; ``nt``: transposed, as K rows.
        mode: ``float32``; ``3xtf32``: as exact, but each element may be split into two TF32
            numbers, for tensor cores; ``tf32``: elements may be rounded to TF32 on the way into the
            product; ``float16`` and ``bfloat16`` matrices, added in float32.
        lda: elements from the beginning of a stored row of A to that of the next one; 0 stands for
            the length of a row. What lies between is read by no product.
        ldb: the same of B.
        distribution: of the inputs of the measurement, see `draw_from`. Inputs with edges, on which
            a kernel is verified too, do not depend on it.

    Raises:
        InputError: a size is out of range, or the layout, mode or distribution is unknown.
    """

    kind: ClassVar[str] = "gemm"

    name: str
    M: int
    N: int
    K: int
    layout: Layout = "nn"
    mode: Mode = "float32"
    lda: int = 0
    ldb: int = 0
    distribution: str = NORMAL

    def __post_init__(self) -> None:
        for size in ("M", "N", "K", "lda", "ldb"):
            object.__setattr__(self, size, whole(getattr(self, size)))
        for size, value in (("M", self.M), ("N", self.N), ("K", self.K)):
            if type(value) is not int or value < 1:
                raise InputError(
                    f"gemm needs {size} to be an integer of at least 1, not {shown(value)}."
                )
        for what, chosen, known in (("layout", self.layout, LAYOUTS), ("mode", self.mode, MODES)):
            if chosen not in known:
                raise InputError(
                    f"gemm has no {what} {shown(chosen)}: choose one of {', '.join(known)}."
                )
        rows = {"lda": self.row_of_a, "ldb": self.N}
        for size, least in rows.items():
            value = getattr(self, size)
            if type(value) is not int or (value and value < least):
                raise InputError(
                    f"gemm needs {size} to be at least {least}, the length of a row, not "
                    f"{shown(value)}."
                )
            if not value:
                object.__setattr__(self, size, least)
        largest = max(self.tensors, key=lambda one: math.prod(one.shape))
        if math.prod(largest.shape) > _MOST_ELEMENTS:
            count, row = largest.shape
            raise InputError(
                f"gemm of M={self.M} N={self.N} K={self.K} has a matrix {largest.name} of {count} "
                f"rows of {row}, which are more elements than 32-bit indices can address: choose "
                "smaller sizes."
            )
        check_distribution(self.distribution)

    @property
    def row_of_a(self) -> int:
        """Elements in a stored row of A."""
        return self.K if self.layout == "nn" else self.M

    @property
    def dtype(self) -> ElementType:
        """Type of the matrices' elements."""
        return _TYPES.get(self.mode, "float32")

    @property
    def element_bytes(self) -> int:
        """Bytes of a matrix's element."""
        return 4 if self.dtype == "float32" else 2

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        rows = self.M if self.layout == "nn" else self.K
        return (
            Tensor("A", (rows, self.lda or self.row_of_a), self.dtype, "input"),
            Tensor("B", (self.K, self.ldb or self.N), self.dtype, "input"),
            Tensor("C", (self.M, self.N), self.dtype, "output"),
        )

    @property
    def parameters(self) -> Mapping[str, int | str]:
        """Sizes, layout and mode; leading dimensions and distribution unless as usual."""
        usual = {"lda": self.row_of_a, "ldb": self.N, "distribution": NORMAL}
        return {
            "kind": self.kind,
            **{name: getattr(self, name) for name in ("M", "N", "K", "layout", "mode")},
            **{
                name: getattr(self, name)
                for name, value in usual.items()
                if getattr(self, name) != value
            },
        }

    @property
    def signature(self) -> str:
        """``gemm_M_512_N_256_K_640_layout_nn_mode_float32``; how inputs are drawn is no part."""
        given = {name: value for name, value in self.parameters.items() if name != "distribution"}
        return "_".join(f"{name}_{value}" for name, value in given.items()).removeprefix("kind_")

    @property
    def flops(self) -> int:
        """2 M N K: one multiplication and one addition per product."""
        return 2 * self.M * self.N * self.K

    @property
    def error_bound(self) -> ErrorBound:
        """That of a sum of K products, accumulated in float32.

        In mode ``tf32`` each operand may also lose its lower bits, which changes a product by twice
        as much as an operand.
        """
        bound = ErrorBound.for_reduction(self.K, self.dtype, "float32")
        if self.mode != "tf32":
            return bound
        lost = 2 * _TF32_TRUNCATION
        return ErrorBound(bound.max_relative + lost, bound.normwise + lost)

    @property
    def allows_tensor_cores(self) -> bool:
        """In all modes but float32, which is for CUDA cores."""
        return self.mode != "float32"

    @property
    def twins(self) -> tuple[Workload, ...]:
        """Small integers, of which the product is exact."""
        return (ExactGemm(**{one.name: getattr(self, one.name) for one in fields(self)}),)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        a = inputs["A"][:, : self.row_of_a].astype(np.float64)
        b = inputs["B"][:, : self.N].astype(np.float64)
        return {"C": (a if self.layout == "nn" else a.T) @ b}


@dataclass(frozen=True)
class ExactGemm(Gemm):
    """The same with small integers for inputs, whose product every right kernel computes exactly.

    An element of C is at most 16 K, and float32 represents integers up to 2^24. Half precision
    rounds the result.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "distribution", "integers")
        super().__post_init__()

    @property
    def error_bound(self) -> ErrorBound:
        if LARGEST_INTEGER**2 * self.K > _LARGEST_EXACT:
            return super().error_bound
        unit = 0.0 if self.dtype == "float32" else unit_roundoff(self.dtype)
        return ErrorBound(unit, unit, unit)

    @property
    def twins(self) -> tuple[Workload, ...]:
        return ()

    def is_judged_by_element(self, _tensor: Tensor) -> bool:
        """No: it would only widen the bound."""
        return False
