"""What threads carry from turn to turn of a loop, and whether it shows in what they store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.source.accesses import Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    field,
    inside,
    nodes,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_BRANCHES = (
    *("if_statement", "for_statement", "while_statement", "do_statement", "switch_statement"),
    "conditional_expression",
)


class Carried:
    """Variables that a turn of a loop leaves to the next one, and what is computed from them.

    A sum does not depend on which turns a thread has, up to rounding, once threads put their sums
    together. What a turn stores does, if it depends on a sum: that of the turns before.

    Args:
        kernel: around the loop.
        loop: whose turns.
        written: keys of the variables that its body changes.
    """

    def __init__(self, kernel: CudaKernel, loop: Loop, written: frozenset[int]) -> None:
        self._kernel = kernel
        self._loop = loop
        self._text = kernel.text
        own = [v for v in self._text.variables if inside(v.node, loop.body)]
        names = {v.key for v in own}
        self._keys = set(written - names - {loop.variable.key})
        before = -1
        while before < len(self._keys):
            before = len(self._keys)
            self._keys |= {v.key for v in own if self._depends(v)}

    def is_stored(self) -> bool:
        """Whether a store, or whether it is made, depends on them."""
        if not self._keys:
            return False
        for access in Accesses(self._kernel).within(self._loop.body):
            is_own = bool(access.root.dims) and not access.root.shared
            if access.use != "load" and not is_own and self._shows(access.node):
                return True
        calls = [n for n in nodes(self._loop.body, "call_expression") if _is_statement(n)]
        return any(self._is_in(one) for call in calls for one in arguments_of(call))

    def _depends(self, variable: Variable) -> bool:
        if variable.value is not None and self._is_in(variable.value):
            return True
        return any(self._shows(write) for write in self._text.writes(variable))

    def _shows(self, node: Node) -> bool:
        """Whether the statement that a part belongs to depends on them."""
        for around in ancestors(node):
            if not inside(around, self._loop.body):
                return False
            if around.type in ("expression_statement", "declaration") and self._is_in(around):
                return True
            condition = field(around, "condition") if around.type in _BRANCHES else None
            if condition is not None and self._is_in(condition):
                return True
        return False

    def _is_in(self, node: Node) -> bool:
        named = (self._text.variable(n) for n in nodes(node, "identifier"))
        return any(one is not None and one.key in self._keys for one in named)


def _is_statement(call: Node) -> bool:
    return call.parent is not None and call.parent.type == "expression_statement"
