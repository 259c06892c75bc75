"""Loads and stores of several elements at once, for a loop over consecutive elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import (
    HINTED_LOADS,
    HINTED_STORES,
    Access,
    Accesses,
)
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import meets_others
from pytest_gpuenergy.search.source.cuda_text import BYTES, Variable
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    arguments_of,
    inside,
    is_always,
    nodes,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_VECTORS = {
    "float": {8: "float2", 16: "float4"},
    "int": {8: "int2", 16: "int4"},
    "double": {16: "double2"},
}
_OTHERS = {4: "unsigned", 8: "uint2", 16: "uint4"}
HINTS = frozenset(["", *HINTED_LOADS, *HINTED_STORES])
"""How elements that can be moved by vectors are loaded and stored."""
_STOPS = ("break_statement", "continue_statement", "return_statement")


@dataclass(frozen=True)
class VectorPart:
    """Consecutive elements of a tensor that are held in an array of their own.

    Attributes:
        accesses: the accesses that the part stands for.
        name: the name of the array.
        loaded: whether the array is filled from the tensor.
        stored: whether the array is written to the tensor.
        checked: whether the part is aligned for some sizes only, so that the kernel has to check.
    """

    accesses: tuple[Access, ...]
    name: str
    loaded: bool
    stored: bool
    checked: bool

    @property
    def type(self) -> str:
        """The type of an element."""
        return self.accesses[0].root.type

    @property
    def constant(self) -> str:
        """The qualifier of what its pointer points to."""
        return "" if self.stored else "const "

    @property
    def function(self) -> str:
        """The function that loads or stores with a cache hint; empty without one."""
        return self.accesses[0].function


class Span:
    """A statement that works on one element after the other, in a loop or in a thread each.

    Attributes:
        kernel: the kernel.
        accesses: the accesses of the kernel.
        variable: the variable that numbers the elements.
        element: the value of that variable, in terms of the thread where it is computed from it.
        body: the statement.
        outside: the loop around the statement, or the statement itself if it is guarded.
    """

    def __init__(
        self,
        kernel: CudaKernel,
        accesses: Accesses,
        variable: Variable,
        body: Node,
        outside: Node,
    ) -> None:
        atom = Polynomial.atom(Atom(variable.name, frozenset([variable.key])))
        self.element = kernel.polynomial(variable.node) or atom
        self.kernel = kernel
        self.accesses = accesses
        self.variable = variable
        self.body = body
        self.outside = outside

    def can_be_split(self) -> bool:
        """Return whether any thread can do the work of an element, between that of others."""
        if any(nodes(self.body, *_STOPS)):
            return False
        return not meets_others(self.kernel, self.body)

    def parts(self, width: int) -> list[VectorPart]:
        """Return the parts that vectors of ``width`` elements can move."""
        found: list[VectorPart] = []
        for parameter in self.kernel.text.parameters:
            own = [a for a in self.accesses.within(self.body) if a.root == parameter]
            if not own or parameter.key in self.accesses.unclear:
                continue
            if parameter.key not in self.kernel.tensors or vector_of(parameter.type, width) is None:
                continue
            found += self._parts_of(own, width)
        return found

    def _parts_of(self, own: list[Access], width: int) -> Iterator[VectorPart]:
        """Yield a part for each place in a row; none if a write could meet another place."""
        written = any(access.use != "load" for access in own)
        by_place: dict[Polynomial | None, list[Access]] = {}
        for access in own:
            by_place.setdefault(self._base(access), []).append(access)
        if written and len(by_place) > 1:
            return
        number = 0
        for base, some in by_place.items():
            if base is None or not self.kernel.is_measured_multiple(base, width):
                continue
            if any(access.use == "atomic" for access in some):
                continue
            if not any(is_always(access.node, self.body) for access in some):
                continue
            if written and not all(is_always(access.node, self.body) for access in some):
                continue
            if len({access.function for access in some}) > 1:
                continue
            name = f"{some[0].root.name}_part{number or ''}"
            loaded = any(access.use != "store" for access in some)
            number += 1
            checked = not self.kernel.is_multiple(base, width)
            yield VectorPart(tuple(some), self.kernel.fresh(name), loaded, written, checked)

    def _base(self, access: Access) -> Polynomial | None:
        """Return the place of element 0 of a row; None if there is none, or it changes."""
        if access.address.offset is None or access.address.width:
            return None
        if access.function not in HINTS:
            return None
        base = access.address.offset - self.element
        if self.element.atoms & base.atoms or self.variable.key in base.variables:
            return None
        if self.element.depends_on("threadIdx") and base.depends_on("threadIdx"):
            return None
        for variable in self.kernel.text.variables:
            if variable.key not in base.variables:
                continue
            changed = self.kernel.text.changes(variable, self.outside)
            if changed or inside(variable.node, self.body):
                return None
        return base

    def place(self, part: VectorPart, first: str) -> str | None:
        """Return the address of the first element; None if it cannot be named outside the body."""
        access = part.accesses[0]
        place = outside_of(self.kernel, self.body, access.place, {self.variable.key: first})
        return place if place is None or access.function else f"&{place}"

    def element_text(self, parts: list[VectorPart], lane: str) -> tuple[str, bool]:
        """Return the body with the parts' elements, and whether it still names the element."""
        edits = [
            edit
            for part in parts
            for access in part.accesses
            for edit in element_edits(access, f"{part.name}[{lane}]")
        ]
        text = edited(self.kernel.text.source, edits, self.body.start_byte, self.body.end_byte)
        left = [
            node
            for node in self.kernel.text.uses[self.variable.key]
            if inside(node, self.body)
            and not any(e.begin <= node.start_byte and node.end_byte <= e.end for e in edits)
        ]
        return text, bool(left)


def outside_of(
    kernel: CudaKernel, body: Node, node: Node, names: Mapping[int, str], depth: int = 8
) -> str | None:
    """Return an expression of a statement as it can stand before it.

    Variables that the statement defines are replaced by what they are defined as, which keeps the
    names of the block's sizes: other moves can change them.

    Args:
        kernel: the kernel.
        body: the statement.
        node: the expression.
        names: the names of variables outside the statement, by their keys.
        depth: the limit on definitions that use each other.

    Returns:
        The text; None if it depends on something else that the statement does.
    """
    edits = []
    for inner in nodes(node, "identifier"):
        variable = kernel.text.variable(inner)
        if variable is None:
            continue
        text: str | None = names.get(variable.key)
        if text is None and inside(variable.node, body):
            if depth == 0 or variable.value is None or not kernel.is_definition(variable):
                return None
            text = outside_of(kernel, body, variable.value, names, depth - 1)
            if text is None:
                return None
            text = f"({text})"
        if text is not None:
            edits.append(Edit(inner.start_byte, inner.end_byte, text))
    return edited(kernel.text.source, edits, node.start_byte, node.end_byte)


def element_edits(access: Access, element: str) -> list[Edit]:
    """Return the edits by which ``element`` takes the place of an access."""
    node = access.node
    if access.use != "store" or not access.function:
        return [Edit(node.start_byte, node.end_byte, element)]
    value = arguments_of(node)[1]
    return [
        Edit(node.start_byte, value.start_byte, f"{element} = "),
        Edit(value.end_byte, node.end_byte, ""),
    ]


def loaded(pointer: str, function: str) -> str:
    """Return the expression that loads from a pointer, with a cache hint if one is given."""
    return f"{function}({pointer})" if function else f"*{pointer}"


def stored(pointer: str, value: str, function: str) -> str:
    """Return a statement that stores a value."""
    return f"{function}({pointer}, {value});" if function else f"*{pointer} = {value};"


def vector_of(type_name: str, width: int) -> str | None:
    """Return the vector type of ``width`` elements; None if there is none."""
    return _VECTORS.get(type_name, _OTHERS).get(BYTES.get(type_name, 0) * width)


def part_lines(span: Span, parts: list[VectorPart], first: str, width: int) -> list[str] | None:
    """Return lines that declare the parts and fill those that are loaded."""
    lines = []
    for part in parts:
        place, vector = span.place(part, first), vector_of(part.type, width)
        if place is None:
            return None
        size = BYTES[part.type] * width
        lines.append(f"alignas({size}) {part.type} {part.name}[{width}];")
        if part.loaded:
            pointer = f"reinterpret_cast<{part.constant}{vector}*>({place})"
            value = loaded(pointer, "" if part.stored else part.function)
            lines.append(f"*reinterpret_cast<{vector}*>({part.name}) = {value};")
    return lines


def store_lines(span: Span, parts: list[VectorPart], first: str, width: int) -> list[str]:
    """Return lines that write the parts that are stored."""
    lines = []
    for part in parts:
        if part.stored:
            vector = vector_of(part.type, width)
            pointer = f"reinterpret_cast<{vector}*>({span.place(part, first)})"
            value = f"*reinterpret_cast<{vector}*>({part.name})"
            lines.append(stored(pointer, value, part.function))
    return lines


def alignment_checks(span: Span, parts: list[VectorPart], first: str, width: int) -> list[str]:
    """Return the conditions under which vectors of the parts are aligned."""
    return [
        f"reinterpret_cast<size_t>({span.place(part, first)}) % {BYTES[part.type] * width} == 0"
        for part in parts
        if part.checked
    ]
