"""``if (i >= n) return; ...`` written as ``if (i < n) {...}``, which moves understand."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.tree import (
    bare,
    field,
    indentation,
    is_call,
    nodes,
    operator_of,
    statements,
    text_of,
)
from pytest_gpuenergy.search.spec.kernel_spec import State

if TYPE_CHECKING:
    from tree_sitter import Node

_OPPOSITES = {">=": "<", ">": "<=", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}
_WHOLE = frozenset(
    [
        "int",
        "unsigned",
        "unsigned int",
        "size_t",
        "short",
        "long",
        "unsigned long",
        "long long",
        "unsigned long long",
        "int64_t",
        "uint64_t",
    ]
)
_NEVER = ("goto_statement", "labeled_statement")


def without_early_return(kernel: CudaKernel) -> CudaKernel:
    """The same kernel, or one whose last statement is the guarded rest."""
    every = statements(kernel.text.body)
    for number, statement in enumerate(every[:-1]):
        condition = _returns_if(statement)
        if condition is None:
            continue
        rest = every[number + 1 :]
        if any(is_call(one, "__syncthreads") for one in rest) or any(nodes(rest[0], *_NEVER)):
            return kernel
        source = edited(kernel.text.source, [_guarded(kernel, statement, condition)])
        state = State("cuda", source, kernel.launch)
        return CudaKernel.of(state, kernel.spec) or kernel
    return kernel


def _returns_if(statement: Node) -> Node | None:
    """The condition of ``if (...) return;``."""
    body, condition = field(statement, "consequence"), field(statement, "condition")
    if statement.type != "if_statement" or field(statement, "alternative") or body is None:
        return None
    inner = statements(body)
    returns = len(inner) == 1 and inner[0].type == "return_statement"
    return bare(condition) if returns and condition is not None else None


def _guarded(kernel: CudaKernel, statement: Node, condition: Node) -> Edit:
    source, end = kernel.text.source, kernel.text.body.end_byte - 1
    rest = source[statement.end_byte : end].decode().strip("\n").rstrip()
    by = indentation(statement, source)
    head = f"if ({_negated(kernel, condition)}) {{"
    return Edit(statement.start_byte, end, f"{head}\n{textwrap.indent(rest, '  ')}\n{by}}}\n")


def _negated(kernel: CudaKernel, condition: Node) -> str:
    """The opposite; of comparisons only among whole numbers, because of NaN."""
    opposite = _OPPOSITES.get(operator_of(condition))
    left, right = field(condition, "left"), field(condition, "right")
    denied = field(condition, "argument") if operator_of(condition) == "!" else None
    if denied is not None and bare(denied).type == "binary_expression":
        return text_of(denied)  # with its parentheses
    if condition.type == "binary_expression" and left is not None and right is not None:
        if operator_of(condition) == "||":
            return f"{_negated(kernel, bare(left))} && {_negated(kernel, bare(right))}"
        if opposite is not None and _is_whole(kernel, left) and _is_whole(kernel, right):
            return f"{text_of(left)} {opposite} {text_of(right)}"
    return f"!({text_of(condition)})"


def _is_whole(kernel: CudaKernel, side: Node) -> bool:
    """Whether an expression is surely a whole number."""
    named = [kernel.text.variable(node) for node in nodes(side, "identifier")]
    known = all(one is None or _is_whole_variable(kernel, one) for one in named)
    return known and kernel.polynomial(side) is not None


def _is_whole_variable(kernel: CudaKernel, variable: Variable) -> bool:
    deduced = variable.value if variable.type == "auto" else None
    return variable.type in _WHOLE or (deduced is not None and _is_whole(kernel, deduced))
