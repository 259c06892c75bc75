"""Masks of Triton's loads and stores that leave nothing out."""

from __future__ import annotations

import ast

from pytest_gpuenergy.search.source.edits import Edit
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel

_MASK_PLACE = {"load": 1, "store": 2}
_DEEPEST = 20


def mask_edits(kernel: TritonKernel) -> list[Edit]:
    """The edits that leave out masks, and what stands for elements that they exclude."""
    edits = []
    for call in kernel.text.calls("load", "store"):
        mask = _mask_of(kernel, call)
        if mask is not None and _always_holds(kernel, mask, _DEEPEST):
            edits += _without(kernel, call)
    return edits


def _mask_of(kernel: TritonKernel, call: ast.Call) -> ast.expr | None:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    named = [keyword.value for keyword in call.keywords if keyword.arg == "mask"]
    place = _MASK_PLACE[kernel.text.called(call)]
    return named[0] if named else call.args[place] if len(call.args) > place else None


def _without(kernel: TritonKernel, call: ast.Call) -> list[Edit]:
    """The call with what is left of its arguments, each as it is written."""
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


def _always_holds(kernel: TritonKernel, mask: ast.expr, depth: int) -> bool:
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


def _compares(kernel: TritonKernel, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
    one, two = kernel.polynomial(left), kernel.polynomial(right)
    if one is None or two is None:
        return False
    match op:
        case ast.Lt():
            room = two - one - Polynomial.constant(1)
        case ast.LtE():
            room = two - one
        case ast.Gt():
            room = one - two - Polynomial.constant(1)
        case ast.GtE():
            room = one - two
        case _:
            return False
    found = [kernel.interval(room, case) for case in range(kernel.facts.cases)]
    return all(interval is not None and interval[0] >= 0 for interval in found)
