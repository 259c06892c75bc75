"""Matrices as the tensor memory accelerator copies them: in boxes of swizzled lines."""

from __future__ import annotations

from pytest_gpuenergy.kernels import TensorMap
from pytest_gpuenergy.workloads import Gemm

LINE_BYTES = 128
"""Of the lines in shared memory whose pieces are swizzled."""
ROW_BYTES = 16
"""Rows of a matrix that a tensor map describes are a multiple of this apart."""


def can_be_mapped(gemm: Gemm, row: int) -> bool:
    """Whether a tensor map can describe a matrix whose rows are ``row`` elements apart."""
    return row * gemm.element_bytes % ROW_BYTES == 0


def can_copy_boxes(gemm: Gemm) -> bool:
    """Whether A and B can be copied in boxes."""
    return all(can_be_mapped(gemm, row) for row in (gemm.lda, gemm.ldb))


def matrix_map(tensor: str, gemm: Gemm, dims: tuple[int, int], row: int, height: int) -> TensorMap:
    """A matrix in boxes of ``height`` lines, whose rows are ``row`` elements apart in memory."""
    return TensorMap(
        f"{tensor.lower()}_map",
        tensor,
        gemm.dtype,
        dims,
        (gemm.element_bytes * row,),
        (LINE_BYTES // gemm.element_bytes, height),
        128,
    )
