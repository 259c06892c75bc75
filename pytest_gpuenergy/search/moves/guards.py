"""`pad_tail_and_mask`: checks that never fail are left out, rows of shared arrays are padded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.search.moves.base import Change, SourceMove
from pytest_gpuenergy.search.moves.block_sizes import launches
from pytest_gpuenergy.search.moves.facts import Facts
from pytest_gpuenergy.search.moves.shared_memory import (
    SHARED_BYTES,
    bytes_of,
    dims_of,
    shared_bytes,
)
from pytest_gpuenergy.search.moves.triton_masks import mask_edits
from pytest_gpuenergy.search.source.accesses import Access, Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import BYTES
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    bare,
    conjuncts,
    field,
    nodes,
    operator_of,
    text_of,
)
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel
from pytest_gpuenergy.search.spec.kernel_spec import State

if TYPE_CHECKING:
    from tree_sitter import Node

_BANK_BYTES = 4
_PADDINGS = (1, 4)
"""Banks that a row is longer; four of them keep its beginning aligned to 16 bytes."""


class PadTailAndMask(SourceMove):
    """Guards that hold for all threads and sizes go; rows in shared memory get other banks."""

    name = "pad_tail_and_mask"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"smem", "compute"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[Change]:
        yield from _padded(kernel)
        if edits := _guard_edits(kernel):
            yield Change(
                "guards that always hold", edited(kernel.text.source, edits), kernel.launch
            )

    def on_triton(self, kernel: TritonKernel) -> Iterator[Change]:
        if edits := mask_edits(kernel):
            yield Change("masks that always hold", edited(kernel.text.source, edits), kernel.launch)


def _padded(kernel: CudaKernel) -> Iterator[Change]:
    used, accesses = shared_bytes(kernel), Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or len(array.dims) < 2 or array.key in accesses.unclear:
            continue
        dims, size, last = dims_of(kernel, array), bytes_of(kernel, array), array.dims[-1]
        if dims is None or size is None or used is None or last is None:
            continue
        if any(_leaves_row(kernel, access, dims) for access in accesses.of(array)):
            continue
        if dims[-1] * BYTES[array.type] % (32 * _BANK_BYTES) and _is_padded(last):
            continue
        is_cast = any(access.address.width for access in accesses.of(array))
        for banks in _PADDINGS:
            by = max(banks * _BANK_BYTES // BYTES[array.type], 1)
            grown = used + size // dims[-1] * by
            if grown > SHARED_BYTES or (is_cast and banks * _BANK_BYTES % 16):
                continue
            edit = Edit(last.end_byte, last.end_byte, f" + {by}")
            what = f"rows of {array.name} by {by}"
            yield Change(what, edited(kernel.text.source, [edit]), kernel.launch)


def _leaves_row(kernel: CudaKernel, access: Access, dims: tuple[int, ...]) -> bool:
    """Whether an access reaches its element otherwise than by all of its subscripts."""
    subscripts = access.address.subscripts
    if len(subscripts) != len(dims):
        return True
    last = kernel.polynomial(subscripts[-1])
    ends = [last and kernel.interval(last, case) for case in range(kernel.facts.cases)]
    return any(end and end[1] >= dims[-1] for end in ends)


def _is_padded(size: Node) -> bool:
    return size.type == "binary_expression" and operator_of(size) == "+"


def _guard_edits(kernel: CudaKernel) -> list[Edit]:
    """Those for all conditions, without those in what others remove.

    A condition must hold with any launch that another move can choose later.
    """
    kernels = [kernel, *_launched_otherwise(kernel)]
    found = [
        edit
        for node in nodes(kernel.text.body, "if_statement", "conditional_expression")
        for edit in _unguarded(kernels, node)
    ]
    return [one for one in found if not any(_lies_in(one, other) for other in found)]


def _lies_in(one: Edit, other: Edit) -> bool:
    return one != other and other.begin <= one.begin and one.end <= other.end


def _launched_otherwise(kernel: CudaKernel) -> Iterator[CudaKernel]:
    state = State("cuda", kernel.text.source.decode(), kernel.launch)
    for _, launch in launches(state, kernel.spec):
        facts = Facts.of(launch, kernel.spec)
        if facts is not None:
            yield CudaKernel(kernel.text, replace(state, launch=launch), kernel.spec, facts)


def _unguarded(kernels: list[CudaKernel], node: Node) -> list[Edit]:
    condition, kept = field(node, "condition"), field(node, "consequence")
    other = field(node, "alternative")
    if condition is None or kept is None:
        return []
    inner = bare(condition)
    if node.type == "if_statement" and other is None and _hold(kernels, inner, _OPPOSITES):
        blank = "" if node.parent is not None and node.parent.type == "compound_statement" else ";"
        return [Edit(node.start_byte, node.end_byte, blank)]
    parts = conjuncts(inner)
    left = [part for part in parts if not _hold(kernels, part, _COMPARISONS)]
    if len(left) == len(parts):
        return []
    if left:
        text = " && ".join(map(text_of, left))
        return [Edit(inner.start_byte, inner.end_byte, text)]
    ends = (node.start_byte, kept.start_byte), (kept.end_byte, node.end_byte)
    return [Edit(begin, end, "") for begin, end in ends if begin < end]


_COMPARISONS = {"<": (1, -1), "<=": (1, 0), ">": (-1, -1), ">=": (-1, 0)}
"""The sign of right minus left, and what is added to it, so that it is zero or more."""
_OPPOSITES = {">=": (1, -1), ">": (1, 0), "<=": (-1, -1), "<": (-1, 0)}


def _hold(kernels: list[CudaKernel], part: Node, signs: dict[str, tuple[int, int]]) -> bool:
    return all(_holds(kernel, part, signs) for kernel in kernels)


def _holds(kernel: CudaKernel, part: Node, signs: dict[str, tuple[int, int]]) -> bool:
    """Whether a comparison, or its opposite, holds in all threads for all sets of sizes."""
    left, right = field(part, "left"), field(part, "right")
    if part.type != "binary_expression" or left is None or right is None:
        return False
    one, two = kernel.polynomial(left), kernel.polynomial(right)
    if operator_of(part) not in signs or one is None or two is None:
        return False
    sign, added = signs[operator_of(part)]
    room = (two - one) * Polynomial.constant(sign) + Polynomial.constant(added)
    # Below zero, it would matter which numbers are unsigned.
    return all(_is_positive(kernel, part) for part in (one, two, room))


def _is_positive(kernel: CudaKernel, number: Polynomial) -> bool:
    """Whether a number is zero or more in all threads for all sets of sizes."""
    found = [kernel.interval(number, case) for case in range(kernel.facts.cases)]
    return all(interval is not None and interval[0] >= 0 for interval in found)
