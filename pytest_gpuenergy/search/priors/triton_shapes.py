"""Shapes of the blocks that the expressions of a Triton function stand for."""

from __future__ import annotations

import ast
from functools import cached_property
from itertools import zip_longest

from pytest_gpuenergy.search.source.triton_function import TritonFunction

Shape = tuple[int, ...]

_REDUCTIONS = frozenset(["sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"])
_DIMS = {"zeros": 0, "full": 0, "broadcast_to": 1, "reshape": 1, "view": 1}
"""Functions with the shape of their result, and the place of this argument."""


class Shapes:
    """Of the expressions of one function; what is not understood is a scalar, ``()``."""

    def __init__(self, kernel: TritonFunction) -> None:
        self._kernel = kernel
        self._by_name: dict[str, Shape] = {}

    def of(self, node: ast.expr) -> Shape:
        """The shape of an expression."""
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
            self._by_name[name] = ()  # while what it is set to mentions it
            self._by_name[name] = self._assigned(name)
        return self._by_name[name]

    def _assigned(self, name: str) -> Shape:
        shapes = [
            self.of(one.value)
            for one in self._kernel.text.assignments.get(name, [])
            if isinstance(one, ast.Assign | ast.AugAssign | ast.AnnAssign) and one.value is not None
        ]
        return max(shapes, key=len, default=())

    def _together(self, nodes: list[ast.expr]) -> Shape:
        found: Shape = ()
        for node in nodes:
            found = _broadcast(found, self.of(node))
        return found

    def _call(self, node: ast.Call) -> Shape:
        name, arguments = self._kernel.text.called(node), node.args
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self.of(node.func.value)
        if name == "arange" and len(arguments) == 2:
            low, high = (self._number(one) for one in arguments)
            return (max(1, high - low),)
        if name in _DIMS and len(arguments) > _DIMS[name]:
            return self._dims(arguments[_DIMS[name]])
        if name == "dot" and len(arguments) >= 2:
            left, right = (self.of(one) for one in arguments[:2])
            return (left[0], right[1]) if len(left) == len(right) == 2 else ()
        if name == "trans" and arguments:
            return self.of(arguments[0])[::-1]
        if name in _REDUCTIONS and arguments:
            return self._reduced(node, self.of(arguments[0]))
        return self._together(arguments)

    def _reduced(self, node: ast.Call, shape: Shape) -> Shape:
        named = [one.value for one in node.keywords if one.arg == "axis"]
        places = [*node.args[1:2], *named]
        axis = self._number(places[0]) if places else None
        if axis is None or not -len(shape) <= axis < len(shape):
            return ()
        axis %= len(shape)
        return (*shape[:axis], *shape[axis + 1 :])

    def _dims(self, node: ast.expr) -> Shape:
        parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        return tuple(max(1, self._number(one)) for one in parts)

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in self._module_constants:
            return self._module_constants[node.id]
        found = self._kernel.polynomial(node)
        return 1 if found is None or found.value is None else found.value

    @cached_property
    def _module_constants(self) -> dict[str, int]:
        """What the module sets to ``tl.constexpr(number)``."""
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
    """The shape of ``block[:, None]``."""
    parts = places.elts if isinstance(places, ast.Tuple) else [places]
    rest = list(shape)
    found = []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is None:
            found.append(1)
        elif rest:
            found.append(rest.pop(0))
    return (*found, *rest)


def _broadcast(one: Shape, two: Shape) -> Shape:
    pairs = zip_longest(reversed(one), reversed(two), fillvalue=1)
    return tuple(max(pair) for pair in pairs)[::-1]
