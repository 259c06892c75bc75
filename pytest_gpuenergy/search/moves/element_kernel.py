"""CUDA kernels in which each thread works on one element, if there is one for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.reached import asks_for_thread
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import NARROW, Variable
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    bare,
    conjuncts,
    field,
    inside,
    nodes,
    operator_of,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_CHANGES = ("assignment_expression", "update_expression")


@dataclass(frozen=True)
class ElementKernel:
    """``int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < bound) body``, and nothing after it.

    There may be other axes of the block and the grid, and other conditions beside the comparison or
    around it.

    Attributes:
        variable: the element.
        declaration: its statement.
        index: its value.
        guard: the statement with the comparison.
        bound: the number of elements.
        body: what is done for an element.
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
        """None if a kernel is not like this."""
        every = statements(kernel.text.body)
        parts, body = _guards(every[-1]) if every else ([], None)
        if body is None:
            return None
        found = [cls._compared(kernel, every[-1], part, parts, body) for part in parts]
        return next((one for one in found if one is not None), None)

    @classmethod
    def _compared(
        cls, kernel: CudaKernel, guard: Node, compared: Node, parts: list[Node], body: Node
    ) -> ElementKernel | None:
        """Taken apart by one of its conditions."""
        left, bound = field(compared, "left"), field(compared, "right")
        if operator_of(compared) != "<" or left is None or bound is None:
            return None
        variable = kernel.text.variable(left)
        if variable is None or variable.declaration is None or variable.value is None:
            return None
        others = tuple(part for part in parts if part != compared)
        later = (one for one in others if one.start_byte > compared.start_byte)
        if any(_reads_by_thread(kernel, one) for one in later):
            return None  # the comparison may be what keeps it from reading beyond an end
        declaration, index = variable.declaration, variable.value
        found = cls(variable, declaration, index, guard, bound, body, others)
        return found if found._is_alone(kernel, compared) else None

    def _is_alone(self, kernel: CudaKernel, compared: Node) -> bool:
        """Whether threads along x differ in their element only, and only the body knows it."""
        if self.variable.scope != kernel.text.body or kernel.text.writes(self.variable):
            return False
        if self.variable.type in NARROW:
            return False
        if kernel.polynomial(self.index) != _one_each(kernel):
            return False
        uses = kernel.text.uses[self.variable.key]
        if not all(inside(use, self.body) or inside(use, compared) for use in uses):
            return False
        if any(list(nodes(one, "call_expression", *_CHANGES)) for one in self.others):
            return False
        before = statements(kernel.text.body)[:-1]
        if any(one.type != "declaration" for one in before):
            return False
        if asks_for_thread(kernel.text, kernel.text.body):
            return False
        members = nodes(kernel.text.body, "field_expression")
        return kernel.text.is_fixed(self.bound, self.body) and all(
            inside(node, self.index) or not _names_thread(node) for node in members
        )


def _guards(statement: Node) -> tuple[list[Node], Node | None]:
    """All conditions of ``if (a && b) if (c) body``, and the body; None without any."""
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
    """Whether a condition reads memory at a place that is not the same for all threads."""
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
