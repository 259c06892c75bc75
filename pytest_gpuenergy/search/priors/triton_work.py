"""Counts the work of a Triton function: its operations, times how often a program comes there.

What the compiler makes of them is assumed: accesses are coalesced along the innermost dimension,
the operands of ``dot`` pass through shared memory, and reductions take a barrier.
"""

from __future__ import annotations

import ast
import math
from functools import cached_property

from pytest_gpuenergy.search.priors.averages import UNKNOWN_ROUNDS
from pytest_gpuenergy.search.priors.functions import DIVISION, TRITON_FUNCTIONS
from pytest_gpuenergy.search.priors.places import SECTOR_BYTES
from pytest_gpuenergy.search.priors.triton_shapes import Shapes
from pytest_gpuenergy.search.priors.work import WARP, Work
from pytest_gpuenergy.search.source.triton_function import TritonFunction
from pytest_gpuenergy.workloads import stored_as

_SHARED_BYTES_PER_WAVEFRONT = 128
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "reduce")
_LOADS, _STORES = ("load",), ("store",)
_VECTOR_BYTES = 16
"""The widest access of a thread."""
_OWN_INSTRUCTIONS = 2.0
"""Of an access with its address and mask, as in the timing model of the emulated GPU."""


def work_of_triton(kernel: TritonFunction) -> Work:
    """The work of a function that is understood."""
    return _Counting(kernel).work()


class _Counting:
    def __init__(self, kernel: TritonFunction) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._shapes = Shapes(kernel)
        self._threads = kernel.launch.num_warps * WARP
        self._guessed: set[str] = set()

    def work(self) -> Work:
        loads, stores = self._moved(*_LOADS), self._moved(*_STORES)
        functions, instructions = self._operations()
        accesses = (loads + stores) / _VECTOR_BYTES / WARP
        dots = [(call, self._dot(call)) for call in self._text.calls("dot")]
        operands = sum((m * k + k * n) * self._times(call) for call, (m, k, n) in dots)
        barriers = sum(map(self._times, self._text.calls("dot", *_REDUCTIONS)))
        rounds = sum(self._waits(call) for call in self._text.calls(*_LOADS))
        atomics = [call for name in _ATOMICS for call in self._text.calls(name)]
        return Work(
            blocks=math.prod(max(1, size[0]) for size in self._kernel.facts.grid),
            threads=self._threads,
            shared_bytes=self._shared_bytes([shape for _, shape in dots]),
            instructions=instructions + _OWN_INSTRUCTIONS * accesses,
            serial=(instructions + _OWN_INSTRUCTIONS * accesses) / self._kernel.launch.num_warps,
            tensor_flops=sum(2.0 * m * k * n * self._times(call) for call, (m, k, n) in dots),
            functions=functions,
            loads=loads / _VECTOR_BYTES / WARP,
            sectors=(loads + stores) / SECTOR_BYTES,
            l2_bytes=loads + stores,
            wavefronts=2 * operands * _OPERAND_BYTES / _SHARED_BYTES_PER_WAVEFRONT,
            atomics=sum(self._elements(call) * self._times(call) for call in atomics),
            places=self._places(),
            barriers=barriers,
            rounds=rounds,
            guessed=frozenset(self._guessed),
        )

    @cached_property
    def _around(self) -> dict[ast.AST, list[ast.For]]:
        """The loops around each node."""
        found: dict[ast.AST, list[ast.For]] = {}
        for node in ast.walk(self._text.function):
            inner = [*found.get(node, []), *([node] if isinstance(node, ast.For) else [])]
            for child in ast.iter_child_nodes(node):
                found[child] = inner
        return found

    def _times(self, node: ast.AST) -> float:
        return math.prod(map(self._rounds, self._around.get(node, [])))

    def _rounds(self, loop: ast.For) -> float:
        found = self._counted(loop)
        if found is None:
            self._guessed.add(f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}")
        return UNKNOWN_ROUNDS if found is None else found

    def _counted(self, loop: ast.For) -> float | None:
        for one in self._text.loops:
            if one.node == loop:
                start, stop, step = map(self._value, (one.start, one.stop, one.step))
                if start is not None and stop is not None and step:
                    return max(0.0, math.ceil((stop - start) / step))
        return None

    def _value(self, node: ast.expr) -> float | None:
        polynomial = self._kernel.polynomial(node)
        ends = None if polynomial is None else self._kernel.interval(polynomial, 0)
        return None if ends is None else sum(ends) / 2

    def _elements(self, call: ast.Call) -> int:
        """Of the block that an access is made to."""
        return math.prod(self._shapes.of(call.args[0])) if call.args else 1

    def _moved(self, *names: str) -> float:
        return sum(
            self._elements(call) * self._size(call) * self._times(call)
            for call in self._text.calls(*names)
        )

    def _size(self, call: ast.Call) -> int:
        """Bytes of an element of the tensor that an access is made to; 4 if it is not clear."""
        names = self._names_in(call.args[0]) if call.args else set()
        sizes = [
            stored_as(tensor.dtype).itemsize
            for name, tensor in self._kernel.tensors.items()
            if name in names
        ]
        return sizes[0] if len(sizes) == 1 else 4

    def _names_in(self, node: ast.expr, depth: int = 4) -> set[str]:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        if depth:
            values = [self._text.definition(name) for name in names]
            for value in values:
                names |= set() if value is None else self._names_in(value, depth - 1)
        return names

    def _operations(self) -> tuple[float, float]:
        """Results of special functions of all threads, and instructions of all warps."""
        functions = instructions = 0.0
        for node in ast.walk(self._text.function):
            if isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.AugAssign):
                special, plain = self._cost(node)
                whole = node.target if isinstance(node, ast.AugAssign) else node
                count = math.prod(self._shapes.of(_loaded(whole))) * self._times(node)
                functions += special * count
                instructions += plain * max(count / WARP, 1.0)
        return functions, instructions

    def _cost(
        self, node: ast.BinOp | ast.Compare | ast.Call | ast.AugAssign
    ) -> tuple[float, float]:
        if isinstance(node, ast.Call):
            return TRITON_FUNCTIONS.get(self._text.called(node), (0.0, 0.0))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            return DIVISION
        return 0.0, 1.0

    def _dot(self, call: ast.Call) -> tuple[int, int, int]:
        shapes = [self._shapes.of(one) for one in call.args[:2]]
        if [len(shape) for shape in shapes] != [2, 2]:
            return 1, 1, 1
        (rows, inner), (_, columns) = shapes
        return rows, inner, columns

    def _shared_bytes(self, dots: list[tuple[int, int, int]]) -> int:
        most = max((m * k + k * n for m, k, n in dots), default=0)
        return most * _OPERAND_BYTES * max(1, self._kernel.launch.num_stages)

    def _waits(self, call: ast.Call) -> float:
        """How often a warp waits for a load; in a loop it is made so many rounds ahead."""
        around = self._around.get(call, [])
        ahead = max(1, self._stages(around[-1]) - 1) if around else 1
        return self._times(call) / ahead

    def _stages(self, loop: ast.For) -> int:
        """Of a loop: its own; those of the launch if its loads feed a ``dot``; otherwise none.

        That the launch's are for such loops alone is in Triton's documentation of ``tl.range``.
        """
        for one in self._text.loops:
            for keyword in one.call.keywords if one.node == loop else []:
                match keyword.arg, keyword.value:
                    case "num_stages", ast.Constant(value=int(stages)):
                        return int(stages)
        feeds_dot = any(loop in self._around.get(call, []) for call in self._text.calls("dot"))
        return self._kernel.launch.num_stages if feeds_dot else 1

    def _places(self) -> float:
        outputs = [
            math.prod(self._kernel.facts.shapes[tensor.name][0])
            for tensor in self._kernel.tensors.values()
            if tensor.is_written
        ]
        return float(max(1, *outputs)) if outputs else 1.0


_OPERAND_BYTES = 2
_ATOMICS = ("atomic_add", "atomic_max", "atomic_min", "atomic_or", "atomic_and", "atomic_xchg")


def _loaded(node: ast.expr) -> ast.expr:
    """A target as an expression of its value."""
    return ast.Name(node.id, ast.Load()) if isinstance(node, ast.Name) else node
