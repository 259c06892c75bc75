"""Kernels of templates: their text, its constants, and what is launched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_gpuenergy.gemm.tiling import MOST_STEPS, Tiling
from pytest_gpuenergy.kernels import Kernel, Launch, Origin, TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import TEMPLATE, Constant, template_text
from pytest_gpuenergy.workloads import Gemm, Tensor

_SUM_THREADS = 256
_SUMS_OF_THREAD = 4
_WIDEST_BYTES = 16
"""Of one copy to shared memory."""
_ELEMENTS = {
    "float32": "using Element = float;",
    "float16": "#include <cuda_fp16.h>\nusing Element = __half;",
    "bfloat16": "#include <cuda_bf16.h>\nusing Element = __nv_bfloat16;",
}


def copied_kernel(
    gemm: Gemm, parameters: Tiling, constants: Mapping[str, Constant], shared_bytes: int
) -> Kernel:
    """As `tiled_kernel`, of a template whose threads copy the matrices: see ``copies.cu``."""
    rows = {
        "LDA": gemm.lda,
        "LDB": gemm.ldb,
        "A_WIDTH": _width(gemm, gemm.lda),
        "B_WIDTH": _width(gemm, gemm.ldb),
    }
    texts = ("copies", parameters.template, "kernel")
    return tiled_kernel(gemm, parameters, {**rows, **constants}, texts, shared_bytes)


def tiled_kernel(
    gemm: Gemm,
    parameters: Tiling,
    constants: Mapping[str, Constant],
    texts: Sequence[str],
    shared_bytes: int,
    tensor_maps: tuple[TensorMap, ...] = (),
) -> Kernel:
    """A kernel of a template, with a second launch for the parts of shared tiles.

    Args:
        gemm: the product.
        parameters: of the template.
        constants: for its text, besides `Tiling.constants`; texts are for the preprocessor.
        texts: its files in ``cuda/gemm``.
        shared_bytes: of a block.
        tensor_maps: which the kernel takes instead of their tensors.

    Raises:
        InputError: the tiles are too small for the product.
    """
    if parameters.tiles(gemm) * parameters.steps(gemm) >= MOST_STEPS:
        raise InputError(
            f"{gemm.name} has too many tiles of {parameters.tile_m} x {parameters.tile_n}: choose "
            "larger tiles."
        )
    every = {**parameters.constants(gemm), "THREADS": parameters.threads, **constants}
    blocks, shares = parameters.blocks_of(gemm), parameters.shares_tiles(gemm)
    maps = {one.tensor: one.name for one in tensor_maps}
    names = (*(maps.get(name, name) for name in "ABC"), *(["parts"] if shares else []))
    block = (parameters.threads, 1, 1)
    grid = (blocks * parameters.cluster_blocks, 1, 1)
    launches = [Launch("gemm", grid, block, names, shared_bytes)]
    workspaces = []
    if shares:
        size = parameters.tile_m * parameters.tile_n
        workspaces.append(Tensor("parts", (2 * grid[0] * size,), "float32", "workspace"))
        slices = math.ceil(size / (_SUM_THREADS * _SUMS_OF_THREAD))
        tiles = parameters.tiles(gemm) - parameters.whole_tiles_of(gemm)
        grid = (tiles, slices, parameters.cluster_blocks)
        launches.append(Launch("gemm_sum", grid, (_SUM_THREADS, 1, 1), ("parts", "C")))
    return Kernel(
        template_text("gemm", every, ("tiles", *texts, "sum"), [_ELEMENTS[gemm.dtype]]),
        tuple(launches),
        tensor_maps=tensor_maps,
        workspaces=tuple(workspaces),
        origin=Origin(TEMPLATE, None, {"template": parameters.template, **parameters.numbers}),
    )


def _width(gemm: Gemm, distance: int) -> int:
    """Elements that can be copied at once where rows lie that far apart."""
    widest = _WIDEST_BYTES // gemm.element_bytes
    return math.gcd(widest, distance)
