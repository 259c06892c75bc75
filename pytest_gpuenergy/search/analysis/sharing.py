"""How threads share loops: what they agree on, hand on and exchange with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_text import FLOATS, CountedLoop, CudaText, Variable
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    bare,
    called,
    field,
    inside,
    name_of,
    nodes,
    text_of,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = ("identifier", "field_identifier", "type_identifier", "namespace_identifier")
_IMPLICIT = ("operator", "~")
"""How the names of functions begin that are called without their names."""
_THREADS = frozenset(["threadIdx", "blockIdx"])
_RANKS = frozenset(
    [
        *("thread_rank", "thread_index", "group_index", "block_rank", "block_index"),
        *("meta_group_rank", "dim_threads"),
    ]
)
"""Methods by which cooperative groups tell their threads apart."""
_BRANCHES = (
    *("if_statement", "for_statement", "while_statement", "do_statement", "switch_statement"),
    "conditional_expression",
)
_DEEPEST = 20
_WARP = 32
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


def reached(text: CudaText, node: Node) -> list[Node]:
    """Return the functions of a text that ``node`` may call, directly or through others.

    By their names alone, so rather too many than too few.
    """
    found: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        part = waiting.pop()
        named = {text_of(leaf).split("<")[0] for leaf in nodes(part, *_NAMES)}
        for function in text.functions:
            name = name_of(function)
            is_called = name in named or name.startswith(_IMPLICIT)
            if is_called and function.id not in found:
                found[function.id] = function
                waiting.append(function)
    return list(found.values())


def asks_for_thread(text: CudaText, node: Node) -> bool:
    """Return whether something that ``node`` calls may depend on the thread that calls it."""
    if any(text_of(leaf) in _RANKS for leaf in nodes(node, "field_identifier")):
        return True
    return any(
        leaf.type == "gnu_asm_expression" or text_of(leaf) in _THREADS | _RANKS
        for function in reached(text, node)
        for leaf in walk(function)
        if leaf.type in ("gnu_asm_expression", "identifier", "field_identifier")
    )


class Carried:
    """The variables that one turn of a loop leaves to the next, and what depends on them.

    A sum does not depend on which turns a thread has, up to rounding, once threads put their sums
    together. What a turn stores does, if it depends on a sum: that of the turns before.

    Args:
        kernel: the kernel.
        loop: the loop.
        written: the keys of the variables that the body of the loop changes.
    """

    def __init__(self, kernel: CudaKernel, loop: CountedLoop, written: frozenset[int]) -> None:
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
        """Return whether a store, or the condition of one, depends on these variables."""
        if not self._keys:
            return False
        for access in Accesses(self._kernel).within(self._loop.body):
            is_own = bool(access.root.dims) and not access.root.shared
            if access.use != "load" and not is_own and self._shows(access.node):
                return True
        calls = [n for n in nodes(self._loop.body, "call_expression") if _is_statement(n)]
        return any(self._is_in(argument) for call in calls for argument in arguments_of(call))

    def _depends(self, variable: Variable) -> bool:
        if variable.value is not None and self._is_in(variable.value):
            return True
        return any(self._shows(write) for write in self._text.writes(variable))

    def _shows(self, node: Node) -> bool:
        """Return whether the statement around a node depends on these variables."""
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
        return any(variable is not None and variable.key in self._keys for variable in named)


def _is_statement(call: Node) -> bool:
    return call.parent is not None and call.parent.type == "expression_statement"


def meets_others(kernel: CudaKernel, node: Node) -> bool:
    """Return whether threads wait for each other, or exchange values, in a part of the text."""
    parts = [node, *reached(kernel.text, node)]
    calls = [call for part in parts for call in nodes(part, "call_expression")]
    return any(called(call).startswith(_MEETINGS) or _is_collective(call) for call in calls)


def _is_collective(call: Node) -> bool:
    """Return whether threads make a call together: a barrier, or one of cooperative groups."""
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

    def may_be_redistributed(self, loop: CountedLoop) -> bool:
        """Return whether any thread can take any element of a loop."""
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

    def _all_come(self, loop: CountedLoop) -> bool:
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

    def _agree(self, node: Node, loop: CountedLoop, excepted: frozenset[int], depth: int) -> bool:
        """Return whether all threads find the same in a part of the text, apart from sums."""
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
        """Return whether a number counts threads from the start of a warp on."""
        before = number - Polynomial.atom(Atom("threadIdx.x"))
        whole = self._kernel.is_multiple(before, _WARP)
        return whole and all(self._is_common(atom) for atom in before.atoms)

    def _agree_on(
        self, variable: Variable, loop: CountedLoop, excepted: frozenset[int], depth: int
    ) -> bool:
        if variable == loop.variable or variable.key in excepted or variable.shared:
            return True
        if inside(variable.node, loop.body) or variable.parameter:
            return True
        if variable.dims:
            return False
        around = [
            other_loop for other_loop in self._kernel.text.loops if other_loop.variable == variable
        ]
        if around:
            ends = (around[0].start, around[0].bound, around[0].step)
            return all(self._agree(e, loop, excepted, depth - 1) for e in ends if e is not None)
        if self._kernel.text.writes(variable):
            known = variable.type in FLOATS and not variable.pointer
            return known and self._is_reduced(variable, loop, excepted, depth)
        value = variable.value
        return value is not None and self._agree(value, loop, excepted, depth - 1)

    def _is_reduced(
        self, variable: Variable, loop: CountedLoop, excepted: frozenset[int], depth: int
    ) -> bool:
        """Return whether a variable's last value before a loop is the same for all threads."""
        writes = self._kernel.text.writes(variable)
        before = [node for node in writes if node.end_byte <= loop.node.start_byte]
        given = before[-1].parent if before else variable.value
        if given is None or meets_others(self._kernel, given):
            return given is not None
        last = field(given, "right") if before else given
        return last is not None and self._agree(last, loop, excepted, depth - 1)
