"""Simplify the text of an extracted kernel, so that it computes exactly the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.edits import Edit, apply_edits, outermost
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    call_arguments,
    called,
    expression_operator,
    field,
    node_text,
    nodes,
    only,
    parse,
    sides,
    statement_call,
    statements,
    unscoped_name,
    whole_number,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_ROUNDS = 50
_BUILT_IN = ("int", "unsigned", "unsigned int", "float", "double", "long long")


def simplify_entry(text: str, entry: str) -> str:
    """Return the text with an entry that has no branches that constants decide.

    A call of a function that only passes its parameters on becomes a call of the function behind
    it, and a barrier of a cooperative group for the whole block becomes ``__syncthreads()``.
    """
    name = entry.rpartition("::")[2]
    for _ in range(_MAX_ROUNDS):
        source = text.encode()
        functions = list(nodes(parse(source), "function_definition"))
        names = [unscoped_name(function) for function in functions]
        forwarders = {
            found.name: found
            for function in functions
            if (found := find_forwarder(function)) is not None and names.count(found.name) == 1
        }
        edits = [
            edit
            for function, own in zip(functions, names, strict=True)
            if own == name and any(child.type == "__global__" for child in function.children)
            for edit in (
                *_branch_edits(function),
                *_forwarding_edits(function, forwarders),
                *block_barriers(function),
            )
        ]
        if not edits:
            break
        text = apply_edits(source, outermost(edits))
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


def find_forwarder(function: Node) -> Forwarder | None:
    """Return what a function passes its parameters on to; None if it does anything else."""
    body, head = field(function, "body"), next(nodes(function, "parameter_list"), None)
    statement = None if body is None else only(statements(body))
    in_template = function.parent is not None and function.parent.type == "template_declaration"
    call = None if statement is None else statement_call(statement)
    if call is None or head is None or in_template or node_text(field(function, "type")) != "void":
        return None
    names, types = [], []
    for parameter in head.named_children:
        declarator, kind = field(parameter, "declarator"), node_text(field(parameter, "type"))
        if declarator is None or parameter.type != "parameter_declaration":
            return None
        if kind not in _BUILT_IN or declarator.type not in ("pointer_declarator", "identifier"):
            return None
        names.append(node_text(next(nodes(declarator, "identifier"), None)))
        types.append(f"{kind}*" if declarator.type == "pointer_declarator" else kind)
    if not called(call) or [node_text(a) for a in call_arguments(call)] != names:
        return None
    return Forwarder(unscoped_name(function), called(call), tuple(types))


def _forwarding_edits(function: Node, forwarders: Mapping[str, Forwarder]) -> Iterator[Edit]:
    """Yield edits that call the target of a forwarder, with values converted as it does."""
    for call in nodes(function, "call_expression"):
        found, values = forwarders.get(called(call)), call_arguments(call)
        if found is None or len(values) != len(found.types):
            continue
        texts = []
        for value, kind in zip(values, found.types, strict=True):
            is_int = value.type == "number_literal" and node_text(value).isdecimal()
            same = kind.endswith("*") or (kind == "int" and is_int)
            texts.append(node_text(value) if same else f"({kind})({node_text(value)})")
        yield Edit.of(call, f"{found.target}({', '.join(texts)})")


def _branch_edits(function: Node) -> Iterator[Edit]:
    """Yield edits that leave out branches which are never taken."""
    for node in nodes(function, "if_statement"):
        condition, kept = field(node, "condition"), field(node, "consequence")
        truth = None if condition is None else _constant_truth(bare(condition))
        if truth is None or kept is None or field(condition, "initializer") is not None:
            continue
        other = field(node, "alternative")
        taken = kept if truth else next(iter(other.named_children), None) if other else None
        yield Edit.of(node, node_text(taken) or ";")


def _constant_truth(condition: Node) -> bool | None:
    """Return whether a condition without variables is true; None for others."""
    if condition.type in ("true", "false"):
        return condition.type == "true"
    denied = field(condition, "argument") if expression_operator(condition) == "!" else None
    if denied is not None:
        truth = _constant_truth(bare(denied))
        return None if truth is None else not truth
    constants = [_constant(bare(side)) for side in sides(condition, "==", "!=") or ()]
    left, right = constants or (None, None)
    if left is None or right is None or left[0] != right[0]:
        return None
    return (left[1] == right[1]) == (expression_operator(condition) == "==")


def _constant(node: Node) -> tuple[str, int | str] | None:
    """Return a whole number, or a value of an enumeration with its scope."""
    if node.type == "qualified_identifier":
        scope, _, name = node_text(node).rpartition("::")
        return scope, name
    number = whole_number(node_text(node)) if node.type == "number_literal" else None
    return None if number is None else ("", number)


def block_barriers(function: Node) -> Iterator[Edit]:
    """Yield edits by which groups that are the block and only wait become barriers."""
    for value in nodes(function, "call_expression"):
        declarator = value.parent
        is_block = node_text(field(value, "function")).split("::")[-1] == "this_thread_block"
        if declarator is None or declarator.type != "init_declarator" or not is_block:
            continue
        group, declaration = field(declarator, "declarator"), declarator.parent
        if declaration is None or len(declaration.children_by_field_name("declarator")) != 1:
            continue
        waits = [
            _barrier_call(node)
            for node in nodes(function, "identifier")
            if node_text(node) == node_text(group) and node != group
        ]
        if not call_arguments(value) and None not in waits:
            yield Edit.of(declaration, "")
            yield from (Edit.of(wait, "__syncthreads()") for wait in waits if wait is not None)


def _barrier_call(node: Node) -> Node | None:
    """Return the call, a statement of its own, by which a group waits; None for other uses."""
    statement = next((n for n in ancestors(node) if n.type == "expression_statement"), None)
    call = None if statement is None else statement_call(statement)
    function = field(call, "function")
    if call is None or function is None:
        return None
    if function.type == "field_expression":
        is_own = field(function, "argument") == node and not call_arguments(call)
        return call if is_own and node_text(field(function, "field")) == "sync" else None
    is_sync = node_text(function).split("::")[-1] == "sync"
    return call if is_sync and call_arguments(call) == [node] else None
