"""CUDA kernels in which each thread works on one element, if there is one for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.moves.cuda_text import Variable
from pytest_gpuenergy.search.moves.cuda_tree import (
    bare,
    field,
    inside,
    nodes,
    operator_of,
    statements,
    text_of,
)
from pytest_gpuenergy.search.moves.polynomials import Atom, Polynomial

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class ElementKernel:
    """``int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < bound) body``, and nothing after it.

    Attributes:
        variable: the element.
        declaration: its statement.
        index: its value.
        guard: the statement with the comparison.
        bound: the number of elements.
        body: what is done for an element.
    """

    variable: Variable
    declaration: Node
    index: Node
    guard: Node
    bound: Node
    body: Node

    @classmethod
    def of(cls, kernel: CudaKernel) -> ElementKernel | None:
        """None if a kernel is not like this."""
        every = statements(kernel.text.body)
        guard = every[-1] if every else None
        if guard is None or guard.type != "if_statement" or field(guard, "alternative"):
            return None
        condition, body = field(guard, "condition"), field(guard, "consequence")
        compared = bare(condition) if condition is not None else guard
        left, bound = field(compared, "left"), field(compared, "right")
        if operator_of(compared) != "<" or left is None or bound is None or body is None:
            return None
        variable = kernel.text.variable(left)
        if variable is None or variable.declaration is None or variable.value is None:
            return None
        found = cls(variable, variable.declaration, variable.value, guard, bound, body)
        return found if found._is_alone(kernel) else None

    def _is_alone(self, kernel: CudaKernel) -> bool:
        """Whether threads differ in their element only, and only the body knows it."""
        if self.variable.scope != kernel.text.body or kernel.text.writes(self.variable):
            return False
        if kernel.polynomial(self.index) != _one_each(kernel):
            return False
        uses = kernel.text.uses[self.variable.key]
        compared = field(self.guard, "condition")
        if not all(
            inside(use, self.body) or (compared is not None and inside(use, compared))
            for use in uses
        ):
            return False
        before = statements(kernel.text.body)[:-1]
        if any(one.type != "declaration" for one in before):
            return False
        members = nodes(kernel.text.body, "field_expression")
        return kernel.text.is_fixed(self.bound, self.body) and all(
            inside(node, self.index) or not _names_thread(node) for node in members
        )


def _names_thread(member: Node) -> bool:
    base = text_of(field(member, "argument"))
    axis = text_of(field(member, "field"))
    return base in ("threadIdx", "gridDim") or (base in ("blockIdx", "blockDim") and axis == "x")


def _one_each(kernel: CudaKernel) -> Polynomial:
    x, y, z = kernel.block
    if y * z != 1:
        return Polynomial()
    block = Polynomial.atom(Atom("blockIdx.x")) * Polynomial.constant(x)
    return block + Polynomial.atom(Atom("threadIdx.x"))
