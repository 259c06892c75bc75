"""Counts the work of a CUDA kernel: its operations, times how often a thread reaches them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses, dims_of
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.priors.averages import Averages
from pytest_gpuenergy.search.priors.cuda_accesses import (
    BARRIERS,
    SECTOR_BYTES,
    Places,
    Touched,
    Waiting,
)
from pytest_gpuenergy.search.priors.work import CONVERSIONS, DIVISION, FUNCTIONS, WARP, KernelWork
from pytest_gpuenergy.search.source.cuda_text import BYTES, Variable
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    called,
    field,
    inside,
    nodes,
    operator_of,
    text_of,
)
from pytest_gpuenergy.search.spec.sizes import evaluate
from pytest_gpuenergy.search.spec.spec_workload import block_names
from pytest_gpuenergy.workloads import stored_as

if TYPE_CHECKING:
    from tree_sitter import Node

_PER_TENSOR_ACCESS, _PER_SHARED_ACCESS = 2.0, 1.0
"""Instructions of an access, including its address, as in the emulated GPU's timing model."""
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
_OPERATING = (
    *("binary_expression", "assignment_expression", "update_expression", "call_expression"),
)
"""Types of syntax nodes that can take instructions."""


def work_of_cuda(kernel: CudaKernel) -> KernelWork:
    """Return the work of a kernel whose text is understood."""
    return _Counting(kernel).work()


class _Counting:
    def __init__(self, kernel: CudaKernel) -> None:
        self._kernel = kernel
        self._body = kernel.text.body
        self._averages = Averages(kernel)
        self._places = Places(kernel, self._averages)
        self._accesses = Accesses(kernel).all
        self._warps = -(-kernel.threads // WARP)

    def work(self) -> KernelWork:
        kernel, warps = self._kernel, self._warps
        tensors = [access for access in self._accesses if access.root.key in kernel.tensors]
        shared = [access for access in self._accesses if access.root.shared]
        moved = [access for access in tensors if access.use != "atomic" and self._times(access)]
        loads = warps * sum(
            self._times(access) for access in moved if access.use in ("load", "update")
        )
        atomics, places = self._atomics(tensors)
        functions, instructions, serial = self._operations()
        for access in [*tensors, *shared]:
            cost = _PER_SHARED_ACCESS if access.root.shared else _PER_TENSOR_ACCESS
            instructions += cost * self._times(access)
            serial += cost * self._times_at_most(access)
        loaded = [access.node for access in moved if access.use in ("load", "update")]
        return KernelWork(
            blocks=math.prod(max(1, size[0]) for size in kernel.facts.grid),
            threads=kernel.threads,
            shared_bytes=self._shared_bytes(),
            private_words=self._private_words(),
            instructions=instructions * warps,
            tensor_flops=self._tensor_flops() * warps,
            functions=functions * kernel.threads,
            loads=loads,
            sectors=sum(self._sectors(access) * self._times(access) for access in moved) * warps,
            l2_bytes=self._l2_bytes(moved),
            wavefronts=sum(self._wavefronts(access) * self._times(access) for access in shared)
            * warps,
            atomics=atomics,
            places=places,
            barriers=sum(
                self._averages.times(call).most for call in kernel.text.calls(self._body, *BARRIERS)
            ),
            guessed=self._averages.guessed,
            rounds=Waiting(kernel.text, self._averages).rounds(loaded),
            serial=serial,
        )

    def _times(self, access: Access) -> float:
        return self._averages.times(access.node).average * (2 if access.use == "update" else 1)

    def _times_at_most(self, access: Access) -> float:
        return self._averages.times(access.node).most * (2 if access.use == "update" else 1)

    def _tensor_flops(self) -> float:
        """Return the operations of tensor cores by a warp."""
        calls = nodes(self._body, "call_expression")
        names = ((call, text_of(field(call, "function"))) for call in calls)
        return sum(
            _MMA_FLOPS * self._averages.times(call).average
            for call, name in names
            if name.endswith("mma_sync")
        )

    def _operations(self) -> tuple[float, float, float]:
        """Return special functions, instructions, and instructions of the busiest thread.

        The first two are those of an average thread; no accesses are counted.
        """
        functions = instructions = serial = 0.0
        for node in nodes(self._body, *_OPERATING):
            if self._is_address(node):
                continue
            special, plain = self._cost(node)
            if special or plain:
                times, left = self._averages.times(node), self._share_left(node)
                functions += special * times.average * left
                instructions += plain * times.average * left
                serial += plain * times.most * left
        return functions, instructions, serial

    def _share_left(self, node: Node) -> float:
        """Return the share of an operation that is left once loops are unrolled, indices folded."""
        loop = _loop_counted_by(node)
        if loop is not None:
            return 0.0 if self._averages.is_constant(loop) else _UNROLLED
        folded = node.type == "binary_expression" and operator_of(node) in _SUMS
        return 0.0 if folded and not self._is_floating(node) else 1.0

    def _cost(self, node: Node) -> tuple[float, float]:
        if node.type == "call_expression":
            name = called(node)
            return FUNCTIONS.get(name, (0.0, CONVERSIONS.get(name, 1.0 if name else 0.0)))
        sign = operator_of(node)
        if sign in ("/", "/="):
            return DIVISION if self._is_floating(node) else (0.0, 1.0)
        if sign == "*" and self._is_fused(node):
            return 0.0, 0.0
        counts = sign in _OPERATIONS or sign[:-1] in _OPERATIONS or node.type == "update_expression"
        return 0.0, float(counts)

    def _is_floating(self, node: Node) -> bool:
        variables = map(self._kernel.text.variable, nodes(node, "identifier"))
        literals = map(text_of, nodes(node, "number_literal"))
        return any(
            variable is not None and variable.type in _FLOATING for variable in variables
        ) or any("." in text for text in literals)

    @staticmethod
    def _is_fused(product: Node) -> bool:
        """Return whether a product is added to something, which makes it part of a multiply-add."""
        outer = next((n for n in ancestors(product) if bare(n) == n), None)
        return outer is not None and operator_of(outer) in _SUMS

    def _is_address(self, node: Node) -> bool:
        """Return whether a node is part of an address, which is counted with its access."""
        return any(
            outer.type == "subscript_argument_list" or outer.id in self._addresses
            for outer in ancestors(node)
        )

    @cached_property
    def _addresses(self) -> frozenset[int]:
        return frozenset(access.place.id for access in self._accesses)

    def _size(self, access: Access) -> tuple[int, int]:
        """Return the bytes of an element, and how many elements are accessed at once."""
        tensor = self._kernel.tensors.get(access.root.key)
        size = BYTES.get(access.root.type, 4)
        if tensor is not None:
            size = stored_as(tensor.dtype).itemsize
        width = access.address.width
        found = _VECTOR.fullmatch(width)
        if found is None:
            return size, max(1, BYTES.get(width, size) // size)
        whole = int(found["bytes"] or _LANES.get(found["type"], size) * int(found["lanes"] or 1))
        return size, max(1, whole // size)

    def _offset(self, access: Access) -> Polynomial | None:
        """Return the offset of an access in elements, also of a vector or with several indices."""
        if access.address.offset is not None:
            return access.address.offset
        dims = dims_of(self._kernel, access.root) if access.root.dims else None
        if dims is None or len(dims) != len(access.address.subscripts):
            return None
        total = Polynomial()
        for size, index in zip(dims, access.address.subscripts, strict=True):
            found = self._kernel.polynomial(index)
            if found is None:
                return None
            total = total * Polynomial.constant(size) + found
        return total

    def _sectors(self, access: Access) -> float:
        """Return the number of sectors that a warp touches.

        Unknown addresses count as scattered if data decides them, and as consecutive otherwise.
        """
        offset, (size, wide) = self._offset(access), self._size(access)
        found = None if offset is None else self._places.of_warp(offset, size, wide)
        if found is not None:
            return len(found.sectors)
        threads = min(WARP, self._kernel.threads)
        in_turn = threads * size * wide / SECTOR_BYTES
        most = self._elements(access.root) * size / SECTOR_BYTES
        return max(1.0, min(threads if self._is_decided(access) else in_turn, most))

    def _is_decided(self, access: Access) -> bool:
        """Return whether data that the kernel reads decides the address of an access."""
        others = (one for one in self._accesses if one.place != access.place)
        return any(inside(other.place, access.place) for other in others)

    def _wavefronts(self, access: Access) -> float:
        offset, (size, wide) = self._offset(access), self._size(access)
        found = None if offset is None else self._places.wavefronts(offset, size, wide)
        return 1.0 if found is None else found

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
        touched, loose, rounds = Touched(frozenset(), frozenset(), 0), 0.0, 1.0
        for access in accesses:
            offset, (size, wide) = self._offset(access), self._size(access)
            found = None if offset is None else self._places.of_block(offset, size, wide)
            if offset is None or found is None:
                loose = max(loose, self._sectors(access) * self._warps * self._times(access))
            else:
                touched = found | touched
                rounds = max(rounds, self._rounds_of(access, offset))
        size, _ = self._size(accesses[0])
        whole = self._elements(accesses[0].root) * size + SECTOR_BYTES
        reached = max(self._averages.reached(access.node) for access in accesses)
        return min(max(touched.bytes_after(rounds) * reached, loose * SECTOR_BYTES), whole)

    def _rounds_of(self, access: Access, offset: Polynomial) -> float:
        """Return how often a thread makes an access with another address."""
        keys = offset.variables
        loops = (n for n in ancestors(access.node) if n.type == "for_statement")
        return math.prod(
            self._averages.rounds(loop).average
            for loop in loops
            if any(v.key in keys for v in self._kernel.text.variables if v.scope == loop)
        )

    def _atomics(self, accesses: list[Access]) -> tuple[float, float]:
        """Return the atomic updates by a block, and how many elements all blocks update."""
        updates = [access for access in accesses if access.use == "atomic"]
        count = self._kernel.threads * sum(map(self._times, updates))
        places = sum({access.root.key: self._elements(access.root) for access in updates}.values())
        return count, max(1.0, places)

    def _shared_bytes(self) -> int:
        names = {**self._kernel.spec.sizes[0], **self._kernel.launch.constants}
        dynamic = evaluate(
            self._kernel.launch.shared_bytes, {**names, **block_names(self._kernel.launch.block)}
        )
        return dynamic + sum(
            self._bytes(variable) for variable in self._kernel.text.variables if variable.shared
        )

    def _private_words(self) -> int:
        arrays = (
            variable
            for variable in self._kernel.text.variables
            if variable.dims and not variable.shared
        )
        return sum(-(-self._bytes(variable) // 4) for variable in arrays)

    def _bytes(self, array: Variable) -> int:
        dims = dims_of(self._kernel, array)
        return 0 if dims is None else math.prod(dims) * BYTES.get(array.type, 4)


def _loop_counted_by(node: Node) -> Node | None:
    """Return the loop to whose condition or step a node belongs; None if there is none."""
    at, outer = node, node.parent
    while outer is not None and outer.type in ("binary_expression", "parenthesized_expression"):
        at, outer = outer, outer.parent
    counts = outer is not None and outer.type == "for_statement" and at != field(outer, "body")
    return outer if counts else None
