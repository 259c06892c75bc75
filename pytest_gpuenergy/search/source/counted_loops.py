"""Rewrite loops that count in other ways as ``for (int i = ...; i < n; i += step)``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.cuda_text import NARROW, CudaText, Variable
from pytest_gpuenergy.search.source.edits import Edit, apply_edits, fresh_name
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    expression_operator,
    field,
    indentation,
    inside,
    node_text,
    nodes,
    sides,
    statements,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = ("for_statement", "while_statement", "do_statement")
_MAX_TEXTS = 32
"""The number of texts whose rewritten form is kept."""
_MAX_LOOPS = 20
"""The limit on loops of a text that are rewritten: each one costs another parse."""


@functools.lru_cache(maxsize=_MAX_TEXTS)
def with_counted_loops(source: str, entry: str) -> str:
    """Return the text with such loops in the form that moves understand.

    These are ``while (i < n) {... i += step;}`` and ``for (; i < n; i += step)`` after
    ``int i = start;``, and ``for (i = start; i < n; i += step)`` after ``int i;``, where nothing
    else changes the variable, and nothing asks for it after the loop.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    for _ in range(_MAX_LOOPS):
        text = CudaText.of(source, entry)
        loops = () if text is None else nodes(text.body, "while_statement", "for_statement")
        for node in loops:
            if text is not None and (edits := _edits(text, node)):
                source = apply_edits(text.source, edits)
                break
        else:
            break
    return source


def _edits(text: CudaText, node: Node) -> list[Edit]:
    """Return the edits that rewrite a loop; none if it has that form or cannot have it."""
    variable, body = _compared_variable(text, node), field(node, "body")
    if variable is None or body is None:
        return []
    initializer = field(node, "initializer")
    if initializer is not None:
        return _declared_in_head(text, initializer, variable)
    return _started_in_head(text, node, variable, body) if variable.value is not None else []


def _compared_variable(text: CudaText, loop: Node) -> Variable | None:
    """Return the local integer that a loop compares with its bound; None for other loops."""
    head = field(loop, "condition")
    parts = None if head is None else sides(bare(head), "<")
    variable = None if parts is None else text.variable(parts[0])
    if variable is None or variable.declaration is None or inside(variable.node, loop):
        return None
    if variable.pointer or variable.reference or variable.shared or variable.dims:
        return None
    if variable.parameter or variable.type in (*NARROW, "auto"):
        return None
    return None if any(nodes(variable.declaration, "storage_class_specifier")) else variable


def _started_in_head(text: CudaText, node: Node, variable: Variable, body: Node) -> list[Edit]:
    """Return the edits for a loop whose variable gets its first value where it is declared."""
    is_while = node.type == "while_statement"
    step = field(node, "update")
    if is_while:  # the last statement is the step, which a ``for`` takes even after ``continue``
        every = statements(body) if body.type == "compound_statement" else []
        step = every[-1] if len(every) > 1 and every[-1].type == "expression_statement" else None
        continues = nodes(body, "continue_statement")
        if any(next(n for n in ancestors(c) if n.type in _LOOPS) == node for c in continues):
            return []
    if step is None:
        return []
    uses, writes = text.uses[variable.key], text.writes(variable)
    counted = step.named_children[0] if step.type == "expression_statement" else step
    by = _step(text, variable, counted)
    if by is None or len(writes) != 1 or not inside(writes[0], counted):
        return []
    if any(use.start_byte >= node.end_byte for use in uses) or _is_repeated(node, variable):
        return []
    named = (text.variable(n) for n in nodes(counted, "identifier"))
    if any(other is not None and inside(other.node, body) for other in named):
        return []
    condition = field(node, "condition")
    first = fresh_name(f"{variable.name}_start", text.words)
    bound = "" if condition is None else node_text(bare(condition))
    head = f"for ({variable.type} {variable.name} = {first}; {bound}; {by})"
    end = next((child.end_byte for child in node.children if child.type == ")"), 0)
    if is_while and condition is not None:
        end = condition.end_byte
    before = [use for use in uses if not inside(use, node)]
    edits = [Edit.of(identifier, first) for identifier in (variable.node, *before)]
    edits.append(Edit(node.start_byte, end, head))
    return [*edits, _removal(text, step)] if is_while else edits


def _declared_in_head(text: CudaText, initializer: Node, variable: Variable) -> list[Edit]:
    """Return the edits for a loop whose head sets a variable that is declared before it."""
    start = initializer
    if start.type == "expression_statement":
        start = next(iter(start.named_children), start)
    parts = sides(start, "=") if start.type == "assignment_expression" else None
    if parts is None or text.variable(parts[0]) != variable or _names(text, parts[1], variable):
        return []
    heads = [loop for loop in nodes(text.body, "for_statement") if _sets(text, loop, variable)]
    if not all(any(inside(use, loop) for loop in heads) for use in text.uses[variable.key]):
        return []  # its last value may be asked for
    if any(inside(loop, other) and loop != other for loop in heads for other in heads):
        return []
    return [Edit.before(start, f"{variable.type} ")]


def _sets(text: CudaText, loop: Node, variable: Variable) -> bool:
    initializer = field(loop, "initializer")
    found = None if initializer is None else next(nodes(initializer, "assignment_expression"), None)
    target = field(found, "left")
    return target is not None and text.variable(target) == variable


def _step(text: CudaText, variable: Variable, counted: Node) -> str | None:
    """Return ``i += step`` for a step, however it is written; None if it is something else."""
    target = field(counted, "argument") or field(counted, "left")
    if target is None or text.variable(target) != variable:
        return None
    if counted.type == "update_expression":
        return f"++{variable.name}" if expression_operator(counted) == "++" else None
    if (parts := sides(counted, "+=")) is not None:
        return None if _names(text, parts[1], variable) else node_text(counted)
    parts = sides(counted, "=")
    total = None if parts is None else sides(bare(parts[1]), "+")
    for own, other in () if total is None else (total, total[::-1]):
        if text.variable(bare(own)) == variable and not _names(text, other, variable):
            return f"{variable.name} += {node_text(other)}"
    return None


def _names(text: CudaText, node: Node, variable: Variable) -> bool:
    return any(text.variable(inner) == variable for inner in nodes(node, "identifier"))


def _is_repeated(loop: Node, variable: Variable) -> bool:
    """Return whether the loop can run again without its variable being set again."""
    for node in ancestors(loop):
        if node == variable.scope:
            return False
        if node.type in _LOOPS:
            return True
    return True


def _removal(text: CudaText, statement: Node) -> Edit:
    """Return the edit that removes a statement, with its line if nothing else is on it."""
    begin, end = statement.start_byte, statement.end_byte
    by = indentation(statement, text.source)
    if text.source[:begin].endswith(f"\n{by}".encode()) and text.source[end : end + 1] == b"\n":
        begin -= len(by) + 1
    return Edit(begin, end, "")
