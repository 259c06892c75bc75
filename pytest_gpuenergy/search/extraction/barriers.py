"""Barriers of cooperative groups that are those of the whole block, written as CUDA's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.edits import Edit
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    call_in,
    field,
    nodes,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_BARRIER = "__syncthreads()"


def block_barriers(function: Node) -> Iterator[Edit]:
    """Edits for groups that are the block and only wait, so that nothing needs their header."""
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
            yield Edit(declaration.start_byte, declaration.end_byte, "")
            yield from (Edit(w.start_byte, w.end_byte, _BARRIER) for w in waits if w is not None)


def _is_block(value: Node) -> bool:
    """Whether a value is the group of all threads of the block."""
    name = text_of(field(value, "function")).split("::")[-1]
    return name == "this_thread_block" and not arguments_of(value)


def _wait(node: Node) -> Node | None:
    """The call by which a group waits, a statement of its own; None if it does anything else."""
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
