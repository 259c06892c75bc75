"""Which kernels of CUTLASS are tried for a product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_gpuenergy.gemm.cutlass.configurations import (
    Alignments,
    Configuration,
    Cutlass2,
    Cutlass3,
)
from pytest_gpuenergy.gemm.cutlass.headers import has_builders
from pytest_gpuenergy.kernels import CudaProgram, Headers, Origin
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Gemm, Mode

_LEAST_CAPABILITY: Mapping[Mode, int] = {
    "float32": 70,
    "3xtf32": 80,
    "tf32": 80,
    "float16": 80,
    "bfloat16": 80,
}
_HOPPER = 90
_LARGE = 128 * 128
"""Elements of a tile from which on, on Hopper, the kernels of CUTLASS 3.x take over."""
_STEPS_OF_A_PART = 4
"""At least so many steps of a tile's depth are in each part of a split product."""
_SHORT_SUMS = (2048, 512)
"""Products of a sum in 3xtf32: tensor cores cut off what exceeds their precision, which adds up."""

_SIMT = (
    Cutlass2((256, 128, 8), 5),
    Cutlass2((128, 256, 8), 5),
    Cutlass2((128, 128, 8), 5),
    Cutlass2((128, 64, 8), 5),
    Cutlass2((64, 128, 8), 5),
    Cutlass2((64, 64, 8), 5),
    Cutlass2((128, 32, 8), 5),
    Cutlass2((32, 128, 8), 5),
)
_SPLIT = (
    Cutlass2((128, 128, 32), 3),
    Cutlass2((128, 128, 16), 4),
    Cutlass2((256, 64, 16), 3),
    Cutlass2((64, 256, 16), 3),
    Cutlass2((128, 64, 16), 4),
    Cutlass2((64, 128, 16), 4),
    Cutlass2((64, 64, 32), 3),
)
_TF32 = (
    Cutlass2((256, 128, 16), 3),
    Cutlass2((128, 256, 16), 3),
    Cutlass2((128, 128, 32), 3),
    Cutlass2((128, 64, 32), 3),
    Cutlass2((64, 128, 32), 3),
    Cutlass2((64, 64, 32), 5),
    Cutlass2((128, 128, 32), 3, stream_k=True),
)
_HALF = (
    Cutlass2((256, 128, 32), 3),
    Cutlass2((128, 256, 32), 3),
    Cutlass2((128, 128, 32), 5),
    Cutlass2((128, 64, 64), 3),
    Cutlass2((64, 128, 64), 3),
    Cutlass2((64, 64, 64), 5),
    Cutlass2((128, 128, 32), 4, stream_k=True),
    Cutlass2((64, 64, 64), 5, stream_k=True),
)
_FOR_ALL: Mapping[Mode, Sequence[Cutlass2]] = {
    "float32": _SIMT,
    "3xtf32": _SPLIT,
    "tf32": _TF32,
    "float16": _HALF,
    "bfloat16": _HALF,
}


def _for_hopper(depth: int) -> tuple[Cutlass3, ...]:
    return (
        Cutlass3((128, 256, depth), (2, 1), "_cooperative"),
        Cutlass3((256, 128, depth), (2, 1), "_cooperative"),
        Cutlass3((128, 128, depth), (2, 1), "_pingpong"),
        Cutlass3((64, 256, depth), (2, 1), "_pingpong"),
        Cutlass3((64, 128, depth), (1, 1), "_pingpong"),
        Cutlass3((64, 64, depth), (1, 1), "_pingpong"),
        Cutlass3((128, 128, depth), (1, 1), "_cooperative", stream_k=True),
    )


_FOR_HOPPER: Mapping[Mode, Sequence[Cutlass3]] = {
    "float32": (),
    "3xtf32": (),
    "tf32": _for_hopper(32),
    "float16": _for_hopper(64),
    "bfloat16": _for_hopper(64),
}


def configurations(gemm: Gemm, capability: int, headers: Headers) -> list[Configuration]:
    """The configurations that are tried for a product.

    Those of CUTLASS 3.x need sm_90, rows of a multiple of 16 bytes, and headers with its builders.

    Raises:
        UnavailableError: the GPU is too old for the product's mode.
    """
    least = _LEAST_CAPABILITY[gemm.mode]
    if capability < least:
        raise UnavailableError(
            f"CUTLASS in mode {gemm.mode} takes a GPU of sm_{least} or later here, and this one is "
            f"of sm_{capability}."
        )
    classic = _FOR_ALL[gemm.mode]
    modern = _FOR_HOPPER[gemm.mode]
    alignment = Alignments.of(gemm)
    vectors = min(alignment.a, alignment.b, alignment.c) * gemm.element_bytes == 16
    if not (modern and vectors and _has_3x(capability, headers)):
        return [*classic]
    small = [one for one in classic if one.stream_k or math.prod(one.tile[:2]) < _LARGE]
    return [*modern, *small]


def cutlass_candidates(gemm: Gemm, card: Card, headers: Headers) -> list[CudaProgram]:
    """The kernels of CUTLASS that are tried for a product, some with its depth split.

    Raises:
        UnavailableError: the GPU is too old for the product's mode.
    """
    return [
        cutlass_program(gemm, one, card.capability, headers, split)
        for one in configurations(gemm, card.capability, headers)
        for split in _splits(gemm, one, card.multiprocessors)
    ]


def cutlass_program(
    gemm: Gemm, configuration: Configuration, capability: int, headers: Headers, split: int = 1
) -> CudaProgram:
    """The kernel of a configuration for a product, whose depth is split into so many parts.

    Raises:
        UnavailableError: the GPU or the headers do not have it.
    """
    if isinstance(configuration, Cutlass3) and not _has_3x(capability, headers):
        raise UnavailableError(
            f"Kernels of CUTLASS 3.x need a GPU of sm_90 (this one is of sm_{capability}) and the "
            "builders among the headers: pip install --no-deps nvidia-cutlass, or give --cutlass "
            "a checkout."
        )
    name = configuration.name(gemm, capability)
    return CudaProgram(
        configuration.source(gemm, capability),
        name if split == 1 else f"{name}_split{split}",
        ("A", "B", "C"),
        (gemm.M, gemm.N, gemm.K, gemm.lda, gemm.ldb, split),
        headers,
        origin=Origin(
            "cutlass",
            details={"configuration": name, "split": split, "library": headers.name},
        ),
    )


def _has_3x(capability: int, headers: Headers) -> bool:
    return capability == _HOPPER and has_builders(headers)


def _splits(gemm: Gemm, configuration: Configuration, multiprocessors: int) -> list[int]:
    """Into how many parts the depth is split: one, and as many as give each SM one or two tiles.

    In 3xtf32, long sums are also split so that each part is a short one. Parts are added in C, one
    after another, which in half precision would round between them.
    """
    if isinstance(configuration, Cutlass3) or configuration.stream_k or gemm.element_bytes == 2:
        return [1]
    m, n, k = configuration.tile
    tiles = -(-gemm.M // m) * -(-gemm.N // n)
    most = gemm.K // (_STEPS_OF_A_PART * k)
    chosen = [min(most, times * multiprocessors // tiles) for times in (1, 2)]
    if gemm.mode == "3xtf32":
        chosen += [-(-gemm.K // depth) for depth in _SHORT_SUMS]
    return sorted({1, *(split for split in chosen if split > 1)})
