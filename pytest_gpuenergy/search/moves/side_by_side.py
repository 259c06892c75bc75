"""Neighbouring elements of a kernel in one thread, statement by statement.

Threads that neither wait for each other nor exchange values may run in any order, so one thread may
do a statement for several elements before it goes on. What their loops read is then read once, or
as a vector.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.element_kernel import ElementKernel
from pytest_gpuenergy.search.moves.lanes import Lanes, is_constant
from pytest_gpuenergy.search.moves.layout import block_of, inner_lines
from pytest_gpuenergy.search.moves.rows import Row, Rows
from pytest_gpuenergy.search.moves.vector_parts import element_edits
from pytest_gpuenergy.search.source.accesses import Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.tree import inside, start_of, statements, text_of

if TYPE_CHECKING:
    from tree_sitter import Node


class SideBySide:
    """A statement for ``width`` elements.

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
        """None if elements are not apart, or nothing is loaded as a vector.

        Args:
            kernel: around the statement.
            accesses: of the kernel.
            variable: the element's number, which the statement does not change.
            body: the statement.
            width: number of elements.
        """
        lanes = Lanes.of(kernel, accesses, variable, body)
        found = None if lanes is None else cls(lanes, accesses, width)
        is_worth_it = found is not None and any(not row.is_stored for row in found._rows.all)
        return found if is_worth_it else None

    def _block(self, block: Node) -> list[str]:
        """The lines of a block that elements go through together."""
        every = statements(block)
        rows = self._rows.add((one for one in every if one.id not in self._lanes.loops), block)
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

    def _for_each(self, some: list[Node], rows: list[Row]) -> list[str]:
        """Statements, for each element."""
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

    def _first_value(self, variable: Variable, rows: list[Row]) -> list[str]:
        if variable.value is None or variable.dims:
            return []
        value = self._rewritten(variable.value, rows)
        braced = variable.value.type == "initializer_list"
        name = self._lanes.own[variable.key]
        return [f"{name}[{self._lane}] = {variable.type if braced else ''}{value};"]

    def _rewritten(self, node: Node, rows: list[Row]) -> str:
        """A part of the text for the element of the lane."""
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
    """Lines that are done only if the other conditions of a kernel hold."""
    parts = [f"({text_of(one)})" for one in element.others]
    return block_of(f"if ({' && '.join(parts)})", lines) if parts else lines


def tail_of(variable: Variable, body: Node, bound: str, first: str, width: int) -> list[str]:
    """A loop over elements that cannot be done together."""
    name = variable.name
    end = f"{name} < {first} + {width} && {name} < {bound}"
    head = f"for ({variable.type} {name} = {first}; {end}; ++{name})"
    return block_of(head, inner_lines(text_of(body)))
