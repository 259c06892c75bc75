"""`pad_tail_and_mask`: checks that never fail are left out, rows of shared arrays are padded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.search.analysis.accesses import (
    SHARED_BYTES,
    Access,
    Accesses,
    bytes_of,
    dims_of,
    shared_bytes,
)
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.spec_kernel import Facts
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.block_sizes import launches
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.source.cuda_text import BYTES
from pytest_gpuenergy.search.source.edits import Edit, outermost
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    bare,
    conjuncts,
    field,
    nodes,
    operator_of,
    text_of,
)
from pytest_gpuenergy.search.spec.kernel_spec import State

if TYPE_CHECKING:
    from tree_sitter import Node

_BANK_BYTES = 4
_PADDINGS = (1, 4)
"""The banks that are added to a row; four of them keep its start aligned to 16 bytes."""
_COMPARISONS = {"<": (1, -1), "<=": (1, 0), ">": (-1, -1), ">=": (-1, 0)}
"""The sign of right minus left, and what is added to it, so that it is zero or more."""
_OPPOSITES = {">=": (1, -1), ">": (1, 0), "<=": (-1, -1), "<": (-1, 0)}
_MASK_PLACE = {"load": 1, "store": 2}
_DEEPEST = 20


class PadTailAndMask(SourceMove):
    """Leave out guards that always hold, and pad rows in shared memory to use other banks."""

    name = "pad_tail_and_mask"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"smem", "compute"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        yield from _padded(kernel)
        if edits := _guard_edits(kernel):
            yield TextChange.of(kernel, "guards that always hold", edits)

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        if edits := mask_edits(kernel):
            yield TextChange.of(kernel, "masks that always hold", edits)


def _padded(kernel: CudaKernel) -> Iterator[TextChange]:
    used, accesses = shared_bytes(kernel), Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or len(array.dims) < 2 or array.key in accesses.unclear:
            continue
        dims, size, last = dims_of(kernel, array), bytes_of(kernel, array), array.dims[-1]
        if dims is None or size is None or used is None or last is None:
            continue
        if any(_leaves_row(kernel, access, dims) for access in accesses.of(array)):
            continue
        is_padded = last.type == "binary_expression" and operator_of(last) == "+"
        if dims[-1] * BYTES[array.type] % (32 * _BANK_BYTES) and is_padded:
            continue
        is_cast = any(access.address.width for access in accesses.of(array))
        for banks in _PADDINGS:
            by = max(banks * _BANK_BYTES // BYTES[array.type], 1)
            grown = used + size // dims[-1] * by
            if grown > SHARED_BYTES or (is_cast and banks * _BANK_BYTES % 16):
                continue
            edit = Edit.after(last, f" + {by}")
            what = f"rows of {array.name} by {by}"
            yield TextChange.of(kernel, what, [edit])


def _leaves_row(kernel: CudaKernel, access: Access, dims: tuple[int, ...]) -> bool:
    """Return whether an access may reach its element across the end of a row."""
    subscripts = access.address.subscripts
    if len(subscripts) != len(dims):
        return True
    last = kernel.polynomial(subscripts[-1])
    ends = [last and kernel.interval(last, case) for case in range(kernel.facts.cases)]
    return any(end and end[1] >= dims[-1] for end in ends)


def _guard_edits(kernel: CudaKernel) -> list[Edit]:
    """Return the edits for all conditions, without those in what others remove.

    A condition must hold with any launch that another move can choose later.
    """
    kernels = [kernel, *_launched_otherwise(kernel)]
    found = [
        edit
        for node in nodes(kernel.text.body, "if_statement", "conditional_expression")
        for edit in _unguarded(kernels, node)
    ]
    return outermost(found)


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
        return [Edit.of(node, blank)]
    parts = conjuncts(inner)
    left = [part for part in parts if not _hold(kernels, part, _COMPARISONS)]
    if len(left) == len(parts):
        return []
    if left:
        text = " && ".join(map(text_of, left))
        return [Edit.of(inner, text)]
    ends = (node.start_byte, kept.start_byte), (kept.end_byte, node.end_byte)
    return [Edit(begin, end, "") for begin, end in ends if begin < end]


def _hold(kernels: list[CudaKernel], part: Node, signs: dict[str, tuple[int, int]]) -> bool:
    return all(_holds(kernel, part, signs) for kernel in kernels)


def _holds(kernel: CudaKernel, part: Node, signs: dict[str, tuple[int, int]]) -> bool:
    """Return whether a comparison, or its opposite, holds in all threads for all sets of sizes."""
    left, right = field(part, "left"), field(part, "right")
    if part.type != "binary_expression" or left is None or right is None:
        return False
    smaller, larger = kernel.polynomial(left), kernel.polynomial(right)
    if operator_of(part) not in signs or smaller is None or larger is None:
        return False
    sign, added = signs[operator_of(part)]
    room = (larger - smaller) * Polynomial.constant(sign) + Polynomial.constant(added)
    # Below zero, it would matter which numbers are unsigned.
    return all(_is_positive(kernel, part) for part in (smaller, larger, room))


def _is_positive(kernel: CudaKernel, number: Polynomial) -> bool:
    """Return whether a number is zero or more in all threads for all sets of sizes."""
    found = [kernel.interval(number, case) for case in range(kernel.facts.cases)]
    return all(interval is not None and interval[0] >= 0 for interval in found)


def mask_edits(kernel: TritonFunction) -> list[Edit]:
    """Return the edits that leave out masks, and what stands for elements that they exclude."""
    edits = []
    for call in kernel.text.calls("load", "store"):
        mask = _mask_of(kernel, call)
        if mask is not None and _always_holds(kernel, mask, _DEEPEST):
            edits += _without(kernel, call)
    return edits


def _mask_of(kernel: TritonFunction, call: ast.Call) -> ast.expr | None:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    named = [keyword.value for keyword in call.keywords if keyword.arg == "mask"]
    place = _MASK_PLACE[kernel.text.called(call)]
    return named[0] if named else call.args[place] if len(call.args) > place else None


def _without(kernel: TritonFunction, call: ast.Call) -> list[Edit]:
    """Return the edit of a call to its other arguments, each as it is written."""
    place = _MASK_PLACE[kernel.text.called(call)]
    gone = [*call.args[place:], *(k.value for k in call.keywords if k.arg in ("mask", "other"))]
    kept = [argument for argument in call.args if argument not in gone]
    parts = [kernel.text.text(argument) for argument in kept]
    parts += [
        f"{keyword.arg}={kernel.text.operand(keyword.value)}"
        for keyword in call.keywords
        if keyword.arg not in ("mask", "other")
    ]
    return [Edit(*kernel.text.arguments_span(call), ", ".join(parts))]


def _always_holds(kernel: TritonFunction, mask: ast.expr, depth: int) -> bool:
    if depth == 0:
        return False
    match mask:
        case ast.Constant(value=None):
            return False
        case ast.Name(id=name):
            value = kernel.text.definition(name)
            return value is not None and _always_holds(kernel, value, depth - 1)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return all(_always_holds(kernel, part, depth - 1) for part in (left, right))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_always_holds(kernel, part, depth - 1) for part in values)
        case ast.Subscript(value=value):
            return _always_holds(kernel, value, depth - 1)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compares(kernel, left, op, right)
    return False


def _compares(kernel: TritonFunction, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
    smaller, larger = kernel.polynomial(left), kernel.polynomial(right)
    if smaller is None or larger is None:
        return False
    match op:
        case ast.Lt():
            room = larger - smaller - Polynomial.constant(1)
        case ast.LtE():
            room = larger - smaller
        case ast.Gt():
            room = smaller - larger - Polynomial.constant(1)
        case ast.GtE():
            room = smaller - larger
        case _:
            return False
    found = [kernel.interval(room, case) for case in range(kernel.facts.cases)]
    return all(interval is not None and interval[0] >= 0 for interval in found)
