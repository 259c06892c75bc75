"""Loops that fill shared arrays from tensors, wait, and compute with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.source.accesses import Access, Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import BYTES, Variable
from pytest_gpuenergy.search.source.tree import (
    bare,
    called,
    field,
    inside,
    is_call,
    nodes,
    operator_of,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_BARRIER = "__syncthreads"
_VECTORS = {"float2": 8, "float4": 16, "int2": 8, "int4": 16, "uint2": 8, "uint4": 16}
_COPIED_BYTES = (4, 8, 16)


@dataclass(frozen=True)
class Copy:
    """``shared = tensor``, or ``shared = condition ? tensor : other``.

    Attributes:
        statement: with the semicolon.
        to, of: the places.
        condition, other: None if there is no condition.
        size: in bytes.
    """

    statement: Node
    to: Access
    of: Access
    condition: Node | None
    other: Node | None
    size: int


@dataclass(frozen=True)
class TileLoop:
    """``for (...) { fill __syncthreads(); compute __syncthreads(); }``.

    Attributes:
        loop: the whole.
        fill, compute: statements; before the first one also comments.
        copies: all that the fill does to shared memory.
        arrays: what it fills.
    """

    loop: Loop
    fill: tuple[Node, ...]
    compute: tuple[Node, ...]
    copies: tuple[Copy, ...]
    arrays: tuple[Variable, ...]


def tile_loop(kernel: CudaKernel, accesses: Accesses, loop: Loop) -> TileLoop | None:
    """A loop taken apart; None if it is another one, or its turns depend on each other."""
    inner = statements(loop.body)
    barriers = [i for i, one in enumerate(inner) if is_call(one, _BARRIER)]
    if len(barriers) != 2 or barriers[1] != len(inner) - 1 or 0 in barriers:
        return None
    if len(kernel.text.calls(loop.body, _BARRIER)) != 2:
        return None
    first, second = inner[barriers[0]], inner[barriers[1]]
    children = loop.body.named_children
    fill = tuple(children[: children.index(first)])
    compute = tuple(children[children.index(first) + 1 : children.index(second)])
    own = [a for statement in fill for a in accesses.within(statement)]
    copies = [_copy(kernel, accesses, a) for a in own if a.use != "load"]
    known = [copy for copy in copies if copy is not None and compute]
    fixed = accesses.read_only()
    if any(access.use == "load" and access.root not in fixed for access in own):
        return None  # what an earlier turn computes
    arrays = tuple(dict.fromkeys(copy.to.root for copy in known))
    if not known or len(known) != len(copies):
        return None
    if not _is_apart(kernel, loop, fill) or any(
        array.key in accesses.unclear or not _is_local(accesses, array, loop) for array in arrays
    ):
        return None
    return TileLoop(loop, fill, compute, tuple(known), arrays)


def _copy(kernel: CudaKernel, accesses: Accesses, to: Access) -> Copy | None:
    assignment = to.node.parent
    statement = assignment.parent if assignment is not None else None
    right = field(assignment, "right")
    if to.use != "store" or not to.root.shared or to.function or right is None:
        return None
    if statement is None or statement.type != "expression_statement":
        return None
    condition = other = None
    value = bare(right)
    if value.type == "conditional_expression":
        condition, other = field(value, "condition"), field(value, "alternative")
        value = bare(field(value, "consequence") or value)
        if other is None or any(nodes(other, "subscript_expression", "call_expression")):
            return None
    found = [a for a in accesses.within(value) if a.node == value and a.use == "load"]
    if len(found) != 1 or found[0].root.key not in kernel.tensors:
        return None
    kinds = [a.address.width or a.root.type for a in (to, found[0])]
    size = _VECTORS.get(kinds[0], BYTES.get(kinds[0], 0))
    if kinds[0] != kinds[1] or to.root.type != found[0].root.type or size not in _COPIED_BYTES:
        return None
    return Copy(statement, to, found[0], condition, other, size)


def _is_apart(kernel: CudaKernel, loop: Loop, fill: tuple[Node, ...]) -> bool:
    """Whether the fill of one turn needs nothing of other turns, and leaves nothing but tiles."""
    text = kernel.text
    for variable in text.variables:
        uses = [variable.node, *text.uses[variable.key]]
        in_fill = [use for use in uses if any(inside(use, one) for one in fill)]
        if not in_fill or variable == loop.variable or variable.dims:
            continue
        declared = any(inside(variable.node, one) for one in fill)
        if declared and len(in_fill) != len(uses):
            return False
        if not declared and text.changes(variable, loop.node):
            return False
    stops = ("break_statement", "continue_statement", "return_statement")
    calls = [called(call) for one in fill for call in nodes(one, "call_expression")]
    meets = any(name.startswith(("__pipeline", "__sync", "atomic", "__shfl")) for name in calls)
    return not meets and not any(nodes(loop.body, *stops))


def _is_local(accesses: Accesses, array: Variable, loop: Loop) -> bool:
    """Whether an array is only used in the loop, and always by its name."""
    return all(
        inside(access.node, loop.body)
        and all(text_of(one) == array.name for one in access.address.identifiers)
        and (access.use == "load" or not access.function)
        for access in accesses.of(array)
    )


def address_text(access: Access) -> str:
    """A pointer to the place of an access."""
    if access.function:
        return text_of(access.place)
    if access.node.type == "pointer_expression" and operator_of(access.node) == "*":
        return text_of(field(access.node, "argument"))
    return f"&{text_of(access.node)}"
