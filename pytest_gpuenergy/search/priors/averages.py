"""Averages of a CUDA kernel's integers over its threads and blocks, and the rounds of its loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuenergy.search.analysis.accesses import HINTED_LOADS
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_text import Variable
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    call_arguments,
    called,
    conjuncts,
    expression_operator,
    field,
    node_text,
)
from pytest_gpuenergy.search.spec.tensors import inline_data

if TYPE_CHECKING:
    from tree_sitter import Node

_AXES = ("x", "y", "z")
_MAX_DEPTH = 12
"""Depth of nested quotients and loop variables whose average is computed."""
_MAX_UNROLLED = 32
"""Rounds of a loop that the compiler is expected to unroll completely."""
_MAX_BLOCKS = 1024
"""Blocks over which given data is averaged."""
UNKNOWN_ROUNDS = 4.0
"""Rounds of a loop whose ends are unknown, for example because data decides them; a guess."""
LOOPS = ("for_statement", "while_statement", "do_statement")
"""Types of syntax nodes that are loops."""


class Rounds(NamedTuple):
    """The number of rounds of a loop each time that threads reach it.

    Attributes:
        average: the mean over all threads.
        most: the number of the thread with the most to do.
    """

    average: float
    most: float


_UNKNOWN = Rounds(UNKNOWN_ROUNDS, UNKNOWN_ROUNDS)


class Averages:
    """Values of polynomials, and rounds of loops, with the first set of sizes."""

    def __init__(self, kernel: CudaKernel) -> None:
        self._kernel = kernel
        self._rounds: dict[int, Rounds] = {}
        self._guessed: set[str] = set()
        self._loops: dict[int, Node] = {}
        self._from_data: dict[str, float | None] = {}
        self._variables = {variable.key: variable for variable in kernel.text.variables}
        for variable in kernel.text.variables:
            if variable.scope.type == "for_statement":
                self._loops[variable.key] = variable.scope

    def value(
        self,
        polynomial: Polynomial,
        given: Mapping[str, int] | None = None,
        unknown: float | None = None,
        depth: int = _MAX_DEPTH,
    ) -> float | None:
        """Return the average value of a polynomial; None if an atom has none.

        ``given`` are the values of some atoms, and ``unknown`` that of those that depend on data.
        """
        total = 0.0
        for product, factor in polynomial.terms:
            part = float(factor)
            for atom in product:
                atom_value = self._known_value(atom, given or {})
                if atom_value is None and depth:
                    atom_value = self._part(atom, given or {}, unknown, depth)
                atom_value = unknown if atom_value is None else atom_value
                if atom_value is None:
                    return None
                part *= atom_value
            total += part
        return total

    def _known_value(self, atom: Atom, given: Mapping[str, int]) -> float | None:
        """Return the value of a given atom, an index of the launch, or a constant."""
        if atom.text in given:
            return given[atom.text]
        axes = zip(_AXES, self._kernel.block, self._kernel.facts.grid, strict=True)
        for axis, threads, blocks in axes:
            if atom.text == f"threadIdx.{axis}":
                return (threads - 1) / 2
            if atom.text == f"blockIdx.{axis}":
                return (blocks[0] - 1) // 2
        known = self._kernel.values(atom)
        return None if known is None else known[0]

    def _part(
        self, atom: Atom, given: Mapping[str, int], unknown: float | None, depth: int
    ) -> float | None:
        """Return the average of a quotient, or the first value of a loop's variable."""
        if atom.left is not None and atom.right is not None:
            left = self.value(atom.left, given, unknown, depth - 1)
            right = self.value(atom.right, given, unknown, depth - 1)
            if left is None or not right:
                return None
            return left // right if atom.operator == "/" else left % right
        if (known := self._data_average(atom)) is not None:
            return known
        loops = [self._loops[key] for key in atom.variables if key in self._loops]
        variable = self._variable(loops[0]) if len(loops) == 1 else None
        if variable is None or variable.value is None:
            return None
        start = self._kernel.polynomial(variable.value)
        return None if start is None else self.value(start, given, unknown, depth - 1)

    def _variable(self, loop: Node) -> Variable | None:
        counters = [variable for variable in self._kernel.text.variables if variable.scope == loop]
        return counters[0] if len(counters) == 1 else None

    def times(self, node: Node) -> Rounds:
        """Return how often a thread reaches a part of the kernel.

        Code after ``else`` counts as never reached, because moves write the usual case first.
        """
        average = most = 1.0
        for outer in ancestors(node):
            if outer.type == "else_clause":
                return Rounds(0.0, 0.0)
            if outer.type in LOOPS:
                passed = self.rounds(outer)
                average *= passed.average
                most *= passed.most
        return Rounds(average, most)

    def reached(self, node: Node) -> float:
        """Return the share of the threads that reach a part at all, by the loops around it."""
        loops = (outer for outer in ancestors(node) if outer.type in LOOPS)
        return math.prod(min(1.0, self.rounds(loop).average) for loop in loops)

    @property
    def guessed(self) -> frozenset[str]:
        """The heads of those counted loops whose number of rounds is a guess."""
        return frozenset(self._guessed)

    def rounds(self, loop: Node) -> Rounds:
        """Return the number of rounds of a loop each time that threads reach it."""
        if loop.id not in self._rounds:
            self._rounds[loop.id] = _UNKNOWN  # while a loop is counted that depends on it
            counted = self._counted_rounds(loop) if loop.type == "for_statement" else None
            if counted is None:
                body, head = field(loop, "body"), node_text(loop)
                self._guessed.add(head if body is None else head.replace(node_text(body), ""))
            self._rounds[loop.id] = counted or _UNKNOWN
        return self._rounds[loop.id]

    def _counted_rounds(self, loop: Node) -> Rounds | None:
        variable, update = self._variable(loop), field(loop, "update")
        condition = field(loop, "condition")
        if variable is None or variable.value is None or update is None or condition is None:
            return None
        start = self._kernel.polynomial(variable.value)
        if start is None:
            return None
        if expression_operator(update) in ("/=", ">>="):
            first = self.value(start)
            halvings = math.floor(math.log2(first)) + 1.0 if first and first >= 1 else None
            return None if halvings is None else Rounds(halvings, halvings)
        step = None
        if update.type == "update_expression":
            step = 1.0 if expression_operator(update) == "++" else None
        elif expression_operator(update) == "+=" and (by := field(update, "right")) is not None:
            polynomial = self._kernel.polynomial(by)
            step = None if polynomial is None else self.value(polynomial)
        if not step:
            return None
        ends = (self._distance(part, start, step) for part in conjuncts(bare(condition)))
        known = [distance for distance in ends if distance is not None]
        if not known:
            return None
        return Rounds(*(max(0.0, min(ends_by_kind)) for ends_by_kind in zip(*known, strict=True)))

    def is_constant(self, loop: Node) -> bool:
        """Return whether the number of rounds of a loop is small and stated in the text."""
        variable, condition = self._variable(loop), field(loop, "condition")
        first = None if variable is None or variable.value is None else variable.value
        bound = None if condition is None else field(bare(condition), "right")
        if first is None or bound is None:
            return False
        ends = self._kernel.polynomial(first), self._kernel.polynomial(bound)
        known = all(end is not None and end.value is not None for end in ends)
        return known and self.rounds(loop).most <= _MAX_UNROLLED

    def _distance(self, condition: Node, start: Polynomial, step: float) -> Rounds | None:
        right = field(condition, "right")
        if expression_operator(condition) not in ("<", "<=") or right is None:
            return None
        bound = self._kernel.polynomial(right)
        length = None if bound is None else self.value(bound - start)
        if bound is None or length is None:
            return None
        closed = expression_operator(condition) == "<="
        among_threads, among_blocks = (
            (bound - start).depends_on(name) for name in ("threadIdx", "blockIdx")
        )
        atoms = (atom for product, _ in (bound - start).terms for atom in product)
        among_blocks = among_blocks or any(self._data_average(atom) is not None for atom in atoms)
        # Rounding up adds half a round on average if lengths differ.
        average = self._passes(length + closed, step, among_blocks or among_threads)
        if not among_threads:
            return Rounds(average, average)
        names = [f"threadIdx.{axis}" for axis in _AXES]
        corners = ([0, 0, 0], [size - 1 for size in self._kernel.block])
        at_corners = (
            self.value(bound - start, dict(zip(names, corner, strict=True))) for corner in corners
        )
        longest = max(length if at_corner is None else at_corner for at_corner in at_corners)
        return Rounds(average, self._passes(longest + closed, step, among_blocks))

    @staticmethod
    def _passes(length: float, step: float, differs: bool) -> float:
        return length / step + 0.5 if differs else math.ceil(length / step)

    def _data_average(self, atom: Atom) -> float | None:
        """Return the average over all blocks of a variable that is read from given data."""
        if atom.operator or len(atom.variables) != 1:
            return None
        if atom.text not in self._from_data:
            self._from_data[atom.text] = None
            variable = self._variables.get(next(iter(atom.variables)))
            if variable is not None and variable.value is not None:
                changes = variable.parameter or variable.scope.type == "for_statement"
                if not (changes or self._kernel.text.writes(variable)):
                    self._from_data[atom.text] = self._data_sum(variable.value)
        return self._from_data[atom.text]

    def _data_sum(self, node: Node) -> float | None:
        """Return the average of a sum that contains an element of given data."""
        node = bare(node)
        if called(node) in HINTED_LOADS and len(call_arguments(node)) == 1:
            node = bare(call_arguments(node)[0])
            node = (
                bare(field(node, "argument") or node) if expression_operator(node) == "&" else node
            )
        if node.type == "subscript_expression":
            return self._data_element(node)
        left, right = field(node, "left"), field(node, "right")
        if expression_operator(node) not in ("+", "-") or left is None or right is None:
            return None
        parts = [self._summand(left), self._summand(right)]
        if parts[0] is None or parts[1] is None:
            return None
        return parts[0] + (parts[1] if expression_operator(node) == "+" else -parts[1])

    def _summand(self, node: Node) -> float | None:
        polynomial = self._kernel.polynomial(node)
        return self._data_sum(node) if polynomial is None else self.value(polynomial)

    def _data_element(self, node: Node) -> float | None:
        """Return the average of the elements that the blocks along one axis of the grid read."""
        base, indices = field(node, "argument"), field(node, "indices")
        variable = None if base is None else self._kernel.text.variable(base)
        tensor = None if variable is None else self._kernel.tensors.get(variable.key)
        if tensor is None or tensor.data is None or indices is None:
            return None
        index = self._kernel.polynomial(indices.named_children[0])
        shape = self._kernel.facts.shapes[tensor.name][0]
        if index is None or len(shape) != 1:
            return None
        indices_read = [self.value(index)]
        for axis, blocks in zip(_AXES, self._kernel.facts.grid, strict=True):
            name = f"blockIdx.{axis}"
            if index.depends_on(name):
                numbers = range(min(blocks[0], _MAX_BLOCKS))
                indices_read = [self.value(index, {name: block}) for block in numbers]
                break
        data = inline_data(tensor, shape)
        places = [int(place) for place in indices_read if place is not None]
        places = [place for place in places if 0 <= place < len(data)]
        return float(data[places].mean()) if places else None
