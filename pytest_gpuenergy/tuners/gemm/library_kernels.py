"""The kernels of other libraries: calls of cuBLASLt and DeepGEMM, Triton's kernel and choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_gpuenergy.kernels import KernelConstant, LibraryCall, Origin, TritonKernel
from pytest_gpuenergy.support import UnavailableError, cuda_dir
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import (
    FUSED_INPUTS,
    SCALE_BLOCK,
    Activation,
    Gemm,
    Mode,
    Tensor,
    stored_as,
)

_WORKSPACE_BYTES = 32 << 20
"""The default workspace of cuBLAS on Hopper (cuBLAS documentation, ``cublasSetWorkspace``)."""
_COMPUTE: Mapping[Mode, str] = {
    "float32": "32F",
    "tf32": "32F_FAST_TF32",
    "float16": "32F",
    "bfloat16": "32F",
    "e4m3": "32F",
    "e5m2": "32F",
}
"""The value of ``cublasComputeType_t`` for each mode, without its prefix."""

_NO_EPILOGUE: frozenset[Activation] = frozenset({"gelu", "silu"})
"""The activations that cuBLASLt lacks; its GELU is the form by tanh (cuBLAS documentation,
``cublasLtEpilogue_t``)."""


def cublas_call(gemm: Gemm) -> LibraryCall:
    """Return the call of cuBLASLt for a product, with any algorithm and up to 32 MiB of workspace.

    A batch is one strided call. Each group with rows is a call of its own, and all these calls
    count; see also `grouped_call`.

    Raises:
        UnavailableError: cuBLASLt does not have the product's mode, its layout or its end.
    """
    if gemm.is_float8:
        _check_float8_call(gemm)
    if gemm.mode not in _COMPUTE:
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name} in mode {gemm.mode}: it can replace float32 "
            "products by those of three bfloat16 parts (CUBLAS_COMPUTE_32F_EMULATED_16BFX9), but "
            "not of TF32 ones."
        )
    if gemm.activation in _NO_EPILOGUE:
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name}, since its epilogues have no "
            f"{gemm.activation}: they have relu and gelu_tanh."
        )
    if gemm.residual and gemm.activation != "none":
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name}, since it adds a residual before the "
            "activation and not after it."
        )
    others = {one.name: one.name for one in gemm.inputs if one.name not in "AB"}
    scales = {"scaling": gemm.scaling, "fast_accumulation": gemm.accumulation == "fast"}
    activation = {} if gemm.activation == "none" else {"activation": gemm.activation}
    return LibraryCall(
        "cublasLt.matmul",
        {"a": "A", "b": "B", **others, "c": "C", "workspace": "workspace"},
        {
            "compute": _COMPUTE[gemm.mode],
            "a_transposed": gemm.a_transposed,
            "b_transposed": gemm.b_transposed,
            "columns": gemm.N,
            "depth": gemm.K,
            **({"groups": f"{gemm.parameters['groups']}"} if gemm.groups else {}),
            **activation,
            **(scales if gemm.is_float8 else {}),
        },
        workspaces=(Tensor("workspace", (_WORKSPACE_BYTES,), "uint8", "workspace"),),
        origin=Origin("cublas"),
    )


def grouped_call(gemm: Gemm) -> LibraryCall | None:
    """Return the one call of cuBLAS for all groups of a product; None if it has none."""
    if not gemm.groups or gemm.has_end or gemm.mode not in _COMPUTE:
        return None
    call = cublas_call(gemm)
    return replace(call, entry="cublas.grouped")


def _check_float8_call(gemm: Gemm) -> None:
    """Raise `UnavailableError` for a product of 8-bit numbers that cuBLASLt lacks on Hopper.

    See the cuBLAS documentation, ``cublasLtMatmul()``.
    """
    if gemm.mode == "e5m2":
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name}, since one of its operands has to be e4m3."
        )
    if gemm.layout != "tn":
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name}, since it multiplies 8-bit matrices only in "
            "layout tn."
        )
    if gemm.quantize:
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name}, since it does not quantize A: compare with "
            "the product without quantize."
        )


_DEEPGEMM_ARCHITECTURE = "sm_90"
"""The architecture whose kernels in DeepGEMM take scales in float32."""
_BYTES_APART = 16
"""Rows must be a multiple of this many bytes apart for the tensor memory accelerator, and so must
the scales of one step along K and those of the next."""
_COLUMNS_STORED = 8
"""DeepGEMM takes an N that is a multiple of this."""


def deepgemm_call(gemm: Gemm, architecture: str) -> LibraryCall:
    """Return the call of DeepGEMM for a product, for which it chooses one kernel itself.

    Args:
        gemm: the product.
        architecture: that of the GPU, such as ``sm_90``.

    Raises:
        UnavailableError: DeepGEMM does not compute such a product, or not on this card.
    """
    if why := next(_reasons_against_deepgemm(gemm), None):
        raise UnavailableError(f"DeepGEMM does not compute {gemm.name}, since {why}.")
    if architecture != _DEEPGEMM_ARCHITECTURE:
        raise UnavailableError(
            f"DeepGEMM takes a GPU of {_DEEPGEMM_ARCHITECTURE} for products with scales in "
            f"float32, and this one is of {architecture}."
        )
    (along_k, rows), (along_n, stored_along_k) = gemm.shapes_of_scales
    scales_apart = _BYTES_APART // stored_as("float32").itemsize
    spaces = []
    if rows % scales_apart:
        aligned = (along_k, -(-rows // scales_apart) * scales_apart)
        spaces.append(Tensor("aligned_a_scale", aligned, "float32", "workspace"))
    if stored_along_k != along_k:
        spaces.append(Tensor("packed_b_scale", (along_n, along_k), "float32", "workspace"))
    return LibraryCall(
        "deep_gemm.fp8_gemm_nt",
        {
            "a": "A",
            "b": "B",
            "a_scale": "a_scale",
            "b_scale": "b_scale",
            "c": "C",
            **{space.name: space.name for space in spaces},
        },
        {"columns": gemm.N, "depth": gemm.K},
        workspaces=tuple(spaces),
        origin=Origin("deepgemm"),
    )


def _reasons_against_deepgemm(gemm: Gemm) -> Iterator[str]:
    """Yield why DeepGEMM does not compute a product on Hopper.

    See ``csrc/apis/gemm.hpp`` and ``csrc/jit_kernels/impls/sm90_fp8_gemm_1d2d.hpp`` there.
    """
    if gemm.mode != "e4m3" or gemm.scaling != "block":
        yield "it takes part in products in mode e4m3 with scaling=block only"
    if gemm.layout != "tn":
        yield "it multiplies 8-bit matrices only in layout tn"
    if gemm.quantize:
        yield "it does not quantize A: compare with the product without quantize"
    if gemm.has_end:
        yield "it has no bias, activation or residual there"
    if gemm.N % _COLUMNS_STORED:
        yield f"it needs N to be a multiple of {_COLUMNS_STORED}"
    for name, row, dtype in (
        ("lda", gemm.lda, gemm.dtype),
        ("ldb", gemm.ldb, gemm.dtype),
        ("ldc", gemm.ldc, gemm.output_type),
    ):
        elements = _BYTES_APART // stored_as(dtype).itemsize
        if row % elements:
            yield f"it needs {name} to be a multiple of {elements}, that is, of 16 bytes"


_MIN_CAPABILITY = 80
"""The first compute capability that Triton supports."""
_MIN_FLOAT8_CAPABILITY = 89
"""The first compute capability whose tensor cores multiply 8-bit floating-point numbers."""
_FURTHER_INPUTS = (*FUSED_INPUTS, "a_scale", "b_scale")
_GROUP = 8
"""The rows of tiles that are computed together."""


class TritonConfiguration(NamedTuple):
    """The choices of one of Triton's autotuners.

    Attributes:
        tile_m: the rows of C that a program computes at a time.
        tile_n: the columns of C that a program computes at a time.
        tile_k: the products of each element that are loaded at a time.
        num_warps: the warps of a program.
        num_stages: the tiles of A and B that are loaded ahead.
        programs: the programs of a multiprocessor.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    programs: int


_FMA = (
    TritonConfiguration(128, 128, 16, 8, 3, 1),
    TritonConfiguration(128, 128, 8, 8, 4, 1),
    TritonConfiguration(128, 64, 16, 8, 3, 2),
    TritonConfiguration(128, 64, 16, 4, 3, 2),
    TritonConfiguration(64, 128, 16, 8, 3, 2),
    TritonConfiguration(64, 128, 16, 4, 3, 2),
    TritonConfiguration(64, 64, 16, 4, 3, 4),
    TritonConfiguration(64, 64, 32, 4, 2, 4),
    TritonConfiguration(64, 32, 32, 4, 3, 4),
    TritonConfiguration(32, 64, 32, 4, 3, 4),
    TritonConfiguration(32, 32, 32, 4, 3, 8),
    TritonConfiguration(16, 32, 32, 2, 3, 8),
)
"""The configurations on CUDA cores."""
_MMA_16 = (
    TritonConfiguration(128, 256, 64, 8, 3, 1),
    TritonConfiguration(256, 128, 64, 8, 3, 1),
    TritonConfiguration(128, 256, 64, 8, 4, 1),
    TritonConfiguration(128, 128, 64, 8, 4, 1),
    TritonConfiguration(128, 128, 64, 4, 4, 1),
    TritonConfiguration(128, 128, 64, 4, 3, 2),
    TritonConfiguration(128, 64, 64, 4, 4, 2),
    TritonConfiguration(64, 128, 64, 4, 4, 2),
    TritonConfiguration(64, 64, 64, 4, 4, 3),
    TritonConfiguration(64, 64, 128, 4, 3, 2),
    TritonConfiguration(64, 32, 64, 4, 5, 4),
    TritonConfiguration(32, 64, 64, 4, 5, 4),
    TritonConfiguration(32, 32, 64, 2, 5, 4),
)
"""The configurations on tensor cores, for elements of two bytes."""
_MMA_32 = tuple(chosen._replace(tile_k=chosen.tile_k // 2) for chosen in _MMA_16)
_MMA_8 = tuple(chosen._replace(tile_k=chosen.tile_k * 2) for chosen in _MMA_16)
_CONFIGURATIONS: Mapping[Mode, Sequence[TritonConfiguration]] = {
    "float32": _FMA,
    "3xtf32": _MMA_32,
    "tf32": _MMA_32,
    "float16": _MMA_16,
    "bfloat16": _MMA_16,
    "e4m3": _MMA_8,
    "e5m2": _MMA_8,
}
_PRECISIONS: Mapping[Mode, str] = {"float32": "ieee", "3xtf32": "tf32x3"}
"""The ``input_precision`` of `tl.dot`; ``tf32`` for other modes, ignored for half precision."""


def triton_candidates(gemm: Gemm, card: CardResources) -> list[TritonKernel]:
    """Return one kernel for each configuration.

    Raises:
        UnavailableError: Triton does not support the card, or its kernel not the product.
    """
    if gemm.quantize:
        raise UnavailableError(
            f"Triton does not compute {gemm.name}, since its kernel does not quantize A: compare "
            "with the product without quantize."
        )
    if gemm.is_float8 and card.capability < _MIN_FLOAT8_CAPABILITY:
        raise UnavailableError(
            f"{gemm.name} takes a GPU of sm_{_MIN_FLOAT8_CAPABILITY} or later, and this one is of "
            f"sm_{card.capability}."
        )
    if card.capability < _MIN_CAPABILITY:
        raise UnavailableError(
            f"Triton takes a GPU of sm_{_MIN_CAPABILITY} or later, and this one is of "
            f"sm_{card.capability}."
        )
    # Not a .py file: in an editable installation, pytest would take that for the whole plugin.
    text = (cuda_dir() / "gemm" / "triton_matmul.py.txt").read_text(encoding="utf-8")
    (marker,) = [line for line in text.splitlines() if line.lstrip().startswith("# Here stands")]
    matrices = {tensor.name: math.prod(tensor.shape[-2:]) for tensor in gemm.tensors}
    kernels = []
    scaling, inputs = (gemm.scaling if gemm.is_float8 else "none"), [t.name for t in gemm.inputs]
    promoted = gemm.is_float8 and gemm.accumulation != "fast"
    for chosen in _CONFIGURATIONS[gemm.mode]:
        if scaling == "block" and chosen.tile_k != SCALE_BLOCK:
            continue
        tile_rows = gemm.first_tiles(chosen.tile_m)[-1]
        if not gemm.groups:
            tile_rows = gemm.B * -(-gemm.M // chosen.tile_m)
        statements = _product_of_tile(gemm, chosen.tile_m)
        indent = " " * (len(marker) - len(marker.lstrip()))
        source = text.replace(marker, "\n".join(indent + line for line in statements))
        tiles = tile_rows * -(-gemm.N // chosen.tile_n)
        constants: dict[str, KernelConstant] = {
            "m": gemm.M,
            "n": gemm.N,
            "k": gemm.K,
            "lda": gemm.lda,
            "ldb": gemm.ldb,
            "ldc": gemm.ldc,
            "tile_rows": tile_rows,
            "a_matrix": 0 if gemm.groups else matrices["A"],
            "b_matrix": matrices["B"],
            "c_matrix": 0 if gemm.groups else matrices["C"],
            "a_transposed": gemm.a_transposed,
            "b_transposed": gemm.b_transposed,
            "precision": _PRECISIONS.get(gemm.mode, "tf32"),
            "tile_m": chosen.tile_m,
            "tile_n": chosen.tile_n,
            "tile_k": chosen.tile_k,
            "group": _GROUP,
            "apart": gemm.mode == "3xtf32",
            "activation": gemm.activation,
            "has_bias": gemm.bias,
            "has_residual": gemm.residual,
            "scaling": scaling,
            "b_scale_row": gemm.shapes_of_scales[1][-1],
            "most_imprecise": SCALE_BLOCK if promoted else 0,
        }
        kernels.append(
            TritonKernel(
                source,
                "matmul",
                (min(tiles, chosen.programs * card.multiprocessors), 1, 1),
                # A stands for what is not there and not read.
                ("A", "B", "C", *(name if name in inputs else "A" for name in _FURTHER_INPUTS)),
                constants,
                chosen.num_warps,
                chosen.num_stages,
                origin=Origin("triton", None, chosen._asdict()),
            )
        )
    return kernels


def _product_of_tile(gemm: Gemm, tile_m: int) -> list[str]:
    """Return the statements that set which product a row of tiles belongs to, and its rows.

    Groups are compared one after another, since Triton has no table of constants.
    """
    if not gemm.groups:
        return [
            "product = 0" if gemm.products == 1 else "product = tile_row // tiles_down",
            "first_tile_row = product * tiles_down",
            "tile_rows_of_product = tiles_down",
            "first_row = 0",
            "end_row = m",
        ]
    names = ("product", "first_tile_row", "tile_rows_of_product", "first_row", "end_row")
    statements: list[str] = []
    rows, tiles = itertools.pairwise(gemm.first_rows), itertools.pairwise(gemm.first_tiles(tile_m))
    for number, (own_rows, (first, next_first)) in enumerate(zip(rows, tiles, strict=True)):
        if first == next_first:
            continue
        values = (number, first, next_first - first, *own_rows)
        if not statements:
            statements += [f"{name} = {value}" for name, value in zip(names, values, strict=True)]
            continue
        statements.append(f"is_beyond = tile_row >= {first}")
        statements += [
            f"{name} = tl.where(is_beyond, {value}, {name})"
            for name, value in zip(names, values, strict=True)
        ]
    return statements
