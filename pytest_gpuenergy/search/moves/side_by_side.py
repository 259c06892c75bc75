"""Neighbouring elements of a kernel in one thread, statement by statement.

Threads that neither wait for each other nor exchange values may run in any order, so one thread may
do a statement for several elements before it goes on. What their loops read is then read once, or
as a vector.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_access import Access, Accesses
from pytest_gpuenergy.search.moves.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.moves.cuda_text import Loop, Variable
from pytest_gpuenergy.search.moves.cuda_tree import (
    ancestors,
    inside,
    nodes,
    operator_of,
    start_of,
    statements,
    text_of,
)
from pytest_gpuenergy.search.moves.edits import Edit, edited
from pytest_gpuenergy.search.moves.element_kernel import ElementKernel
from pytest_gpuenergy.search.moves.layout import block_of, inner_lines
from pytest_gpuenergy.search.moves.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.moves.uniformity import meets_others
from pytest_gpuenergy.search.moves.vector_parts import (
    BYTES,
    HINTS,
    element_edits,
    loaded,
    stored,
    vector_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_STOPS = ("return_statement", "goto_statement", "labeled_statement")
_LEAVES = ("break_statement", "continue_statement")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_CONDITIONAL = ("if_statement", "conditional_expression", "switch_statement", *_LOOPS)
_AXES = ("threadIdx.x", "blockIdx.x")
_UNKNOWN = frozenset(["auto", ""])


@dataclass(frozen=True)
class Vector:
    """Elements beside each other that are loaded or stored together.

    Attributes:
        access: that of one element.
        name: of the array that holds them.
        base: its place without the element's number.
    """

    access: Access
    name: str
    base: Polynomial

    @property
    def stored(self) -> bool:
        """Whether they are stored."""
        return self.access.use == "store"


class SideBySide:
    """A statement for ``width`` elements.

    Args:
        kernel, accesses: around it.
        variable: the element's number, which the statement does not change.
        body: the statement.
        width: number of elements.

    Attributes:
        first: the name of the first element's number.
    """

    def __init__(
        self, kernel: CudaKernel, accesses: Accesses, variable: Variable, body: Node, width: int
    ) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._accesses = accesses
        self._variable = variable
        self._body = body
        self._width = width
        self._number = kernel.polynomial(variable.node) or Polynomial.atom(
            Atom(variable.name, frozenset([variable.key]))
        )
        self.first = kernel.fresh(f"{variable.name}_first")
        self._lane = kernel.fresh(f"{variable.name}_lane")
        self._vectors: list[Vector] = []

    def lines(self) -> list[str] | None:
        """The statements; None if the body does not allow it, or loads nothing as a vector."""
        body = self._body
        if any(nodes(body, *_STOPS)) or _is_left(body) or meets_others(self._kernel, body):
            return None
        if any(access.use == "atomic" for access in self._accesses.within(body)):
            return None
        if self._own is None:
            return None
        lines = self._block(body, body)
        return lines if any(not vector.stored for vector in self._vectors) else None

    def checks(self) -> list[str]:
        """Conditions under which all vectors are aligned."""
        found: dict[str, None] = {}
        for vector in self._vectors:
            for product, factor in vector.base.terms:
                known = [atom for atom in product if self._kernel.values(atom) is not None]
                term = Polynomial.of({product: factor})
                if not self._kernel.is_multiple(term, self._width):
                    part = Polynomial.of({tuple(known): factor})
                    found[f"({part.text()}) % {self._width} == 0"] = None
        return list(found)

    @cached_property
    def _uniform_loops(self) -> dict[int, Loop]:
        """Loops that go on for all elements alike, by their node."""
        loops = {loop.node.id: loop for loop in self._text.loops}
        found: dict[int, Loop] = {}
        for loop in self._text.loops:
            around = [n for n in ancestors(loop.node) if inside(n, self._body)]
            levels = [n for n in around if n.type not in ("compound_statement", "else_clause")]
            ends = [end for end in (loop.start, loop.bound, loop.step) if end is not None]
            if inside(loop.node, self._body) and all(
                n.id in loops and n.id in found for n in levels
            ):
                outer = [found[n.id].variable for n in levels]
                if all(self._is_uniform(end, outer) for end in ends) and not _is_left(loop.body):
                    found[loop.node.id] = loop
        return found

    def _is_uniform(self, end: Node, outer: list[Variable]) -> bool:
        if any(nodes(end, "call_expression", "subscript_expression", "pointer_expression")):
            return False
        for node in nodes(end, "identifier"):
            variable = self._text.variable(node)
            if variable is None or variable in outer:
                continue
            if variable == self._variable or inside(variable.node, self._body):
                return False
            written = self._text.writes(variable)
            if any(inside(write, self._body) for write in written):
                return False
        return True

    @cached_property
    def _own(self) -> dict[int, str] | None:
        """Variables of which each element needs its own, with the names of their arrays.

        None if there are some of which there cannot be an array.
        """
        found: dict[int, str] = {}
        body = self._body
        loops = {loop.variable.key for loop in self._uniform_loops.values()}
        for variable in self._text.variables:
            written = any(inside(write, body) for write in self._text.writes(variable))
            if not inside(variable.node, body):
                stored = any(inside(one.node, body) for one in self._stores_to(variable))
                if written or stored:
                    return None  # what the thread has of its own
                continue
            if variable.key in loops or not self._is_shared_level(variable):
                continue
            if variable.pointer or variable.reference or variable.shared:
                return None
            if variable.type in _UNKNOWN:
                return None
            found[variable.key] = self._kernel.fresh(f"{variable.name}_lanes")
        return None if len(set(found.values())) < len(found) else found

    def _stores_to(self, variable: Variable) -> Iterator[Access]:
        if variable.dims:
            yield from (a for a in self._accesses.of(variable) if a.use != "load")

    def _is_shared_level(self, variable: Variable) -> bool:
        """Whether a declaration is a statement that is done for one element after the other."""
        return self._level_of(variable.node) is not None

    def _level_of(self, node: Node) -> Node | None:
        """The block whose statement a declaration is, if elements go through it together."""
        declaration = next((n for n in ancestors(node) if n.type == "declaration"), None)
        block = declaration.parent if declaration is not None else None
        if block == self._body:
            return block
        bodies = [loop.body for loop in self._uniform_loops.values()]
        return block if block is not None and block in bodies else None

    def _block(self, block: Node, around: Node) -> list[str]:
        """The lines of a block that elements go through together."""
        every = statements(block)
        plain = [one for one in every if one.id not in self._uniform_loops]
        vectors = self._vectors_of(plain, around)
        self._vectors += vectors
        lines = [line for vector in vectors for line in self._load(vector)]
        waiting: list[Node] = []
        for statement in every:
            loop = self._uniform_loops.get(statement.id)
            if loop is None:
                waiting.append(statement)
                continue
            lines += self._for_each(waiting, vectors)
            waiting = []
            source = self._text.source
            before = source[start_of(loop.node) : loop.node.start_byte].decode().rstrip()
            head = source[loop.node.start_byte : loop.body.start_byte].decode().rstrip()
            lines += [before] if before else []
            lines += block_of(head, self._block(loop.body, loop.body))
        return [*lines, *self._for_each(waiting, vectors)]

    def _for_each(self, some: list[Node], vectors: list[Vector]) -> list[str]:
        """Statements, for each element."""
        declared: list[str] = []
        inner: list[str] = []
        for statement in some:
            if statement.type == "preproc_call":
                continue
            if statement.type != "declaration":
                inner += inner_lines(self._rewritten(statement, vectors))
            elif self._is_common(statement):
                declared.append(text_of(statement))
            else:
                for variable in self._text.variables:
                    if inside(variable.node, statement):
                        declared.append(self._array(variable))
                        inner += self._first_value(variable, vectors)
        if not inner:
            return declared
        name, kind = self._variable.name, self._variable.type
        number = f"const {kind} {name} = {self.first} + {self._lane};"
        names = re.search(rf"\b{name}\b", "\n".join(inner))
        head = f"for (int {self._lane} = 0; {self._lane} < {self._width}; ++{self._lane})"
        whole = block_of(head, [*([number] if names else []), *inner])
        own = [v for v in vectors if v.stored and any(inside(v.access.node, s) for s in some)]
        return [*declared, "#pragma unroll", *whole, *map(self._store, own)]

    def _is_common(self, declaration: Node) -> bool:
        """Whether a declaration states a constant of the text."""
        qualifiers = {text_of(n) for n in declaration.children if n.type == "type_qualifier"}
        return "constexpr" in qualifiers

    def _array(self, variable: Variable) -> str:
        dims = "".join(f"[{text_of(size)}]" for size in variable.dims)
        name = (self._own or {})[variable.key]
        value = variable.value
        if variable.dims and value is not None:
            each = ", ".join([text_of(value)] * self._width)
            return f"{variable.type} {name}[{self._width}]{dims} = {{{each}}};"
        return f"{variable.type} {name}[{self._width}]{dims};"

    def _first_value(self, variable: Variable, vectors: list[Vector]) -> list[str]:
        if variable.value is None or variable.dims:
            return []
        name = (self._own or {})[variable.key]
        value = self._rewritten(variable.value, vectors)
        braced = variable.value.type == "initializer_list"
        return [f"{name}[{self._lane}] = {variable.type if braced else ''}{value};"]

    def _rewritten(self, node: Node, vectors: list[Vector]) -> str:
        """A part of the text for the element of the lane."""
        edits = [
            edit
            for v in vectors
            if inside(v.access.node, node)
            for edit in element_edits(v.access, f"{v.name}[{self._lane}]")
        ]
        taken = list(edits)
        for key, name in (self._own or {}).items():
            for use in self._text.uses[key]:
                within = any(e.begin <= use.start_byte and use.end_byte <= e.end for e in taken)
                if inside(use, node) and not within:
                    edits.append(Edit(use.start_byte, use.end_byte, f"{name}[{self._lane}]"))
        return edited(self._text.source, edits, node.start_byte, node.end_byte)

    def _vectors_of(self, some: list[Node], level: Node) -> list[Vector]:
        """Loads and stores of all elements in one row, made in any case by these statements."""
        found: list[Vector] = []
        names = {vector.name for vector in self._vectors}
        fixed = self._accesses.read_only()
        for statement in some:
            for access in self._accesses.within(statement):
                known = access.root in fixed or self._is_only_store(access, statement)
                base = self._base(access, level) if known else None
                if base is None or not _is_always(access, statement):
                    continue
                name, number = f"{access.root.name}_row", 1
                while (one := self._kernel.fresh(name)) in names:
                    number += 1
                    name = f"{access.root.name}_row{number}"
                names.add(one)
                found.append(Vector(access, one, base))
        return found

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

    def _base(self, access: Access, level: Node) -> Polynomial | None:
        offset, kind = access.address.offset, access.root.type
        if offset is None or access.address.width or access.function not in HINTS:
            return None
        if kind not in BYTES or vector_of(kind, self._width) is None:
            return None
        base = offset - self._number
        if self._variable.key in base.variables or self._number.atoms & base.atoms:
            return None
        if any(base.depends_on(axis) and self._number.depends_on(axis) for axis in _AXES):
            return None
        if not self._kernel.is_measured_multiple(base, self._width):
            return None
        visible = all(self._is_known_at(node, level) for node in nodes(access.place, "identifier"))
        return base if visible else None

    def _is_known_at(self, node: Node, level: Node) -> bool:
        """Whether an identifier means the same at the beginning of a block."""
        variable = self._text.variable(node)
        if variable is None or variable == self._variable:
            return True
        written = any(inside(write, level) for write in self._text.writes(variable))
        own = variable.key in (self._own or {})
        return not own and not written and not inside(variable.node, level)

    def _load(self, vector: Vector) -> list[str]:
        """The array, filled if it is not stored."""
        root, kind = vector.access.root, self._kind(vector)
        size = BYTES[root.type] * self._width
        array = f"alignas({size}) {root.type} {vector.name}[{self._width}];"
        if vector.stored:
            return [array]
        pointer = f"reinterpret_cast<const {kind}*>({self._address(vector)})"
        value = loaded(pointer, vector.access.function)
        return [array, f"*reinterpret_cast<{kind}*>({vector.name}) = {value};"]

    def _store(self, vector: Vector) -> str:
        kind = self._kind(vector)
        pointer = f"reinterpret_cast<{kind}*>({self._address(vector)})"
        value = f"*reinterpret_cast<{kind}*>({vector.name})"
        return stored(pointer, value, vector.access.function)

    def _kind(self, vector: Vector) -> str:
        return vector_of(vector.access.root.type, self._width) or ""

    def _address(self, vector: Vector) -> str:
        place = vector.access.place
        uses = self._text.uses[self._variable.key]
        edits = [Edit(n.start_byte, n.end_byte, self.first) for n in uses if inside(n, place)]
        text = edited(self._text.source, edits, place.start_byte, place.end_byte)
        return text if vector.access.function else f"&{text}"


def _is_left(body: Node) -> bool:
    """Whether something in a loop's body ends the loop early, or skips the rest of a turn."""
    for node in nodes(body, *_LEAVES):
        around = [n for n in ancestors(node) if n.type in (*_LOOPS, "switch_statement")]
        if not any(n != body and inside(n, body) for n in around):
            return True
    return False


def _is_always(access: Access, statement: Node) -> bool:
    for node in ancestors(access.node):
        if node.type in _CONDITIONAL or operator_of(node) in ("&&", "||"):
            return False
        if node == statement:
            return True
    return access.node == statement


def guarded_by(element: ElementKernel, lines: list[str]) -> list[str]:
    """Lines that are done only if the other conditions of a kernel hold."""
    parts = [f"({text_of(one)})" for one in element.others]
    return block_of(f"if ({' && '.join(parts)})", lines) if parts else lines


def tail_of(variable: Variable, body: Node, bound: str, first: str, width: int) -> list[str]:
    """A loop over elements that cannot be done together."""
    name = variable.name
    end = f"{name} < {first} + {width} && {name} < {bound}"
    head = f"for ({variable.type} {name} = {first}; {end}; ++{name})"
    return block_of(head, inner_lines(text_of(body)))
