"""`softmax_math_fusion`: exponentials, roots and quotients that cost less."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_gpuenergy.search.moves.base import Change, SourceMove
from pytest_gpuenergy.search.moves.fast_math import math_changes
from pytest_gpuenergy.search.moves.online_sum import fused_sums
from pytest_gpuenergy.search.moves.triton_online import fused_loops
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel

_LOG2_E = "1.4426950408889634"
_REDUCTIONS = ("sum", "max", "min")


class SoftmaxMathFusion(SourceMove):
    """Cheaper arithmetic within most tolerances, and a softmax that reads its row once less."""

    name = "softmax_math_fusion"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"sfu", "compute", "gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[Change]:
        yield from fused_sums(kernel)
        yield from math_changes(kernel)

    def on_triton(self, kernel: TritonKernel) -> Iterator[Change]:
        yield from fused_loops(kernel)
        kinds = {
            "exponentials to base 2": _base_two(kernel),
            "reciprocal square roots": _reciprocal_roots(kernel),
            "reciprocals of sums": _reciprocals(kernel),
        }
        for what, edits in kinds.items():
            if edits:
                yield Change(what, edited(kernel.text.source, edits), kernel.launch)


def _base_two(kernel: TritonKernel) -> list[Edit]:
    text, edits = kernel.text, []
    for call in text.calls("exp"):
        if (
            len(call.args) == 1
            and not call.keywords
            and not list(text.calls("exp", within=call.args[0]))
        ):
            argument = text.text(call.args[0])
            edits.append(text.replaced(call, f"{text.language}.exp2(({argument}) * {_LOG2_E})"))
    return edits


def _quotients(kernel: TritonKernel) -> Iterator[ast.BinOp]:
    for node in ast.walk(kernel.text.function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield node


def _reciprocal_roots(kernel: TritonKernel) -> list[Edit]:
    text, edits = kernel.text, []
    for node in _quotients(kernel):
        if (
            isinstance(node.right, ast.Call)
            and text.called(node.right) == "sqrt"
            and len(node.right.args) == 1
        ):
            inner = text.text(node.right.args[0])
            is_one = isinstance(node.left, ast.Constant) and node.left.value == 1
            factor = "" if is_one else f"{text.operand(node.left)} * "
            edits.append(text.replaced(node, f"{factor}{text.language}.rsqrt({inner})"))
    return _apart(edits)


def _reciprocals(kernel: TritonKernel) -> list[Edit]:
    """One reciprocal of a sum in place of a quotient for each element."""
    text, edits = kernel.text, []
    for node in _quotients(kernel):
        if isinstance(node.right, ast.Name) and _is_reduced(kernel, node.right.id):
            left = text.operand(node.left)
            edits.append(text.replaced(node, f"{left} * (1.0 / {node.right.id})"))
    return _apart(edits)


def _is_reduced(kernel: TritonKernel, name: str) -> bool:
    """Whether a name only ever gets sums and the like of whole blocks, or a root of one."""
    text = kernel.text
    values = [
        statement.value
        for statement in text.assignments.get(name, [])
        if isinstance(statement, ast.Assign | ast.AugAssign)
        and not isinstance(statement.value, ast.Constant)
    ]
    return bool(values) and all(
        text.called(value) in _REDUCTIONS
        or (text.called(value) == "sqrt" and any(text.calls(*_REDUCTIONS, within=value)))
        for value in values
    )


def _apart(edits: list[Edit]) -> list[Edit]:
    """The outermost ones."""
    return [
        one
        for one in edits
        if not any(o != one and o.begin <= one.begin and one.end <= o.end for o in edits)
    ]
