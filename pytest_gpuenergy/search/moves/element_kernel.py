"""CUDA kernels in which each thread works on one element, if there is one for it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.cuda_kernel import BLOCK, THREAD, CudaKernel
from pytest_gpuenergy.search.analysis.sharing import may_depend_on_thread_index
from pytest_gpuenergy.search.source.cuda_text import NARROW, Variable
from pytest_gpuenergy.search.source.edits import Edit, apply_edits
from pytest_gpuenergy.search.source.tree import (
    bare,
    conjuncts,
    expression_operator,
    field,
    indentation,
    inside,
    is_call,
    node_text,
    nodes,
    only,
    sides,
    statements,
)
from pytest_gpuenergy.search.spec.kernel_spec import State

if TYPE_CHECKING:
    from tree_sitter import Node

_OPPOSITES = {">=": "<", ">": "<=", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}
_WHOLE = frozenset(
    [
        *("int", "unsigned", "unsigned int", "size_t", "short", "long", "unsigned long"),
        *("long long", "unsigned long long", "int64_t", "uint64_t"),
    ]
)
_NEVER = ("goto_statement", "labeled_statement")
_CHANGES = ("assignment_expression", "update_expression")
_ALONG_X = ("threadIdx.x", "blockIdx.x", "blockDim.x", "gridDim.x")


def without_early_return(kernel: CudaKernel) -> CudaKernel:
    """Return a kernel whose last statement is the guarded rest, or the same kernel."""
    every = statements(kernel.text.body)
    for number, statement in enumerate(every[:-1]):
        body, condition = field(statement, "consequence"), field(statement, "condition")
        returned = None if body is None else only(statements(body))
        if (
            statement.type != "if_statement"
            or field(statement, "alternative")
            or condition is None
            or returned is None
            or returned.type != "return_statement"
        ):
            continue
        rest = every[number + 1 :]
        if any(is_call(later, "__syncthreads") for later in rest) or any(nodes(rest[0], *_NEVER)):
            return kernel
        source, end = kernel.text.source, kernel.text.body.end_byte - 1
        guarded = textwrap.indent(
            source[statement.end_byte : end].decode().strip("\n").rstrip(), "  "
        )
        head = f"if ({_negate(kernel, bare(condition))}) {{"
        text = f"{head}\n{guarded}\n{indentation(statement, source)}}}\n"
        state = State(
            "cuda", apply_edits(source, [Edit(statement.start_byte, end, text)]), kernel.launch
        )
        return CudaKernel.of(state, kernel.spec) or kernel
    return kernel


def _negate(kernel: CudaKernel, condition: Node) -> str:
    """Return the opposite of a condition; a comparison is turned round only for integers (NaN)."""
    sign = expression_operator(condition)
    denied = field(condition, "argument") if sign == "!" else None
    if denied is not None and bare(denied).type == "binary_expression":
        return node_text(denied)  # with its parentheses
    if (parts := sides(condition, "||")) is not None:
        return " && ".join(_negate(kernel, bare(part)) for part in parts)
    parts = sides(condition, *_OPPOSITES)
    if parts is not None and all(_is_whole(kernel, part) for part in parts):
        return f"{node_text(parts[0])} {_OPPOSITES[sign]} {node_text(parts[1])}"
    return f"!({node_text(condition)})"


def _is_whole(kernel: CudaKernel, side: Node) -> bool:
    """Return whether an expression is surely a whole number."""
    for node in nodes(side, "identifier"):
        variable = kernel.text.variable(node)
        deduced = variable.value if variable is not None and variable.type == "auto" else None
        if variable is None or variable.type in _WHOLE:
            continue
        if deduced is None or not _is_whole(kernel, deduced):
            return False
    return kernel.polynomial(side) is not None


@dataclass(frozen=True)
class ElementKernel:
    """``int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < bound) body``, and nothing after it.

    There may be other axes of the block and the grid, and other conditions beside the comparison or
    around it.

    Attributes:
        variable: the number of the element.
        declaration: the statement that declares ``variable``.
        index: the value of ``variable``.
        guard: the statement with the comparison.
        bound: the number of elements.
        body: the statement for an element.
        others: the other conditions, all of which must hold.
    """

    variable: Variable
    declaration: Node
    index: Node
    guard: Node
    bound: Node
    body: Node
    others: tuple[Node, ...] = ()

    @classmethod
    def of(cls, kernel: CudaKernel) -> ElementKernel | None:
        """Return the parts of such a kernel; None for others."""
        every = statements(kernel.text.body)
        conditions, body = _guards(every[-1]) if every else ([], None)
        for compared in conditions if body is not None else ():
            parts = sides(compared, "<")
            variable = None if parts is None else kernel.text.variable(parts[0])
            if parts is None or body is None or variable is None:
                continue
            declaration, index = variable.declaration, variable.value
            if declaration is None or index is None:
                continue
            others = tuple(part for part in conditions if part != compared)
            # The comparison may be what keeps a later one from reading beyond an end.
            later = [part for part in others if part.start_byte > compared.start_byte]
            if any(_reads_by_thread(kernel, part) for part in later):
                continue
            found = cls(variable, declaration, index, every[-1], parts[1], body, others)
            if found._is_alone(kernel, compared):
                return found
        return None

    def _is_alone(self, kernel: CudaKernel, compared: Node) -> bool:
        """Return whether threads along x differ in their element only, which only the body uses."""
        text, variable = kernel.text, self.variable
        if variable.scope != text.body or text.writes(variable) or variable.type in NARROW:
            return False
        if kernel.polynomial(self.index) != BLOCK * kernel.block[0] + THREAD:
            return False
        uses = text.uses[variable.key]
        if not all(inside(use, self.body) or inside(use, compared) for use in uses):
            return False
        if any(any(nodes(part, "call_expression", *_CHANGES)) for part in self.others):
            return False
        before = statements(text.body)[:-1]
        if any(statement.type != "declaration" for statement in before):
            return False
        if may_depend_on_thread_index(text, text.body) or not text.is_fixed(self.bound, self.body):
            return False
        return not any(
            node_text(member) in _ALONG_X and not inside(member, self.index)
            for member in nodes(text.body, "field_expression")
        )


def _guards(statement: Node) -> tuple[list[Node], Node | None]:
    """Return all conditions of ``if (a && b) if (c) body``, and the body; None without any."""
    parts: list[Node] = []
    body: Node | None = None
    inner = [statement]
    while len(inner) == 1 and inner[0].type == "if_statement":
        condition, then = field(inner[0], "condition"), field(inner[0], "consequence")
        if field(inner[0], "alternative") or condition is None or then is None:
            break
        parts, body = [*parts, *conjuncts(bare(condition))], then
        inner = statements(then)
    return parts, body


def _reads_by_thread(kernel: CudaKernel, condition: Node) -> bool:
    """Return whether a condition reads memory at a place that is not the same for all threads."""
    for node in nodes(condition, "subscript_argument_list", "pointer_expression"):
        index = kernel.polynomial(node.named_children[0]) if node.named_child_count == 1 else None
        if node.type == "pointer_expression" or index is None:
            return True
        if index.depends_on("threadIdx") or index.depends_on("blockIdx"):
            return True
    return False
