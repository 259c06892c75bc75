"""A CUDA text apart from its entry: macros, constants, other names of types, other functions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.preprocessed import uncertain_macros
from pytest_gpuenergy.search.source.tree import expression, field, nodes, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_STANDARD = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
}
"""Types that C's library has other names for."""


class CudaFile:
    """What a text says around its entry.

    Attributes:
        source: the text.
        root: of its tree.
    """

    def __init__(self, source: bytes, root: Node) -> None:
        self.source = source
        self.root = root

    @functools.cached_property
    def definitions(self) -> dict[str, str]:
        """Texts of macros without parameters."""
        found = nodes(self.root, "preproc_def")
        return {text_of(field(n, "name")): text_of(field(n, "value")).strip() for n in found}

    @functools.cached_property
    def constants(self) -> dict[str, str]:
        """Texts of macros and constants of the file that may be whole numbers."""
        known = {name: value for name, value in self.definitions.items() if value}
        for node in self.root.named_children:
            qualifiers = {text_of(n) for n in nodes(node, "type_qualifier")}
            if node.type == "declaration" and qualifiers & {"const", "constexpr"}:
                for one in nodes(node, "init_declarator"):
                    known[text_of(field(one, "declarator"))] = text_of(field(one, "value"))
        return known

    @functools.cached_property
    def types(self) -> dict[str, str]:
        """What other names of types stand for."""
        found = dict(_STANDARD)
        for node in self.root.named_children:
            if node.type in ("type_definition", "alias_declaration"):
                name = field(node, "declarator") or field(node, "name")
                kind = text_of(field(node, "type"))
                if name is not None and name.type == "type_identifier":
                    found[text_of(name)] = found.get(kind, kind)
        return found

    @functools.cached_property
    def functions(self) -> tuple[Node, ...]:
        """All that it defines."""
        return tuple(nodes(self.root, "function_definition"))

    @functools.cached_property
    def obscure_macros(self) -> frozenset[str]:
        """Macros of which it is not known that they are numbers."""
        found = {text_of(field(n, "name")) for n in nodes(self.root, "preproc_function_def")}
        found |= {name for name in self.definitions if not self._is_number(name, depth=8)}
        return uncertain_macros(self.root) | found

    def _is_number(self, name: str, depth: int) -> bool:
        """Whether a macro is an expression of numbers, constants and such macros, or empty."""
        value = self.constants.get(name, "")
        leaves = [n for n in walk(expression(value)) if n.is_named and n.child_count == 0]
        return all(
            leaf.type == "number_literal"
            or (depth > 0 and leaf.type == "identifier" and self._is_known(text_of(leaf), depth))
            for leaf in leaves
            if value
        )

    def _is_known(self, name: str, depth: int) -> bool:
        return name in self.constants and self._is_number(name, depth - 1)
