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
    array_bytes,
    array_dims,
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
    expression_operator,
    field,
    node_text,
    nodes,
    sides,
)
from pytest_gpuenergy.search.spec.kernel_spec import State

if TYPE_CHECKING:
    from tree_sitter import Node

_BANK_BYTES = 4
_PADDINGS = (1, 4)
"""The banks that are added to a row; four of them keep its start aligned to 16 bytes."""
_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_SIGNS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_MASK_PLACE = {"load": 1, "store": 2}
"""The position of the mask among the arguments of a call."""
_MAX_DEPTH = 20
"""The most names and operators through which a mask is followed to its comparisons."""


class PadTailAndMask(SourceMove):
    """Leave out guards that always hold, and pad rows in shared memory to use other banks."""

    name = "pad_tail_and_mask"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"smem", "compute"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        yield from _pad_rows(kernel)
        if edits := _guard_edits(kernel):
            yield TextChange.of(kernel, "guards that always hold", edits)

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        if edits := _mask_edits(kernel):
            yield TextChange.of(kernel, "masks that always hold", edits)


def _pad_rows(kernel: CudaKernel) -> Iterator[TextChange]:
    used, accesses = shared_bytes(kernel), Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or len(array.dims) < 2 or array.key in accesses.unclear:
            continue
        dims, size, last = array_dims(kernel, array), array_bytes(kernel, array), array.dims[-1]
        if dims is None or size is None or used is None or last is None:
            continue
        if any(_leaves_row(kernel, access, dims) for access in accesses.of(array)):
            continue
        is_padded = sides(last, "+") is not None
        if dims[-1] * BYTES[array.type] % (32 * _BANK_BYTES) and is_padded:
            continue
        is_cast = any(access.address.width for access in accesses.of(array))
        for banks in _PADDINGS:
            by = max(banks * _BANK_BYTES // BYTES[array.type], 1)
            grown = used + size // dims[-1] * by
            if grown <= SHARED_BYTES and not (is_cast and banks * _BANK_BYTES % 16):
                edit = Edit.after(last, f" + {by}")
                yield TextChange.of(kernel, f"rows of {array.name} by {by}", [edit])


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
    state = State("cuda", kernel.text.source.decode(), kernel.launch)
    kernels = [kernel] + [
        CudaKernel(kernel.text, replace(state, launch=launch), kernel.spec, facts)
        for _, launch in launches(state, kernel.spec)
        if (facts := Facts.of(launch, kernel.spec)) is not None
    ]
    return outermost(
        edit
        for node in nodes(kernel.text.body, "if_statement", "conditional_expression")
        for edit in _drop_guard(kernels, node)
    )


def _drop_guard(kernels: list[CudaKernel], node: Node) -> list[Edit]:
    condition, kept = field(node, "condition"), field(node, "consequence")
    other = field(node, "alternative")
    if condition is None or kept is None:
        return []
    inner = bare(condition)
    if (
        node.type == "if_statement"
        and other is None
        and _comparison_holds(kernels, inner, opposite=True)
    ):
        blank = "" if node.parent is not None and node.parent.type == "compound_statement" else ";"
        return [Edit.of(node, blank)]
    parts = conjuncts(inner)
    left = [part for part in parts if not _comparison_holds(kernels, part)]
    if len(left) == len(parts):
        return []
    if left:
        return [Edit.of(inner, " && ".join(map(node_text, left)))]
    ends = (node.start_byte, kept.start_byte), (kept.end_byte, node.end_byte)
    return [Edit(begin, end, "") for begin, end in ends if begin < end]


def _comparison_holds(kernels: list[CudaKernel], part: Node, *, opposite: bool = False) -> bool:
    """Return whether a comparison, or its opposite, holds in all threads for all sets of sizes."""
    sign = expression_operator(part)
    parts = sides(part, *_OPPOSITES)
    if part.type != "binary_expression" or parts is None:
        return False
    for kernel in kernels:
        left, right = (kernel.polynomial(side) for side in parts)
        if left is None or right is None:
            return False
        slack = _slack(left, _OPPOSITES[sign] if opposite else sign, right)
        # Below zero, it would matter which numbers are unsigned.
        if not all(map(kernel.is_never_negative, (left, right, slack))):
            return False
    return True


def _slack(left: Polynomial, sign: str, right: Polynomial) -> Polynomial:
    """Return a number that is zero or more where a comparison holds."""
    difference = right - left if sign in ("<", "<=") else left - right
    return difference if sign in ("<=", ">=") else difference - 1


def _mask_edits(kernel: TritonFunction) -> list[Edit]:
    """Return the edits that leave out masks, and what stands for elements that they exclude."""
    edits = []
    for call in kernel.text.calls("load", "store"):
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            continue
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        place = _MASK_PLACE[kernel.text.called(call)]
        mask = named.get("mask") or next(iter(call.args[place:]), None)
        if None in named or mask is None or not _mask_holds(kernel, mask, _MAX_DEPTH):
            continue
        kept = [kernel.text.text(argument) for argument in call.args[:place]]
        kept += [
            f"{name}={kernel.text.operand(value)}"
            for name, value in named.items()
            if name not in ("mask", "other")
        ]
        edits.append(Edit(*kernel.text.arguments_span(call), ", ".join(kept)))
    return outermost(edits)


def _mask_holds(kernel: TritonFunction, mask: ast.expr, depth: int) -> bool:
    if depth == 0:
        return False
    match mask:
        case ast.Name(id=name):
            value = kernel.text.definition(name)
            return value is not None and _mask_holds(kernel, value, depth - 1)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return all(_mask_holds(kernel, part, depth - 1) for part in (left, right))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_mask_holds(kernel, part, depth - 1) for part in values)
        case ast.Subscript(value=value):
            return _mask_holds(kernel, value, depth - 1)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SIGNS:
            ends = kernel.polynomial(left), kernel.polynomial(right)
            if ends[0] is None or ends[1] is None:
                return False
            return kernel.is_never_negative(_slack(ends[0], _SIGNS[type(op)], ends[1]))
    return False
