"""Counts the work of a Triton function: its operations, times how often a program comes there.

What the compiler makes of them is assumed: accesses are coalesced along the innermost dimension,
the operands of ``dot`` pass through shared memory, and reductions take a barrier.
"""

from __future__ import annotations

import ast
import math
from functools import cached_property
from itertools import zip_longest

from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.priors.averages import UNKNOWN_ROUNDS
from pytest_gpuenergy.search.priors.cuda_accesses import SECTOR_BYTES
from pytest_gpuenergy.search.priors.work import DIVISION, TRITON_FUNCTIONS, WARP, KernelWork
from pytest_gpuenergy.workloads import stored_as

_SHARED_BYTES_PER_WAVEFRONT = 128
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "reduce")
_LOADS, _STORES = ("load",), ("store",)
_VECTOR_BYTES = 16
"""Bytes of a thread's widest access."""
_OWN_INSTRUCTIONS = 2.0
"""Instructions of an access, its address and its mask, as in the emulated GPU's timing model."""
_OPERAND_BYTES = 2
"""Bytes of an element of an operand of ``dot``; a guess."""
_ATOMICS = ("atomic_add", "atomic_max", "atomic_min", "atomic_or", "atomic_and", "atomic_xchg")
_REDUCING_CALLS = frozenset(["sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"])
_DIMS = {"zeros": 0, "full": 0, "broadcast_to": 1, "reshape": 1, "view": 1}
"""Functions that are given the shape of their result, and the place of this argument."""

Shape = tuple[int, ...]


def work_of_triton(kernel: TritonFunction) -> KernelWork:
    """Return the work of a function that is understood."""
    return _Counting(kernel).work()


class _Counting:
    def __init__(self, kernel: TritonFunction) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._shapes = Shapes(kernel)
        self._threads = kernel.launch.num_warps * WARP
        self._guessed: set[str] = set()

    def work(self) -> KernelWork:
        loads, stores = self._moved(*_LOADS), self._moved(*_STORES)
        functions, instructions = self._operations()
        accesses = (loads + stores) / _VECTOR_BYTES / WARP
        dots = [(call, self._dot(call)) for call in self._text.calls("dot")]
        operands = sum((m * k + k * n) * self._times(call) for call, (m, k, n) in dots)
        largest = max((m * k + k * n for _, (m, k, n) in dots), default=0)
        barriers = sum(map(self._times, self._text.calls("dot", *_REDUCTIONS)))
        rounds = sum(self._waits(call) for call in self._text.calls(*_LOADS))
        atomics = [call for name in _ATOMICS for call in self._text.calls(name)]
        return KernelWork(
            blocks=math.prod(max(1, size[0]) for size in self._kernel.facts.grid),
            threads=self._threads,
            shared_bytes=largest * _OPERAND_BYTES * max(1, self._kernel.launch.num_stages),
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
        """The loops around each node, the outermost first."""
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
        """Return the number of elements of the block that an access moves."""
        return math.prod(self._shapes.of(call.args[0])) if call.args else 1

    def _moved(self, *names: str) -> float:
        return sum(
            self._elements(call) * self._size(call) * self._times(call)
            for call in self._text.calls(*names)
        )

    def _size(self, call: ast.Call) -> int:
        """Return the bytes of an element of the accessed tensor; 4 if the tensor is unclear."""
        names = self._names_in(call.args[0]) if call.args else set()
        sizes = [
            stored_as(tensor.dtype).itemsize
            for name, tensor in self._kernel.tensors.items()
            if name in names
        ]
        return sizes[0] if len(sizes) == 1 else 4

    def _names_in(self, node: ast.expr, depth: int = 4) -> set[str]:
        names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
        if depth:
            values = [self._text.definition(name) for name in names]
            for value in values:
                names |= set() if value is None else self._names_in(value, depth - 1)
        return names

    def _operations(self) -> tuple[float, float]:
        """Return the special functions of all threads, and the instructions of all warps."""
        functions = instructions = 0.0
        for node in ast.walk(self._text.function):
            if isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.AugAssign):
                special, plain = self._cost(node)
                whole = node.target if isinstance(node, ast.AugAssign) else node
                count = math.prod(self._shapes.of(whole)) * self._times(node)
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
        shapes = [self._shapes.of(argument) for argument in call.args[:2]]
        if [len(shape) for shape in shapes] != [2, 2]:
            return 1, 1, 1
        (rows, inner), (_, columns) = shapes
        return rows, inner, columns

    def _waits(self, call: ast.Call) -> float:
        """Return how often a warp waits for a load, which a pipelined loop makes ahead."""
        around = self._around.get(call, [])
        ahead = max(1, self._stages(around[-1]) - 1) if around else 1
        return self._times(call) / ahead

    def _stages(self, loop: ast.For) -> int:
        """Return the pipeline stages of a loop: its own, or those of the launch.

        The stages of the launch apply only to loops whose loads feed a ``dot``, by Triton's
        documentation of ``tl.range``.
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


class Shapes:
    """The shapes of one function's expressions; what is not understood is a scalar, ``()``."""

    def __init__(self, kernel: TritonFunction) -> None:
        self._kernel = kernel
        self._by_name: dict[str, Shape] = {}

    def of(self, node: ast.expr) -> Shape:
        """Return the shape of an expression."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.BinOp(left=left, right=right):
                return self._together([left, right])
            case ast.Compare(left=left, comparators=others):
                return self._together([left, *others])
            case ast.BoolOp(values=values):
                return self._together(values)
            case ast.UnaryOp(operand=operand):
                return self.of(operand)
            case ast.Subscript(value=value, slice=places):
                return _with_axes(self.of(value), places)
            case ast.Call():
                return self._call(node)
        return ()

    def _named(self, name: str) -> Shape:
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
        found: Shape = ()
        for node in nodes:
            pairs = zip_longest(reversed(found), reversed(self.of(node)), fillvalue=1)
            found = tuple(max(pair) for pair in pairs)[::-1]
        return found

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
            return self._reduced(node, self.of(arguments[0]))
        return self._together(arguments)

    def _reduced(self, node: ast.Call, shape: Shape) -> Shape:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "axis"]
        places = [*node.args[1:2], *named]
        axis = self._number(places[0]) if places else None
        if axis is None or not -len(shape) <= axis < len(shape):
            return ()
        axis %= len(shape)
        return (*shape[:axis], *shape[axis + 1 :])

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in self._module_constants:
            return self._module_constants[node.id]
        found = self._kernel.polynomial(node)
        return 1 if found is None or found.value is None else found.value

    @cached_property
    def _module_constants(self) -> dict[str, int]:
        """The numbers that the module defines by ``tl.constexpr(number)``."""
        found = {}
        for node in self._kernel.text.module.body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(args=[ast.Constant(value=int(number))]) as call,
                ) if self._kernel.text.called(call) == "constexpr":
                    found[name] = int(number)
        return found


def _with_axes(shape: Shape, places: ast.expr) -> Shape:
    """Return the shape of an expression such as ``block[:, None]``."""
    parts = places.elts if isinstance(places, ast.Tuple) else [places]
    rest = list(shape)
    found = []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is None:
            found.append(1)
        elif rest:
            found.append(rest.pop(0))
    return (*found, *rest)
