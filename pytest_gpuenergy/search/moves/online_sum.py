"""The online sum of a softmax: maximum and sum of two loops are formed in the first one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import TextChange
from pytest_gpuenergy.search.source.cuda_text import CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import Edit, braced_lines, indented_text
from pytest_gpuenergy.search.source.tree import (
    bare,
    call_arguments,
    called,
    indentation,
    inside,
    is_zero,
    loop_start,
    node_text,
    nodes,
    only,
    sides,
    statement_expression,
    statements,
    walk,
)
from pytest_gpuenergy.search.source.triton_text import RangeLoop

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMA = ("fmaxf", "max", "fmax")
_EXPONENTIALS = ("expf", "__expf", "exp")
_LOWEST = "-3.402823466e+38f"
_LOWEST_BEGINNINGS = ("-3.4", "-1e3", "-1e20")
"""The beginnings of literals that are taken for the least number."""


@dataclass(frozen=True)
class _Reduction:
    """``m = fmaxf(m, element)`` or ``s += expf(element - maximum)`` in a loop.

    Attributes:
        loop: the loop.
        variable: the maximum or the sum.
        element: the element in a turn of the loop.
        function: the function that is called.
        maximum: the expression that a sum subtracts from each element; None for a maximum.
    """

    loop: CountedLoop
    variable: Variable
    element: Node
    function: str
    maximum: Node | None = None


def fused_sums(kernel: CudaKernel) -> Iterator[TextChange]:
    """Yield kernels that scale a thread's sum whenever its maximum grows, and at the end."""
    for maximum in _reductions(kernel, "="):
        for total in _reductions(kernel, "+="):
            if _belong_together(kernel, maximum, total):
                line = maximum.loop.node.start_point[0] + 1
                yield TextChange.of(
                    kernel, f"online sum from line {line}", _fuse_loops(kernel, maximum, total)
                )


def _reductions(kernel: CudaKernel, operator: str) -> Iterator[_Reduction]:
    """Yield the loops that only form a maximum (``=``) or a sum (``+=``)."""
    for loop in kernel.text.loops:
        statement = only(statements(loop.body))
        parts = None if statement is None else sides(statement_expression(statement), operator)
        variable = None if parts is None else kernel.text.variable(parts[0])
        if parts is None or variable is None or variable.type != "float":
            continue
        call = bare(parts[1])
        arguments, function = call_arguments(call), called(call)
        others = [n for n in arguments if kernel.text.variable(bare(n)) != variable]
        other = only(others)
        if other is None or variable.dims or variable.pointer:
            continue
        if operator == "=" and function in _MAXIMA and len(arguments) == 2:
            yield _Reduction(loop, variable, other, function)
        elif operator == "+=" and function in _EXPONENTIALS and is_zero(variable.value):
            difference = sides(bare(other), "-")
            if difference is not None and len(arguments) == 1:
                yield _Reduction(loop, variable, difference[0], function, difference[1])


def _belong_together(kernel: CudaKernel, maximum: _Reduction, total: _Reduction) -> bool:
    """Return whether two loops have the same elements, and nothing between them matters."""
    text, first, second = kernel.text, maximum.loop, total.loop
    around = first.node.parent
    if around != second.node.parent or first.node.end_byte > second.node.start_byte:
        return False
    if any(loop_start(loop.node) != loop.node.start_byte for loop in (first, second)):
        return False
    if around is None or around.type != "compound_statement":
        return False
    heads = [
        [kernel.polynomial(loop.start), kernel.polynomial(loop.bound), kernel.loop_step(loop)]
        for loop in (first, second)
    ]
    if heads[0] != heads[1] or None in heads[0][:2]:
        return False
    if _tokens(maximum.element, first) != _tokens(total.element, second):
        return False
    writes = text.writes(total.variable)
    before = [n for n in writes if n.start_byte < second.node.start_byte]
    if before or total.maximum is None or not text.is_fixed(total.maximum, second.node):
        return False
    started = [n for n in text.writes(maximum.variable) if n.start_byte < first.node.start_byte]
    return not started and maximum.variable.value is not None and _stays(kernel, maximum, total)


def _tokens(node: Node, loop: CountedLoop) -> list[str]:
    """Return the words of an expression; the loop's variable is called the same in all loops."""
    words = (node_text(n) for n in walk(bare(node)) if n.child_count == 0)
    return ["#" if word == loop.variable.name else word for word in words]


def _stays(kernel: CudaKernel, maximum: _Reduction, total: _Reduction) -> bool:
    """Return whether nothing is stored between the loops that their elements depend on."""
    begin, end = maximum.loop.node.start_byte, total.loop.node.end_byte
    for node in nodes(maximum.element, "identifier"):
        variable = kernel.text.variable(node)
        if variable is None or variable == maximum.loop.variable:
            continue
        if any(begin <= write.start_byte < end for write in kernel.text.writes(variable)):
            return False
        if (variable.dims or variable.pointer) and not variable.const:
            return False
        if variable.node.start_byte >= begin and not inside(variable.node, maximum.loop.node):
            return False
    return True


def _fuse_loops(kernel: CudaKernel, maximum: _Reduction, total: _Reduction) -> list[Edit]:
    source, first, second = kernel.text.source, maximum.loop.node, total.loop.node
    by = indentation(first, source)
    own = kernel.fresh(f"{total.variable.name}_online")
    most, element = kernel.fresh(f"{maximum.variable.name}_online"), kernel.fresh("element")
    head = source[first.start_byte : maximum.loop.body.start_byte].decode().rstrip()
    function = total.function
    grown = [f"{own} *= {function}({most} - {element});", f"{most} = {element};"]
    before = node_text(maximum.variable.value)
    is_least = before in ("-INFINITY", "-FLT_MAX") or before.startswith(_LOWEST_BEGINNINGS)
    largest = most if is_least else f"fmaxf({maximum.variable.name}, {most})"
    lines = [
        f"float {most} = {_LOWEST};",
        f"float {own} = 0.0f;",
        *braced_lines(
            head,
            [
                f"const float {element} = {node_text(maximum.element)};",
                *braced_lines(f"if ({element} > {most})", grown),
                f"{own} += {function}({element} - {most});",
            ],
        ),
        f"{maximum.variable.name} = {largest};",
    ]
    scaled = f"{total.variable.name} = {own} * {function}({most} - {node_text(total.maximum)});"
    return [
        Edit.of(first, indented_text(lines, by)),
        Edit.of(second, scaled),
    ]


def fused_loops(kernel: TritonFunction) -> Iterator[TextChange]:
    """Yield functions that scale the sum whenever the maximum grows."""
    body = kernel.text.function.body
    outer = [loop for loop in kernel.text.loops if loop.node in body]
    for number, (first, second) in enumerate(pairwise(outer), start=1):
        if edits := _triton_fused(kernel, first, second):
            yield TextChange.of(kernel, f"online sum in loop {number}", edits)


def _triton_fused(kernel: TritonFunction, first: RangeLoop, second: RangeLoop) -> list[Edit]:
    text, body = kernel.text, kernel.text.function.body
    last = first.node.body[-1]
    maximum, total = _triton_maximum(kernel, last), _triton_sum(kernel, second.node.body[-1])
    if maximum is None or total is None or second.node.orelse:
        return []
    heads = [
        (loop.name, ast.dump(loop.call), [ast.dump(node) for node in loop.node.body[:-1]])
        for loop in (first, second)
    ]
    if heads[0] != heads[1] or not all(isinstance(node, ast.Assign) for node in first.node.body):
        return []
    most, block, sum_, elements, largest = *maximum, *total
    start = only(body[body.index(first.node) + 1 : body.index(second.node)])
    match start:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=0)):
            is_start = target == sum_
        case _:
            is_start = False
    changed = any(len(text.assignments.get(name, [])) != 2 for name in (most, sum_))
    if changed or start is None or not is_start or largest != most:
        return []
    if ast.dump(block) != ast.dump(elements):
        return []
    tl, higher = text.language, text.fresh("higher")
    grown = f"{text.operand(elements)} - {higher}"
    lines = (
        f"{higher} = {tl}.maximum({most}, {tl}.max({text.text(block)}, axis=0))",
        f"{sum_} = {sum_} * {tl}.exp({most} - {higher}) + {tl}.sum({tl}.exp({grown}), axis=0)",
        f"{most} = {higher}",
    )
    return [
        text.inserted_before(first.node, text.text(start)),
        text.removed(start),
        text.replaced(last, f"\n{' ' * last.col_offset}".join(lines)),
        text.removed(second.node),
    ]


def _triton_maximum(kernel: TritonFunction, statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the parts of ``m = maximum(m, max(block, axis=0))``."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[left, right]) as call):
            if kernel.text.called(call) != "maximum":
                return None
            inner = right if isinstance(left, ast.Name) and left.id == name else left
            other = left if inner is right else right
            block = _reduced_block(kernel, inner, "max")
            named = isinstance(other, ast.Name) and other.id == name
            return (name, block) if block is not None and named else None
    return None


def _triton_sum(kernel: TritonFunction, statement: ast.stmt) -> tuple[str, ast.expr, str] | None:
    """Return the parts of ``s += sum(exp(block - m), axis=0)``."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            inner = _reduced_block(kernel, value, "sum")
            match inner:
                case ast.Call(
                    args=[ast.BinOp(left=block, op=ast.Sub(), right=ast.Name(id=most))]
                ) if kernel.text.called(inner) == "exp":
                    return name, block, most
    return None


def _reduced_block(kernel: TritonFunction, node: ast.expr, function: str) -> ast.expr | None:
    """Return the block that a reduction along its only dimension is made of."""
    if not isinstance(node, ast.Call) or kernel.text.called(node) != function or not node.args:
        return None
    axes = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
    return node.args[0] if all(ast.dump(axis) == "Constant(value=0)" for axis in axes) else None
