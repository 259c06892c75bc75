"""The candidates of the contender ``triton``: one kernel with a list of configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_gpuenergy.kernels import LibraryCall, Origin, TritonKernel
from pytest_gpuenergy.support import UnavailableError, cuda_dir
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Gemm, Mode, Tensor

_WORKSPACE_BYTES = 32 << 20
"""What cuBLAS takes by default on Hopper (cuBLAS documentation, ``cublasSetWorkspace``)."""
_COMPUTE: Mapping[Mode, str] = {
    "float32": "32F",
    "tf32": "32F_FAST_TF32",
    "float16": "32F",
    "bfloat16": "32F",
}
"""``cublasComputeType_t`` without its prefix."""


def cublas_call(gemm: Gemm) -> LibraryCall:
    """The call of cuBLASLt for a product, with any algorithm and up to 32 MiB of workspace.

    Raises:
        UnavailableError: cuBLASLt does not have the product's mode.
    """
    if gemm.mode not in _COMPUTE:
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name} in mode {gemm.mode}: it can replace float32 "
            "products by those of three bfloat16 parts (CUBLAS_COMPUTE_32F_EMULATED_16BFX9), but "
            "not of TF32 ones."
        )
    return LibraryCall(
        "cublasLt.matmul",
        {"a": "A", "b": "B", "c": "C", "workspace": "workspace"},
        {"compute": _COMPUTE[gemm.mode], "a_transposed": gemm.layout == "nt"},
        workspaces=(Tensor("workspace", (_WORKSPACE_BYTES,), "uint8", "workspace"),),
        origin=Origin("cublas"),
    )


_LEAST_CAPABILITY = 80
"""The first that Triton supports."""
_GROUP = 8


class Configuration(NamedTuple):
    """What an autotuner of Triton's chooses.

    Attributes:
        tile_m: rows of C that a program computes at a time; ``tile_n`` columns.
        tile_k: products of each element that are loaded at a time.
        num_warps: of a program.
        num_stages: tiles of A and B that are loaded ahead.
        programs: of a multiprocessor.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    programs: int


_FMA = (
    Configuration(128, 128, 16, 8, 3, 1),
    Configuration(128, 128, 8, 8, 4, 1),
    Configuration(128, 64, 16, 8, 3, 2),
    Configuration(128, 64, 16, 4, 3, 2),
    Configuration(64, 128, 16, 8, 3, 2),
    Configuration(64, 128, 16, 4, 3, 2),
    Configuration(64, 64, 16, 4, 3, 4),
    Configuration(64, 64, 32, 4, 2, 4),
    Configuration(64, 32, 32, 4, 3, 4),
    Configuration(32, 64, 32, 4, 3, 4),
    Configuration(32, 32, 32, 4, 3, 8),
    Configuration(16, 32, 32, 2, 3, 8),
)
"""On CUDA cores."""
_MMA_16 = (
    Configuration(128, 256, 64, 8, 3, 1),
    Configuration(256, 128, 64, 8, 3, 1),
    Configuration(128, 256, 64, 8, 4, 1),
    Configuration(128, 128, 64, 8, 4, 1),
    Configuration(128, 128, 64, 4, 4, 1),
    Configuration(128, 128, 64, 4, 3, 2),
    Configuration(128, 64, 64, 4, 4, 2),
    Configuration(64, 128, 64, 4, 4, 2),
    Configuration(64, 64, 64, 4, 4, 3),
    Configuration(64, 64, 128, 4, 3, 2),
    Configuration(64, 32, 64, 4, 5, 4),
    Configuration(32, 64, 64, 4, 5, 4),
    Configuration(32, 32, 64, 2, 5, 4),
)
"""On tensor cores, for elements of two bytes."""
_MMA_32 = tuple(one._replace(tile_k=one.tile_k // 2) for one in _MMA_16)
TRITON_CONFIGURATIONS: Mapping[Mode, Sequence[Configuration]] = {
    "float32": _FMA,
    "3xtf32": _MMA_32,
    "tf32": _MMA_32,
    "float16": _MMA_16,
    "bfloat16": _MMA_16,
}
_PRECISIONS: Mapping[Mode, str] = {"float32": "ieee", "3xtf32": "tf32x3"}
"""``input_precision`` of `tl.dot`, ``tf32`` elsewhere; it ignores that for half precision."""


def triton_candidates(gemm: Gemm, card: Card) -> list[TritonKernel]:
    """One kernel for each configuration.

    Raises:
        UnavailableError: Triton does not support the card.
    """
    if card.capability < _LEAST_CAPABILITY:
        raise UnavailableError(
            f"Triton takes a GPU of sm_{_LEAST_CAPABILITY} or later, and this one is of "
            f"sm_{card.capability}."
        )
    # Not a .py file: pytest would take it for all that an editable installation has of a plugin.
    source = (cuda_dir() / "gemm" / "triton_matmul.py.txt").read_text(encoding="utf-8")
    return [_kernel(gemm, card, source, one) for one in TRITON_CONFIGURATIONS[gemm.mode]]


def _kernel(gemm: Gemm, card: Card, source: str, one: Configuration) -> TritonKernel:
    tiles = -(-gemm.M // one.tile_m) * -(-gemm.N // one.tile_n)
    tile = {"tile_m": one.tile_m, "tile_n": one.tile_n, "tile_k": one.tile_k}
    return TritonKernel(
        source,
        "matmul",
        (min(tiles, one.programs * card.multiprocessors), 1, 1),
        ("A", "B", "C"),
        {
            "m": gemm.M,
            "n": gemm.N,
            "k": gemm.K,
            "lda": gemm.lda,
            "ldb": gemm.ldb,
            "a_transposed": gemm.layout == "nt",
            "precision": _PRECISIONS.get(gemm.mode, "tf32"),
            **tile,
            "group": _GROUP,
            "apart": gemm.mode == "3xtf32",
        },
        one.num_warps,
        one.num_stages,
        origin=Origin("triton", None, one._asdict()),
    )
