"""Counts the work of a Triton function: its operations, times how often a program comes there.

What the compiler makes of them is assumed: accesses are coalesced along the innermost dimension,
the operands of ``dot`` pass through shared memory, and reductions take a barrier.
"""

from __future__ import annotations

import ast
import itertools
import math
from functools import cached_property

from pytest_gpuenergy.emulator import COEFFICIENTS, SECTOR_BYTES
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.priors.averages import UNKNOWN_ROUNDS
from pytest_gpuenergy.search.priors.work import (
    DIVISION,
    TRITON_FUNCTIONS,
    WARP,
    KernelWork,
)
from pytest_gpuenergy.workloads import stored_as

_SHARED_BYTES_PER_WAVEFRONT = 128
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "reduce")
_VECTOR_BYTES = 16
"""Bytes of a thread's widest access."""
_OPERAND_BYTES = 2
"""Bytes of an element of an operand of ``dot``; a guess."""
_ATOMICS = ("atomic_add", "atomic_max", "atomic_min", "atomic_or", "atomic_and", "atomic_xchg")
_REDUCING_CALLS = frozenset(["sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"])
_DIMS = {"zeros": 0, "full": 0, "broadcast_to": 1, "reshape": 1, "view": 1}
"""Functions that are given the shape of their result, and the place of this argument."""

Shape = tuple[int, ...]


def count_triton_work(kernel: TritonFunction) -> KernelWork:
    """Return the work of a function that is understood."""
    return _TritonCounting(kernel).work()


class _TritonCounting:
    def __init__(self, kernel: TritonFunction) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._shapes = _Shapes(kernel)
        self._guessed: set[str] = set()

    def work(self) -> KernelWork:
        kernel, text = self._kernel, self._text
        loads, stores = self._moved_bytes("load"), self._moved_bytes("store")
        accesses = (loads + stores) / _VECTOR_BYTES / WARP
        functions, instructions = self._operations()
        instructions += COEFFICIENTS.instructions_per_global * accesses
        operands = products = 0.0
        largest = 0
        for call in text.calls("dot"):
            shapes = [self._shapes.of(argument) for argument in call.args[:2]]
            m = k = n = 1
            if [len(shape) for shape in shapes] == [2, 2]:
                (m, k), (_, n) = shapes
            times = self._times(call)
            operands += (m * k + k * n) * times
            products += 2.0 * m * k * n * times
            largest = max(largest, m * k + k * n)
        outputs = [
            math.prod(kernel.facts.shapes[tensor.name][0])
            for tensor in kernel.tensors.values()
            if tensor.is_written
        ]
        atomics = [call for name in _ATOMICS for call in text.calls(name)]
        return KernelWork(
            blocks=math.prod(max(1, size[0]) for size in kernel.facts.grid),
            threads=kernel.launch.num_warps * WARP,
            shared_bytes=largest * _OPERAND_BYTES * max(1, kernel.launch.num_stages),
            instructions=instructions,
            serial=instructions / kernel.launch.num_warps,
            tensor_flops=products,
            functions=functions,
            loads=loads / _VECTOR_BYTES / WARP,
            sectors=(loads + stores) / SECTOR_BYTES,
            l2_bytes=loads + stores,
            wavefronts=2 * operands * _OPERAND_BYTES / _SHARED_BYTES_PER_WAVEFRONT,
            atomics=sum(self._elements(call) * self._times(call) for call in atomics),
            places=float(max(1, *outputs)) if outputs else 1.0,
            barriers=sum(map(self._times, text.calls("dot", *_REDUCTIONS))),
            rounds=sum(self._times(call) / self._ahead(call) for call in text.calls("load")),
            guessed=frozenset(self._guessed),
        )

    @cached_property
    def _around(self) -> dict[ast.AST, list[ast.For]]:
        """The loops around each node, the outermost first."""
        around: dict[ast.AST, list[ast.For]] = {}
        for node in ast.walk(self._text.function):
            inner = [*around.get(node, []), *([node] if isinstance(node, ast.For) else [])]
            for child in ast.iter_child_nodes(node):
                around[child] = inner
        return around

    def _times(self, node: ast.AST) -> float:
        return math.prod(map(self._rounds, self._around.get(node, [])))

    def _rounds(self, loop: ast.For) -> float:
        for counted in self._text.loops:
            if counted.node == loop:
                ends = (counted.start, counted.stop, counted.step)
                start, stop, step = map(self._value, ends)
                if start is not None and stop is not None and step:
                    return max(0.0, math.ceil((stop - start) / step))
        self._guessed.add(f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}")
        return UNKNOWN_ROUNDS

    def _value(self, node: ast.expr) -> float | None:
        polynomial = self._kernel.polynomial(node)
        ends = None if polynomial is None else self._kernel.interval(polynomial, 0)
        return None if ends is None else sum(ends) / 2

    def _elements(self, call: ast.Call) -> int:
        """Return the number of elements of the block that an access moves."""
        return math.prod(self._shapes.of(call.args[0])) if call.args else 1

    def _moved_bytes(self, function: str) -> float:
        """Return the bytes of the accesses; 4 for an element whose tensor is unclear."""
        total = 0.0
        for call in self._text.calls(function):
            names = self._named_inputs(call.args[0]) if call.args else set()
            sizes = [
                stored_as(tensor.dtype).itemsize
                for name, tensor in self._kernel.tensors.items()
                if name in names
            ]
            size = sizes[0] if len(sizes) == 1 else 4
            total += self._elements(call) * size * self._times(call)
        return total

    def _named_inputs(self, node: ast.expr, depth: int = 4) -> set[str]:
        names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
        if depth:
            values = [self._text.definition(name) for name in names]
            for value in values:
                names |= set() if value is None else self._named_inputs(value, depth - 1)
        return names

    def _operations(self) -> tuple[float, float]:
        """Return the special functions of all threads, and the instructions of all warps."""
        functions = instructions = 0.0
        for node in ast.walk(self._text.function):
            if not isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.AugAssign):
                continue
            special, plain = 0.0, 1.0
            if isinstance(node, ast.Call):
                special, plain = TRITON_FUNCTIONS.get(self._text.called(node), (0.0, 0.0))
            elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
                special, plain = DIVISION
            whole = node.target if isinstance(node, ast.AugAssign) else node
            count = math.prod(self._shapes.of(whole)) * self._times(node)
            functions += special * count
            instructions += plain * max(count / WARP, 1.0)
        return functions, instructions

    def _ahead(self, load: ast.Call) -> int:
        """Return how many rounds ahead a pipelined loop makes a load, at least 1.

        The loop's own ``num_stages`` decides. Without it, by Triton's documentation of
        ``tl.range``, the launch's decides if the loads of the loop feed a ``dot``.
        """
        around = self._around.get(load, [])
        if not around:
            return 1
        loop, stages = around[-1], 1
        if any(loop in self._around.get(call, []) for call in self._text.calls("dot")):
            stages = self._kernel.launch.num_stages
        for counted in self._text.loops:
            for keyword in counted.call.keywords if counted.node == loop else []:
                match keyword.arg, keyword.value:
                    case "num_stages", ast.Constant(value=int(own)):
                        stages = int(own)
        return max(1, stages - 1)


class _Shapes:
    """The shapes of one function's expressions; what is not understood is a scalar, ``()``."""

    def __init__(self, kernel: TritonFunction) -> None:
        self._kernel = kernel
        self._by_name: dict[str, Shape] = {}

    def of(self, node: ast.expr) -> Shape:
        """Return the shape of an expression."""
        match node:
            case ast.Name(id=name):
                return self._variable_shape(name)
            case ast.BinOp(left=left, right=right):
                return self._together([left, right])
            case ast.Compare(left=left, comparators=others):
                return self._together([left, *others])
            case ast.BoolOp(values=values):
                return self._together(values)
            case ast.UnaryOp(operand=operand):
                return self.of(operand)
            case ast.Subscript(value=value, slice=places):  # such as ``block[:, None]``
                shape = iter(self.of(value))
                axes: list[int] = []
                for part in places.elts if isinstance(places, ast.Tuple) else [places]:
                    is_new = isinstance(part, ast.Constant) and part.value is None
                    axes += [1] if is_new else itertools.islice(shape, 1)
                return (*axes, *shape)
            case ast.Call():
                return self._call(node)
        return ()

    def _variable_shape(self, name: str) -> Shape:
        if name not in self._by_name:
            self._by_name[name] = ()  # in case its own value mentions it
            shapes = [
                self.of(assignment.value)
                for assignment in self._kernel.text.assignments.get(name, [])
                if isinstance(assignment, ast.Assign | ast.AugAssign | ast.AnnAssign)
                and assignment.value
            ]
            self._by_name[name] = max(shapes, key=len, default=())
        return self._by_name[name]

    def _together(self, nodes: list[ast.expr]) -> Shape:
        """Return the shape that results from broadcasting expressions together."""
        shape: Shape = ()
        for node in nodes:
            pairs = itertools.zip_longest(reversed(shape), reversed(self.of(node)), fillvalue=1)
            shape = tuple(max(pair) for pair in pairs)[::-1]
        return shape

    def _call(self, node: ast.Call) -> Shape:
        name, arguments = self._kernel.text.called(node), node.args
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self.of(node.func.value)
        if name == "arange" and len(arguments) == 2:
            low, high = (self._number(argument) for argument in arguments)
            return (max(1, high - low),)
        if name in _DIMS and len(arguments) > _DIMS[name]:
            dims = arguments[_DIMS[name]]
            sizes = dims.elts if isinstance(dims, ast.Tuple | ast.List) else [dims]
            return tuple(max(1, self._number(size)) for size in sizes)
        if name == "dot" and len(arguments) >= 2:
            left, right = (self.of(argument) for argument in arguments[:2])
            return (left[0], right[1]) if len(left) == len(right) == 2 else ()
        if name == "trans" and arguments:
            return self.of(arguments[0])[::-1]
        if name in _REDUCING_CALLS and arguments:
            shape = self.of(arguments[0])
            named = [keyword.value for keyword in node.keywords if keyword.arg == "axis"]
            axes = [*arguments[1:2], *named]
            axis = self._number(axes[0]) if axes else None
            if axis is None or not -len(shape) <= axis < len(shape):
                return ()
            axis %= len(shape)
            return (*shape[:axis], *shape[axis + 1 :])
        return self._together(arguments)

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in self._module_constants:
            return self._module_constants[node.id]
        polynomial = self._kernel.polynomial(node)
        return 1 if polynomial is None or polynomial.value is None else polynomial.value

    @cached_property
    def _module_constants(self) -> dict[str, int]:
        """The numbers that the module defines by ``tl.constexpr(number)``."""
        constants = {}
        for node in self._kernel.text.module.body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(args=[ast.Constant(value=int(number))]) as call,
                ) if self._kernel.text.called(call) == "constexpr":
                    constants[name] = int(number)
        return constants
