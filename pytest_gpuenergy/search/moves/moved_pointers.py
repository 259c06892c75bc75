"""Parameters that a CUDA kernel moves on before it uses them, as in ``x += blockIdx.x * n;``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import field, operator_of

if TYPE_CHECKING:
    from tree_sitter import Node


def moved_parameters(kernel: CudaKernel) -> Iterator[tuple[int, tuple[Node, Polynomial]]]:
    """Keys of pointers that a kernel changes once, before it uses them, where, and by how much."""
    text = kernel.text
    for parameter in text.parameters:
        written = text.writes(parameter)
        change = written[0].parent if parameter.pointer and len(written) == 1 else None
        statement = change.parent if change is not None else None
        if change is None or statement is None or statement.parent != text.body:
            continue
        by = field(change, "right")
        if change.type != "assignment_expression" or operator_of(change) != "+=" or by is None:
            continue
        distance = kernel.polynomial(by) if text.is_fixed(by, text.body) else None
        later = (one for one in text.uses[parameter.key] if one != written[0])
        if distance is not None and all(one.start_byte > change.end_byte for one in later):
            yield parameter.key, (written[0], distance)
