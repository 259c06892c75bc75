"""What a CUDA file declares at its top, or in namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpuenergy.search.source.tree import field, nodes, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

Kind = Literal["kernel", "function", "host", "prototype", "type", "constant", "variable", "using"]

_TYPES = ("struct_specifier", "class_specifier", "union_specifier", "enum_specifier")
_LISTS = ("declaration_list", "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif")
_NAMES = ("identifier", "type_identifier", "namespace_identifier")
_FILLED = re.compile(r"\b__(constant|device|managed|shared)__\b")


@dataclass(frozen=True)
class Item:
    """A declaration or definition.

    Attributes:
        node: the whole, with what makes it a template.
        inner: without that.
        kind: ``host`` is a function of the host, ``variable`` one that a program can change.
        names: what it declares.
        namespaces: it is in, the outermost first; empty names of those without one.
        conditional: whether only the compiler knows if it is there.
    """

    node: Node
    inner: Node
    kind: Kind
    names: frozenset[str]
    namespaces: tuple[str, ...] = ()
    conditional: bool = False


def items_of(
    root: Node, namespaces: tuple[str, ...] = (), *, conditional: bool = False
) -> Iterator[Item]:
    """All of them, in the order of the text."""
    for node in root.named_children:
        if node.type == "namespace_definition":
            name, body = text_of(field(node, "name")), field(node, "body")
            if body is not None:
                yield from items_of(body, (*namespaces, name), conditional=conditional)
        elif node.type == "linkage_specification":
            body = field(node, "body")
            inner = node if body is None or body.type != "declaration_list" else body
            yield from items_of(inner, namespaces, conditional=conditional)
        elif node.type in _LISTS:
            yield from items_of(node, namespaces, conditional=True)
        elif (found := _item(node, node, namespaces, conditional)) is not None:
            yield found


def _item(node: Node, inner: Node, namespaces: tuple[str, ...], conditional: bool) -> Item | None:
    if inner.type == "template_declaration" and inner.named_children:
        return _item(node, inner.named_children[-1], namespaces, conditional)
    found = _described(inner)
    if found is None:
        return None
    kind, names = found
    return Item(node, inner, kind, frozenset(names), namespaces, conditional)


def _described(node: Node) -> tuple[Kind, list[str]] | None:
    match node.type:
        case "function_definition":
            return _function(node)
        case "type_definition":
            declared = node.children_by_field_name("declarator")
            return "type", [*map(_name_in, declared), *_types_in(node)]
        case "alias_declaration" | "namespace_alias_definition":
            return "type", [text_of(field(node, "name"))]
        case "using_declaration":
            return "using", [text_of(n) for n in nodes(node, *_NAMES)][-1:]
        case "declaration":
            return _declaration(node)
    return ("type", _types_in(node)) if node.type in _TYPES else None


def _function(node: Node) -> tuple[Kind, list[str]] | None:
    body, name = field(node, "body"), function_name(node)
    if body is None or not name:
        return None
    head = _head(node, body)
    if "__global__" in head:
        return "kernel", [name]
    own = "__device__" in head or "constexpr" in head
    return "function" if own else "host", [name]


def _head(node: Node, until: Node) -> str:
    return text_of(node)[: until.start_byte - node.start_byte]


def function_name(node: Node) -> str:
    """The name of a function, without scopes and template arguments."""
    declarator = next(nodes(node, "function_declarator"), None)
    name = field(declarator, "declarator")
    return _name_in(name) if name is not None else ""


def _declaration(node: Node) -> tuple[Kind, list[str]] | None:
    declared = node.children_by_field_name("declarator")
    names = [*map(_name_in, declared), *_types_in(node)]
    if any(n.type == "function_declarator" for one in declared for n in _outline(one)):
        head = text_of(node)
        if "__global__" in head:
            return None
        return ("prototype", names) if "__device__" in head else None
    qualifiers = {text_of(n) for n in node.children if n.type == "type_qualifier"}
    if qualifiers & {"const", "constexpr"} and not _is_filled(node):
        return "constant", names
    if not declared:
        return "type", names
    return "variable", names


def _is_filled(node: Node) -> bool:
    """Whether a variable on the device has no value in the text."""
    has_value = any(n.type == "init_declarator" for n in node.named_children)
    return bool(_FILLED.search(text_of(node))) and not has_value


def _outline(declarator: Node) -> Iterator[Node]:
    node: Node | None = declarator
    while node is not None:
        yield node
        node = field(node, "declarator")


def _name_in(declarator: Node) -> str:
    *_, last = _outline(declarator)
    while (inner := field(last, "name")) is not None:
        last = inner
    if last.type == "reference_declarator":
        return next((text_of(n) for n in nodes(last, *_NAMES)), "")
    return text_of(last)


def _types_in(node: Node) -> list[str]:
    """Types that a declaration defines, and the values of enumerations."""
    found = [
        text_of(field(one, "name"))
        for one in walk(node)
        if one.type == "enumerator" or (one.type in _TYPES and field(one, "body") is not None)
    ]
    return [name for name in found if name]
