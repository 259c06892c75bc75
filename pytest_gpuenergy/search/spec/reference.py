"""The reference of a spec: its NumPy expressions, or the outputs of the baseline."""

from __future__ import annotations

import ast
import hashlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import file_arenas
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.search.spec.tensors import Layout
from pytest_gpuenergy.support import (
    LONGEST_S,
    EndlessError,
    InputError,
    ended_after,
    ended_by_signals,
)
from pytest_gpuenergy.workloads import Array, IoContract, numbers, reference_values, stored

BUILTINS = frozenset(
    {
        *("abs", "bool", "enumerate", "float", "int", "len", "list", "max", "min"),
        *("range", "reversed", "round", "slice", "sum", "tuple", "zip"),
    }
)
"""The functions of Python that expressions can use."""

_MAX_BITS = 1 << 16
"""Bits of a Python integer. An operation on millions of bits takes minutes and ignores signals."""

_MAX_ITEMS = 1 << 27
"""Items of a range or a repeated list, which Python also makes in one uninterruptible step."""

_OPERATORS: dict[type[ast.operator], str] = {ast.Pow: "**", ast.LShift: "<<", ast.Mult: "*"}
KnownOutputs = dict[bytes, dict[str, Array]]
"""The outputs by the SHA-256 of their inputs."""


def _bounded_range(*arguments: Any) -> range:
    found = range(*arguments)
    if len(found[: _MAX_ITEMS + 1]) > _MAX_ITEMS:
        raise OverflowError(f"a range of more than {_MAX_ITEMS} numbers")
    return found


def _product(left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        repeats = isinstance(items, str | bytes | list | tuple) and isinstance(times, int)
        if repeats and len(items) * times > _MAX_ITEMS:
            raise OverflowError(f"a repetition to more than {_MAX_ITEMS} items")
    return left * right


def _bounded_operation(
    function: Callable[[Any, Any], Any], bits: Callable[[int, int], int]
) -> Callable[[Any, Any], Any]:
    """Return an operation that refuses integers whose result would be too large."""

    def bounded(left: Any, right: Any) -> Any:
        both = isinstance(left, int) and isinstance(right, int)
        if both and bits(left, right) > _MAX_BITS:
            raise OverflowError(f"an integer of more than {_MAX_BITS} bits")
        return function(left, right)

    return bounded


_BOUNDED = {
    "**": _bounded_operation(
        operator.pow, lambda base, exponent: base.bit_length() * max(0, exponent)
    ),
    "<<": _bounded_operation(operator.lshift, lambda value, places: value.bit_length() + places),
    "*": _bounded_operation(_product, lambda left, right: left.bit_length() + right.bit_length()),
}


class _Bounding(ast.NodeTransformer):
    """Replaces the operators that make numbers grow by functions that refuse large results."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = _OPERATORS.get(type(node.op))
        if name is None:
            return node
        call = ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], [])
        return ast.copy_location(call, node)


@dataclass(frozen=True)
class ReferenceExpressions:
    """Computes outputs by NumPy expressions, which are code: a spec is trusted like a script.

    Attributes:
        texts: the expression for each output, by name.
        names: the values of the sizes, constants and scalars.
        layouts: the layout of each tensor, by name.
    """

    texts: Mapping[str, str]
    names: Mapping[str, object]
    layouts: Mapping[str, Layout]
    _endless: set[str] = field(default_factory=set, init=False, compare=False, repr=False)
    """The outputs whose expressions did not end; they are not waited for again."""

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs in float64, as buffers.

        Raises:
            InputError: an expression fails, or its result has another shape.
        """
        variables = {"np": np, **self.names}
        for name, values in inputs.items():
            view = self.layouts[name].view(values).view()
            if isinstance(view, np.ndarray):  # arrays on a GPU cannot be made read-only
                view.flags.writeable = False
            variables[name] = view
        return {
            name: self._output(name, text, dict(variables)) for name, text in self.texts.items()
        }

    def _output(self, name: str, text: str, variables: dict[str, Any]) -> Array:
        layout = self.layouts[name]
        try:
            if name in self._endless:
                raise EndlessError
            with ended_by_signals(limited=True), ended_after(LONGEST_S):
                tree = _Bounding().visit(ast.parse(text.strip(), mode="eval"))
                code = compile(ast.fix_missing_locations(tree), "<reference>", "eval")
                names = {"range": _bounded_range, **variables, **_BOUNDED}
                value = eval(code, names)  # noqa: S307 -- the text of the user's own spec
            if np.iscomplexobj(value):
                raise TypeError("complex numbers")
            found = reference_values(value)
        except EndlessError:
            self._endless.add(name)
            raise InputError(
                f"The reference of {name} takes longer than {LONGEST_S:g} s: mend the expression "
                "in the spec, or give smaller sizes."
            ) from None
        except Exception as error:  # whatever the expression raises
            raise InputError(
                f"The reference of {name} fails ({type(error).__name__}: {error}): mend the "
                "expression in the spec."
            ) from None
        if found.shape != layout.shape:
            raise InputError(
                f"The reference of {name} has the shape {found.shape} instead of {layout.shape}: "
                "mend the expression in the spec."
            )
        buffer: Array = layout.buffer(found)
        return buffer


class BaselineOutputs:
    """Computes outputs by running the baseline in the device's worker process.

    The baseline runs once for each set of inputs; its outputs are kept in ``known``.
    """

    def __init__(
        self, device: Device, kernel: AnyKernel, io: IoContract, known: KnownOutputs | None = None
    ) -> None:
        self._device = device
        self._kernel = kernel
        self._io = io
        self._known = {} if known is None else known

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs in float64.

        Raises:
            KernelFault: the baseline fails.
        """
        key = hashlib.sha256()
        for name in sorted(inputs):
            key.update(name.encode() + np.ascontiguousarray(inputs[name]).tobytes())
        if key.digest() not in self._known:
            self._known[key.digest()] = self._compute(inputs)
        return {name: value.copy() for name, value in self._known[key.digest()].items()}

    def _compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        values = {}
        for tensor in self._io.tensors:
            if tensor.is_read:
                narrow = stored(np.asarray(inputs[tensor.name]), tensor.dtype)
                bits = tensor.dtype == "bfloat16"
                values[tensor.name] = narrow if bits else narrow.astype(tensor.dtype)
        with file_arenas(self._io, values) as arenas:
            self._device.run_once(Job(self._kernel, self._io), arenas)
            return {
                tensor.name: numbers(arenas[tensor.name].elements(), tensor.dtype).astype(
                    np.float64
                )
                for tensor in self._io.tensors
                if tensor.is_written
            }
