"""Matrix products C = A B: layouts, precisions, ends, and the reference.

How their sizes are written is in `product_requests`.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support import InputError, joined_or_hashed, shown
from pytest_gpuenergy.workloads.activations import (
    ACTIVATIONS,
    EXACT_ACTIVATIONS,
    Activation,
    activated,
    activated_bound,
)
from pytest_gpuenergy.workloads.bounds import FLOAT8_SUM_BITS, ErrorBound
from pytest_gpuenergy.workloads.edges import Edges
from pytest_gpuenergy.workloads.inputs import (
    LARGEST_INTEGER,
    NORMAL,
    beginning,
    check_distribution,
)
from pytest_gpuenergy.workloads.modes import (
    FLOAT8_MODES,
    MODES,
    ElementType,
    ExactTwin,
    Mode,
    SumsOfProducts,
    check_choice,
    switch,
)
from pytest_gpuenergy.workloads.number_types import (
    FLOAT8,
    UNTOUCHED,
    Array,
    largest,
    nearest_float8,
    rounded_to,
    stored_as,
    unit_roundoff,
    whole,
)
from pytest_gpuenergy.workloads.workload import (
    Tensor,
    Workload,
)

Layout = Literal["nn", "nt", "tn", "tt"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
USUAL_LAYOUTS: tuple[Layout, ...] = ("nn", "nt")
"""The layouts of products for which none is given; the bundled records are for these."""

Scaling = Literal["tensor", "row", "block"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
"""The ways of scaling the operands of 8-bit products; the usual one comes first."""
Accumulation = Literal["float32", "fast"]
ACCUMULATIONS: tuple[Accumulation, ...] = get_args(Accumulation)
SCALE_BLOCK = 128
"""The side of a block of elements that have a scale in common; also the products of 8-bit numbers
after which the accumulation ``float32`` adds the tensor cores' sums to others in float32."""
_SCALES_OF_ROW = 4
"""A row of the scales of B's blocks is a multiple of this long, as cuBLASLt demands (cuBLAS
documentation, "128-element 1D and 128x128 2D Block Scaling")."""
_SCALE_RANGE = (0.5, 2.0)
_LEAST_POWER = -126
"""The exponent of the smallest normal number in float32, which is the smallest scale."""

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
LEADING = ("lda", "ldb", "ldc")
FUSED_INPUTS = ("bias", "residual")
"""The options that are either on or off, and are inputs of their names if they are on."""
SWITCHES = (*FUSED_INPUTS, "quantize")
"""The options that are either on or off."""
FLOAT8_OPTIONS: Mapping[str, bool | str] = {
    "scaling": SCALINGS[0],
    "accumulation": ACCUMULATIONS[0],
    "quantize": False,
}
"""The options of products of 8-bit numbers, as they usually are."""
NO_END: Mapping[str, bool | str] = {"bias": False, "activation": "none", "residual": False}
_MAX_ELEMENTS = (1 << 31) - 1
"""The most elements of one tensor, because kernels use 32-bit indices."""
_MAX_GROUPS = 1024
"""The most groups of rows: kernels have a table of them as constants."""


@dataclass(frozen=True)
class Gemm(SumsOfProducts):
    """C = activation(A B + bias) + residual; what follows A B, the end, is optional.

    A has M x K, B has K x N and C has M x N elements; C is stored row by row. The bias has one
    element for each column of C, and the residual is stored as C is. A kernel adds and applies the
    end in float32, to the sums before they are rounded to the type of C.

    The layout has two letters, the first for B and the second for A: ``n`` if a matrix is stored
    row by row, ``t`` if it is stored transposed, that is, if the rows of its transpose are stored.
    They are those of BLAS, which stores by columns, for C^T = B^T A^T. A linear layer of PyTorch,
    whose weights are stored as N rows of K, has the layout ``tn``.

    A batch has B such products, whose matrices are stored one after another, and so are the rows of
    their biases. Groups are what a mixture of experts computes: A and C have the rows of all
    groups, one after another, and each group has its own matrix B and bias, stored as those of a
    batch. A group may have no rows; its matrix is then not read.

    In modes ``e4m3`` and ``e5m2``, A and B are the products of 8-bit numbers and scales in float32.
    C, bias and residual are bfloat16. There is one such product, neither a batch nor groups.

    Attributes:
        M: rows of A and C; with groups, of all of them together.
        N: columns of B and C.
        K: columns of A and rows of B.
        layout: how A and B are stored, see above.
        mode: see `SumsOfProducts`.
        lda: the distance in elements from the beginning of a stored row of A to that of the next; 0
            stands for the length of a row. No product reads what lies between two rows.
        ldb: the same distance for B.
        ldc: the same distance for C, and for the residual. No product writes what lies between two
            rows.
        bias: whether an input ``bias`` (N,) is added to each row of A B.
        B: the number of products in the batch.
        groups: the rows of A in each group; empty if all rows have the same matrix B. Text such as
            ``512,0,128`` is accepted.
        activation: what is then applied to each element, see `Activation`.
        residual: whether an input ``residual`` (M, ldc) is added to that.
        scaling: the scales of 8-bit operands, the inputs ``a_scale`` and ``b_scale``: ``tensor``:
            one (1,) each; ``row``: one for each row of A (M,), and for each column of B (N,);
            ``block``: one for each 1 x 128 elements of A (L, M), along K, and for each 128 x 128 of
            B (ceil(N / 128), L rounded up to a multiple of 4), where L = ceil(K / 128).
        accumulation: how 8-bit products are added: ``float32``: the tensor cores' sums, which have
            about 14 bits, are added to sums in float32 after every 128 products; ``fast``: they
            may be added by the tensor cores alone. Both are terms of cuBLASLt.
        quantize: whether A is bfloat16, and a kernel quantizes it as a part of the product, see
            `quantized`. Otherwise the quantization of A is no part of the product.
        distribution: how the inputs of a measurement are drawn, see `draw_from`. Inputs with edges,
            on which a kernel is verified too, do not depend on it.

    Raises:
        InputError: a size is out of range, the layout, mode, activation or distribution is unknown,
            ``bias``, ``residual`` or ``quantize`` is not a boolean, there are scales in a mode that
            has none, the rows of groups do not add up to M, or there are both groups and a batch.
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
    ldc: int = field(default=0, kw_only=True)
    bias: bool = field(default=False, kw_only=True)
    activation: Activation = field(default="none", kw_only=True)
    residual: bool = field(default=False, kw_only=True)
    scaling: Scaling = field(default="tensor", kw_only=True)
    accumulation: Accumulation = field(default="float32", kw_only=True)
    quantize: bool = field(default=False, kw_only=True)
    B: int = field(default=1, kw_only=True)
    groups: tuple[int, ...] = field(default=(), kw_only=True)
    distribution: str = NORMAL

    def __post_init__(self) -> None:
        for size in ("B", "M", "N", "K", *LEADING):
            object.__setattr__(self, size, whole(getattr(self, size)))
        object.__setattr__(self, "groups", group_rows(self.groups))
        for size, value in (("B", self.B), ("M", self.M), ("N", self.N), ("K", self.K)):
            if type(value) is not int or value < 1:
                raise InputError(
                    f"gemm needs {size} to be an integer of at least 1, not {shown(value)}."
                )
        if self.groups and self.B > 1:
            raise InputError(
                f"gemm cannot have both groups and a batch of B={self.B}: give one of them."
            )
        if self.groups and sum(self.groups) != self.M:
            raise InputError(
                f"gemm needs M to be {sum(self.groups)}, the rows of its groups together, not "
                f"{self.M}: with groups, M can be left out."
            )
        if len(self.groups) > _MAX_GROUPS:
            raise InputError(f"gemm has at most {_MAX_GROUPS} groups, not {len(self.groups)}.")
        check_choice(self.kind, "layout", self.layout, LAYOUTS)
        check_choice(self.kind, "mode", self.mode, MODES)
        check_choice(self.kind, "activation", self.activation, ACTIVATIONS)
        check_choice(self.kind, "scaling", self.scaling, SCALINGS)
        check_choice(self.kind, "accumulation", self.accumulation, ACCUMULATIONS)
        for option in SWITCHES:
            object.__setattr__(self, option, switch(self.kind, option, getattr(self, option)))
        for option, usual in FLOAT8_OPTIONS.items():
            if self.mode not in FLOAT8_MODES and getattr(self, option) != usual:
                raise InputError(
                    f"gemm in mode {self.mode} takes no {option}: choose mode "
                    f"{' or '.join(FLOAT8_MODES)}, or leave it out."
                )
        if self.is_float8 and (self.is_batch or self.groups):
            raise InputError(
                f"gemm in mode {self.mode} has neither batches nor groups: leave B or groups out, "
                "or choose mode bfloat16."
            )
        if self.scaling == "block" and self.accumulation != ACCUMULATIONS[0]:
            raise InputError(
                "gemm with scaling block cannot have accumulation fast, since its sums are scaled "
                f"after every {SCALE_BLOCK} products: leave accumulation out."
            )
        for size, least in self._rows.items():
            value = getattr(self, size)
            if type(value) is not int or (value and value < least):
                raise InputError(
                    f"gemm needs {size} to be at least {least}, the length of a row, not "
                    f"{shown(value)}."
                )
            if not value:
                object.__setattr__(self, size, least)
        largest = max(self.tensors, key=lambda one: math.prod(one.shape))
        if math.prod(largest.shape) > _MAX_ELEMENTS:
            *counts, row = largest.shape
            count = math.prod(counts)
            raise InputError(
                f"gemm of M={self.M} N={self.N} K={self.K} has a matrix {largest.name} of {count} "
                f"rows of {row}, which are more elements than 32-bit indices can address: choose "
                "smaller sizes."
            )
        check_distribution(self.distribution)

    @property
    def products(self) -> int:
        """The number of matrices B: those of a batch, or one for each group."""
        return len(self.groups) or self.B

    @property
    def is_batch(self) -> bool:
        """Whether there are several products, whose A and C have a dimension for them too."""
        return self.B > 1

    @functools.cached_property
    def first_rows(self) -> tuple[int, ...]:
        """The first row of each group in A and C, and then M."""
        return tuple(itertools.accumulate(self.groups, initial=0))

    @functools.cached_property
    def most_rows(self) -> int:
        """The rows of C in a product, or in the largest group."""
        return max(self.groups, default=self.M)

    def first_tiles(self, height: int) -> tuple[int, ...]:
        """Return the first row of tiles of each group, and the number of all rows of tiles.

        Each group has tiles of its own.

        Args:
            height: the rows of a tile.
        """
        known = self._first_tiles
        if height not in known:  # thousands of tilings ask for a few heights
            counts = (-(-rows // height) for rows in self.groups)
            known[height] = tuple(itertools.accumulate(counts, initial=0))
        return known[height]

    @functools.cached_property
    def _first_tiles(self) -> dict[int, tuple[int, ...]]:
        return {}

    @functools.cached_property  # thousands of tilings ask for it, and for the next two
    def a_transposed(self) -> bool:
        """Whether A is stored as K rows of M elements, rather than M rows of K."""
        return self.layout[1] == "t"

    @functools.cached_property
    def b_transposed(self) -> bool:
        """Whether B is stored as N rows of K elements, rather than K rows of N."""
        return self.layout[0] == "t"

    @functools.cached_property
    def element_bytes(self) -> int:
        return super().element_bytes

    @property
    def row_of_a(self) -> int:
        """Elements in a stored row of A."""
        return self.M if self.a_transposed else self.K

    @property
    def row_of_b(self) -> int:
        """Elements in a stored row of B."""
        return self.K if self.b_transposed else self.N

    @property
    def _rows(self) -> dict[str, int]:
        """The usual leading dimensions: rows follow one another."""
        return {"lda": self.row_of_a, "ldb": self.row_of_b, "ldc": self.N}

    def varied(self, **options: Any) -> Gemm:
        other = replace(self, **options)
        return other.called(product_name(other))

    @property
    def has_end(self) -> bool:
        """Whether anything follows the product: a bias, an activation or a residual."""
        return self.bias or self.activation != "none" or self.residual

    @property
    def without_end(self) -> Gemm:
        """The product alone, named accordingly."""
        return self.varied(bias=False, activation="none", residual=False)

    @property
    def reduction_length(self) -> int:
        """K, and one more for each of bias and residual."""
        return self.K + self.bias + self.residual

    @property
    def error_bound(self) -> ErrorBound:
        """That of the sum, see `SumsOfProducts`, to which the activation has been applied.

        Bias and residual are further terms of the sum: each is one addition in float32, which is
        followed by at most one rounding to the type of C, as without them. `activated_bound` says
        what an activation makes of the errors before it. That of the residual's addition, which
        comes after it, is not larger for that.
        """
        bound = super().error_bound
        if self.is_float8:
            alone = min(self.K, SCALE_BLOCK) if self.accumulation == "float32" else self.K
            one_sign = self.distribution == "sorted"
            bound = ErrorBound.for_float8(alone, self.output_type, one_sign=one_sign)
        return activated_bound(bound, self.activation)

    @property
    def is_float8(self) -> bool:
        """Whether the operands are 8-bit numbers with scales."""
        return self.mode in FLOAT8_MODES

    @property
    def type_of_a(self) -> ElementType:
        """The type of A's elements, which a product may still have to quantize."""
        return self.output_type if self.quantize else self.dtype

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        rows_of_a = self.K if self.a_transposed else self.M
        rows_of_b = self.N if self.b_transposed else self.K
        batch = (self.B,) * self.is_batch
        matrices = (self.products,) * bool(self.is_batch or self.groups)
        c, result = (*batch, self.M, self.ldc), self.output_type
        return (
            Tensor("A", (*batch, rows_of_a, self.lda), self.type_of_a, "input"),
            Tensor("B", (*matrices, rows_of_b, self.ldb), self.dtype, "input"),
            *self._scales,
            *([Tensor("bias", (*matrices, self.N), result, "input")] if self.bias else []),
            *([Tensor("residual", c, result, "input")] if self.residual else []),
            Tensor("C", c, result, "output"),
        )

    @property
    def shapes_of_scales(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the scales of A and of B."""
        if self.scaling == "tensor":
            return (1,), (1,)
        if self.scaling == "row":
            return (self.M,), (self.N,)
        along_k, along_n = (math.ceil(size / SCALE_BLOCK) for size in (self.K, self.N))
        return (along_k, self.M), (along_n, math.ceil(along_k / _SCALES_OF_ROW) * _SCALES_OF_ROW)

    @property
    def _scales(self) -> tuple[Tensor, ...]:
        if not self.is_float8:  # asked for each kernel that the estimate ranks
            return ()
        of_a, of_b = (
            Tensor(name, shape, "float32", "input")
            for name, shape in zip(("a_scale", "b_scale"), self.shapes_of_scales, strict=True)
        )
        return (of_b,) if self.quantize else (of_a, of_b)

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Scales are between 0.5 and 2."""
        return {scale.name: _SCALE_RANGE for scale in self._scales}

    def _beginnings(self, seed: int, edges: Edges | None) -> dict[str, Array]:
        """Return the beginnings of inputs, see `Workload.draw_inputs`.

        Elements of an 8-bit B that has edges get random signs. In a sum of terms of one sign, the
        tensor cores cut off parts of nearly all terms in the same direction: such errors are as
        large as those of much coarser accumulators elsewhere.
        """
        drawn = super()._beginnings(seed, edges)
        if edges is not None and self.is_float8:
            signs = np.random.default_rng(seed).integers(0, 2, drawn["B"].shape, np.uint8)
            drawn["B"] = np.bitwise_xor(drawn["B"].view(np.uint8), signs << 7)
        return drawn

    @property
    def parameters(self) -> Mapping[str, int | str]:
        """Sizes, layout and mode; everything else unless it is as usual."""
        usual = {**self._rows, **NO_END, **FLOAT8_OPTIONS, "distribution": NORMAL}
        batch: dict[str, int | str] = {"B": self.B} if self.is_batch else {}
        if self.groups:
            batch["groups"] = ",".join(map(str, self.groups))
        return {
            "kind": self.kind,
            **{name: getattr(self, name) for name in ("M", "N", "K", "layout", "mode")},
            **batch,
            **{
                name: int(getattr(self, name)) if name in SWITCHES else getattr(self, name)
                for name, value in usual.items()
                if getattr(self, name) != value
            },
        }

    @property
    def signature(self) -> str:
        """``gemm_M_512_N_256_K_640_layout_nn_mode_float32``; how inputs are drawn is no part."""
        known = {name: value for name, value in self.parameters.items() if name != "distribution"}
        if self.groups:
            known["groups"] = joined_or_hashed(self.groups)
        return "_".join(f"{name}_{value}" for name, value in known.items()).removeprefix("kind_")

    @property
    def flops(self) -> int:
        """2 B M N K: one multiplication and one addition per product. The end does not count."""
        return 2 * self.B * self.M * self.N * self.K

    @property
    def bytes_moved(self) -> int:
        """Bytes of the elements of all inputs and of C, without what lies between rows.

        A group without rows does not need its matrix B, nor its bias.
        """
        of_a, of_b, of_c = (
            stored_as(dtype).itemsize for dtype in (self.type_of_a, self.dtype, self.output_type)
        )
        moved = self.B * self.M * (of_a * self.K + of_c * (1 + self.residual) * self.N)
        matrices = sum(rows > 0 for rows in self.groups) if self.groups else self.B
        moved += matrices * (of_b * self.K + of_c * self.bias) * self.N
        return moved + sum(scales.nbytes for scales in self._scales)

    @property
    def twins(self) -> tuple[Workload, ...]:
        """The same product of small integers, which is exact; none with most activations."""
        if self.activation not in EXACT_ACTIVATIONS:
            return ()
        values = {member.name: getattr(self, member.name) for member in fields(self)}
        cancelling = CancellingGemm(**values) if self.is_float8 else None
        return (
            ExactGemm(**values),
            *([cancelling] if cancelling and cancelling.largest_drawn else []),
        )

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        a = inputs["A"][..., : self.row_of_a].astype(np.float64)
        b = inputs["B"][..., : self.row_of_b].astype(np.float64)
        a = a.swapaxes(-1, -2) if self.a_transposed else a
        b = b.swapaxes(-1, -2) if self.b_transposed else b
        if self.quantize:
            a = quantized(a, self)
        elif self.is_float8:
            a = a * self._spread(inputs["a_scale"], 0)
        if self.is_float8:
            b = b * self._spread(inputs["b_scale"], 1)
        bias = inputs["bias"].astype(np.float64) if self.bias else None
        if self.groups:
            product = np.empty_like(a, shape=(self.M, self.N), order="C")
            end = 0
            for number, rows in enumerate(self.groups):
                begin, end = end, end + rows
                product[begin:end] = a[begin:end] @ b[number]
                if bias is not None:
                    product[begin:end] += bias[number]
        else:
            product = a @ b
            if bias is not None:
                product += bias[..., None, :] if self.is_batch else bias
        product = activated(product, self.activation)
        if self.residual:
            product += inputs["residual"][..., : self.N].astype(np.float64)
        if self.ldc == self.N:
            return {"C": product}
        c = np.full_like(product, UNTOUCHED, shape=(*product.shape[:-1], self.ldc))
        c[..., : self.N] = product
        return {"C": c}

    def _spread(self, scales: Array, operand: int) -> npt.NDArray[np.float64]:
        """Return the scales of A (``operand`` 0) or B (1) in a shape that multiplies it."""
        wide: npt.NDArray[np.float64] = scales.astype(np.float64)
        if self.scaling == "tensor":
            return wide
        if self.scaling == "row":
            return wide[:, None] if operand == 0 else wide
        along_k = np.repeat(wide.T, SCALE_BLOCK, axis=1 if operand == 0 else 0)
        if operand == 0:
            return along_k[:, : self.K]
        return np.repeat(along_k[: self.K], SCALE_BLOCK, axis=1)[:, : self.N]


def quantized(a: npt.NDArray[np.float64], gemm: Gemm) -> npt.NDArray[np.float64]:
    """Return A (M, K) as a product sees it that quantizes A to 8 bits.

    The scale of all elements, of a row or of 128 elements of a row is the least power of two for
    which none of them exceeds the largest number of the type, so that different kernels cannot
    round differently. Elements are rounded to the nearest, ties to even. By how much an element
    differs from a number in bfloat16 is added to it afterwards, so that the product of other inputs
    than A's type has changes with them, as `estimate_conditions` expects.
    """
    fraction, exponent = np.frexp(a)
    digits = -int(math.log2(unit_roundoff(gemm.type_of_a)))
    given = np.ldexp(np.rint(np.ldexp(fraction, digits)), exponent - digits)
    along_k = math.ceil(a.shape[1] / SCALE_BLOCK) if gemm.scaling == "block" else 1
    length = SCALE_BLOCK if gemm.scaling == "block" else a.shape[1]
    padded = np.zeros_like(a, shape=(a.shape[0], along_k * length))
    padded[:, : a.shape[1]] = given
    rows = padded.reshape(a.shape[0], along_k, length)
    sizes = np.abs(rows).max(axis=None if gemm.scaling == "tensor" else 2, keepdims=True)
    fraction, exponent = np.frexp(sizes / largest(gemm.dtype))
    exponent = np.where(sizes > 0, np.maximum(exponent - (fraction == 0.5), _LEAST_POWER), 0)
    found = np.ldexp(nearest_float8(np.ldexp(rows, -exponent), gemm.dtype), exponent)
    rounded: npt.NDArray[np.float64] = found.reshape(padded.shape)[:, : a.shape[1]] + (a - given)
    return rounded


@dataclass(frozen=True)
class ExactGemm(ExactTwin, Gemm):
    """A product of small integers; scales are 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "distribution", "integers")
        super().__post_init__()

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        return dict.fromkeys(super().ranges, (1.0, 1.0))

    @property
    def is_exact(self) -> bool:
        """Whether every sum is exact.

        Sums that 8-bit tensor cores add are random walks of products whose variance is the square
        of that of an integer. None in many billions is 8 times its standard deviation.
        """
        if not self.is_float8:
            return super().is_exact
        alone = min(self.K, SCALE_BLOCK) if self.accumulation == "float32" else self.K
        deviation = LARGEST_INTEGER * (LARGEST_INTEGER + 1) / 3 * math.sqrt(alone)
        return super().is_exact and _CERTAIN_DEVIATIONS * deviation <= _EXACT_FLOAT8_SUM


_CERTAIN_DEVIATIONS = 8
_EXACT_FLOAT8_SUM = 2 << FLOAT8_SUM_BITS
"""Up to this number the tensor cores' sums of 8-bit products represent all integers."""
_FLUCTUATION = 1.5
"""The largest ratio of a sum of hundreds of integers to its expected size."""


@dataclass(frozen=True)
class CancellingGemm(ExactGemm):
    """A product of small integers, positive in the first half of K and negative in the second.

    Sums grow as large as the accumulator that a product states can represent exactly, and then
    nearly cancel. What a coarser accumulator has lost by then is much compared with the result.
    """

    @property
    def largest_drawn(self) -> int:
        """The largest integer of A and B; 0 if no such product can be drawn.

        The signs are those of an operand that is stored along K, since `beginning` repeats rows.
        """
        if self.layout == "nt":
            return 0
        square = _EXACT_FLOAT8_SUM / SCALE_BLOCK
        if self.accumulation == "fast":  # the mean product of half of K is a quarter of the largest
            square = min(square, 8 * _EXACT_FLOAT8_SUM / (_FLUCTUATION * self.K))
        return min(int(math.sqrt(square)), 1 << FLOAT8[self.dtype].digits)

    def _beginnings(self, seed: int, edges: Edges | None) -> dict[str, Array]:
        drawn = super()._beginnings(seed, edges)
        generator, most = np.random.default_rng(seed), self.largest_drawn

        def draw(tensor: Tensor, *, alternates: bool) -> Array:
            def integers(shape: tuple[int, ...]) -> Array:
                values = generator.integers(0, most, shape, endpoint=True).astype(np.float64)
                if alternates:
                    values[..., self.K // 2 : self.K] *= -1
                return rounded_to(values, tensor.dtype)

            return beginning(tensor.shape, integers)

        of_a, of_b = self.inputs[:2]
        in_a = not self.a_transposed
        return {
            **drawn,
            "A": draw(of_a, alternates=in_a),
            "B": draw(of_b, alternates=not in_a),
        }


def product_name(gemm: Gemm) -> str:
    """``gemm_512x256x640_nn``, with whatever else is not as usual.

    A batch is ``gemm_b32_512x256x640_nn``, and groups are ``gemm_g512.0.128_640x2048x1408_tn``.
    """
    several = [f"b{gemm.B}"] if gemm.is_batch else []
    if gemm.groups:
        several = [f"g{joined_or_hashed(gemm.groups)}"]
    parts = ["gemm", *several, f"{gemm.M}x{gemm.N}x{gemm.K}", gemm.layout]
    if gemm.mode != "float32":
        parts.append(gemm.mode)
    for name in (*LEADING, *NO_END, *FLOAT8_OPTIONS, "distribution"):
        if name in gemm.parameters:
            value = str(gemm.parameters[name]).replace(":", "").replace("_", "")
            parts.append(
                name if name in SWITCHES else f"{name}{value}" if name in LEADING else value
            )
    return "_".join(parts)


def group_rows(given: object) -> tuple[int, ...]:
    """Return the rows of groups, given as integers or as text with commas.

    Raises:
        InputError: they are neither, or none has a row.
    """
    parts: object = given
    if isinstance(given, str):
        parts = [int(part) if NUMBER.fullmatch(part) else part for part in given.split(",")]
    rows = tuple(map(whole, parts)) if isinstance(parts, Sequence | np.ndarray) else (parts,)
    if not all(type(row_count) is int and row_count >= 0 for row_count in rows):
        raise InputError(
            f"gemm needs groups to be numbers of rows, such as 512,0,128, not {shown(given)}."
        )
    if rows and not any(rows):
        raise InputError("gemm needs a group with at least one row, and none has any.")
    return rows
