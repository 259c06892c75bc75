"""Vectors for consecutive elements that a statement works on one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import (
    HINTED_LOADS,
    HINTED_STORES,
    Access,
    Accesses,
)
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import synchronizes_or_exchanges
from pytest_gpuenergy.search.source.cuda_text import BYTES, Variable
from pytest_gpuenergy.search.source.edits import Edit, braced_lines, edited_node_text, inner_lines
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import call_arguments, inside, is_always, node_text, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

_VECTORS = {
    "float": {8: "float2", 16: "float4"},
    "int": {8: "int2", 16: "int4"},
    "double": {16: "double2"},
}
_OTHERS = {4: "unsigned", 8: "uint2", 16: "uint4"}
_HINTS = frozenset(["", *HINTED_LOADS, *HINTED_STORES])
"""The intrinsics that vectors can load and store with; empty for a plain access."""
_STOPS = ("break_statement", "continue_statement", "return_statement")


def vector_type(type_name: str, width: int) -> str | None:
    """Return the vector type of ``width`` elements; None if there is none."""
    return _VECTORS.get(type_name, _OTHERS).get(BYTES.get(type_name, 0) * width)


@dataclass(frozen=True)
class VectorRow:
    """Consecutive elements of a tensor that are held in an array of their own.

    Attributes:
        accesses: the accesses that the array stands for.
        name: the name of the array.
        place: the expression for the first element, or for a pointer to it if a function accesses
            it.
        width: the number of elements.
        base: the place of the row, without the number of the first element.
    """

    accesses: tuple[Access, ...]
    name: str
    place: str
    width: int
    base: Polynomial

    @property
    def loaded(self) -> bool:
        """Whether the array is filled from the tensor."""
        return any(access.use != "store" for access in self.accesses)

    @property
    def stored(self) -> bool:
        """Whether the array is written to the tensor."""
        return any(access.use != "load" for access in self.accesses)

    @property
    def address(self) -> str:
        """The expression of the first element's address."""
        return self.place if self.accesses[0].function else f"&{self.place}"

    @property
    def bytes(self) -> int:
        """The size of the row."""
        return BYTES[self.accesses[0].root.type] * self.width

    def declared(self) -> list[str]:
        """Return the lines that declare the array, and fill it if it is loaded."""
        kind, function = self.accesses[0].root.type, self.accesses[0].function
        lines = [f"alignas({self.bytes}) {kind} {self.name}[{self.width}];"]
        if self.loaded:
            constant = "" if self.stored else "const "
            pointer = self._vector_pointer(self.address, constant)
            hinted = bool(function) and not self.stored
            value = f"{function}({pointer})" if hinted else f"*{pointer}"
            lines.append(f"*{self._vector_pointer(self.name)} = {value};")
        return lines

    def store(self) -> str:
        """Return the statement that writes the array to the tensor."""
        pointer, value = self._vector_pointer(self.address), f"*{self._vector_pointer(self.name)}"
        function = self.accesses[0].function
        return f"{function}({pointer}, {value});" if function else f"*{pointer} = {value};"

    def alignment(self) -> str:
        """Return the condition under which the row is aligned."""
        return f"reinterpret_cast<size_t>({self.address}) % {self.bytes} == 0"

    def _vector_pointer(self, pointer: str, constant: str = "") -> str:
        vector = vector_type(self.accesses[0].root.type, self.width)
        return f"reinterpret_cast<{constant}{vector}*>({pointer})"


@dataclass(frozen=True)
class VectorWork:
    """The statements of a thread that handles several consecutive elements at once.

    Attributes:
        first: the name of the first element's number.
        checks: the conditions under which vectors can be used.
        lines: the statements that use vectors.
        tail: the statements that do not.
    """

    first: str
    checks: list[str]
    lines: list[str]
    tail: list[str]

    def either(self, *checks: str) -> list[str]:
        """Return the statements with a choice between both, if there are conditions."""
        checks = (*checks, *self.checks)
        if not checks:
            return self.lines
        return [
            *braced_lines(f"if ({' && '.join(checks)})", self.lines),
            *braced_lines("else", self.tail),
        ]


def element_number(kernel: CudaKernel, variable: Variable) -> Polynomial:
    """Return the value of an element's number, in terms of the thread where it depends on it."""
    return kernel.polynomial(variable.node) or variable.number


def vector_offset(access: Access) -> Polynomial | None:
    """Return the offset of an access; None if it is unknown, or if no vector can replace it."""
    plain = not access.address.width and access.function in _HINTS
    return access.address.offset if plain else None


def row_start(access: Access, variable: Variable, number: Polynomial) -> Polynomial | None:
    """Return the place of an access without the element's ``number``; None if there is none."""
    offset = vector_offset(access)
    base = None if offset is None else offset - number
    if base is None or number.atoms & base.atoms or variable.key in base.variables:
        return None
    return base


def work_by_parts(
    kernel: CudaKernel,
    accesses: Accesses,
    variable: Variable,
    body: Node,
    outside: Node,
    bound: str,
    width: int,
) -> VectorWork | None:
    """Return the work on elements one after the other; None if no vector can be loaded.

    ``outside`` is the loop around the statement ``body``, or that itself if it is guarded.
    """
    if any(nodes(body, *_STOPS)) or synchronizes_or_exchanges(kernel, body):
        return None
    name, kind = variable.name, variable.type
    first, lane = kernel.fresh(f"{name}_first"), kernel.fresh(f"{name}_lane")
    rows = _rows(kernel, accesses, variable, (body, outside), first, width)
    if rows is None or not any(row.loaded for row in rows):
        return None
    edits = [
        edit
        for row in rows
        for access in row.accesses
        for edit in element_edits(access, f"{row.name}[{lane}]")
    ]
    is_named = any(
        inside(use, body)
        and not any(e.begin <= use.start_byte and use.end_byte <= e.end for e in edits)
        for use in kernel.text.uses[variable.key]
    )
    inner = [f"const {kind} {name} = {first} + {lane};"] if is_named else []
    inner += inner_lines(edited_node_text(kernel.text.source, body, edits))
    lines = [
        *(line for row in rows for line in row.declared()),
        "#pragma unroll",
        *braced_lines(f"for (int {lane} = 0; {lane} < {width}; ++{lane})", inner),
        *(row.store() for row in rows if row.stored),
    ]
    checks = [row.alignment() for row in rows if not kernel.is_multiple(row.base, width)]
    limit = width if checks else None
    return VectorWork(first, checks, lines, remainder_loop(variable, body, bound, first, limit))


def _rows(
    kernel: CudaKernel,
    accesses: Accesses,
    variable: Variable,
    around: tuple[Node, Node],
    first: str,
    width: int,
) -> list[VectorRow] | None:
    """Return the rows that vectors can move; None if one cannot be named outside the body."""
    body, outside = around
    rows: list[VectorRow] = []
    for parameter in kernel.text.parameters:
        own = [a for a in accesses.within(body) if a.root == parameter]
        if not own or parameter.key in accesses.unclear or parameter.key not in kernel.tensors:
            continue
        written = any(access.use != "load" for access in own)
        by_base: dict[Polynomial | None, list[Access]] = {}
        for access in own:
            base = _fixed_base(kernel, access, variable, body, outside)
            by_base.setdefault(base, []).append(access)
        if vector_type(parameter.type, width) is None or (written and len(by_base) > 1):
            continue  # a write could meet another place
        number = 0
        for base, some in by_base.items():
            always = [is_always(access.node, body) for access in some]
            if (
                base is None
                or not kernel.is_measured_multiple(base, width)
                or any(access.use == "atomic" for access in some)
                or not (all(always) if written else any(always))
                or len({access.function for access in some}) > 1
            ):
                continue
            place = hoisted_text(kernel, body, some[0].place, {variable.key: first})
            if place is None:
                return None
            name = kernel.fresh(f"{parameter.name}_part{number or ''}")
            rows.append(VectorRow(tuple(some), name, place, width, base))
            number += 1
    return rows


def _fixed_base(
    kernel: CudaKernel, access: Access, variable: Variable, body: Node, outside: Node
) -> Polynomial | None:
    """Return the place of element 0 of a row; None if there is none, or it changes."""
    number = element_number(kernel, variable)
    base = row_start(access, variable, number)
    if base is None or (number.depends_on("threadIdx") and base.depends_on("threadIdx")):
        return None
    for other in kernel.text.variables:
        if other.key in base.variables and (
            kernel.text.changes(other, outside) or inside(other.node, body)
        ):
            return None
    return base


def remainder_loop(
    variable: Variable, body: Node, bound: str, first: str, width: int | None
) -> list[str]:
    """Return a loop over elements one after the other, at most ``width`` of them if given."""
    name = variable.name
    limit = "" if width is None else f"{name} < {first} + {width} && "
    head = f"for ({variable.type} {name} = {first}; {limit}{name} < {bound}; ++{name})"
    return braced_lines(head, inner_lines(node_text(body)))


def hoisted_text(
    kernel: CudaKernel, body: Node, node: Node, names: Mapping[int, str], depth: int = 8
) -> str | None:
    """Return an expression of a statement as it can stand before it; None if it cannot.

    Variables that the statement defines are replaced by what they are defined as, which keeps the
    names of the block's sizes: other moves can change them. ``names`` are those of variables
    outside the statement, by key.
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
            text = hoisted_text(kernel, body, variable.value, names, depth - 1)
            if text is None:
                return None
            text = f"({text})"
        if text is not None:
            edits.append(Edit.of(inner, text))
    return edited_node_text(kernel.text.source, node, edits)


def element_edits(access: Access, element: str) -> list[Edit]:
    """Return the edits by which ``element`` takes the place of an access."""
    node = access.node
    if access.use != "store" or not access.function:
        return [Edit.of(node, element)]
    value = call_arguments(node)[1]
    return [
        Edit(node.start_byte, value.start_byte, f"{element} = "),
        Edit(value.end_byte, node.end_byte, ""),
    ]
