"""A softmax's maximum and sum, of two loops of a Triton function, formed in the first one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_gpuenergy.search.moves.base import Change
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel
from pytest_gpuenergy.search.source.triton_text import RangeLoop

_Found = tuple[str, ast.expr]
"""The name of a maximum or sum, and the block that it is formed of."""


def fused_loops(kernel: TritonKernel) -> Iterator[Change]:
    """The sum is scaled whenever the maximum grows."""
    body = kernel.text.function.body
    outer = [loop for loop in kernel.text.loops if loop.node in body]
    for number, (one, two) in enumerate(pairwise(outer), start=1):
        between = body[body.index(one.node) + 1 : body.index(two.node)]
        edits = _fused(kernel, one, two, between)
        if edits:
            source = edited(kernel.text.source, edits)
            yield Change(f"online sum in loop {number}", source, kernel.launch)


def _fused(
    kernel: TritonKernel, one: RangeLoop, two: RangeLoop, between: Sequence[ast.stmt]
) -> list[Edit]:
    text = kernel.text
    maximum, total = _maximum(kernel, one.node.body[-1]), _sum(kernel, two.node.body[-1])
    if maximum is None or total is None or not _are_alike(one, two):
        return []
    most, block, sum_, elements, largest = *maximum, *total
    starts = [statement for statement in between if _is_zero(statement, sum_)]
    changed = any(len(text.assignments.get(name, [])) != 2 for name in (most, sum_))
    if changed or len(between) != len(starts) or len(starts) != 1 or largest != most:
        return []
    if ast.dump(block) != ast.dump(elements):
        return []
    tl, higher, last = text.language, text.fresh("higher"), one.node.body[-1]
    grown = f"{text.operand(elements)} - {higher}"
    lines = (
        f"{higher} = {tl}.maximum({most}, {tl}.max({text.text(block)}, axis=0))",
        f"{sum_} = {sum_} * {tl}.exp({most} - {higher}) + {tl}.sum({tl}.exp({grown}), axis=0)",
        f"{most} = {higher}",
    )
    by = f"\n{' ' * last.col_offset}"
    return [
        text.inserted_before(one.node, text.text(starts[0])),
        text.removed(starts[0]),
        Edit(*text.span(last), by.join(lines)),
        text.removed(two.node),
    ]


def _are_alike(one: RangeLoop, two: RangeLoop) -> bool:
    """Whether both loops have the same elements."""
    heads = [(loop.name, ast.dump(loop.call)) for loop in (one, two)]
    setups = [[ast.dump(node) for node in loop.node.body[:-1]] for loop in (one, two)]
    plain = all(isinstance(node, ast.Assign) for node in one.node.body)
    return heads[0] == heads[1] and setups[0] == setups[1] and plain and not two.node.orelse


def _maximum(kernel: TritonKernel, statement: ast.stmt) -> _Found | None:
    """``m = maximum(m, max(block, axis=0))``."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[one, two]) as call):
            if kernel.text.called(call) != "maximum":
                return None
            inner = two if isinstance(one, ast.Name) and one.id == name else one
            other = one if inner is two else two
            block = _reduced(kernel, inner, "max")
            named = isinstance(other, ast.Name) and other.id == name
            return (name, block) if block is not None and named else None
    return None


def _sum(kernel: TritonKernel, statement: ast.stmt) -> tuple[str, ast.expr, str] | None:
    """``s += sum(exp(block - m), axis=0)``: also the name of ``m``."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            inner = _reduced(kernel, value, "sum")
            match inner:
                case ast.Call(
                    args=[ast.BinOp(left=block, op=ast.Sub(), right=ast.Name(id=most))]
                ) if kernel.text.called(inner) == "exp":
                    return name, block, most
    return None


def _reduced(kernel: TritonKernel, node: ast.expr, function: str) -> ast.expr | None:
    """The block that a reduction along its only dimension is made of."""
    if not isinstance(node, ast.Call) or kernel.text.called(node) != function or not node.args:
        return None
    axes = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
    return node.args[0] if all(ast.dump(axis) == "Constant(value=0)" for axis in axes) else None


def _is_zero(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=0)):
            return target == name
    return False
