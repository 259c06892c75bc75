"""The parameters and variables of CUDA's entry, and where they are used and changed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_file import CudaFile
from pytest_gpuenergy.search.moves.cuda_tiles import tile_of, tiles_in
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    called_last,
    declarator_of,
    field,
    inside,
    name_of,
    nodes,
    operator_of,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

NARROW = frozenset(
    [
        *("char", "signed char", "unsigned char", "short", "unsigned short", "bool"),
        *("float", "double", "half", "__half"),
    ]
)
"""Types in which an index may not fit, or lose a part of it."""
BYTES = {
    "float": 4,
    "int": 4,
    "unsigned": 4,
    "unsigned int": 4,
    "double": 8,
    "half": 2,
    "__half": 2,
    "nv_bfloat16": 2,
    "__nv_bfloat16": 2,
    "short": 2,
    "unsigned short": 2,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
}
"""The size of an element, by its type; others are not known."""
_SCOPES = frozenset(["compound_statement", "for_statement", "function_definition", "if_statement"])


@dataclass(frozen=True)
class Variable:
    """A parameter or a local variable.

    Attributes:
        name, node: its identifier where it is declared.
        type: without qualifiers, and not by another name that the file has for it.
        scope: where it is known, from its declaration on.
        parameter: whether it is one.
        pointer, reference, shared, const: of its declaration; the latter of what it points to.
        dims: sizes of an array.
        value: its first one.
        declaration: of this variable alone; None if it is declared together with others.
    """

    name: str
    node: Node
    type: str
    scope: Node
    parameter: bool
    pointer: bool
    reference: bool
    shared: bool
    const: bool
    dims: tuple[Node | None, ...]
    value: Node | None
    declaration: Node | None

    @property
    def key(self) -> int:
        """Tells variables of the same name apart."""
        return self.node.start_byte


class Variables:
    """Those of a function.

    Attributes:
        file: the text around it.
        function: the function.
        body: of it.
    """

    def __init__(self, file: CudaFile, function: Node, body: Node) -> None:
        self.file = file
        self.function = function
        self.body = body

    @functools.cached_property
    def parameters(self) -> tuple[Variable, ...]:
        """Of the entry."""
        found = field(declarator_of(self.function), "parameters")
        children = found.named_children if found is not None else []
        declared = (n for n in children if n.type == "parameter_declaration")
        return tuple(v for n in declared for v in self._declared(n, self.function))

    @functools.cached_property
    def variables(self) -> tuple[Variable, ...]:
        """All of them, parameters first."""
        local = []
        for node in nodes(self.body, "declaration"):
            scope = next(n for n in ancestors(node) if n.type in _SCOPES)
            local += list(self._declared(node, scope))
        return (*self.parameters, *local)

    def _declared(self, node: Node, scope: Node) -> Iterator[Variable]:
        qualifiers = {text_of(n) for n in node.children if n.type == "type_qualifier"}
        declarators = node.children_by_field_name("declarator")
        kind = text_of(field(node, "type"))
        for declarator in declarators:
            value = field(declarator, "value") if declarator.type == "init_declarator" else None
            outline = list(_outline(declarator))
            identifier = outline[-1]
            if identifier.type != "identifier":
                continue
            dims = [field(n, "size") for n in outline if n.type == "array_declarator"]
            yield Variable(
                name=text_of(identifier),
                node=identifier,
                type=self.file.types.get(kind, kind),
                scope=scope,
                parameter=scope == self.function,
                pointer=any(n.type == "pointer_declarator" for n in outline),
                reference=any(n.type == "reference_declarator" for n in outline),
                shared="__shared__" in qualifiers,
                const=bool(qualifiers & {"const", "constexpr"}),
                dims=tuple(reversed(dims)),
                value=value,
                declaration=node if len(declarators) == 1 else None,
            )

    @functools.cached_property
    def uses(self) -> dict[int, tuple[Node, ...]]:
        """The identifiers that mean a variable after its declaration, by its key."""
        found: dict[int, list[Node]] = {variable.key: [] for variable in self.variables}
        for node in nodes(self.body, "identifier"):
            variable = self.variable(node)
            if variable is not None and node != variable.node:
                found[variable.key].append(node)
        return {key: tuple(some) for key, some in found.items()}

    @functools.cached_property
    def _by_name(self) -> dict[str, list[Variable]]:
        found: dict[str, list[Variable]] = {}
        for variable in self.variables:
            found.setdefault(variable.name, []).append(variable)
        return found

    def variable(self, node: Node) -> Variable | None:
        """What an identifier means; None if it is not a variable of the entry."""
        if node.type != "identifier":
            return None
        candidates = [
            one
            for one in self._by_name.get(text_of(node), [])
            if inside(node, one.scope) and one.key <= node.start_byte
        ]
        return max(candidates, key=lambda one: (one.scope.start_byte, one.key), default=None)

    def writes(self, variable: Variable) -> tuple[Node, ...]:
        """The identifiers by which a scalar or pointer is changed, or may be."""
        return self._writes[variable.key]

    @functools.cached_property
    def _writes(self) -> dict[int, tuple[Node, ...]]:
        return {key: tuple(filter(self._is_written, some)) for key, some in self.uses.items()}

    def _is_written(self, node: Node) -> bool:
        at, outer = node, node.parent
        while outer is not None and outer.type in ("parenthesized_expression", "field_expression"):
            at, outer = outer, outer.parent
        if outer is None:
            return True
        if outer.type == "assignment_expression":
            return field(outer, "left") == at
        if outer.type == "call_expression":  # of a method
            return field(outer, "function") == at and not self.tile_of(outer)
        if outer.type == "argument_list" and outer.parent is not None:
            return called_last(outer.parent) in self._takes_references
        if outer.type in ("init_declarator", "declaration"):
            return any(v.reference for v in self.variables if v.value == at)
        return outer.type == "update_expression" or (
            outer.type == "pointer_expression" and operator_of(outer) == "&"
        )

    def gets_a_name(self, node: Node) -> bool:
        """Whether what an expression stands for gets another name, by which it can be changed."""
        outer = node.parent
        while outer is not None and outer.type in ("parenthesized_expression", "field_expression"):
            outer = outer.parent
        if outer is None:
            return True
        if outer.type == "argument_list" and outer.parent is not None:
            return called_last(outer.parent) in self._takes_references
        references = (one for one in self.variables if one.reference and not one.const)
        return any(one.value is not None and inside(node, one.value) for one in references)

    @functools.cached_property
    def _takes_references(self) -> frozenset[str]:
        """Functions of the text that may change their arguments."""
        return frozenset(
            name_of(n)
            for n in nodes(self.file.root, "function_definition")
            for p in nodes(declarator_of(n) or n, "parameter_declaration")
            if any(nodes(p, "reference_declarator"))
            and not any(text_of(q) == "const" for q in p.children)
        )

    @functools.cached_property
    def _tiles(self) -> dict[str, int]:
        return tiles_in(self.body)

    def tile_of(self, call: Node) -> tuple[int, str] | None:
        """See `cuda_tiles.tile_of`."""
        return tile_of(call, self._tiles)

    def is_fixed(self, expression: Node, during: Node) -> bool:
        """Whether nothing in ``during`` changes the value of an expression of scalars."""
        if any(nodes(expression, "subscript_expression", "pointer_expression")):
            return False
        return self.is_fixed_address(expression, during)

    def is_fixed_address(self, expression: Node, during: Node) -> bool:
        """Whether nothing in ``during`` changes what an expression of pointers points to."""
        if any(nodes(expression, "assignment_expression", "update_expression")):
            return False
        for node in nodes(expression, "identifier"):
            variable = self.variable(node)
            if variable is None:
                continue
            if inside(variable.node, during) and variable.scope != during:
                return False
            if self.changes(variable, during):
                return False
        return True

    def changes(self, variable: Variable, during: Node) -> bool:
        """Whether a part of the text may change a variable."""
        writes = self.writes(variable)
        return any(inside(write, during) or self._is_exposed(write) for write in writes)

    def _is_exposed(self, write: Node) -> bool:
        """Whether a variable gets another name, by which it can be changed anywhere."""
        outer = next(n for n in ancestors(write) if n.type != "parenthesized_expression")
        if outer.type in ("init_declarator", "declaration"):
            return True
        is_address = outer.type == "pointer_expression"
        return is_address and outer.parent is not None and outer.parent.type != "argument_list"


def _outline(declarator: Node) -> Iterator[Node]:
    """The parts of a declarator, down to the name."""
    node: Node | None = declarator
    while node is not None:
        yield node
        inner = field(node, "declarator")
        if inner is None and node.type == "reference_declarator":
            inner = next(iter(nodes(node, "identifier")), None)
        node = inner
