"""Averages of a kernel's integers over its threads and blocks, and the rounds of its loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.moves.cuda_text import Variable
from pytest_gpuenergy.search.moves.cuda_tree import ancestors, bare, field, operator_of, text_of
from pytest_gpuenergy.search.moves.polynomials import Atom, Polynomial

if TYPE_CHECKING:
    from tree_sitter import Node

_AXES = ("x", "y", "z")
_DEEPEST = 12
_MOST_UNROLLED = 32
UNKNOWN_ROUNDS = 4.0
"""Of a loop whose ends are not known, such as those that data decides: a guess."""


class Averages:
    """Values of polynomials, and rounds of loops, with the first set of sizes."""

    def __init__(self, kernel: CudaKernel) -> None:
        self._kernel = kernel
        self._rounds: dict[int, float] = {}
        self._guessed: set[str] = set()
        self._loops: dict[int, Node] = {}
        for variable in kernel.text.variables:
            if variable.scope.type == "for_statement":
                self._loops[variable.key] = variable.scope

    def value(
        self,
        polynomial: Polynomial,
        given: Mapping[str, int] | None = None,
        unknown: float | None = None,
        depth: int = _DEEPEST,
    ) -> float | None:
        """The value if atoms of some texts have those ``given``, and all others their average.

        ``unknown`` is that of what data decides.
        """
        total = 0.0
        for product, factor in polynomial.terms:
            part = float(factor)
            for atom in product:
                found = self._atom(atom, given or {}, unknown, depth)
                if found is None:
                    return None
                part *= found
            total += part
        return total

    def _atom(
        self, atom: Atom, given: Mapping[str, int], unknown: float | None, depth: int
    ) -> float | None:
        if atom.text in given:
            return given[atom.text]
        for axis, threads, blocks in zip(
            _AXES, self._kernel.block, self._kernel.facts.grid, strict=True
        ):
            if atom.text == f"threadIdx.{axis}":
                return (threads - 1) / 2
            if atom.text == f"blockIdx.{axis}":
                return (blocks[0] - 1) // 2
        if (known := self._kernel.values(atom)) is not None:
            return known[0]
        found = self._part(atom, given, unknown, depth) if depth else None
        return unknown if found is None else found

    def _part(
        self, atom: Atom, given: Mapping[str, int], unknown: float | None, depth: int
    ) -> float | None:
        """Of a quotient, or of the variable of a loop, for which its first value stands."""
        if atom.left is not None and atom.right is not None:
            left = self.value(atom.left, given, unknown, depth - 1)
            right = self.value(atom.right, given, unknown, depth - 1)
            if left is None or not right:
                return None
            return left // right if atom.operator == "/" else left % right
        loops = [self._loops[key] for key in atom.variables if key in self._loops]
        variable = self._variable(loops[0]) if len(loops) == 1 else None
        if variable is None or variable.value is None:
            return None
        start = self._kernel.polynomial(variable.value)
        return None if start is None else self.value(start, given, unknown, depth - 1)

    def _variable(self, loop: Node) -> Variable | None:
        found = [one for one in self._kernel.text.variables if one.scope == loop]
        return found[0] if len(found) == 1 else None

    def times(self, node: Node) -> float:
        """How often a thread comes to a part of the kernel; never to what follows an ``else``.

        Moves write the usual case first.
        """
        around = list(ancestors(node))
        if any(outer.type == "else_clause" for outer in around):
            return 0.0
        return math.prod(self.rounds(loop) for loop in around if loop.type in _LOOPS)

    @property
    def guessed(self) -> frozenset[str]:
        """The heads of those loops that were counted whose rounds are a guess."""
        return frozenset(self._guessed)

    def rounds(self, loop: Node) -> float:
        """How often a thread passes a loop, each time it comes there."""
        if loop.id not in self._rounds:
            self._rounds[loop.id] = UNKNOWN_ROUNDS  # while a loop is counted that depends on it
            found = self._counted(loop) if loop.type == "for_statement" else None
            if found is None:
                self._guessed.add(_head(loop))
            self._rounds[loop.id] = UNKNOWN_ROUNDS if found is None else max(found, 0.0)
        return self._rounds[loop.id]

    def _counted(self, loop: Node) -> float | None:
        variable, update = self._variable(loop), field(loop, "update")
        condition = field(loop, "condition")
        if variable is None or variable.value is None or update is None or condition is None:
            return None
        start = self._kernel.polynomial(variable.value)
        if start is None:
            return None
        if operator_of(update) in ("/=", ">>="):
            first = self.value(start)
            return None if not first or first < 1 else math.floor(math.log2(first)) + 1.0
        step = self._step(update)
        if not step:
            return None
        ends = (self._distance(part, start, step) for part in conjuncts(condition))
        known = [distance for distance in ends if distance is not None]
        return min(known, default=None)

    def is_constant(self, loop: Node) -> bool:
        """Whether the rounds of a loop are a small number that the text states."""
        variable, condition = self._variable(loop), field(loop, "condition")
        first = None if variable is None or variable.value is None else variable.value
        bound = None if condition is None else field(bare(condition), "right")
        if first is None or bound is None:
            return False
        ends = self._kernel.polynomial(first), self._kernel.polynomial(bound)
        known = all(one is not None and one.value is not None for one in ends)
        return known and self.rounds(loop) <= _MOST_UNROLLED

    def _step(self, update: Node) -> float | None:
        if update.type == "update_expression":
            return 1.0 if operator_of(update) == "++" else None
        by = field(update, "right")
        if operator_of(update) != "+=" or by is None:
            return None
        polynomial = self._kernel.polynomial(by)
        return None if polynomial is None else self.value(polynomial)

    def _distance(self, condition: Node, start: Polynomial, step: float) -> float | None:
        right = field(condition, "right")
        if operator_of(condition) not in ("<", "<=") or right is None:
            return None
        bound = self._kernel.polynomial(right)
        length = None if bound is None else self.value(bound - start)
        if bound is None or length is None:
            return None
        length += operator_of(condition) == "<="
        # Rounding up adds half a round on average if threads have different lengths.
        differs = any((bound - start).depends_on(name) for name in ("threadIdx", "blockIdx"))
        return length / step + 0.5 if differs else math.ceil(length / step)


_LOOPS = ("for_statement", "while_statement", "do_statement")


def _head(loop: Node) -> str:
    """A loop's text without its body."""
    body = field(loop, "body")
    text = text_of(loop)
    return text if body is None else text.replace(text_of(body), "")


def conjuncts(condition: Node) -> list[Node]:
    """The parts of ``a && b && c``."""
    inner = bare(condition)
    left, right = field(inner, "left"), field(inner, "right")
    if operator_of(inner) == "&&" and left is not None and right is not None:
        return [*conjuncts(left), *conjuncts(right)]
    return [inner]
