"""Elements that a thread names one by one, such as ``x[2 * i]`` and ``x[2 * i + 1]``, at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import synchronizes_or_exchanges
from pytest_gpuenergy.search.moves.move import TextChange
from pytest_gpuenergy.search.moves.vector_parts import (
    VectorRow,
    element_edits,
    vector_offset,
    vector_type,
)
from pytest_gpuenergy.search.source.edits import Edit
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    field,
    indentation,
    is_always,
    node_text,
    nodes,
    statements,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_AROUND_ONE = ("if_statement", "else_clause", "for_statement", "while_statement", "do_statement")
_STOPS = (
    *("break_statement", "continue_statement", "return_statement", "goto_statement"),
    "labeled_statement",
)
_LOADS = ("subscript_expression", "pointer_expression")
_OPENED = "{\n"


@dataclass(frozen=True)
class _Neighbours:
    """Accesses to all of a few neighbouring elements, which a block of statements always makes.

    Attributes:
        row: the array for the elements, with the accesses in the order of the text.
        places: the number of the element that each access means.
        first: the statement with the first access.
        last: the statement with the last access.
    """

    row: VectorRow
    places: tuple[int, ...]
    first: Node
    last: Node


def by_neighbours(kernel: CudaKernel, width: int) -> Iterator[TextChange]:
    """Yield the kernel with all of its neighbours in vectors of ``width`` elements.

    What is loaded must be aligned for all sets of sizes, because it is loaded in any case.
    """
    found = list(_Finder(kernel, width).all())
    if not any(group.row.loaded for group in found):
        return
    edits = [edit for group in found for edit in _edits(kernel, group)]
    lone = {group.first.id: group.first for group in found if _is_lone(group.first)}
    for statement in lone.values():
        by = indentation(statement, kernel.text.source)
        edits.append(Edit.before(statement, f"{_OPENED}{by}  "))
        edits.append(Edit.after(statement, f"\n{by}}}"))
    names = ", ".join(dict.fromkeys(group.row.accesses[0].root.name for group in found))
    # An opening brace comes before what is inserted at its place; a closing one is the last anyway.
    edits.sort(key=lambda edit: (edit.begin, not edit.text.startswith(_OPENED)))
    yield TextChange.of(kernel, f"neighbours of {names} by {width}", edits)


class _Finder:
    def __init__(self, kernel: CudaKernel, width: int) -> None:
        self._kernel = kernel
        self._width = width
        self._accesses = Accesses(kernel, moved=True)
        self._taken: set[str] = set()

    def all(self) -> Iterator[_Neighbours]:
        """Yield the neighbours in the order of the parameters."""
        read_only = self._accesses.read_only()
        for parameter in self._kernel.text.parameters:
            own = self._accesses.of(parameter)
            if vector_type(parameter.type, self._width) is None:
                continue
            if parameter in read_only:
                yield from self._among(own)
            elif (
                parameter.key in self._kernel.tensors
                and parameter.key not in self._accesses.unclear
                and all(a.use == "store" and _is_whole_statement(a) for a in own)
            ):
                found = list(self._among(own))
                if sum(len(group.places) for group in found) == len(own):
                    yield from found

    def _among(self, own: tuple[Access, ...]) -> Iterator[_Neighbours]:
        groups: defaultdict[tuple[Polynomial, str, int], list[tuple[int, Access, Node]]]
        groups = defaultdict(list)
        for access in own:
            offset, statement = vector_offset(access), _lasting_statement(access)
            if offset is None or statement is None:
                continue
            constant = dict(offset.terms).get((), 0)
            base, block = offset - constant, statement.parent
            block = statement if _is_lone(statement) or block is None else block
            if self._kernel.is_multiple(base, self._width):
                groups[base, access.function, block.id].append((constant, access, statement))
        for (base, *_), some in groups.items():
            rows = sorted({constant // self._width for constant, _, _ in some})
            for row in rows:
                first = row * self._width
                members = [member for member in some if first <= member[0] < first + self._width]
                if len({constant for constant, _, _ in members}) == self._width:
                    found = self._together(members, base, first)
                    if found is not None:
                        self._taken.add(found.row.name)
                        yield found

    def _together(
        self, members: list[tuple[int, Access, Node]], base: Polynomial, least: int
    ) -> _Neighbours | None:
        """Return the neighbours; None if something between their statements matters."""
        first, last = members[0][2], members[-1][2]
        accesses = tuple(access for _, access, _ in members)
        places = tuple(constant - least for constant, _, _ in members)
        is_stored = accesses[0].use == "store"
        between = [first]
        if not _is_lone(first) and first.parent is not None:
            between = [
                statement
                for statement in statements(first.parent)
                if first.start_byte <= statement.start_byte <= last.start_byte
            ]
        if any(any(nodes(statement, *_STOPS)) for statement in between):
            return None
        if is_stored and any(
            synchronizes_or_exchanges(self._kernel, statement) for statement in between
        ):
            return None
        place = accesses[places.index(0)].place
        if not self._is_known_at(place, first, between):
            return None
        name = self._kernel.fresh(f"{accesses[0].root.name}_pair", besides=self._taken)
        row = VectorRow(accesses, name, node_text(place), self._width, base)
        return _Neighbours(row, places, first, last)

    def _is_known_at(self, place: Node, first: Node, between: list[Node]) -> bool:
        """Return whether an address means the same before the first statement as in its place."""
        text = self._kernel.text
        if any(nodes(place, "call_expression", "assignment_expression", "update_expression")):
            return False
        for node in nodes(place, "identifier"):
            variable = text.variable(node)
            if variable is None:
                continue
            if variable.key >= first.start_byte or any(text.changes(variable, s) for s in between):
                return False
            if variable.dims and not variable.parameter:
                return False
        inner = bare(place)
        if inner.type == "pointer_expression":
            inner = bare(field(inner, "argument") or inner)
        parts = (part for child in inner.named_children for part in nodes(child, *_LOADS))
        return not any(parts)


def _lasting_statement(access: Access) -> Node | None:
    """Return the statement that always makes an access; None if there is none."""
    node = access.node
    for around in ancestors(access.node):
        is_lone = node.type == "expression_statement" and around.type in _AROUND_ONE
        if around.type == "compound_statement" or is_lone:
            return node if is_always(access.node, node) else None
        node = around
    return None


def _is_lone(statement: Node) -> bool:
    """Return whether a statement is the whole body of a loop or a condition."""
    return statement.parent is not None and statement.parent.type in _AROUND_ONE


def _is_whole_statement(access: Access) -> bool:
    """Return whether ``tensor[...] = value;`` is a statement of its own."""
    around = access.node if access.function else access.node.parent
    return (
        around is not None
        and around.parent is not None
        and around.parent.type == "expression_statement"
    )


def _edits(kernel: CudaKernel, found: _Neighbours) -> Iterator[Edit]:
    row = found.row
    by = indentation(found.first, kernel.text.source)
    joint = f"\n{by}  " if _is_lone(found.first) else f"\n{by}"
    yield Edit.before(found.first, "".join(f"{line}{joint}" for line in row.declared()))
    for access, place in zip(row.accesses, found.places, strict=True):
        yield from element_edits(access, f"{row.name}[{place}]")
    if row.stored:
        yield Edit.after(found.last, f"{joint}{row.store()}")
