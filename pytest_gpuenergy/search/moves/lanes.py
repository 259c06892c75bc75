"""What several elements of a statement have in common, and of what each needs its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.source.accesses import Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.source.sharing import meets_others
from pytest_gpuenergy.search.source.tree import ancestors, inside, nodes, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_STOPS = ("return_statement", "goto_statement", "labeled_statement")
_LEAVES = ("break_statement", "continue_statement")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_KNOWN_QUALIFIERS = frozenset(["const", "constexpr"])


@dataclass(frozen=True)
class Lanes:
    """A statement that threads do for an element each, with no regard to each other.

    Attributes:
        kernel: it is in.
        variable: the element's number, which the statement does not change.
        body: the statement.
        loops: in it, that go on for all elements alike, by the id of their node.
        own: by their keys, the variables of which each element needs its own, with the names of
            arrays for them.
    """

    kernel: CudaKernel
    variable: Variable
    body: Node
    loops: dict[int, Loop]
    own: dict[int, str]

    @classmethod
    def of(
        cls, kernel: CudaKernel, accesses: Accesses, variable: Variable, body: Node
    ) -> Lanes | None:
        """None if elements are not apart, or something in the statement is not understood."""
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
            own |= {one.key: kernel.fresh(f"{one.name}_lanes") for one in found}
        if len(set(own.values())) < len(own):
            return None
        return cls(kernel, variable, body, loops, own)


def is_left(body: Node) -> bool:
    """Whether something in a loop's body ends the loop early, or skips the rest of a turn."""
    for node in nodes(body, *_LEAVES):
        around = [n for n in ancestors(node) if n.type in (*_LOOPS, "switch_statement")]
        if not any(n != body and inside(n, body) for n in around):
            return True
    return False


def is_constant(declaration: Node) -> bool:
    """Whether a declaration states a constant of the text."""
    return "constexpr" in _qualifiers(declaration)


def _qualifiers(declaration: Node) -> set[str]:
    kinds = ("type_qualifier", "storage_class_specifier")
    return {text_of(n) for n in declaration.children if n.type in kinds}


def _changes_others(kernel: CudaKernel, accesses: Accesses, body: Node) -> bool:
    """Whether a statement changes variables or arrays that are declared outside of it."""
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
    for one in found:
        if one.pointer or one.reference or one.shared or one.type in ("auto", ""):
            return False
        for node in nodes(one.value, "identifier") if one.dims and one.value is not None else ():
            variable = kernel.text.variable(node)
            if variable == element or (variable is not None and inside(variable.node, body)):
                return False
    return True


def _common_loops(kernel: CudaKernel, element: Variable, body: Node) -> dict[int, Loop]:
    known = {loop.node.id for loop in kernel.text.loops}
    found: dict[int, Loop] = {}
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
    """Whether an expression has the same value for all elements."""
    if any(nodes(end, "call_expression", "subscript_expression", "pointer_expression")):
        return False
    for node in nodes(end, "identifier"):
        variable = kernel.text.variable(node)
        if variable is None or variable in outer:
            continue
        if variable == element or inside(variable.node, body):
            return False
    return True
