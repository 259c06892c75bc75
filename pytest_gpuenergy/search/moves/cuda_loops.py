"""Loops of CUDA text that count up by a fixed step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.cuda_variables import NARROW, Variable, Variables
from pytest_gpuenergy.search.source.tree import field, nodes, operator_of

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Loop:
    """``for (int v = start; v < bound; v += step) body``.

    Attributes:
        step: None for one.
    """

    node: Node
    variable: Variable
    start: Node
    bound: Node
    step: Node | None
    body: Node


def loops_of(variables: Variables) -> tuple[Loop, ...]:
    """Those of a function, in the order of the text."""
    found = (_loop(variables, node) for node in nodes(variables.body, "for_statement"))
    return tuple(loop for loop in found if loop is not None)


def _loop(variables: Variables, node: Node) -> Loop | None:
    declared = [v for v in variables.variables if v.scope == node and v.declaration is not None]
    head, body = field(node, "condition"), field(node, "body")
    update = field(node, "update")
    if len(declared) != 1 or head is None or body is None or update is None:
        return None
    variable, left, bound = declared[0], field(head, "left"), field(head, "right")
    if variable.value is None or left is None or bound is None or operator_of(head) != "<":
        return None
    if variable.type in NARROW:
        return None
    step = field(update, "right")
    if update.type == "update_expression":
        counts = operator_of(update) == "++"
        changed = field(update, "argument")
    else:
        counts = update.type == "assignment_expression" and operator_of(update) == "+="
        changed = field(update, "left")
    named = changed is not None and variables.variable(changed) == variable
    if not (counts and named and variables.variable(left) == variable):
        return None
    if len(variables.writes(variable)) != 1 or not variables.is_fixed(bound, node):
        return None
    if step is not None and not variables.is_fixed(step, node):
        return None
    return Loop(node, variable, variable.value, bound, step, body)
