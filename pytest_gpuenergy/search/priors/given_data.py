"""Integers that a CUDA kernel reads from tensors whose elements its spec gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytest_gpuenergy.search.data import inline_data
from pytest_gpuenergy.search.source.accesses import HINTED_LOADS
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_text import Variable
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import arguments_of, bare, called, field, operator_of

if TYPE_CHECKING:
    from tree_sitter import Node

_AXES = ("x", "y", "z")
_MOST_BLOCKS = 1024


class Values(Protocol):
    """Gives averages of polynomials."""

    def value(self, polynomial: Polynomial, given: dict[str, int] | None = None) -> float | None:
        """If atoms of some texts have the values ``given``."""
        ...


class GivenData:
    """Averages, over all blocks, of variables that are defined by elements of such tensors."""

    def __init__(self, kernel: CudaKernel, values: Values) -> None:
        self._kernel = kernel
        self._values = values
        self._variables = {one.key: one for one in kernel.text.variables}
        self._found: dict[str, float | None] = {}

    def value(self, atom: Atom) -> float | None:
        """The average of an atom; None if it is nothing of the kind."""
        if atom.operator or len(atom.variables) != 1:
            return None
        if atom.text not in self._found:
            self._found[atom.text] = None
            variable = self._variables.get(next(iter(atom.variables)))
            if variable is not None and self._is_set_once(variable) and variable.value is not None:
                self._found[atom.text] = self._of(variable.value)
        return self._found[atom.text]

    def _is_set_once(self, variable: Variable) -> bool:
        scope_is_loop = variable.scope.type == "for_statement"
        return not (variable.parameter or scope_is_loop or self._kernel.text.writes(variable))

    def _of(self, node: Node) -> float | None:
        """Of a sum that has such an element in it."""
        node = bare(node)
        if called(node) in HINTED_LOADS and len(arguments_of(node)) == 1:
            node = bare(arguments_of(node)[0])
            node = bare(field(node, "argument") or node) if operator_of(node) == "&" else node
        if node.type == "subscript_expression":
            return self._element(node)
        left, right = field(node, "left"), field(node, "right")
        if operator_of(node) not in ("+", "-") or left is None or right is None:
            return None
        parts = [self._part(left), self._part(right)]
        if parts[0] is None or parts[1] is None:
            return None
        return parts[0] + (parts[1] if operator_of(node) == "+" else -parts[1])

    def _part(self, node: Node) -> float | None:
        polynomial = self._kernel.polynomial(node)
        return self._of(node) if polynomial is None else self._values.value(polynomial)

    def _element(self, node: Node) -> float | None:
        base, indices = field(node, "argument"), field(node, "indices")
        variable = None if base is None else self._kernel.text.variable(base)
        tensor = None if variable is None else self._kernel.tensors.get(variable.key)
        if tensor is None or tensor.data is None or indices is None:
            return None
        index = self._kernel.polynomial(indices.named_children[0])
        shape = self._kernel.facts.shapes[tensor.name][0]
        if index is None or len(shape) != 1:
            return None
        data = inline_data(tensor, shape)
        places = [place for place in self._places(index) if 0 <= place < len(data)]
        return float(data[places].mean()) if places else None

    def _places(self, index: Polynomial) -> list[int]:
        """Where the blocks of one axis of the grid read, on an average of the other axes."""
        for axis, blocks in zip(_AXES, self._kernel.facts.grid, strict=True):
            name = f"blockIdx.{axis}"
            if index.depends_on(name):
                some = range(min(blocks[0], _MOST_BLOCKS))
                found = [self._values.value(index, {name: block}) for block in some]
                return [int(one) for one in found if one is not None]
        only = self._values.value(index)
        return [] if only is None else [int(only)]
