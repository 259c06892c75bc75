"""Decides whether the iterations of a loop may be redistributed among threads."""

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
    bare,
    call_arguments,
    called,
    field,
    inside,
    node_text,
    nodes,
    unscoped_name,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_IMPLICITLY_CALLED = ("operator", "~")
"""The prefixes of functions that are called without being named."""
_INDEX_VARIABLES = frozenset(["threadIdx", "blockIdx"])
_RANK_METHODS = frozenset(
    [
        *("thread_rank", "thread_index", "group_index", "block_rank", "block_index"),
        *("meta_group_rank", "dim_threads"),
    ]
)
"""Methods of cooperative groups that return the index of a thread or of its group."""
_CONDITIONAL_STATEMENTS = ("if_statement", "for_statement", "while_statement", "do_statement")
_BRANCHES = (*_CONDITIONAL_STATEMENTS, "switch_statement", "conditional_expression")
_MAX_DEPTH = 20
"""The number of definitions that are followed from one variable to the next."""
_WARP_INTRINSICS = (
    *("__sync", "__shfl", "__ballot", "__any", "__all", "__reduce", "__match", "__pipeline"),
    "__activemask",
)
"""The prefixes of intrinsics that synchronize threads or exchange values among them."""
_COLLECTIVES = (
    *("sync", "reduce", "shfl", "any", "all", "ballot", "match", "inclusive_scan", "wait"),
    *("exclusive_scan", "memcpy_async", "arrive", "barrier", "invoke_one", "coalesced_threads"),
    *("labeled_partition", "binary_partition", "Sum", "Reduce"),
)
"""The prefixes of functions of cooperative groups, CUB and barriers that do so."""


def called_functions(text: CudaText, node: Node) -> list[Node]:
    """Return the functions of a text that ``node`` may call, directly or through others.

    Matches by name alone, so it may return too many.
    """
    found: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        part = waiting.pop()
        named = {node_text(leaf).split("<")[0] for leaf in nodes(part, "field_identifier", *NAMES)}
        for function in text.functions:
            name = unscoped_name(function)
            is_called = name in named or name.startswith(_IMPLICITLY_CALLED)
            if is_called and function.id not in found:
                found[function.id] = function
                waiting.append(function)
    return list(found.values())


def may_depend_on_thread_index(text: CudaText, node: Node) -> bool:
    """Return whether a function that ``node`` calls may depend on the index of its thread."""
    if any(node_text(leaf) in _RANK_METHODS for leaf in nodes(node, "field_identifier")):
        return True
    return any(
        leaf.type == "gnu_asm_expression" or node_text(leaf) in _INDEX_VARIABLES | _RANK_METHODS
        for function in called_functions(text, node)
        for leaf in walk(function)
        if leaf.type in ("gnu_asm_expression", "identifier", "field_identifier")
    )


class LoopCarriedVariables:
    """The variables that carry values from one iteration of a loop to the next.

    Iterations may be redistributed among threads if their only carried values are sums that are
    reduced afterwards. A store that depends on a running sum forbids this. ``written`` are the keys
    of the variables that the body of the loop writes.
    """

    def __init__(self, kernel: CudaKernel, loop: CountedLoop, written: frozenset[int]) -> None:
        self._kernel = kernel
        self._loop = loop
        self._text = kernel.text
        local = [v for v in self._text.variables if inside(v.node, loop.body)]
        local_keys = {v.key for v in local}
        self._keys = set(written - local_keys - {loop.variable.key})
        """The keys of the carried variables and of the local ones that depend on them."""
        size = -1
        while size < len(self._keys):
            size = len(self._keys)
            self._keys |= {
                v.key
                for v in local
                if (v.value is not None and self._occur_in(v.value))
                or any(self._affect_statement(write) for write in self._text.writes(v))
            }

    def reach_a_store(self) -> bool:
        """Return whether a store, or the condition of one, depends on these variables."""
        if not self._keys:
            return False
        for access in Accesses(self._kernel).within(self._loop.body):
            is_thread_local = bool(access.root.dims) and not access.root.shared
            is_visible_store = access.use != "load" and not is_thread_local
            if is_visible_store and self._affect_statement(access.node):
                return True
        return any(
            self._occur_in(argument)
            for call in nodes(self._loop.body, "call_expression")
            if call.parent is not None and call.parent.type == "expression_statement"
            for argument in call_arguments(call)
        )

    def _affect_statement(self, node: Node) -> bool:
        """Return whether the statement around a node depends on these variables."""
        for outer in ancestors(node):
            if not inside(outer, self._loop.body):
                return False
            if outer.type in ("expression_statement", "declaration") and self._occur_in(outer):
                return True
            condition = field(outer, "condition") if outer.type in _BRANCHES else None
            if condition is not None and self._occur_in(condition):
                return True
        return False

    def _occur_in(self, node: Node) -> bool:
        variables = (self._text.variable(n) for n in nodes(node, "identifier"))
        return any(variable is not None and variable.key in self._keys for variable in variables)


def synchronizes_or_exchanges(kernel: CudaKernel, node: Node) -> bool:
    """Return whether threads synchronize or exchange values in ``node`` or in what it calls."""
    for part in (node, *called_functions(kernel.text, node)):
        for call in nodes(part, "call_expression"):
            function = field(call, "function")
            if called(call).startswith(_WARP_INTRINSICS):
                return True
            if function is not None and function.type in (
                "qualified_identifier",
                "field_expression",
            ):
                name = node_text(field(function, "name") or field(function, "field"))
                if function_name(name).startswith(_COLLECTIVES):
                    return True
    return False


class Sharing:
    """The threads of a ``warp``, ``block`` or ``grid`` that share a loop."""

    def __init__(self, kernel: CudaKernel, group: str, loop: CountedLoop) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._group = group
        self._loop = loop

    def may_be_redistributed(self) -> bool:
        """Return whether any thread of the group can run any iteration of the loop."""
        loop, text = self._loop, self._text
        written = frozenset(v.key for v in text.variables if text.changes(v, loop.body))
        limits = [limit for limit in (loop.bound, loop.step) if limit is not None]
        if not all(self._is_uniform(limit) for limit in limits):
            return False
        if LoopCarriedVariables(self._kernel, loop, written).reach_a_store():
            return False
        return self._is_reached_by_all_threads() and self._is_uniform(loop.body, ignored=written)

    def _is_reached_by_all_threads(self) -> bool:
        """Return whether no condition around the loop keeps some threads of the group away."""
        for outer in ancestors(self._loop.node):
            if outer == self._text.body:
                return True
            if outer.type in _CONDITIONAL_STATEMENTS:
                parts = [field(outer, name) for name in ("initializer", "condition", "update")]
                if not all(self._is_uniform(part) for part in parts if part is not None):
                    return False
        return False

    def _is_uniform(
        self, node: Node, depth: int = _MAX_DEPTH, *, ignored: frozenset[int] = frozenset()
    ) -> bool:
        """Return whether an expression or all of a statement is the same in the group's threads.

        Accumulators, whose keys are ``ignored``, may differ between threads.
        """
        if depth == 0:
            return False
        node = bare(node)
        value = self._kernel.polynomial(node) if node.type != "compound_statement" else None
        if value is not None and all(self._is_uniform_atom(atom) for atom in value.atoms):
            return True
        match node.type:
            case "field_expression" if node_text(field(node, "argument")) in _INDEX_VARIABLES:
                return False
            case "call_expression" if synchronizes_or_exchanges(self._kernel, node):
                return True  # taken for a reduction, whose result all threads get
            case "call_expression" if may_depend_on_thread_index(self._text, node):
                return False
            case "identifier":
                variable = self._text.variable(node)
                return variable is None or self._is_uniform_variable(variable, depth, ignored)
        return all(self._is_uniform(child, depth, ignored=ignored) for child in node.named_children)

    def _is_uniform_atom(self, atom: Atom) -> bool:
        if atom.text.startswith("blockIdx."):
            return self._group != "grid"
        if atom.text.startswith("gridDim.") or self._kernel.values(atom) is not None:
            return True
        divisor = atom.right.value if atom.right is not None else None
        if self._group != "warp" or atom.operator != "/" or divisor != WARP or atom.left is None:
            return False
        # The index of a warp: (threadIdx.x + offset) / 32, where the offset is a multiple of 32.
        offset = atom.left - THREAD
        is_aligned = self._kernel.is_multiple(offset, WARP)
        return is_aligned and all(self._is_uniform_atom(part) for part in offset.atoms)

    def _is_uniform_variable(self, variable: Variable, depth: int, ignored: frozenset[int]) -> bool:
        loop, text = self._loop, self._text
        if variable == loop.variable or variable.key in ignored or variable.shared:
            return True
        if inside(variable.node, loop.body) or variable.parameter:
            return True
        if variable.dims:
            return False
        counted = next((other for other in text.loops if other.variable == variable), None)
        if counted is not None:
            limits = (counted.start, counted.bound, counted.step)
            return all(
                self._is_uniform(limit, depth - 1, ignored=ignored)
                for limit in limits
                if limit is not None
            )
        source = variable.value
        if writes := text.writes(variable):  # its last value before the loop counts
            if variable.type not in FLOATS or variable.pointer:
                return False
            earlier_writes = [node for node in writes if node.end_byte <= loop.node.start_byte]
            definition = earlier_writes[-1].parent if earlier_writes else variable.value
            if definition is None:
                return False
            if synchronizes_or_exchanges(self._kernel, definition):
                return True
            source = field(definition, "right") if earlier_writes else definition
        return source is not None and self._is_uniform(source, depth - 1, ignored=ignored)
