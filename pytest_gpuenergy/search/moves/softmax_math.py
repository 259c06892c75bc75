"""`softmax_math_fusion`: exponentials, roots and quotients that cost less."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.moves.online_sum import fused_loops, fused_sums
from pytest_gpuenergy.search.source.edits import Edit, outermost
from pytest_gpuenergy.search.source.tree import (
    bare,
    call_arguments,
    called,
    expression_operator,
    field,
    indentation,
    inside,
    loop_start,
    node_text,
    nodes,
    only,
    sides,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_FAST = {
    "expf": "__expf",
    "logf": "__logf",
    "log2f": "__log2f",
    "sinf": "__sinf",
    "cosf": "__cosf",
}
_OVERLOADED = {"exp": "__expf", "log": "__logf"}
"""Fast functions in place of those that are overloaded for double precision."""
_CUDA_LOG2_E = "1.44269504f"
_LOG2_E = "1.4426950408889634"
_REDUCTIONS = ("sum", "max", "min")


class SoftmaxMathFusion(SourceMove):
    """Use cheaper arithmetic within most tolerances, and read the row of a softmax once less."""

    name = "softmax_math_fusion"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"sfu", "compute", "gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        yield from fused_sums(kernel)
        kinds = {
            "fast functions": _fast_functions(kernel),
            "fast powers": _rename_calls(kernel, {"powf": "__powf"}),
            "fast sines with cosines": _rename_calls(kernel, {"sincosf": "__sincosf"}),
            "exponentials to base 2": [
                Edit.of(call, f"exp2f(({node_text(argument)}) * {_CUDA_LOG2_E})")
                for call in kernel.text.calls(kernel.text.body, "expf", "__expf", "exp")
                if (argument := only(call_arguments(call))) is not None
                and (called(call) != "exp" or _is_float(kernel, argument))
            ],
            "reciprocal square roots": _reciprocal_roots(kernel),
            "reciprocals before loops": _reciprocals_before_loops(kernel),
            "fast divisions": [
                Edit.of(node, f"__fdividef({node_text(left)}, {node_text(right)})")
                for left, right, node in _divisions(kernel)
            ],
        }
        for what, edits in kinds.items():
            if edits:
                yield TextChange.of(kernel, what, outermost(edits))

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        yield from fused_loops(kernel)
        text = kernel.text
        quotients = [
            node
            for node in ast.walk(text.function)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        ]
        kinds = {
            "exponentials to base 2": [
                text.replaced(call, f"{text.language}.exp2(({text.text(argument)}) * {_LOG2_E})")
                for call in text.calls("exp")
                if not call.keywords
                and (argument := only(call.args)) is not None
                and not any(text.calls("exp", within=argument))
            ],
            "reciprocal square roots": _triton_roots(kernel, quotients),
            "reciprocals of sums": [  # one for all elements
                text.replaced(node, f"{text.operand(node.left)} * (1.0 / {node.right.id})")
                for node in quotients
                if isinstance(node.right, ast.Name) and _is_reduced(kernel, node.right.id)
            ],
        }
        for what, edits in kinds.items():
            if edits:
                yield TextChange.of(kernel, what, outermost(edits))


def _triton_roots(kernel: TritonFunction, quotients: Iterable[ast.BinOp]) -> list[Edit]:
    text, edits = kernel.text, []
    for node in quotients:
        match node.right:
            case ast.Call(args=[root]) if text.called(node.right) == "sqrt":
                is_one = isinstance(node.left, ast.Constant) and node.left.value == 1
                factor = "" if is_one else f"{text.operand(node.left)} * "
                call = f"{text.language}.rsqrt({text.text(root)})"
                edits.append(text.replaced(node, f"{factor}{call}"))
    return edits


def _is_reduced(kernel: TritonFunction, name: str) -> bool:
    """Return whether a name only ever gets reductions of whole blocks, or the root of one."""
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


def _is_float(kernel: CudaKernel, node: Node) -> bool:
    """Return whether an expression is surely of single precision."""
    node = bare(node)
    match node.type:
        case "number_literal":
            return node_text(node)[-1:] in ("f", "F") and not node_text(node).startswith("0x")
        case "identifier":
            variable = kernel.text.variable(node)
            return variable is not None and variable.type == "float" and not variable.pointer
        case "subscript_expression":
            base = node
            while base.type == "subscript_expression":
                base = bare(field(base, "argument") or base.children[0])
            variable = kernel.text.variable(base)
            return variable is not None and variable.type == "float"
        case "unary_expression" | "binary_expression" | "conditional_expression":
            if expression_operator(node) in ("<", ">", "<=", ">=", "==", "!=", "&&", "||", "!"):
                return False
            names = ("argument", "left", "right", "consequence", "alternative")
            parts = [part for name in names if (part := field(node, name)) is not None]
            others = [part for part in parts if not _is_float(kernel, part)]
            return len(others) < len(parts) and all(map(kernel.polynomial, others))
        case "call_expression":
            name = called(node)
            return name.endswith("f") or name.startswith("__exp") or name == "__half2float"
        case "cast_expression":
            return node_text(field(node, "type")) == "float"
    return False


def _fast_functions(kernel: CudaKernel) -> list[Edit]:
    edits = []
    for call in nodes(kernel.text.body, "call_expression"):
        name, function = called(call), field(call, "function")
        fast = _FAST.get(name)
        if name in _OVERLOADED and all(_is_float(kernel, value) for value in call_arguments(call)):
            fast = _OVERLOADED[name]
        if fast is not None and function is not None:
            edits.append(Edit.of(function, fast))
    return edits


def _rename_calls(kernel: CudaKernel, names: Mapping[str, str]) -> list[Edit]:
    """Return edits that call other functions with the same parameters."""
    return [
        Edit.of(function, names[node_text(function)])
        for call in kernel.text.calls(kernel.text.body, *names)
        if (function := field(call, "function")) is not None
    ]


def _reciprocal_roots(kernel: CudaKernel) -> list[Edit]:
    edits = []
    for left, right, node in _divisions(kernel):
        argument, function = only(call_arguments(right)), called(right)
        if argument is None or function not in ("sqrtf", "sqrt"):
            continue
        if function == "sqrtf" or _is_float(kernel, argument):
            is_one = node_text(left).rstrip("fF") in ("1", "1.", "1.0")
            factor = "" if is_one else f"{node_text(left)} * "
            edits.append(Edit.of(node, f"{factor}rsqrtf({node_text(argument)})"))
    return edits


def _divisions(kernel: CudaKernel) -> Iterator[tuple[Node, Node, Node]]:
    """Yield quotients of single-precision numbers: dividend, divisor, and the whole."""
    for node in nodes(kernel.text.body, "binary_expression"):
        parts = sides(node, "/")
        if parts is not None and _is_float(kernel, node):
            yield parts[0], bare(parts[1]), node


def _reciprocals_before_loops(kernel: CudaKernel) -> list[Edit]:
    """Return edits for one reciprocal before a loop in place of divisions in it."""
    edits: list[Edit] = []
    declared: dict[int, dict[str, str]] = {}
    for left, right, node in _divisions(kernel):
        around = [loop.node for loop in kernel.text.loops if inside(node, loop.body)]
        loop = max(around, key=lambda loop: loop.start_byte, default=None)
        # A statement must be able to stand before the loop.
        if loop is None or loop.parent is None or loop.parent.type != "compound_statement":
            continue
        is_named = right.type == "identifier" and _is_float(kernel, right)
        if is_named and kernel.text.is_fixed(right, loop):
            divisor, begin = node_text(right), loop_start(loop)
            name = kernel.fresh(f"{divisor}_reciprocal")
            by = indentation(loop, kernel.text.source)
            line = f"const float {name} = 1.0f / {divisor};\n{by}"
            declared.setdefault(begin, {})[divisor] = line
            edits.append(Edit.of(node, f"{node_text(left)} * {name}"))
    heads = (Edit(begin, begin, "".join(lines.values())) for begin, lines in declared.items())
    return [*heads, *edits]
