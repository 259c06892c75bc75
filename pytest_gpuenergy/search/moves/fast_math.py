"""Cheaper expressions in CUDA text that are as good as the tolerance of most contracts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.base import Change
from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.edits import Edit, edited
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
_PLAIN = {"exp": "__expf", "log": "__logf"}
"""Functions that are overloaded for double precision."""
_ROOTS = ("sqrtf", "sqrt")
_LOG2_E = "1.44269504f"


def math_changes(kernel: CudaKernel) -> Iterator[Change]:
    """Each kind of change, wherever it can be made."""
    kinds = {
        "fast functions": _fast_functions(kernel),
        "fast powers": _named(kernel, {"powf": "__powf"}),
        "fast sines with cosines": _named(kernel, {"sincosf": "__sincosf"}),
        "exponentials to base 2": _base_two(kernel),
        "reciprocal square roots": _reciprocal_roots(kernel),
        "reciprocals before loops": _reciprocals(kernel),
        "fast divisions": _fast_divisions(kernel),
    }
    for what, edits in kinds.items():
        if edits:
            yield Change(what, edited(kernel.text.source, _outermost(edits)), kernel.launch)


def _outermost(edits: list[Edit]) -> list[Edit]:
    return [
        one
        for one in dict.fromkeys(edits)
        if not any(
            other.begin <= one.begin and one.end <= other.end and other[:2] != one[:2]
            for other in edits
        )
    ]


def is_float(kernel: CudaKernel, node: Node) -> bool:
    """Whether an expression is surely of single precision."""
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
            others = (one or other for one, other in zip(sure, whole, strict=True))
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
        if fast is None and name in _PLAIN and all(is_float(kernel, a) for a in arguments):
            fast = _PLAIN[name]
        function = field(call, "function")
        if fast is not None and function is not None:
            edits.append(Edit(function.start_byte, function.end_byte, fast))
    return edits


def _named(kernel: CudaKernel, names: Mapping[str, str]) -> list[Edit]:
    """Other functions of the same parameters."""
    functions = [field(call, "function") for call in kernel.text.calls(kernel.text.body, *names)]
    return [
        Edit(one.start_byte, one.end_byte, names[text_of(one)])
        for one in functions
        if one is not None
    ]


def _base_two(kernel: CudaKernel) -> list[Edit]:
    edits = []
    for call in nodes(kernel.text.body, "call_expression"):
        arguments = arguments_of(call)
        known = called(call) in ("expf", "__expf") or (
            called(call) == "exp" and len(arguments) == 1 and is_float(kernel, arguments[0])
        )
        if known and len(arguments) == 1:
            text = f"exp2f(({text_of(arguments[0])}) * {_LOG2_E})"
            edits.append(Edit(call.start_byte, call.end_byte, text))
    return edits


def _reciprocal_roots(kernel: CudaKernel) -> list[Edit]:
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
        edits.append(Edit(node.start_byte, node.end_byte, text))
    return edits


def _divisions(kernel: CudaKernel) -> Iterator[tuple[Node, Node, Node]]:
    """Quotients of single-precision numbers: dividend, divisor, and the whole."""
    for node in nodes(kernel.text.body, "binary_expression"):
        left, right = field(node, "left"), field(node, "right")
        if operator_of(node) == "/" and left is not None and right is not None:
            both = is_float(kernel, left), is_float(kernel, right)
            if any(both) and is_float(kernel, node):
                yield left, bare(right), node


def _fast_divisions(kernel: CudaKernel) -> list[Edit]:
    return [
        Edit(node.start_byte, node.end_byte, f"__fdividef({text_of(left)}, {text_of(right)})")
        for left, right, node in _divisions(kernel)
    ]


def _reciprocals(kernel: CudaKernel) -> list[Edit]:
    """One before the loop in place of divisions by the same number in it."""
    by_loop: dict[tuple[int, str], tuple[Loop, list[tuple[Node, Node]]]] = {}
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
            edits.append(Edit(node.start_byte, node.end_byte, text))
    return [*(Edit(begin, begin, head) for begin, head in heads.items()), *edits]


def _loop_around(kernel: CudaKernel, node: Node) -> Loop | None:
    """The innermost loop, if a statement can stand before it."""
    around = [loop for loop in kernel.text.loops if inside(node, loop.body)]
    loop = max(around, key=lambda one: one.node.start_byte, default=None)
    if loop is None or loop.node.parent is None or loop.node.parent.type != "compound_statement":
        return None
    return loop
