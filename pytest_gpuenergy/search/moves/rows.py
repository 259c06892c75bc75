"""Elements beside each other in a tensor, loaded or stored together for a few lanes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.lanes import Lanes
from pytest_gpuenergy.search.moves.vector_parts import HINTS, loaded, outside_of, stored, vector_of
from pytest_gpuenergy.search.source.accesses import Access, Accesses
from pytest_gpuenergy.search.source.cuda_variables import BYTES
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import inside, is_always

if TYPE_CHECKING:
    from tree_sitter import Node

_AXES = ("threadIdx.x", "blockIdx.x")


@dataclass(frozen=True)
class Row:
    """The elements of one access.

    Attributes:
        access: that of one element.
        name: of the array that holds them.
        base: its place without the element's number.
        address: of the first element, at the beginning of the block with the access.
    """

    access: Access
    name: str
    base: Polynomial
    address: str

    @property
    def is_stored(self) -> bool:
        """Whether they are stored."""
        return self.access.use == "store"


class Rows:
    """All rows of ``width`` elements of a statement.

    Args:
        lanes: the statement.
        accesses: of the kernel.
        width: number of elements.
        first: the name of the first element's number.
    """

    def __init__(self, lanes: Lanes, accesses: Accesses, width: int, first: str) -> None:
        self._lanes = lanes
        self._kernel = lanes.kernel
        self._accesses = accesses
        self._width = width
        self._first = first
        variable = lanes.variable
        atom = Polynomial.atom(Atom(variable.name, frozenset([variable.key])))
        self._number = self._kernel.polynomial(variable.node) or atom
        self.all: list[Row] = []

    def add(self, some: Iterable[Node], level: Node) -> list[Row]:
        """Those of accesses that statements of a block make in any case."""
        found: list[Row] = []
        fixed = self._accesses.read_only()
        for statement in some:
            for access in self._accesses.within(statement):
                known = access.root in fixed or self._is_only_store(access, statement)
                base = self._base(access) if known else None
                address = self._address(access, level)
                if base is None or address is None or not is_always(access.node, statement):
                    continue
                found.append(Row(access, self._name_for(access), base, address))
                self.all.append(found[-1])
        return found

    def _name_for(self, access: Access) -> str:
        taken = {row.name for row in self.all}
        number, name = 2, self._kernel.fresh(f"{access.root.name}_row")
        while name in taken:
            name = self._kernel.fresh(f"{access.root.name}_row{number}")
            number += 1
        return name

    def checks(self) -> list[str]:
        """Conditions under which all rows are aligned."""
        found: dict[str, None] = {}
        for row in self.all:
            for product, factor in row.base.terms:
                if self._kernel.is_multiple(Polynomial.of({product: factor}), self._width):
                    continue
                known = tuple(one for one in product if self._kernel.values(one) is not None)
                part = Polynomial.of({known: factor})
                found[f"({part.text()}) % {self._width} == 0"] = None
        return list(found)

    def _is_only_store(self, access: Access, statement: Node) -> bool:
        """Whether ``tensor[...] = value;`` is all that the kernel does with a tensor."""
        root, assignment = access.root, access.node.parent
        return (
            access.use == "store"
            and root.key in self._kernel.tensors
            and root.key not in self._accesses.unclear
            and self._accesses.of(root) == (access,)
            and assignment is not None
            and (assignment == statement or assignment.parent == statement)
        )

    def _base(self, access: Access) -> Polynomial | None:
        """The place without the element's number; None if the elements form no row."""
        offset, kind = access.address.offset, access.root.type
        if offset is None or access.address.width or access.function not in HINTS:
            return None
        if kind not in BYTES or vector_of(kind, self._width) is None:
            return None
        base = offset - self._number
        if self._lanes.variable.key in base.variables or self._number.atoms & base.atoms:
            return None
        if any(base.depends_on(axis) and self._number.depends_on(axis) for axis in _AXES):
            return None
        if not self._kernel.is_measured_multiple(base, self._width):
            return None
        return base

    def _address(self, access: Access, level: Node) -> str | None:
        """Of the first element at the beginning of a block; None if it is not known there."""
        loops = [one for one in self._lanes.loops.values() if inside(level, one.body)]
        names = {loop.variable.key: loop.variable.name for loop in loops}
        names[self._lanes.variable.key] = self._first
        text = outside_of(self._kernel, self._lanes.body, access.place, names)
        return text if text is None or access.function else f"&{text}"

    def declared(self, row: Row) -> list[str]:
        """The array, filled if it is not stored."""
        kind = row.access.root.type
        array = f"alignas({BYTES[kind] * self._width}) {kind} {row.name}[{self._width}];"
        if row.is_stored:
            return [array]
        vector = vector_of(kind, self._width)
        pointer = f"reinterpret_cast<const {vector}*>({row.address})"
        value = loaded(pointer, row.access.function)
        return [array, f"*reinterpret_cast<{vector}*>({row.name}) = {value};"]

    def stored(self, row: Row) -> str:
        """The statement that stores the array."""
        vector = vector_of(row.access.root.type, self._width)
        pointer = f"reinterpret_cast<{vector}*>({row.address})"
        return stored(pointer, f"*reinterpret_cast<{vector}*>({row.name})", row.access.function)
