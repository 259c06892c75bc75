"""Simpler text for a kernel on its own, which computes exactly the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.extraction.barriers import block_barriers
from pytest_gpuenergy.search.extraction.items import function_name
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.tree import (
    arguments_of,
    bare,
    call_in,
    called,
    field,
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


def simplified(text: str, entry: str) -> str:
    """The text with an entry without branches that constants decide.

    Calls of functions that only pass their parameters on to another one are calls of that one, and
    so are barriers of cooperative groups for the whole block.

    Args:
        text: of the kernel.
        entry: its name.
    """
    name = entry.rpartition("::")[2]
    for _ in range(_TURNS):
        source = text.encode()
        functions = list(nodes(parse(source), "function_definition"))
        own = [one for one in functions if _is_entry(one, name)]
        forwarders = {found.name: found for one in functions if (found := forwarder(one))}
        names = [function_name(one) for one in functions]
        known = {n: one for n, one in forwarders.items() if names.count(n) == 1}
        edits = [
            edit
            for one in own
            for edit in (*_decided(one), *_forwarded(one, known), *block_barriers(one))
        ]
        if not edits:
            break
        text = edited(source, outermost(edits))
    return text


def outermost(edits: list[Edit]) -> list[Edit]:
    """Those that are not within another one."""
    return [
        one
        for one in dict.fromkeys(edits)
        if not any(o != one and o.begin <= one.begin and one.end <= o.end for o in edits)
    ]


@dataclass(frozen=True)
class Forwarder:
    """``void name(type a, ...) { target(a, ...); }``.

    Attributes:
        name, target: of the function, and of the one that it calls.
        types: of its parameters.
    """

    name: str
    target: str
    types: tuple[str, ...]


def forwarder(function: Node) -> Forwarder | None:
    """What a function passes its parameters on to; None if it does anything else."""
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
    return Forwarder(function_name(function), called(call), tuple(types))


def _forwarded(function: Node, forwarders: Mapping[str, Forwarder]) -> Iterator[Edit]:
    """Values are converted as the parameter would convert them; pointers need no conversion."""
    for call in nodes(function, "call_expression"):
        found, given = forwarders.get(called(call)), arguments_of(call)
        if found is None or len(given) != len(found.types):
            continue
        values = [
            text_of(value) if kind.endswith("*") or _is_int(value, kind) else _cast(value, kind)
            for value, kind in zip(given, found.types, strict=True)
        ]
        yield Edit(call.start_byte, call.end_byte, f"{found.target}({', '.join(values)})")


def _is_int(value: Node, kind: str) -> bool:
    return kind == "int" and value.type == "number_literal" and text_of(value).isdecimal()


def _cast(value: Node, kind: str) -> str:
    return f"({kind})({text_of(value)})"


def _is_entry(function: Node, name: str) -> bool:
    is_kernel = any(child.type == "__global__" for child in function.children)
    return is_kernel and function_name(function) == name


def _decided(function: Node) -> Iterator[Edit]:
    for node in nodes(function, "if_statement"):
        condition, kept = field(node, "condition"), field(node, "consequence")
        truth = None if condition is None else _truth(bare(condition))
        if truth is None or kept is None or field(condition, "initializer") is not None:
            continue
        other = field(node, "alternative")
        taken = kept if truth else next(iter(other.named_children), None) if other else None
        yield Edit(node.start_byte, node.end_byte, text_of(taken) or ";")


def _truth(condition: Node) -> bool | None:
    """Of a condition without variables; None if it has some, or is not understood."""
    match condition.type:
        case "true" | "false":
            return condition.type == "true"
        case "unary_expression" if operator_of(condition) == "!":
            inner = field(condition, "argument")
            truth = None if inner is None else _truth(bare(inner))
            return None if truth is None else not truth
        case "binary_expression" if operator_of(condition) in ("==", "!="):
            sides = [field(condition, name) for name in ("left", "right")]
            one, two = (_constant(bare(side)) if side is not None else None for side in sides)
            if one is None or two is None or one[0] != two[0]:
                return None
            return (one[1] == two[1]) == (operator_of(condition) == "==")
    return None


def _constant(node: Node) -> tuple[str, int | str] | None:
    """A whole number, or a value of an enumeration with its scope."""
    if node.type == "number_literal":
        try:
            return "", int(text_of(node).rstrip("uUlL"), 0)
        except ValueError:
            return None
    if node.type == "qualified_identifier":
        scope, _, name = text_of(node).rpartition("::")
        return scope, name
    return None
