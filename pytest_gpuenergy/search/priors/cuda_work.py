"""Counts the work of a CUDA kernel: its operations, times how often a thread reaches them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuenergy.emulator import COEFFICIENTS, LOADS_IN_FLIGHT, SECTOR_BYTES
from pytest_gpuenergy.search.analysis.accesses import Access, Accesses, array_dims
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.priors.averages import LOOPS, Averages
from pytest_gpuenergy.search.priors.work import (
    CONVERSIONS,
    DIVISION,
    FUNCTIONS,
    WARP,
    KernelWork,
)
from pytest_gpuenergy.search.source.cuda_text import BYTES, CudaText, Variable
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    called,
    expression_operator,
    field,
    inside,
    node_text,
    nodes,
)
from pytest_gpuenergy.search.spec.sizes import evaluate
from pytest_gpuenergy.search.spec.spec_workload import block_names
from pytest_gpuenergy.workloads import stored_as

if TYPE_CHECKING:
    from tree_sitter import Node

_OPERATIONS = frozenset(["+", "-", "*", "%", "<<", ">>", "&", "|", "^", "<", "<=", ">", ">="])
_FLOATING = frozenset(BYTES) - {"int", "unsigned", "unsigned int"}
_SUMS = frozenset(["+", "-", "+=", "-="])
_VECTOR = re.compile(r"(?P<type>\w*?)(?P<lanes>[248])|(?P<bytes>\d+) bytes")
_LANES = {**BYTES, "uint": 4, "short": 2, "ushort": 2, "char": 1, "uchar": 1, "longlong": 8}
_MMA_FLOPS = 2 * 16 * 16 * 16
"""Operations of a warp's ``wmma::mma_sync``; M N K is the same for all of its shapes."""
_UNROLLED = 0.25
"""Share of a loop's own comparison and step that is left, as nvcc repeats its body; a guess."""
_PAST_L1 = ("__ldcg", "__ldcv")
"""Functions that load without using the L1."""
_OPERATING = ("binary_expression", "assignment_expression", "update_expression", "call_expression")
"""Types of syntax nodes that can take instructions."""
_BANKS, _WORD_BYTES = 32, 4
_UNIT_STEPS = (1, 0, 0), (0, 1, 0), (0, 0, 1)
_THREAD_NAMES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_BARRIERS = ("__syncthreads", "__syncwarp")
_ROUNDS_AHEAD = 4
"""Times that nvcc repeats the body of a loop with unknown ends, as in machine code for sm_90."""
_Thread = tuple[int, int, int]


def count_cuda_work(kernel: CudaKernel) -> KernelWork:
    """Return the work of a kernel whose text is understood."""
    return _CudaCounting(kernel).work()


class _CudaCounting:
    def __init__(self, kernel: CudaKernel) -> None:
        self._kernel = kernel
        self._body = kernel.text.body
        self._averages = Averages(kernel)
        self._places = _Places(kernel, self._averages)
        self._accesses = Accesses(kernel).all
        self._warps = -(-kernel.threads // WARP)

    def work(self) -> KernelWork:
        kernel, warps, variables = self._kernel, self._warps, self._kernel.text.variables
        tensors = [access for access in self._accesses if access.root.key in kernel.tensors]
        shared = [access for access in self._accesses if access.root.shared]
        moved = [access for access in tensors if access.use != "atomic" and self._times(access)]
        loads = [access for access in moved if access.use in ("load", "update")]
        updates = [access for access in tensors if access.use == "atomic"]
        updated = {access.root.key: self._elements(access.root) for access in updates}
        functions, instructions, serial = self._operations()
        for access in [*tensors, *shared]:
            cost = COEFFICIENTS.instructions_per_global
            if access.root.shared:
                cost = COEFFICIENTS.instructions_per_shared
            instructions += cost * self._times(access)
            most = self._averages.times(access.node).most
            serial += cost * most * (2 if access.use == "update" else 1)
        products = sum(
            self._averages.times(call).average
            for call in nodes(self._body, "call_expression")
            if node_text(field(call, "function")).endswith("mma_sync")
        )
        names = {**kernel.spec.sizes[0], **kernel.launch.constants}
        dynamic_bytes = evaluate(
            kernel.launch.shared_bytes, {**names, **block_names(kernel.launch.block)}
        )
        shared_arrays = [variable for variable in variables if variable.shared]
        arrays = [variable for variable in variables if variable.dims and not variable.shared]
        barriers = kernel.text.calls(self._body, *_BARRIERS)
        return KernelWork(
            blocks=math.prod(max(1, size[0]) for size in kernel.facts.grid),
            threads=kernel.threads,
            shared_bytes=dynamic_bytes + sum(map(self._bytes, shared_arrays)),
            private_words=sum(-(-self._bytes(array) // 4) for array in arrays),
            instructions=instructions * warps,
            tensor_flops=_MMA_FLOPS * products * warps,
            functions=functions * kernel.threads,
            loads=warps * sum(map(self._times, loads)),
            sectors=sum(self._sectors(access) * self._times(access) for access in moved) * warps,
            l2_bytes=self._l2_bytes(moved),
            wavefronts=sum(self._wavefronts(access) * self._times(access) for access in shared)
            * warps,
            atomics=kernel.threads * sum(map(self._times, updates)),
            places=max(1.0, sum(updated.values())),
            barriers=sum(self._averages.times(call).most for call in barriers),
            guessed=self._averages.guessed,
            rounds=_Waiting(kernel.text, self._averages).rounds(access.node for access in loads),
            serial=serial,
        )

    def _times(self, access: Access) -> float:
        return self._averages.times(access.node).average * (2 if access.use == "update" else 1)

    def _operations(self) -> tuple[float, float, float]:
        """Return special functions, instructions, and instructions of the busiest thread.

        The first two are those of an average thread. Accesses are not counted, and neither are
        their addresses. Once loops are unrolled, a part is left of what counts their rounds, and
        nothing of the sums that are indices.
        """
        addresses = {access.place.id for access in self._accesses}
        functions = instructions = serial = 0.0
        for node in nodes(self._body, *_OPERATING):
            if any(
                outer.type == "subscript_argument_list" or outer.id in addresses
                for outer in ancestors(node)
            ):
                continue
            special, plain = self._cost(node)
            if special or plain:
                times, left = self._averages.times(node), 1.0
                if (loop := _counting_loop(node)) is not None:
                    left = 0.0 if self._averages.is_constant(loop) else _UNROLLED
                elif node.type == "binary_expression" and expression_operator(node) in _SUMS:
                    left = float(self._is_floating(node))
                functions += special * times.average * left
                instructions += plain * times.average * left
                serial += plain * times.most * left
        return functions, instructions, serial

    def _cost(self, node: Node) -> tuple[float, float]:
        if node.type == "call_expression":
            name = called(node)
            return FUNCTIONS.get(name, (0.0, CONVERSIONS.get(name, 1.0 if name else 0.0)))
        sign = expression_operator(node)
        if sign in ("/", "/="):
            return DIVISION if self._is_floating(node) else (0.0, 1.0)
        if sign == "*":
            outer = next((n for n in ancestors(node) if bare(n) == n), None)
            if (
                outer is not None and expression_operator(outer) in _SUMS
            ):  # a part of a multiply-add
                return 0.0, 0.0
        counts = sign in _OPERATIONS or sign[:-1] in _OPERATIONS or node.type == "update_expression"
        return 0.0, float(counts)

    def _is_floating(self, node: Node) -> bool:
        variables = map(self._kernel.text.variable, nodes(node, "identifier"))
        literals = map(node_text, nodes(node, "number_literal"))
        return any(
            variable is not None and variable.type in _FLOATING for variable in variables
        ) or any("." in text for text in literals)

    def _size(self, access: Access) -> tuple[int, int]:
        """Return the bytes of an element, and how many elements are accessed at once."""
        tensor = self._kernel.tensors.get(access.root.key)
        size = BYTES.get(access.root.type, 4)
        if tensor is not None:
            size = stored_as(tensor.dtype).itemsize
        width = access.address.width
        vector = _VECTOR.fullmatch(width)
        if vector is None:
            return size, max(1, BYTES.get(width, size) // size)
        whole = int(vector["bytes"] or _LANES.get(vector["type"], size) * int(vector["lanes"] or 1))
        return size, max(1, whole // size)

    def _offset(self, access: Access) -> Polynomial | None:
        """Return the offset of an access in elements, also of a vector or with several indices."""
        if access.address.offset is not None:
            return access.address.offset
        dims = array_dims(self._kernel, access.root) if access.root.dims else None
        if dims is None or len(dims) != len(access.address.subscripts):
            return None
        total = Polynomial()
        for size, index in zip(dims, access.address.subscripts, strict=True):
            position = self._kernel.polynomial(index)
            if position is None:
                return None
            total = total * Polynomial.constant(size) + position
        return total

    def _sectors(self, access: Access) -> float:
        """Return the number of sectors that a warp touches.

        Unknown addresses count as scattered if data that the kernel reads decides them, and as
        consecutive otherwise.
        """
        offset, (size, wide) = self._offset(access), self._size(access)
        touched = None if offset is None else self._places.touched_by_warp(offset, size, wide)
        if touched is not None:
            return len(touched.sectors)
        others = (other for other in self._accesses if other.place != access.place)
        is_scattered = any(inside(other.place, access.place) for other in others)
        threads = min(WARP, self._kernel.threads)
        sectors = threads if is_scattered else threads * size * wide / SECTOR_BYTES
        most = self._elements(access.root) * size / SECTOR_BYTES
        return max(1.0, min(sectors, most))

    def _wavefronts(self, access: Access) -> float:
        offset, (size, wide) = self._offset(access), self._size(access)
        wavefronts = None if offset is None else self._places.wavefronts(offset, size, wide)
        return 1.0 if wavefronts is None else wavefronts

    def _elements(self, parameter: Variable) -> float:
        shape = self._kernel.facts.shapes[self._kernel.tensors[parameter.key].name]
        return float(math.prod(shape[0]))

    def _l2_bytes(self, accesses: list[Access]) -> float:
        """Return the bytes that a block moves to and from the L2.

        The L1 holds what a block reads again, except for loads that do not use the L1.
        """
        groups: defaultdict[tuple[int, int], list[Access]] = defaultdict(list)
        past_l1 = [access for access in accesses if access.function in _PAST_L1]
        for access in accesses:
            if access in past_l1:
                continue
            loop = next((n for n in ancestors(access.node) if n.type == "for_statement"), None)
            groups[access.root.key, 0 if loop is None else loop.id].append(access)
        most: defaultdict[int, float] = defaultdict(float)
        for (key, _), members in groups.items():
            most[key] = max(most[key], self._distinct_bytes(members))
        again = sum(self._sectors(access) * self._times(access) for access in past_l1)
        return sum(most.values()) + again * self._warps * SECTOR_BYTES

    def _distinct_bytes(self, accesses: list[Access]) -> float:
        """Return the bytes that a block moves by the accesses to one tensor in one loop."""
        touched, loose, rounds = _Touched(frozenset(), frozenset(), 0), 0.0, 1.0
        for access in accesses:
            offset, (size, wide) = self._offset(access), self._size(access)
            by_access = (
                None if offset is None else self._places.touched_by_block(offset, size, wide)
            )
            if offset is None or by_access is None:
                loose = max(loose, self._sectors(access) * self._warps * self._times(access))
                continue
            touched = by_access | touched
            keys, variables = offset.variables, self._kernel.text.variables
            loops = (n for n in ancestors(access.node) if n.type == "for_statement")
            with_other_addresses = math.prod(
                self._averages.rounds(loop).average
                for loop in loops
                if any(v.key in keys for v in variables if v.scope == loop)
            )
            rounds = max(rounds, with_other_addresses)
        size, _ = self._size(accesses[0])
        whole = self._elements(accesses[0].root) * size + SECTOR_BYTES
        reached = max(self._averages.reached(access.node) for access in accesses)
        return min(max(touched.bytes_after(rounds) * reached, loose * SECTOR_BYTES), whole)

    def _bytes(self, array: Variable) -> int:
        dims = array_dims(self._kernel, array)
        return 0 if dims is None else math.prod(dims) * BYTES.get(array.type, 4)


def _counting_loop(node: Node) -> Node | None:
    """Return the loop to whose condition or step a node belongs; None if there is none."""
    at, outer = node, node.parent
    while outer is not None and outer.type in ("binary_expression", "parenthesized_expression"):
        at, outer = outer, outer.parent
    counts = outer is not None and outer.type == "for_statement" and at != field(outer, "body")
    return outer if counts else None


class _Touched(NamedTuple):
    """The parts of a tensor that an access touches.

    Attributes:
        sectors: the numbers of the sectors.
        elements: the addresses of the elements, in bytes.
        size: the bytes of an element.
    """

    sectors: frozenset[int]
    elements: frozenset[int]
    size: int

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(self.sectors | other.sectors, self.elements | other.elements, self.size)

    def bytes_after(self, rounds: float) -> float:
        """Return the bytes that so many equal rounds touch, if together they fill the sectors."""
        once = len(self.sectors) * SECTOR_BYTES
        return max(once, rounds * min(once, len(self.elements) * self.size))


class _Places:
    """The addresses, in bytes, that the threads of an average block access."""

    def __init__(self, kernel: CudaKernel, averages: Averages) -> None:
        self._averages = averages
        width, height, _ = kernel.block
        self._threads: list[_Thread] = [
            (thread % width, thread // width % height, thread // width // height)
            for thread in range(kernel.threads)
        ]

    def touched_by_warp(self, offset: Polynomial, size: int, wide: int) -> _Touched | None:
        """Return what a warp touches with one access of ``wide`` elements of ``size`` bytes.

        None means that the address is unknown.
        """
        return self.touched_by_block(offset, size, wide, WARP)

    def touched_by_block(
        self, offset: Polynomial, size: int, wide: int, threads: int | None = None
    ) -> _Touched | None:
        """Return what the first ``threads`` of a block, or all, touch with such an access."""
        elements: set[int] = set()
        for first in self._addresses(offset, size, self._threads[:threads]):
            if first is None:
                return None
            elements.update(range(first, first + size * wide, size))
        sectors = frozenset(address // SECTOR_BYTES for address in elements)
        return _Touched(sectors, frozenset(elements), size)

    def wavefronts(self, offset: Polynomial, size: int, wide: int) -> float | None:
        """Return the number of parts that a warp's access to shared memory takes."""
        words: defaultdict[int, set[int]] = defaultdict(set)
        for first in self._addresses(offset, size, self._threads[:WARP]):
            if first is None:
                return None
            for word in range(first // _WORD_BYTES, (first + size * wide - 1) // _WORD_BYTES + 1):
                words[word % _BANKS].add(word)
        return float(max(len(words_of_bank) for words_of_bank in words.values()))

    def _addresses(
        self, offset: Polynomial, size: int, threads: list[_Thread]
    ) -> Iterator[int | None]:
        """Yield the address of each thread; linear ones are computed from that of thread 0.

        Whether they are linear is decided by the threads in the middle and at the end.
        """
        first, *nexts = (self._value(offset, thread) for thread in ((0, 0, 0), *_UNIT_STEPS))
        steps = [0.0 if value is None or first is None else value - first for value in nexts]

        def linear(thread: _Thread) -> float | None:
            return None if first is None else first + sum(map(mul, steps, thread))

        probes = threads[len(threads) // 2], threads[len(threads) * 2 // 3], threads[-1]
        is_linear = all(self._value(offset, thread) == linear(thread) for thread in probes)
        for thread in threads:
            value = (
                linear(thread) if is_linear and first is not None else self._value(offset, thread)
            )
            yield None if value is None else int(value) * size

    def _value(self, offset: Polynomial, thread: _Thread) -> float | None:
        return self._averages.value(offset, dict(zip(_THREAD_NAMES, thread, strict=True)), 0.0)


class _Waiting:
    """The rounds of loads for which a thread waits; each takes the latency of a load once.

    The compiler moves loads ahead within a straight piece of code. It also repeats the body of an
    inner loop and moves its loads ahead, unless a branch, a barrier or another loop is in the way.
    """

    def __init__(self, text: CudaText, averages: Averages) -> None:
        self._text = text
        self._averages = averages

    def rounds(self, loads: Iterable[Node]) -> float:
        """Return the rounds of the thread that waits most, for loads at these places."""
        pieces: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
        around: dict[tuple[int, int], tuple[Node | None, Node | None]] = {}
        for load in loads:
            loop, branch = self._enclosing_loop_and_branch(load)
            key = loop.id if loop else 0, branch.id if branch else 0
            pieces[key].append(load)
            around[key] = loop, branch
        total = 0.0
        for key, piece in pieces.items():
            loop, branch = around[key]
            passes = 1.0
            if loop is not None:
                passes = self._averages.times(loop).most * self._averages.rounds(loop).most
            if not passes:
                continue
            each = sum(self._averages.times(load).most for load in piece) / passes
            ahead = 1.0
            if loop is not None and branch is None and self._is_straight(loop):
                ahead = min(_ROUNDS_AHEAD, max(1.0, LOADS_IN_FLIGHT / each))
            total += max(min(1.0, passes), passes / ahead) * max(1.0, each / LOADS_IN_FLIGHT)
        return total

    def _enclosing_loop_and_branch(self, load: Node) -> tuple[Node | None, Node | None]:
        """Return the innermost loop that is not unrolled, and the branch in it, around a load."""
        branch = None
        for outer in ancestors(load):
            if outer.type in LOOPS and not self._is_unrolled(outer):
                return outer, branch
            condition = field(outer, "condition") if outer.type == "if_statement" else None
            if branch is None and condition is not None and not inside(load, condition):
                branch = outer
        return None, branch

    def _is_straight(self, loop: Node) -> bool:
        inner = (inner_loop for inner_loop in nodes(loop, *LOOPS) if inner_loop != loop)
        return all(map(self._is_unrolled, inner)) and not any(
            True for _ in self._text.calls(loop, *_BARRIERS)
        )

    def _is_unrolled(self, loop: Node) -> bool:
        return loop.type == "for_statement" and self._averages.is_constant(loop)
