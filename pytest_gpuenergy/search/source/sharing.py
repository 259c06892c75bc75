"""Whether the threads that share a loop agree on everything but the elements they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.carried import Carried
from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.moves.reached import asks_for_thread, reached
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    called,
    field,
    inside,
    nodes,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_DEEPEST = 20
_WARP = 32
_FLOATS = frozenset(["float", "double", "half", "__half", "__nv_bfloat16"])
_MEETINGS = (
    *("__sync", "__shfl", "__ballot", "__any", "__all", "__reduce", "__match", "__pipeline"),
    "__activemask",
)
_COLLECTIVES = (
    *("sync", "reduce", "shfl", "any", "all", "ballot", "match", "inclusive_scan", "wait"),
    *("exclusive_scan", "memcpy_async", "arrive", "barrier", "invoke_one", "coalesced_threads"),
    *("labeled_partition", "binary_partition", "Sum", "Reduce"),
)
_CONDITIONAL = ("if_statement", "for_statement", "while_statement", "do_statement")


def meets_others(kernel: CudaKernel, node: Node) -> bool:
    """Whether threads wait for each other, or exchange values, in a part of the text."""
    parts = [node, *reached(kernel.text, node)]
    calls = [call for part in parts for call in nodes(part, "call_expression")]
    return any(called(call).startswith(_MEETINGS) or _is_collective(call) for call in calls)


def _is_collective(call: Node) -> bool:
    """Whether a call is one of cooperative groups, or of barriers, that threads make together."""
    function = field(call, "function")
    if function is None or function.type not in ("qualified_identifier", "field_expression"):
        return False
    name = text_of(field(function, "name") or field(function, "field"))
    return name.partition("<")[0].split("::")[-1].startswith(_COLLECTIVES)


class Sharing:
    """The threads of a warp, block or grid that share a loop."""

    def __init__(self, kernel: CudaKernel, group: str) -> None:
        self._kernel = kernel
        self._group = group

    def may_be_redistributed(self, loop: Loop) -> bool:
        """Whether it makes no difference which thread takes which element of a loop."""
        ends = [loop.bound, *([loop.step] if loop.step is not None else [])]
        written = frozenset(
            variable.key
            for variable in self._kernel.text.variables
            if self._kernel.text.changes(variable, loop.body)
        )
        if not all(self._agree(end, loop, frozenset(), _DEEPEST) for end in ends):
            return False
        if Carried(self._kernel, loop, written).is_stored():
            return False
        return self._all_come(loop) and self._agree(loop.body, loop, written, _DEEPEST)

    def _all_come(self, loop: Loop) -> bool:
        for node in ancestors(loop.node):
            if node == self._kernel.text.body:
                return True
            if node.type not in _CONDITIONAL:
                continue
            parts = [field(node, name) for name in ("initializer", "condition", "update")]
            for part in filter(None, parts):
                if not self._agree(part, loop, frozenset(), _DEEPEST):
                    return False
        return False

    def _agree(self, node: Node, loop: Loop, excepted: frozenset[int], depth: int) -> bool:
        """Whether all threads find the same in a part of the text, apart from what they sum up."""
        if depth == 0:
            return False
        node = bare(node)
        known = self._kernel.polynomial(node) if node.type != "compound_statement" else None
        if known is not None and all(self._is_common(atom) for atom in known.atoms):
            return True
        if node.type == "field_expression":
            base = text_of(field(node, "argument"))
            if base in ("threadIdx", "blockIdx"):
                return False
        if node.type == "call_expression" and meets_others(self._kernel, node):
            return True  # what was reduced
        if node.type == "call_expression" and asks_for_thread(self._kernel.text, node):
            return False
        if node.type == "identifier":
            variable = self._kernel.text.variable(node)
            return variable is None or self._agree_on(variable, loop, excepted, depth)
        return all(self._agree(child, loop, excepted, depth) for child in node.named_children)

    def _is_common(self, atom: Atom) -> bool:
        if atom.text.startswith("blockIdx."):
            return self._group != "grid"
        if atom.text.startswith("gridDim.") or self._kernel.values(atom) is not None:
            return True
        divisor = atom.right.value if atom.right is not None else None
        of_warp = self._group == "warp" and atom.operator == "/" and divisor == _WARP
        return of_warp and atom.left is not None and self._counts_threads(atom.left)

    def _counts_threads(self, number: Polynomial) -> bool:
        """Whether a number is the thread's in its block or grid, from whole warps before it."""
        before = number - Polynomial.atom(Atom("threadIdx.x"))
        whole = self._kernel.is_multiple(before, _WARP)
        return whole and all(self._is_common(one) for one in before.atoms)

    def _agree_on(
        self, variable: Variable, loop: Loop, excepted: frozenset[int], depth: int
    ) -> bool:
        if variable == loop.variable or variable.key in excepted or variable.shared:
            return True
        if inside(variable.node, loop.body) or variable.parameter:
            return True
        if variable.dims:
            return False
        around = [one for one in self._kernel.text.loops if one.variable == variable]
        if around:
            ends = (around[0].start, around[0].bound, around[0].step)
            return all(self._agree(e, loop, excepted, depth - 1) for e in ends if e is not None)
        if self._kernel.text.writes(variable):
            known = variable.type in _FLOATS and not variable.pointer
            return known and self._is_reduced(variable, loop, excepted, depth)
        value = variable.value
        return value is not None and self._agree(value, loop, excepted, depth - 1)

    def _is_reduced(
        self, variable: Variable, loop: Loop, excepted: frozenset[int], depth: int
    ) -> bool:
        """Whether what a variable was given last, before a loop, is the same for all threads."""
        writes = self._kernel.text.writes(variable)
        before = [one for one in writes if one.end_byte <= loop.node.start_byte]
        given = before[-1].parent if before else variable.value
        if given is None or meets_others(self._kernel, given):
            return given is not None
        last = field(given, "right") if before else given
        return last is not None and self._agree(last, loop, excepted, depth - 1)
