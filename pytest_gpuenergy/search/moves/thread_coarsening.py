"""Neighbouring elements of a kernel in one thread, statement by statement.

Threads that neither wait for each other nor exchange values may run in any order, so one thread may
do a statement for several elements before it goes on. What their loops read is then read once, or
as a vector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import synchronizes_or_exchanges
from pytest_gpuenergy.search.moves.vector_parts import (
    VectorRow,
    VectorWork,
    element_edits,
    element_number,
    hoisted_text,
    remainder_loop,
    row_start,
    vector_type,
)
from pytest_gpuenergy.search.source.cuda_text import CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import Edit, braced_lines, edited_node_text, inner_lines
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    inside,
    is_always,
    loop_start,
    node_text,
    nodes,
    statements,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_STOPS = ("return_statement", "goto_statement", "labeled_statement")
_LEAVES = ("break_statement", "continue_statement")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_AXES = ("threadIdx.x", "blockIdx.x")


def work_side_by_side(
    kernel: CudaKernel,
    accesses: Accesses,
    variable: Variable,
    body: Node,
    bound: str,
    width: int,
) -> VectorWork | None:
    """Return the work on elements that a statement with loops does for ``width`` of them at once.

    ``variable`` is the element's number and ``bound`` the number of all elements. The result is
    None if elements are not apart, or no vector is loaded.
    """
    if any(nodes(body, *_STOPS)) or _is_left(body) or synchronizes_or_exchanges(kernel, body):
        return None
    if not any(nodes(body, "for_statement")):
        return None
    if any(access.use == "atomic" for access in accesses.within(body)):
        return None
    if any(_is_changed(kernel, accesses, other, body) for other in kernel.text.variables):
        return None
    loops = _common_loops(kernel, variable, body)
    own = _arrays_for_lanes(kernel, variable, body, loops)
    if own is None:
        return None
    work = _SideBySide(kernel, accesses, (variable, body), width, loops, own)
    lines = work.block(body)
    if not any(row.loaded for row in work.rows):
        return None
    tail = remainder_loop(variable, body, bound, work.first, width)
    return VectorWork(work.first, work.checks(), lines, tail)


def _arrays_for_lanes(
    kernel: CudaKernel, variable: Variable, body: Node, loops: Mapping[int, CountedLoop]
) -> dict[int, str] | None:
    """Return the names of arrays for each element's variables, by key; None if unclear."""
    own: dict[int, str] = {}
    levels = [body, *(loop.body for loop in loops.values())]
    for declaration in nodes(body, "declaration"):
        qualifiers = _qualifiers(declaration)
        if declaration.parent not in levels or "constexpr" in qualifiers:
            continue
        declared = [v for v in kernel.text.variables if inside(v.node, declaration)]
        if (
            len(declared) != len(declaration.children_by_field_name("declarator"))
            or not qualifiers <= {"const"}
            or not all(_can_be_array(kernel, v, variable, body) for v in declared)
        ):
            return None
        own |= {v.key: kernel.fresh(f"{v.name}_lanes") for v in declared}
    return own if len(set(own.values())) == len(own) else None


def _is_left(body: Node) -> bool:
    """Return whether something in a loop's body ends the loop early, or skips a part of it."""
    for node in nodes(body, *_LEAVES):
        around = [n for n in ancestors(node) if n.type in (*_LOOPS, "switch_statement")]
        if not any(n != body and inside(n, body) for n in around):
            return True
    return False


def _qualifiers(declaration: Node) -> set[str]:
    kinds = ("type_qualifier", "storage_class_specifier")
    return {node_text(n) for n in declaration.children if n.type in kinds}


def _is_changed(kernel: CudaKernel, accesses: Accesses, variable: Variable, body: Node) -> bool:
    """Return whether a statement changes a variable or array that is declared outside of it."""
    if inside(variable.node, body):
        return False
    own = accesses.of(variable) if variable.dims else ()
    return kernel.text.changes(variable, body) or any(
        access.use != "load" and inside(access.node, body) for access in own
    )


def _can_be_array(kernel: CudaKernel, own: Variable, element: Variable, body: Node) -> bool:
    """Return whether a variable can become an array with a place for each element."""
    if own.pointer or own.reference or own.shared or own.type in ("auto", ""):
        return False
    if not own.dims or own.value is None:
        return True
    named = (kernel.text.variable(node) for node in nodes(own.value, "identifier"))
    return not any(v == element or (v is not None and inside(v.node, body)) for v in named)


def _common_loops(kernel: CudaKernel, element: Variable, body: Node) -> dict[int, CountedLoop]:
    known = {loop.node.id for loop in kernel.text.loops}
    found: dict[int, CountedLoop] = {}
    for loop in kernel.text.loops:
        if not inside(loop.node, body) or _is_left(loop.body):
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


class _SideBySide:
    """The lines of a statement that is done for ``width`` elements side by side.

    ``own`` are the names of arrays for the variables that each element needs for itself, by key.

    Attributes:
        first: the name of the first element's number.
        rows: the rows of elements that the lines use.
    """

    def __init__(
        self,
        kernel: CudaKernel,
        accesses: Accesses,
        element: tuple[Variable, Node],
        width: int,
        loops: Mapping[int, CountedLoop],
        own: Mapping[int, str],
    ) -> None:
        self._variable, self._body = element
        self.first = kernel.fresh(f"{self._variable.name}_first")
        self.rows: list[VectorRow] = []
        self._lane = kernel.fresh(f"{self._variable.name}_lane")
        self._kernel = kernel
        self._text = kernel.text
        self._accesses = accesses
        self._width = width
        self._loops = loops
        self._own = own
        self._number = element_number(kernel, self._variable)

    def checks(self) -> list[str]:
        """Return the conditions under which all rows are aligned."""
        found: dict[str, None] = {}
        for row in self.rows:
            for product, factor in row.base.terms:
                if self._kernel.is_multiple(Polynomial.of({product: factor}), self._width):
                    continue
                known = tuple(atom for atom in product if self._kernel.values(atom) is not None)
                part = Polynomial.of({known: factor})
                found[f"({part.text()}) % {self._width} == 0"] = None
        return list(found)

    def block(self, block: Node) -> list[str]:
        """Return the lines of a block that elements go through together."""
        every = statements(block)
        rows = self._add_rows((s for s in every if s.id not in self._loops), block)
        lines = [line for row in rows for line in row.declared()]
        waiting: list[Node] = []
        for statement in every:
            loop = self._loops.get(statement.id)
            if loop is None:
                waiting.append(statement)
                continue
            lines += self._for_each(waiting, rows)
            waiting = []
            source = self._text.source
            before = source[loop_start(loop.node) : loop.node.start_byte].decode().rstrip()
            head = source[loop.node.start_byte : loop.body.start_byte].decode().rstrip()
            lines += [before] if before else []
            lines += braced_lines(head, self.block(loop.body))
        return [*lines, *self._for_each(waiting, rows)]

    def _add_rows(self, some: Iterable[Node], level: Node) -> list[VectorRow]:
        """Add and return the rows of accesses that statements of a block make in any case."""
        loops = [around for around in self._loops.values() if inside(level, around.body)]
        names = {loop.variable.key: loop.variable.name for loop in loops}
        names[self._variable.key] = self.first
        begin, fixed = len(self.rows), self._accesses.read_only()
        for statement in some:
            for access in self._accesses.within(statement):
                known = access.root in fixed or self._is_only_store(access, statement)
                base = self._base(access) if known else None
                place = hoisted_text(self._kernel, self._body, access.place, names)
                if base is None or place is None or not is_always(access.node, statement):
                    continue
                taken = [row.name for row in self.rows]
                name = self._kernel.fresh(f"{access.root.name}_row", besides=taken)
                self.rows.append(VectorRow((access,), name, place, self._width, base))
        return self.rows[begin:]

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
        base = row_start(access, self._variable, self._number)
        if base is None or vector_type(access.root.type, self._width) is None:
            return None
        if any(base.depends_on(axis) and self._number.depends_on(axis) for axis in _AXES):
            return None
        return base if self._kernel.is_measured_multiple(base, self._width) else None

    def _for_each(self, some: list[Node], rows: list[VectorRow]) -> list[str]:
        """Return the lines of statements in a loop over the elements."""
        declared: list[str] = []
        inner: list[str] = []
        for statement in some:
            if statement.type == "preproc_call":
                continue
            if statement.type == "compound_statement":  # its names are its own
                inner += braced_lines("", inner_lines(self._lane_text(statement, rows)))
            elif statement.type != "declaration":
                inner += inner_lines(self._lane_text(statement, rows))
            elif "constexpr" in _qualifiers(statement):
                declared.append(node_text(statement))
            else:
                for variable in self._text.variables:
                    if inside(variable.node, statement):
                        array, first_value = self._array(variable, rows)
                        declared.append(array)
                        inner += first_value
        if not inner:
            return declared
        name, kind = self._variable.name, self._variable.type
        number = f"const {kind} {name} = {self.first} + {self._lane};"
        is_named = re.search(rf"\b{name}\b", "\n".join(inner))
        head = f"for (int {self._lane} = 0; {self._lane} < {self._width}; ++{self._lane})"
        whole = braced_lines(head, [*([number] if is_named else []), *inner])
        own = [r for r in rows if r.stored and any(inside(r.accesses[0].node, s) for s in some)]
        return [*declared, "#pragma unroll", *whole, *(row.store() for row in own)]

    def _array(self, variable: Variable, rows: list[VectorRow]) -> tuple[str, list[str]]:
        """Return the array for a variable of each element, and the lines with its first value."""
        dims = "".join(f"[{node_text(size)}]" for size in variable.dims)
        name, value = self._own[variable.key], variable.value
        declared = f"{variable.type} {name}[{self._width}]{dims}"
        if value is None:
            return f"{declared};", []
        if variable.dims:
            return f"{declared} = {{{', '.join([node_text(value)] * self._width)}}};", []
        kind = variable.type if value.type == "initializer_list" else ""
        return f"{declared};", [f"{name}[{self._lane}] = {kind}{self._lane_text(value, rows)};"]

    def _lane_text(self, node: Node, rows: list[VectorRow]) -> str:
        """Return a part of the text for the element of the lane."""
        edits = [
            edit
            for row in rows
            if inside(row.accesses[0].node, node)
            for edit in element_edits(row.accesses[0], f"{row.name}[{self._lane}]")
        ]
        taken = list(edits)
        for key, name in self._own.items():
            for use in self._text.uses[key]:
                within = any(e.begin <= use.start_byte and use.end_byte <= e.end for e in taken)
                if inside(use, node) and not within:
                    edits.append(Edit.of(use, f"{name}[{self._lane}]"))
        return edited_node_text(self._text.source, node, edits)
