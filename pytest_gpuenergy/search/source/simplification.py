"""Simplify the text of an extracted kernel, so that it computes exactly the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.edits import Edit, edited, outermost
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    bare,
    call_in,
    called,
    field,
    name_of,
    nodes,
    operator_of,
    parse,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_TURNS = 50
_BUILT_IN = ("int", "unsigned", "unsigned int", "float", "double", "long long")
_BARRIER = "__syncthreads()"


def simplified(text: str, entry: str) -> str:
    """Return the text with an entry that has no branches that constants decide.

    Calls of functions that only pass their parameters on to another one are calls of that one, and
    so are barriers of cooperative groups for the whole block.

    Args:
        text: the text of the kernel.
        entry: the name of the kernel.
    """
    name = entry.rpartition("::")[2]
    for _ in range(_TURNS):
        source = text.encode()
        functions = list(nodes(parse(source), "function_definition"))
        own = [function for function in functions if _is_entry(function, name)]
        forwarders = {found.name: found for function in functions if (found := forwarder(function))}
        names = [name_of(function) for function in functions]
        known = {name: function for name, function in forwarders.items() if names.count(name) == 1}
        edits = [
            edit
            for access in own
            for edit in (*_decided(access), *_forwarded(access, known), *block_barriers(access))
        ]
        if not edits:
            break
        text = edited(source, outermost(edits))
    return text


@dataclass(frozen=True)
class Forwarder:
    """``void name(type a, ...) { target(a, ...); }``.

    Attributes:
        name: the name of the function.
        target: the name of the function that it calls.
        types: the types of the parameters.
    """

    name: str
    target: str
    types: tuple[str, ...]


def forwarder(function: Node) -> Forwarder | None:
    """Return what a function passes its parameters on to; None if it does anything else."""
    body, head = field(function, "body"), next(nodes(function, "parameter_list"), None)
    inner = [] if body is None else statements(body)
    in_template = function.parent is not None and function.parent.type == "template_declaration"
    if len(inner) != 1 or head is None or in_template or text_of(field(function, "type")) != "void":
        return None
    call = call_in(inner[0])
    names, types = [], []
    for parameter in head.named_children:
        declarator = field(parameter, "declarator")
        if declarator is None or parameter.type != "parameter_declaration":
            return None
        kind = text_of(field(parameter, "type"))
        names.append(text_of(next(nodes(declarator, "identifier"), None)))
        if declarator.type == "pointer_declarator" and kind in _BUILT_IN:
            types.append(f"{kind}*")
        elif declarator.type == "identifier" and kind in _BUILT_IN:
            types.append(kind)
        else:
            return None
    if call is None or not called(call) or [text_of(a) for a in arguments_of(call)] != names:
        return None
    return Forwarder(name_of(function), called(call), tuple(types))


def _forwarded(function: Node, forwarders: Mapping[str, Forwarder]) -> Iterator[Edit]:
    """Yield edits that call the target of a forwarder, with values converted as it does."""
    for call in nodes(function, "call_expression"):
        found, given = forwarders.get(called(call)), arguments_of(call)
        if found is None or len(given) != len(found.types):
            continue
        values = [
            text_of(value)
            if kind.endswith("*")
            or (kind == "int" and value.type == "number_literal" and text_of(value).isdecimal())
            else f"({kind})({text_of(value)})"
            for value, kind in zip(given, found.types, strict=True)
        ]
        yield Edit.of(call, f"{found.target}({', '.join(values)})")


def _is_entry(function: Node, name: str) -> bool:
    is_kernel = any(child.type == "__global__" for child in function.children)
    return is_kernel and name_of(function) == name


def _decided(function: Node) -> Iterator[Edit]:
    for node in nodes(function, "if_statement"):
        condition, kept = field(node, "condition"), field(node, "consequence")
        truth = None if condition is None else _truth(bare(condition))
        if truth is None or kept is None or field(condition, "initializer") is not None:
            continue
        other = field(node, "alternative")
        taken = kept if truth else next(iter(other.named_children), None) if other else None
        yield Edit.of(node, text_of(taken) or ";")


def _truth(condition: Node) -> bool | None:
    """Return whether a condition without variables is true; None for others."""
    match condition.type:
        case "true" | "false":
            return condition.type == "true"
        case "unary_expression" if operator_of(condition) == "!":
            inner = field(condition, "argument")
            truth = None if inner is None else _truth(bare(inner))
            return None if truth is None else not truth
        case "binary_expression" if operator_of(condition) in ("==", "!="):
            sides = [field(condition, name) for name in ("left", "right")]
            left, right = (_constant(bare(side)) if side is not None else None for side in sides)
            if left is None or right is None or left[0] != right[0]:
                return None
            return (left[1] == right[1]) == (operator_of(condition) == "==")
    return None


def _constant(node: Node) -> tuple[str, int | str] | None:
    """Return a whole number, or a value of an enumeration with its scope."""
    if node.type == "number_literal":
        try:
            return "", int(text_of(node).rstrip("uUlL"), 0)
        except ValueError:
            return None
    if node.type == "qualified_identifier":
        scope, _, name = text_of(node).rpartition("::")
        return scope, name
    return None


def block_barriers(function: Node) -> Iterator[Edit]:
    """Yield edits by which groups that are the block and only wait become barriers."""
    for value in nodes(function, "call_expression"):
        declarator = value.parent
        if declarator is None or declarator.type != "init_declarator" or not _is_block(value):
            continue
        name, declaration = text_of(field(declarator, "declarator")), declarator.parent
        if declaration is None or len(declaration.children_by_field_name("declarator")) != 1:
            continue
        uses = [
            node
            for node in nodes(function, "identifier")
            if text_of(node) == name and node != field(declarator, "declarator")
        ]
        waits = [_wait(node) for node in uses]
        if all(wait is not None for wait in waits):
            yield Edit.of(declaration, "")
            yield from (Edit.of(w, _BARRIER) for w in waits if w is not None)


def _is_block(value: Node) -> bool:
    """Return whether an expression is the group of all threads of the block."""
    name = text_of(field(value, "function")).split("::")[-1]
    return name == "this_thread_block" and not arguments_of(value)


def _wait(node: Node) -> Node | None:
    """Return the call, a statement of its own, by which a group waits; None for other uses."""
    statement = next((n for n in ancestors(node) if n.type == "expression_statement"), None)
    call = None if statement is None else call_in(statement)
    function = field(call, "function")
    if call is None or function is None:
        return None
    if function.type == "field_expression":
        is_own = field(function, "argument") == node and not arguments_of(call)
        return call if is_own and text_of(field(function, "field")) == "sync" else None
    is_sync = text_of(function).split("::")[-1] == "sync"
    return call if is_sync and arguments_of(call) == [node] else None
