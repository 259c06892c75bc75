"""The online sum of a softmax: maximum and sum of two loops are formed in the first one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import TextChange
from pytest_gpuenergy.search.source.cuda_text import CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import Edit, block_of, indented
from pytest_gpuenergy.search.source.tree import (
    arguments_of,
    bare,
    called,
    field,
    indentation,
    inside,
    nodes,
    operator_of,
    start_of,
    statements,
    text_of,
    walk,
)
from pytest_gpuenergy.search.source.triton_text import RangeLoop

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMA = ("fmaxf", "max", "fmax")
_EXPONENTIALS = ("expf", "__expf", "exp")
_LEAST = "-3.402823466e+38f"
_Found = tuple[str, ast.expr]
"""The name of a maximum or sum, and the block that it is formed of."""


@dataclass(frozen=True)
class _Maximum:
    """``m = fmaxf(m, element)`` in a loop."""

    loop: CountedLoop
    variable: Variable
    element: Node


@dataclass(frozen=True)
class _Sum:
    """``s += expf(element - maximum)`` in a loop."""

    loop: CountedLoop
    variable: Variable
    element: Node
    maximum: Node
    function: str


def fused_sums(kernel: CudaKernel) -> Iterator[TextChange]:
    """Yield kernels that scale a thread's sum whenever its maximum grows, and at the end."""
    maxima = list(filter(None, (_maximum(kernel, loop) for loop in kernel.text.loops)))
    sums = list(filter(None, (_sum(kernel, loop) for loop in kernel.text.loops)))
    for maximum in maxima:
        for total in sums:
            if _belong_together(kernel, maximum, total):
                line = maximum.loop.node.start_point[0] + 1
                yield TextChange.of(
                    kernel, f"online sum from line {line}", _fused(kernel, maximum, total)
                )


def _only_assignment(loop: CountedLoop) -> Node | None:
    inner = statements(loop.body)
    if len(inner) != 1 or inner[0].type != "expression_statement":
        return None
    found = inner[0].named_children[0] if inner[0].named_children else None
    return found if found is not None and found.type == "assignment_expression" else None


def _maximum(kernel: CudaKernel, loop: CountedLoop) -> _Maximum | None:
    node = _only_assignment(loop)
    left, right = field(node, "left"), field(node, "right")
    if node is None or operator_of(node) != "=" or left is None or right is None:
        return None
    variable, arguments = kernel.text.variable(left), arguments_of(bare(right))
    if called(bare(right)) not in _MAXIMA or len(arguments) != 2 or variable is None:
        return None
    if variable.type != "float" or variable.dims or variable.pointer:
        return None
    others = [
        argument for argument in arguments if kernel.text.variable(bare(argument)) != variable
    ]
    return _Maximum(loop, variable, others[0]) if len(others) == 1 else None


def _sum(kernel: CudaKernel, loop: CountedLoop) -> _Sum | None:
    node = _only_assignment(loop)
    left, right = field(node, "left"), field(node, "right")
    if node is None or operator_of(node) != "+=" or left is None or right is None:
        return None
    variable, arguments = kernel.text.variable(left), arguments_of(bare(right))
    if called(bare(right)) not in _EXPONENTIALS or len(arguments) != 1 or variable is None:
        return None
    difference = bare(arguments[0])
    element, maximum = field(difference, "left"), field(difference, "right")
    if operator_of(difference) != "-" or element is None or maximum is None:
        return None
    zero = text_of(variable.value).rstrip("fF") in ("0", "0.", "0.0")
    if variable.type != "float" or variable.dims or variable.pointer or not zero:
        return None
    return _Sum(loop, variable, element, maximum, called(bare(right)))


def _belong_together(kernel: CudaKernel, maximum: _Maximum, total: _Sum) -> bool:
    """Return whether two loops have the same elements, and nothing between them matters."""
    text, first, second = kernel.text, maximum.loop, total.loop
    if first.node.parent != second.node.parent or first.node.end_byte > second.node.start_byte:
        return False
    if any(start_of(loop.node) != loop.node.start_byte for loop in (first, second)):
        return False
    if first.node.parent is None or first.node.parent.type != "compound_statement":
        return False
    heads = [
        [kernel.polynomial(n) if n is not None else None for n in (o.start, o.bound, o.step)]
        for o in (first, second)
    ]
    if (
        heads[0] != heads[1]
        or None in heads[0][:2]
        or (first.step is None) != (second.step is None)
    ):
        return False
    if _tokens(maximum.element, first) != _tokens(total.element, second):
        return False
    writes = text.writes(total.variable)
    before = [n for n in writes if n.start_byte < second.node.start_byte]
    if before or not text.is_fixed(total.maximum, second.node):
        return False
    started = [n for n in text.writes(maximum.variable) if n.start_byte < first.node.start_byte]
    return not started and maximum.variable.value is not None and _stays(kernel, maximum, total)


def _is_least(variable: Variable) -> bool:
    text = text_of(variable.value)
    return text in ("-INFINITY", "-FLT_MAX") or text.startswith(("-3.4", "-1e3", "-1e20"))


def _tokens(node: Node, loop: CountedLoop) -> list[str]:
    """Return the words of an expression; the loop's variable is called the same in all loops."""
    words = (text_of(n) for n in walk(bare(node)) if n.child_count == 0)
    return ["#" if word == loop.variable.name else word for word in words]


def _stays(kernel: CudaKernel, maximum: _Maximum, total: _Sum) -> bool:
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


def _fused(kernel: CudaKernel, maximum: _Maximum, total: _Sum) -> list[Edit]:
    source, first, second = kernel.text.source, maximum.loop.node, total.loop.node
    by = indentation(first, source)
    own = kernel.fresh(f"{total.variable.name}_online")
    most, element = kernel.fresh(f"{maximum.variable.name}_online"), kernel.fresh("element")
    head = source[first.start_byte : maximum.loop.body.start_byte].decode().rstrip()
    function = total.function
    grown = [f"{own} *= {function}({most} - {element});", f"{most} = {element};"]
    largest = most if _is_least(maximum.variable) else f"fmaxf({maximum.variable.name}, {most})"
    lines = [
        f"float {most} = {_LEAST};",
        f"float {own} = 0.0f;",
        *block_of(
            head,
            [
                f"const float {element} = {text_of(maximum.element)};",
                *block_of(f"if ({element} > {most})", grown),
                f"{own} += {function}({element} - {most});",
            ],
        ),
        f"{maximum.variable.name} = {largest};",
    ]
    scaled = f"{total.variable.name} = {own} * {function}({most} - {text_of(total.maximum)});"
    return [
        Edit.of(first, indented(lines, by)),
        Edit.of(second, scaled),
    ]


def fused_loops(kernel: TritonFunction) -> Iterator[TextChange]:
    """Yield functions that scale the sum whenever the maximum grows."""
    body = kernel.text.function.body
    outer = [loop for loop in kernel.text.loops if loop.node in body]
    for number, (first_loop, second_loop) in enumerate(pairwise(outer), start=1):
        between = body[body.index(first_loop.node) + 1 : body.index(second_loop.node)]
        edits = _triton_fused(kernel, first_loop, second_loop, between)
        if edits:
            yield TextChange.of(kernel, f"online sum in loop {number}", edits)


def _triton_fused(
    kernel: TritonFunction,
    first_loop: RangeLoop,
    second_loop: RangeLoop,
    between: Sequence[ast.stmt],
) -> list[Edit]:
    text = kernel.text
    maximum, total = (
        _triton_maximum(kernel, first_loop.node.body[-1]),
        _triton_sum(kernel, second_loop.node.body[-1]),
    )
    if maximum is None or total is None or not _are_alike(first_loop, second_loop):
        return []
    most, block, sum_, elements, largest = *maximum, *total
    starts = [statement for statement in between if _is_zero(statement, sum_)]
    changed = any(len(text.assignments.get(name, [])) != 2 for name in (most, sum_))
    if changed or len(between) != len(starts) or len(starts) != 1 or largest != most:
        return []
    if ast.dump(block) != ast.dump(elements):
        return []
    tl, higher, last = text.language, text.fresh("higher"), first_loop.node.body[-1]
    grown = f"{text.operand(elements)} - {higher}"
    lines = (
        f"{higher} = {tl}.maximum({most}, {tl}.max({text.text(block)}, axis=0))",
        f"{sum_} = {sum_} * {tl}.exp({most} - {higher}) + {tl}.sum({tl}.exp({grown}), axis=0)",
        f"{most} = {higher}",
    )
    by = f"\n{' ' * last.col_offset}"
    return [
        text.inserted_before(first_loop.node, text.text(starts[0])),
        text.removed(starts[0]),
        Edit(*text.span(last), by.join(lines)),
        text.removed(second_loop.node),
    ]


def _are_alike(first_loop: RangeLoop, second_loop: RangeLoop) -> bool:
    """Return whether both loops have the same elements."""
    heads = [(loop.name, ast.dump(loop.call)) for loop in (first_loop, second_loop)]
    setups = [
        [ast.dump(node) for node in loop.node.body[:-1]] for loop in (first_loop, second_loop)
    ]
    plain = all(isinstance(node, ast.Assign) for node in first_loop.node.body)
    return heads[0] == heads[1] and setups[0] == setups[1] and plain and not second_loop.node.orelse


def _triton_maximum(kernel: TritonFunction, statement: ast.stmt) -> _Found | None:
    """Return the parts of ``m = maximum(m, max(block, axis=0))``."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[left, right]) as call):
            if kernel.text.called(call) != "maximum":
                return None
            inner = right if isinstance(left, ast.Name) and left.id == name else left
            other = left if inner is right else right
            block = _reduced(kernel, inner, "max")
            named = isinstance(other, ast.Name) and other.id == name
            return (name, block) if block is not None and named else None
    return None


def _triton_sum(kernel: TritonFunction, statement: ast.stmt) -> tuple[str, ast.expr, str] | None:
    """Return the parts of ``s += sum(exp(block - m), axis=0)``."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            inner = _reduced(kernel, value, "sum")
            match inner:
                case ast.Call(
                    args=[ast.BinOp(left=block, op=ast.Sub(), right=ast.Name(id=most))]
                ) if kernel.text.called(inner) == "exp":
                    return name, block, most
    return None


def _reduced(kernel: TritonFunction, node: ast.expr, function: str) -> ast.expr | None:
    """Return the block that a reduction along its only dimension is made of."""
    if not isinstance(node, ast.Call) or kernel.text.called(node) != function or not node.args:
        return None
    axes = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
    return node.args[0] if all(ast.dump(axis) == "Constant(value=0)" for axis in axes) else None


def _is_zero(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=0)):
            return target == name
    return False
