"""Neighbouring elements of a kernel in one thread, statement by statement.

Threads that neither wait for each other nor exchange values may run in any order, so one thread may
do a statement for several elements before it goes on. What their loops read is then read once, or
as a vector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import meets_others
from pytest_gpuenergy.search.moves.element_kernel import ElementKernel
from pytest_gpuenergy.search.moves.vector_parts import (
    HINTS,
    element_edits,
    loaded,
    outside_of,
    stored,
    vector_of,
)
from pytest_gpuenergy.search.source.cuda_text import BYTES, CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import Edit, block_of, edited, inner_lines
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    inside,
    is_always,
    nodes,
    start_of,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_STOPS = ("return_statement", "goto_statement", "labeled_statement")
_LEAVES = ("break_statement", "continue_statement")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_KNOWN_QUALIFIERS = frozenset(["const", "constexpr"])
_AXES = ("threadIdx.x", "blockIdx.x")


@dataclass(frozen=True)
class Lanes:
    """A statement that each thread does for an element of its own, independently.

    Attributes:
        kernel: the kernel with the statement.
        variable: the element's number, which the statement does not change.
        body: the statement.
        loops: the loops in the statement that run alike for all elements, by the id of their node.
        own: the names of arrays for the variables that each element needs for itself, by their key.
    """

    kernel: CudaKernel
    variable: Variable
    body: Node
    loops: dict[int, CountedLoop]
    own: dict[int, str]

    @classmethod
    def of(
        cls, kernel: CudaKernel, accesses: Accesses, variable: Variable, body: Node
    ) -> Lanes | None:
        """Return the lanes; None if elements are not apart, or the statement is not understood."""
        if any(nodes(body, *_STOPS)) or is_left(body) or meets_others(kernel, body):
            return None
        if any(access.use == "atomic" for access in accesses.within(body)):
            return None
        if _changes_others(kernel, accesses, body):
            return None
        loops = _common_loops(kernel, variable, body)
        levels = [body, *(loop.body for loop in loops.values())]
        declarations = [n for n in nodes(body, "declaration") if n.parent in levels]
        own: dict[int, str] = {}
        for declaration in declarations:
            if is_constant(declaration):
                continue
            found = [v for v in kernel.text.variables if inside(v.node, declaration)]
            if not _can_be_arrays(kernel, found, declaration, variable, body):
                return None
            own |= {
                own_variable.key: kernel.fresh(f"{own_variable.name}_lanes")
                for own_variable in found
            }
        if len(set(own.values())) < len(own):
            return None
        return cls(kernel, variable, body, loops, own)


def is_left(body: Node) -> bool:
    """Return whether something in a loop's body ends the loop early, or skips a part of it."""
    for node in nodes(body, *_LEAVES):
        around = [n for n in ancestors(node) if n.type in (*_LOOPS, "switch_statement")]
        if not any(n != body and inside(n, body) for n in around):
            return True
    return False


def is_constant(declaration: Node) -> bool:
    """Return whether a declaration states a constant of the text."""
    return "constexpr" in _qualifiers(declaration)


def _qualifiers(declaration: Node) -> set[str]:
    kinds = ("type_qualifier", "storage_class_specifier")
    return {text_of(n) for n in declaration.children if n.type in kinds}


def _changes_others(kernel: CudaKernel, accesses: Accesses, body: Node) -> bool:
    """Return whether a statement changes variables or arrays that are declared outside of it."""
    for variable in kernel.text.variables:
        if inside(variable.node, body):
            continue
        if kernel.text.changes(variable, body):
            return True
        own = accesses.of(variable) if variable.dims else ()
        if any(access.use != "load" and inside(access.node, body) for access in own):
            return True
    return False


def _can_be_arrays(
    kernel: CudaKernel, found: list[Variable], declaration: Node, element: Variable, body: Node
) -> bool:
    declared = declaration.children_by_field_name("declarator")
    if len(found) != len(declared) or not _qualifiers(declaration) <= _KNOWN_QUALIFIERS:
        return False
    for own_variable in found:
        if (
            own_variable.pointer
            or own_variable.reference
            or own_variable.shared
            or own_variable.type in ("auto", "")
        ):
            return False
        for node in (
            nodes(own_variable.value, "identifier")
            if own_variable.dims and own_variable.value is not None
            else ()
        ):
            variable = kernel.text.variable(node)
            if variable == element or (variable is not None and inside(variable.node, body)):
                return False
    return True


def _common_loops(kernel: CudaKernel, element: Variable, body: Node) -> dict[int, CountedLoop]:
    known = {loop.node.id for loop in kernel.text.loops}
    found: dict[int, CountedLoop] = {}
    for loop in kernel.text.loops:
        if not inside(loop.node, body) or is_left(loop.body):
            continue
        around = [n for n in ancestors(loop.node) if inside(n, body)]
        levels = [n for n in around if n.type != "compound_statement"]
        if not all(n.id in known and n.id in found for n in levels):
            continue
        outer = [found[n.id].variable for n in levels]
        ends = [end for end in (loop.start, loop.bound, loop.step) if end is not None]
        if all(_is_common(kernel, end, outer, element, body) for end in ends):
            found[loop.node.id] = loop
    return found


def _is_common(
    kernel: CudaKernel, end: Node, outer: list[Variable], element: Variable, body: Node
) -> bool:
    """Return whether an expression has the same value for all elements."""
    if any(nodes(end, "call_expression", "subscript_expression", "pointer_expression")):
        return False
    for node in nodes(end, "identifier"):
        variable = kernel.text.variable(node)
        if variable is None or variable in outer:
            continue
        if variable == element or inside(variable.node, body):
            return False
    return True


@dataclass(frozen=True)
class ElementRow:
    """The elements of one access.

    Attributes:
        access: the access to one element.
        name: the name of the array that holds the elements.
        base: the place of the access without the element's number.
        address: the address of the first element, at the start of the block with the access.
    """

    access: Access
    name: str
    base: Polynomial
    address: str

    @property
    def is_stored(self) -> bool:
        """Whether the elements are stored."""
        return self.access.use == "store"


class Rows:
    """The rows of ``width`` elements of a statement.

    Args:
        lanes: the statement.
        accesses: the accesses of the kernel.
        width: the number of elements in a row.
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
        self.all: list[ElementRow] = []

    def add(self, some: Iterable[Node], level: Node) -> list[ElementRow]:
        """Add and return the rows of accesses that statements of a block make in any case."""
        found: list[ElementRow] = []
        fixed = self._accesses.read_only()
        for statement in some:
            for access in self._accesses.within(statement):
                known = access.root in fixed or self._is_only_store(access, statement)
                base = self._base(access) if known else None
                address = self._address(access, level)
                if base is None or address is None or not is_always(access.node, statement):
                    continue
                taken = [row.name for row in self.all]
                name = self._kernel.fresh(f"{access.root.name}_row", besides=taken)
                found.append(ElementRow(access, name, base, address))
                self.all.append(found[-1])
        return found

    def checks(self) -> list[str]:
        """Return the conditions under which all rows are aligned."""
        found: dict[str, None] = {}
        for row in self.all:
            for product, factor in row.base.terms:
                if self._kernel.is_multiple(Polynomial.of({product: factor}), self._width):
                    continue
                known = tuple(atom for atom in product if self._kernel.values(atom) is not None)
                part = Polynomial.of({known: factor})
                found[f"({part.text()}) % {self._width} == 0"] = None
        return list(found)

    def _is_only_store(self, access: Access, statement: Node) -> bool:
        """Return whether ``tensor[...] = value;`` is all that the kernel does with a tensor."""
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
        """Return the place without the element's number; None if the elements form no row."""
        offset, kind = access.address.offset, access.root.type
        if offset is None or access.address.width or access.function not in HINTS:
            return None
        if vector_of(kind, self._width) is None:
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
        """Return the first element's address at the start of a block; None if unknown there."""
        loops = [around for around in self._lanes.loops.values() if inside(level, around.body)]
        names = {loop.variable.key: loop.variable.name for loop in loops}
        names[self._lanes.variable.key] = self._first
        text = outside_of(self._kernel, self._lanes.body, access.place, names)
        return text if text is None or access.function else f"&{text}"

    def declared(self, row: ElementRow) -> list[str]:
        """Return the array, filled if it is not stored."""
        kind = row.access.root.type
        array = f"alignas({BYTES[kind] * self._width}) {kind} {row.name}[{self._width}];"
        if row.is_stored:
            return [array]
        vector = vector_of(kind, self._width)
        pointer = f"reinterpret_cast<const {vector}*>({row.address})"
        value = loaded(pointer, row.access.function)
        return [array, f"*reinterpret_cast<{vector}*>({row.name}) = {value};"]

    def stored(self, row: ElementRow) -> str:
        """Return the statement that stores the array."""
        vector = vector_of(row.access.root.type, self._width)
        pointer = f"reinterpret_cast<{vector}*>({row.address})"
        return stored(pointer, f"*reinterpret_cast<{vector}*>({row.name})", row.access.function)


class SideBySide:
    """A statement that is done for ``width`` elements side by side.

    Attributes:
        first: the name of the first element's number.
        lines: the statements.
        checks: the conditions under which they can be done.
    """

    def __init__(self, lanes: Lanes, accesses: Accesses, width: int) -> None:
        name = lanes.variable.name
        self.first = lanes.kernel.fresh(f"{name}_first")
        self._lane = lanes.kernel.fresh(f"{name}_lane")
        self._lanes = lanes
        self._text = lanes.kernel.text
        self._width = width
        self._rows = Rows(lanes, accesses, width, self.first)
        self.lines = self._block(lanes.body)
        self.checks = self._rows.checks()

    @classmethod
    def of(
        cls, kernel: CudaKernel, accesses: Accesses, variable: Variable, body: Node, width: int
    ) -> SideBySide | None:
        """Return the statement; None if elements are not apart, or no vector is loaded.

        Args:
            kernel: the kernel with the statement.
            accesses: the accesses of the kernel.
            variable: the element's number, which the statement does not change.
            body: the statement.
            width: the number of elements.
        """
        lanes = Lanes.of(kernel, accesses, variable, body)
        found = None if lanes is None else cls(lanes, accesses, width)
        is_worth_it = found is not None and any(not row.is_stored for row in found._rows.all)
        return found if is_worth_it else None

    def _block(self, block: Node) -> list[str]:
        """Return the lines of a block that elements go through together."""
        every = statements(block)
        rows = self._rows.add(
            (earlier for earlier in every if earlier.id not in self._lanes.loops), block
        )
        lines = [line for row in rows for line in self._rows.declared(row)]
        waiting: list[Node] = []
        for statement in every:
            loop = self._lanes.loops.get(statement.id)
            if loop is None:
                waiting.append(statement)
                continue
            lines += self._for_each(waiting, rows)
            waiting = []
            source = self._text.source
            before = source[start_of(loop.node) : loop.node.start_byte].decode().rstrip()
            head = source[loop.node.start_byte : loop.body.start_byte].decode().rstrip()
            lines += [before] if before else []
            lines += block_of(head, self._block(loop.body))
        return [*lines, *self._for_each(waiting, rows)]

    def _for_each(self, some: list[Node], rows: list[ElementRow]) -> list[str]:
        """Return the lines of statements in a loop over the elements."""
        declared: list[str] = []
        inner: list[str] = []
        for statement in some:
            if statement.type == "preproc_call":
                continue
            if statement.type == "compound_statement":  # its names are its own
                inner += block_of("", inner_lines(self._rewritten(statement, rows)))
            elif statement.type != "declaration":
                inner += inner_lines(self._rewritten(statement, rows))
            elif is_constant(statement):
                declared.append(text_of(statement))
            else:
                for variable in self._text.variables:
                    if inside(variable.node, statement):
                        declared.append(self._array(variable))
                        inner += self._first_value(variable, rows)
        if not inner:
            return declared
        name, kind = self._lanes.variable.name, self._lanes.variable.type
        number = f"const {kind} {name} = {self.first} + {self._lane};"
        is_named = re.search(rf"\b{name}\b", "\n".join(inner))
        head = f"for (int {self._lane} = 0; {self._lane} < {self._width}; ++{self._lane})"
        whole = block_of(head, [*([number] if is_named else []), *inner])
        own = [r for r in rows if r.is_stored and any(inside(r.access.node, s) for s in some)]
        return [*declared, "#pragma unroll", *whole, *map(self._rows.stored, own)]

    def _array(self, variable: Variable) -> str:
        dims = "".join(f"[{text_of(size)}]" for size in variable.dims)
        declared = f"{variable.type} {self._lanes.own[variable.key]}[{self._width}]{dims}"
        if not variable.dims or variable.value is None:
            return f"{declared};"
        return f"{declared} = {{{', '.join([text_of(variable.value)] * self._width)}}};"

    def _first_value(self, variable: Variable, rows: list[ElementRow]) -> list[str]:
        if variable.value is None or variable.dims:
            return []
        value = self._rewritten(variable.value, rows)
        braced = variable.value.type == "initializer_list"
        name = self._lanes.own[variable.key]
        return [f"{name}[{self._lane}] = {variable.type if braced else ''}{value};"]

    def _rewritten(self, node: Node, rows: list[ElementRow]) -> str:
        """Return a part of the text for the element of the lane."""
        edits = [
            edit
            for row in rows
            if inside(row.access.node, node)
            for edit in element_edits(row.access, f"{row.name}[{self._lane}]")
        ]
        taken = list(edits)
        for key, name in self._lanes.own.items():
            for use in self._text.uses[key]:
                within = any(e.begin <= use.start_byte and use.end_byte <= e.end for e in taken)
                if inside(use, node) and not within:
                    edits.append(Edit(use.start_byte, use.end_byte, f"{name}[{self._lane}]"))
        return edited(self._text.source, edits, node.start_byte, node.end_byte)


def guarded_by(element: ElementKernel, lines: list[str]) -> list[str]:
    """Return lines in a condition that asks for the other conditions of a kernel."""
    parts = [f"({text_of(part)})" for part in element.others]
    return block_of(f"if ({' && '.join(parts)})", lines) if parts else lines


def tail_of(variable: Variable, body: Node, bound: str, first: str, width: int) -> list[str]:
    """Return a loop over elements that cannot be done together."""
    name = variable.name
    end = f"{name} < {first} + {width} && {name} < {bound}"
    head = f"for ({variable.type} {name} = {first}; {end}; ++{name})"
    return block_of(head, inner_lines(text_of(body)))
