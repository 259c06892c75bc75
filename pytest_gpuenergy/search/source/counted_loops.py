"""Rewrite loops that count in other ways as ``for (int i = ...; i < n; i += step)``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.cuda_text import NARROW, CudaText, Variable
from pytest_gpuenergy.search.source.edits import Edit, edited, fresh_name
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    field,
    indentation,
    inside,
    nodes,
    operator_of,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = ("for_statement", "while_statement", "do_statement")
_KEPT = 32
_MOST_LOOPS = 20
"""The most loops of a text that are rewritten: each one costs another parse."""


@functools.lru_cache(maxsize=_KEPT)
def with_counted_loops(source: str, entry: str) -> str:
    """Return the text with such loops in the form that moves understand.

    These are ``while (i < n) {... i += step;}`` and ``for (; i < n; i += step)`` after
    ``int i = start;``, and ``for (i = start; i < n; i += step)`` after ``int i;``, where nothing
    else changes the variable, and nothing asks for it after the loop.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    for _ in range(_MOST_LOOPS):
        text = CudaText.of(source, entry)
        found = None if text is None else next(_rewritten(text), None)
        if found is None:
            break
        source = found
    return source


def _rewritten(text: CudaText) -> Iterator[str]:
    """Yield the text with one loop rewritten, for each loop that can be."""
    for node in nodes(text.body, "while_statement", "for_statement"):
        edits = _given_before(text, node) or _given_in_head(text, node)
        if edits:
            yield edited(text.source, edits)


def _given_before(text: CudaText, node: Node) -> list[Edit]:
    """Return the edits for a loop whose variable gets its first value where it is declared."""
    variable, body = _compared(text, node), field(node, "body")
    if variable is None or body is None or variable.value is None or field(node, "initializer"):
        return []
    step = _last_statement(body) if node.type == "while_statement" else field(node, "update")
    if step is None or _is_skipped(node, body):
        return []
    uses, writes = text.uses[variable.key], text.writes(variable)
    counted = step.named_children[0] if step.type == "expression_statement" else step
    by = _steps(text, variable, counted)
    if by is None or len(writes) != 1 or not inside(writes[0], counted):
        return []
    if any(use.start_byte >= node.end_byte for use in uses) or _is_repeated(node, variable):
        return []
    if any(inside(v.node, body) for v in _named(text, counted)):
        return []
    first = fresh_name(f"{variable.name}_start", text.words)
    before = [use for use in uses if not inside(use, node)]
    head = f"for ({variable.type} {variable.name} = {first}; {_condition(node)}; {by})"
    edits = [Edit.of(identifier, first) for identifier in (variable.node, *before)]
    edits.append(Edit(node.start_byte, _end_of_head(node), head))
    if step.type == "expression_statement":
        edits.append(_removed(text, step))
    return edits


def _given_in_head(text: CudaText, node: Node) -> list[Edit]:
    """Return the edits for a loop whose head sets a variable that is declared before it."""
    given, variable = field(node, "initializer"), _compared(text, node)
    if given is not None and given.type == "expression_statement":
        given = next(iter(given.named_children), None)
    if variable is None or given is None or given.type != "assignment_expression":
        return []
    left, right = field(given, "left"), field(given, "right")
    if left is None or right is None or operator_of(given) != "=":
        return []
    if text.variable(left) != variable or variable in _named(text, right):
        return []
    heads = [inner for inner in nodes(text.body, "for_statement") if _sets(text, inner, variable)]
    if not all(any(inside(use, loop) for loop in heads) for use in text.uses[variable.key]):
        return []  # its last value may be asked for
    if any(inside(loop, other) and loop != other for loop in heads for other in heads):
        return []
    return [Edit.before(given, f"{variable.type} ")]


def _sets(text: CudaText, loop: Node, variable: Variable) -> bool:
    given = field(loop, "initializer")
    left = next(nodes(given, "assignment_expression"), None) if given is not None else None
    target = field(left, "left")
    return target is not None and text.variable(target) == variable


def _compared(text: CudaText, loop: Node) -> Variable | None:
    """Return the local integer that a loop compares with its bound; None for other loops."""
    head = field(loop, "condition")
    comparison = None if head is None else bare(head)
    left = field(comparison, "left")
    variable = None if left is None else text.variable(left)
    if comparison is None or operator_of(comparison) != "<" or variable is None:
        return None
    plain = not (variable.pointer or variable.reference or variable.shared or variable.dims)
    is_number = plain and not variable.parameter and variable.type not in (*NARROW, "auto")
    declaration = None if inside(variable.node, loop) else variable.declaration
    if not is_number or declaration is None or any(nodes(declaration, "storage_class_specifier")):
        return None
    return variable


def _condition(loop: Node) -> str:
    head = field(loop, "condition")
    return "" if head is None else text_of(bare(head))


def _last_statement(body: Node) -> Node | None:
    """Return the last statement of a block; None if it is not an expression."""
    every = statements(body)
    if body.type != "compound_statement" or len(every) < 2:
        return None
    return every[-1] if every[-1].type == "expression_statement" else None


def _steps(text: CudaText, variable: Variable, counted: Node) -> str | None:
    """Return ``i += step`` for a step, however it is written; None if it is something else."""
    target = field(counted, "argument") or field(counted, "left")
    if target is None or text.variable(target) != variable:
        return None
    if counted.type == "update_expression":
        return f"++{variable.name}" if operator_of(counted) == "++" else None
    if counted.type != "assignment_expression":
        return None
    right = field(counted, "right")
    if right is None or any(text.variable(n) == variable for n in nodes(right, "identifier")):
        return _added(text, variable, right) if operator_of(counted) == "=" else None
    return text_of(counted) if operator_of(counted) == "+=" else None


def _added(text: CudaText, variable: Variable, total: Node | None) -> str | None:
    """Return ``i += step`` for the value ``i + step``; None for other values."""
    total = None if total is None else bare(total)
    left, right = field(total, "left"), field(total, "right")
    if total is None or left is None or right is None or operator_of(total) != "+":
        return None
    for own, other in ((left, right), (right, left)):
        others = (text.variable(n) for n in nodes(other, "identifier"))
        if text.variable(bare(own)) == variable and variable not in others:
            return f"{variable.name} += {text_of(other)}"
    return None


def _is_skipped(loop: Node, body: Node) -> bool:
    """Return whether a ``continue`` skips the step of a ``while``, which a ``for`` would take."""
    if loop.type == "for_statement":
        return False
    for node in nodes(body, "continue_statement"):
        if next(n for n in ancestors(node) if n.type in _LOOPS) == loop:
            return True
    return False


def _is_repeated(loop: Node, variable: Variable) -> bool:
    """Return whether the loop can run again without its variable being set again."""
    for node in ancestors(loop):
        if node == variable.scope:
            return False
        if node.type in _LOOPS:
            return True
    return True


def _named(text: CudaText, node: Node) -> Iterator[Variable]:
    for inner in nodes(node, "identifier"):
        variable = text.variable(inner)
        if variable is not None:
            yield variable


def _end_of_head(loop: Node) -> int:
    """Return where the head of a loop ends, with its parenthesis."""
    if loop.type == "while_statement":
        condition = field(loop, "condition")
        return loop.start_byte if condition is None else condition.end_byte
    return next(child.end_byte for child in loop.children if child.type == ")")


def _removed(text: CudaText, statement: Node) -> Edit:
    """Return the edit that removes a statement, with its line if nothing else is on it."""
    begin, end = statement.start_byte, statement.end_byte
    by = indentation(statement, text.source)
    if text.source[:begin].endswith(f"\n{by}".encode()) and text.source[end : end + 1] == b"\n":
        begin -= len(by) + 1
    return Edit(begin, end, "")
