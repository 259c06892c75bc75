"""CUDA kernels in which each thread works on one element, if there is one for it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import asks_for_thread
from pytest_gpuenergy.search.source.cuda_text import NARROW, Variable
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    bare,
    conjuncts,
    field,
    indentation,
    inside,
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
_CHANGES = ("assignment_expression", "update_expression")


def without_early_return(kernel: CudaKernel) -> CudaKernel:
    """Return a kernel whose last statement is the guarded rest, or the same kernel."""
    every = statements(kernel.text.body)
    for number, statement in enumerate(every[:-1]):
        condition = _returns_if(statement)
        if condition is None:
            continue
        rest = every[number + 1 :]
        if any(is_call(later, "__syncthreads") for later in rest) or any(nodes(rest[0], *_NEVER)):
            return kernel
        source = edited(kernel.text.source, [_guarded(kernel, statement, condition)])
        state = State("cuda", source, kernel.launch)
        return CudaKernel.of(state, kernel.spec) or kernel
    return kernel


def _returns_if(statement: Node) -> Node | None:
    """Return the condition of ``if (...) return;``."""
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
    """Return the opposite of a condition; a comparison is turned round only for integers (NaN)."""
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
    """Return whether an expression is surely a whole number."""
    named = [kernel.text.variable(node) for node in nodes(side, "identifier")]
    known = all(variable is None or _is_whole_variable(kernel, variable) for variable in named)
    return known and kernel.polynomial(side) is not None


def _is_whole_variable(kernel: CudaKernel, variable: Variable) -> bool:
    deduced = variable.value if variable.type == "auto" else None
    return variable.type in _WHOLE or (deduced is not None and _is_whole(kernel, deduced))


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
        parts, body = _guards(every[-1]) if every else ([], None)
        if body is None:
            return None
        found = [cls._compared(kernel, every[-1], part, parts, body) for part in parts]
        return next((kernel_parts for kernel_parts in found if kernel_parts is not None), None)

    @classmethod
    def _compared(
        cls, kernel: CudaKernel, guard: Node, compared: Node, parts: list[Node], body: Node
    ) -> ElementKernel | None:
        """Return the parts of a kernel whose element one of its conditions compares."""
        left, bound = field(compared, "left"), field(compared, "right")
        if operator_of(compared) != "<" or left is None or bound is None:
            return None
        variable = kernel.text.variable(left)
        if variable is None or variable.declaration is None or variable.value is None:
            return None
        others = tuple(part for part in parts if part != compared)
        later = (condition for condition in others if condition.start_byte > compared.start_byte)
        if any(_reads_by_thread(kernel, use) for use in later):
            return None  # the comparison may be what keeps it from reading beyond an end
        declaration, index = variable.declaration, variable.value
        found = cls(variable, declaration, index, guard, bound, body, others)
        return found if found._is_alone(kernel, compared) else None

    def _is_alone(self, kernel: CudaKernel, compared: Node) -> bool:
        """Return whether threads along x differ in their element only, which only the body uses."""
        if self.variable.scope != kernel.text.body or kernel.text.writes(self.variable):
            return False
        if self.variable.type in NARROW:
            return False
        if kernel.polynomial(self.index) != _one_each(kernel):
            return False
        uses = kernel.text.uses[self.variable.key]
        if not all(inside(use, self.body) or inside(use, compared) for use in uses):
            return False
        if any(list(nodes(part, "call_expression", *_CHANGES)) for part in self.others):
            return False
        before = statements(kernel.text.body)[:-1]
        if any(statement.type != "declaration" for statement in before):
            return False
        if asks_for_thread(kernel.text, kernel.text.body):
            return False
        members = nodes(kernel.text.body, "field_expression")
        return kernel.text.is_fixed(self.bound, self.body) and all(
            inside(node, self.index) or not _names_thread(node) for node in members
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


def _names_thread(member: Node) -> bool:
    base = text_of(field(member, "argument"))
    axis = text_of(field(member, "field"))
    return axis == "x" and base in ("threadIdx", "gridDim", "blockIdx", "blockDim")


def _one_each(kernel: CudaKernel) -> Polynomial:
    x, _, _ = kernel.block
    block = Polynomial.atom(Atom("blockIdx.x")) * Polynomial.constant(x)
    return block + Polynomial.atom(Atom("threadIdx.x"))
