"""`softmax_math_fusion`: exponentials, roots and quotients that cost less."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.moves.online_sum import fused_loops, fused_sums
from pytest_gpuenergy.search.source.cuda_text import CountedLoop
from pytest_gpuenergy.search.source.edits import Edit, outermost
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
    text_of,
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
_ROOTS = ("sqrtf", "sqrt")
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
        yield from math_changes(kernel)

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        yield from fused_loops(kernel)
        kinds = {
            "exponentials to base 2": _base_two(kernel),
            "reciprocal square roots": _reciprocal_roots(kernel),
            "reciprocals of sums": _reciprocals(kernel),
        }
        for what, edits in kinds.items():
            if edits:
                yield TextChange.of(kernel, what, edits)


def _base_two(kernel: TritonFunction) -> list[Edit]:
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


def _quotients(kernel: TritonFunction) -> Iterator[ast.BinOp]:
    for node in ast.walk(kernel.text.function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield node


def _reciprocal_roots(kernel: TritonFunction) -> list[Edit]:
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
    return outermost(edits)


def _reciprocals(kernel: TritonFunction) -> list[Edit]:
    """Return edits for one reciprocal of a sum in place of a quotient for each element."""
    text, edits = kernel.text, []
    for node in _quotients(kernel):
        if isinstance(node.right, ast.Name) and _is_reduced(kernel, node.right.id):
            left = text.operand(node.left)
            edits.append(text.replaced(node, f"{left} * (1.0 / {node.right.id})"))
    return outermost(edits)


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


def math_changes(kernel: CudaKernel) -> Iterator[TextChange]:
    """Yield each kind of change, made wherever it can be."""
    kinds = {
        "fast functions": _fast_functions(kernel),
        "fast powers": _named(kernel, {"powf": "__powf"}),
        "fast sines with cosines": _named(kernel, {"sincosf": "__sincosf"}),
        "exponentials to base 2": _cuda_base_two(kernel),
        "reciprocal square roots": _cuda_reciprocal_roots(kernel),
        "reciprocals before loops": _cuda_reciprocals(kernel),
        "fast divisions": [
            Edit.of(node, f"__fdividef({text_of(left)}, {text_of(right)})")
            for left, right, node in _divisions(kernel)
        ],
    }
    for what, edits in kinds.items():
        if edits:
            yield TextChange.of(kernel, what, outermost(edits))


def is_float(kernel: CudaKernel, node: Node) -> bool:
    """Return whether an expression is surely of single precision."""
    node = bare(node)
    match node.type:
        case "number_literal":
            return text_of(node)[-1:] in ("f", "F") and not text_of(node).startswith("0x")
        case "identifier":
            variable = kernel.text.variable(node)
            return variable is not None and variable.type == "float" and not variable.pointer
        case "subscript_expression":
            base: Node | None = node
            while base is not None and base.type == "subscript_expression":
                base = field(base, "argument")
            variable = kernel.text.variable(bare(base)) if base is not None else None
            return variable is not None and variable.type == "float"
        case "unary_expression" | "binary_expression" | "conditional_expression":
            names = ("argument", "left", "right", "consequence", "alternative")
            parts = [part for name in names if (part := field(node, name)) is not None]
            sure = [is_float(kernel, part) for part in parts]
            if operator_of(node) in ("<", ">", "<=", ">=", "==", "!=", "&&", "||", "!"):
                return False
            whole = [kernel.polynomial(part) is not None for part in parts]
            others = (is_sure or is_whole for is_sure, is_whole in zip(sure, whole, strict=True))
            return any(sure) and all(others)
        case "call_expression":
            name = called(node)
            return name.endswith("f") or name.startswith("__exp") or name == "__half2float"
        case "cast_expression":
            return text_of(field(node, "type")) == "float"
    return False


def _fast_functions(kernel: CudaKernel) -> list[Edit]:
    edits = []
    for call in nodes(kernel.text.body, "call_expression"):
        name, arguments = called(call), arguments_of(call)
        fast = _FAST.get(name)
        if fast is None and name in _OVERLOADED and all(is_float(kernel, a) for a in arguments):
            fast = _OVERLOADED[name]
        function = field(call, "function")
        if fast is not None and function is not None:
            edits.append(Edit.of(function, fast))
    return edits


def _named(kernel: CudaKernel, names: Mapping[str, str]) -> list[Edit]:
    """Return edits that call other functions with the same parameters."""
    functions = [field(call, "function") for call in kernel.text.calls(kernel.text.body, *names)]
    return [
        Edit.of(function, names[text_of(function)])
        for function in functions
        if function is not None
    ]


def _cuda_base_two(kernel: CudaKernel) -> list[Edit]:
    edits = []
    for call in nodes(kernel.text.body, "call_expression"):
        arguments = arguments_of(call)
        known = called(call) in ("expf", "__expf") or (
            called(call) == "exp" and len(arguments) == 1 and is_float(kernel, arguments[0])
        )
        if known and len(arguments) == 1:
            text = f"exp2f(({text_of(arguments[0])}) * {_CUDA_LOG2_E})"
            edits.append(Edit.of(call, text))
    return edits


def _cuda_reciprocal_roots(kernel: CudaKernel) -> list[Edit]:
    edits = []
    for left, right, node in _divisions(kernel):
        arguments = arguments_of(right)
        if called(right) not in _ROOTS or len(arguments) != 1:
            continue
        if called(right) == "sqrt" and not is_float(kernel, arguments[0]):
            continue
        root = f"rsqrtf({text_of(arguments[0])})"
        is_one = text_of(left).rstrip("fF") in ("1", "1.", "1.0")
        text = root if is_one else f"{text_of(left)} * {root}"
        edits.append(Edit.of(node, text))
    return edits


def _divisions(kernel: CudaKernel) -> Iterator[tuple[Node, Node, Node]]:
    """Yield quotients of single-precision numbers: dividend, divisor, and the whole."""
    for node in nodes(kernel.text.body, "binary_expression"):
        left, right = field(node, "left"), field(node, "right")
        if operator_of(node) == "/" and left is not None and right is not None:
            both = is_float(kernel, left), is_float(kernel, right)
            if any(both) and is_float(kernel, node):
                yield left, bare(right), node


def _cuda_reciprocals(kernel: CudaKernel) -> list[Edit]:
    """Return edits for one reciprocal before a loop in place of divisions in it."""
    by_loop: dict[tuple[int, str], tuple[CountedLoop, list[tuple[Node, Node]]]] = {}
    for left, right, node in _divisions(kernel):
        loop = _loop_around(kernel, node)
        if loop is None or not is_float(kernel, right) or right.type != "identifier":
            continue
        if kernel.text.is_fixed(right, loop.node):
            key = (loop.node.start_byte, text_of(right))
            by_loop.setdefault(key, (loop, []))[1].append((left, node))
    edits: list[Edit] = []
    heads: dict[int, str] = {}
    for (_, divisor), (loop, found) in by_loop.items():
        name = kernel.fresh(f"{divisor}_reciprocal")
        begin, by = start_of(loop.node), indentation(loop.node, kernel.text.source)
        heads[begin] = heads.get(begin, "") + f"const float {name} = 1.0f / {divisor};\n{by}"
        for left, node in found:
            text = f"{text_of(left)} * {name}"
            edits.append(Edit.of(node, text))
    return [*(Edit(begin, begin, head) for begin, head in heads.items()), *edits]


def _loop_around(kernel: CudaKernel, node: Node) -> CountedLoop | None:
    """Return the innermost loop, if a statement can stand before it."""
    around = [loop for loop in kernel.text.loops if inside(node, loop.body)]
    loop = max(around, key=lambda loop: loop.node.start_byte, default=None)
    if loop is None or loop.node.parent is None or loop.node.parent.type != "compound_statement":
        return None
    return loop
