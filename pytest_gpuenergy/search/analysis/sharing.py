"""How threads share loops: what they agree on, hand on and exchange with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuenergy.kernels import function_name
from pytest_gpuenergy.search.analysis.accesses import Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import THREAD, WARP, CudaKernel
from pytest_gpuenergy.search.source.cuda_text import FLOATS, CountedLoop, CudaText, Variable
from pytest_gpuenergy.search.source.polynomials import Atom
from pytest_gpuenergy.search.source.tree import (
    NAMES,
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
_MAX_DEPTH = 20
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
        named = {text_of(leaf).split("<")[0] for leaf in nodes(part, "field_identifier", *NAMES)}
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
            self._keys |= {
                v.key
                for v in own
                if (v.value is not None and self._is_in(v.value))
                or any(self._shows(write) for write in self._text.writes(v))
            }

    def is_stored(self) -> bool:
        """Return whether a store, or the condition of one, depends on these variables."""
        if not self._keys:
            return False
        for access in Accesses(self._kernel).within(self._loop.body):
            is_own = bool(access.root.dims) and not access.root.shared
            if access.use != "load" and not is_own and self._shows(access.node):
                return True
        return any(
            self._is_in(argument)
            for call in nodes(self._loop.body, "call_expression")
            if call.parent is not None and call.parent.type == "expression_statement"
            for argument in arguments_of(call)
        )

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


def meets_others(kernel: CudaKernel, node: Node) -> bool:
    """Return whether threads wait for each other, or exchange values, in a part of the text."""
    for part in (node, *reached(kernel.text, node)):
        for call in nodes(part, "call_expression"):
            function = field(call, "function")
            if called(call).startswith(_MEETINGS):
                return True
            if function is not None and function.type in (
                "qualified_identifier",
                "field_expression",
            ):
                name = text_of(field(function, "name") or field(function, "field"))
                if function_name(name).startswith(_COLLECTIVES):
                    return True  # of cooperative groups
    return False


class Sharing:
    """The threads of a warp, block or grid that share a loop.

    Args:
        kernel: the kernel.
        group: ``warp``, ``block`` or ``grid``.
        loop: the loop.
    """

    def __init__(self, kernel: CudaKernel, group: str, loop: CountedLoop) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._group = group
        self._loop = loop
        self._sums: frozenset[int] = frozenset()
        """The keys of variables on which threads need not agree."""

    def may_be_redistributed(self) -> bool:
        """Return whether any thread can take any element of the loop."""
        loop, text = self._loop, self._text
        written = frozenset(v.key for v in text.variables if text.changes(v, loop.body))
        if not all(self._agree(end) for end in (loop.bound, loop.step) if end is not None):
            return False
        if Carried(self._kernel, loop, written).is_stored() or not self._all_come():
            return False
        self._sums = written
        return self._agree(loop.body)

    def _all_come(self) -> bool:
        for node in ancestors(self._loop.node):
            if node == self._text.body:
                return True
            if node.type in _CONDITIONAL:
                parts = [field(node, name) for name in ("initializer", "condition", "update")]
                if not all(self._agree(part) for part in parts if part is not None):
                    return False
        return False

    def _agree(self, node: Node, depth: int = _MAX_DEPTH) -> bool:
        """Return whether all threads find the same in a part of the text, apart from sums."""
        if depth == 0:
            return False
        node = bare(node)
        known = self._kernel.polynomial(node) if node.type != "compound_statement" else None
        if known is not None and all(self._is_common(atom) for atom in known.atoms):
            return True
        match node.type:
            case "field_expression" if text_of(field(node, "argument")) in _THREADS:
                return False
            case "call_expression" if meets_others(self._kernel, node):
                return True  # what was reduced
            case "call_expression" if asks_for_thread(self._text, node):
                return False
            case "identifier":
                variable = self._text.variable(node)
                return variable is None or self._agree_on(variable, depth)
        return all(self._agree(child, depth) for child in node.named_children)

    def _is_common(self, atom: Atom) -> bool:
        if atom.text.startswith("blockIdx."):
            return self._group != "grid"
        if atom.text.startswith("gridDim.") or self._kernel.values(atom) is not None:
            return True
        divisor = atom.right.value if atom.right is not None else None
        if self._group != "warp" or atom.operator != "/" or divisor != WARP or atom.left is None:
            return False
        before = atom.left - THREAD  # what counts threads from the start of a warp on
        whole = self._kernel.is_multiple(before, WARP)
        return whole and all(self._is_common(part) for part in before.atoms)

    def _agree_on(self, variable: Variable, depth: int) -> bool:
        loop, text = self._loop, self._text
        if variable == loop.variable or variable.key in self._sums or variable.shared:
            return True
        if inside(variable.node, loop.body) or variable.parameter:
            return True
        if variable.dims:
            return False
        around = next((other for other in text.loops if other.variable == variable), None)
        if around is not None:
            ends = (around.start, around.bound, around.step)
            return all(self._agree(end, depth - 1) for end in ends if end is not None)
        last = variable.value
        if written := text.writes(variable):  # its last value before the loop counts
            if variable.type not in FLOATS or variable.pointer:
                return False
            before = [node for node in written if node.end_byte <= loop.node.start_byte]
            change = before[-1].parent if before else variable.value
            if change is None or meets_others(self._kernel, change):
                return change is not None
            last = field(change, "right") if before else change
        return last is not None and self._agree(last, depth - 1)
