"""A Triton function as its text, its launch plan and its spec together tell it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from pytest_gpuenergy.kernels import argument_names
from pytest_gpuenergy.search.analysis.spec_kernel import MAX_DEPTH, Facts, SpecKernel
from pytest_gpuenergy.search.source.polynomials import Atom, Interval, Polynomial
from pytest_gpuenergy.search.source.triton_text import TritonText
from pytest_gpuenergy.search.spec.kernel_spec import Constant, KernelSpec, State, TensorSpec

_SAME = frozenset(["multiple_of", "max_contiguous", "broadcast_to", "expand_dims"])
"""Functions whose values are those of their first argument."""
_WIDE = frozenset(["int32", "uint32", "int64", "uint64"])
"""Types that an index fits in."""


class TritonFunction(SpecKernel):
    """A Triton function with values of its parameters for each set of sizes.

    Attributes:
        text: the text.
    """

    def __init__(self, text: TritonText, state: State, spec: KernelSpec, facts: Facts) -> None:
        super().__init__(state.launch, spec, facts)
        self.text = text

    @classmethod
    def of(cls, state: State, spec: KernelSpec) -> TritonFunction | None:
        """Return the function; None if its text is not understood or does not fit the spec."""
        text, facts = TritonText.of(state.source, spec.entry), Facts.of(state.launch, spec)
        if text is None or facts is None:
            return None
        kernel = cls(text, state, spec, facts)
        return kernel if len(kernel._given) == len(spec.arguments) else None

    @cached_property
    def _given(self) -> tuple[str, ...]:
        return tuple(name for name in self.text.parameters if name not in self.constants)

    @property
    def constants(self) -> dict[str, Constant]:
        """The values of parameters that are known when the function is compiled."""
        return self.launch.constants

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors by the name of their parameter."""
        by_name = {tensor.name: tensor for tensor in self.spec.tensors}
        pairs = zip(self._given, argument_names(self.spec.arguments), strict=True)
        return {parameter: by_name[name] for parameter, name in pairs if name in by_name}

    @cached_property
    def scalars(self) -> dict[str, tuple[int, ...]]:
        """The integers for each set of sizes, by the name of a parameter that nothing sets."""
        known = self.facts.scalars
        pairs = zip(self._given, argument_names(self.spec.arguments), strict=True)
        fixed = [pair for pair in pairs if pair[0] not in self.text.assignments]
        return {parameter: known[name] for parameter, name in fixed if name in known}

    def _range(self, atom: Atom, case: int, depth: int) -> Interval | None:
        if atom.text in self.scalars:
            return self.scalars[atom.text][case], self.scalars[atom.text][case]
        if depth == 0:
            return None
        if atom.operator in ("//", "%"):
            return self._range_of_quotient(atom, case, depth)
        if atom.operator == "arange" and atom.left is not None and atom.right is not None:
            first, end = atom.left.value, atom.right.value
            return None if first is None or end is None else (first, end - 1)
        if atom.operator == "program_id" and atom.right is not None:
            return 0, self.facts.grid[atom.right.value or 0][case] - 1
        if atom.operator == "num_programs" and atom.right is not None:
            blocks = self.facts.grid[atom.right.value or 0][case]
            return blocks, blocks
        loops = [loop for loop in self.text.loops if loop.name == atom.text]
        if len(loops) != 1 or len(self.text.assignments.get(atom.text, [])) != 1:
            return None
        ends = (loops[0].start, loops[0].stop, loops[0].step)
        return self._range_of_loop(map(self.polynomial, ends), case, depth)

    def polynomial(self, node: ast.expr, depth: int = MAX_DEPTH) -> Polynomial | None:
        """Return an integer, or one that stands for each of a block; None if not understood."""
        if depth == 0:
            return None
        match node:
            case ast.Constant(value=int(number)):
                return Polynomial.constant(int(number))
            case ast.Name(id=name):
                return self._name_polynomial(name, depth)
            case ast.BinOp(left=left, op=op, right=right):
                first, second = self.polynomial(left, depth - 1), self.polynomial(right, depth - 1)
                function = _OPERATORS.get(type(op))
                if first is None or second is None or function is None:
                    return None
                return function(first, second)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.polynomial(operand, depth - 1)
                return None if inner is None else -inner
            case ast.Subscript(value=value, slice=places):
                inner = self.polynomial(value, depth - 1)
                return None if inner is None else _along(inner, ast.unparse(places))
            case ast.Call(args=[first_argument, *_]) if self.text.called(node) in _SAME:
                return self.polynomial(first_argument, depth - 1)
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind]) if (
                ast.unparse(kind).rpartition(".")[2] in _WIDE
            ):
                return self.polynomial(value, depth - 1)
            case ast.Call():
                return self._call(node, depth)
        return None

    def _name_polynomial(self, name: str, depth: int) -> Polynomial | None:
        if name in self.text.assignments:
            value = self.text.definition(name)
            found = None if value is None else self.polynomial(value, depth - 1)
            return Polynomial.atom(Atom(name)) if found is None else found
        constant = self.constants.get(name)
        if name in self.constants:
            return None if isinstance(constant, float) else Polynomial.constant(int(constant or 0))
        return None if name in self.tensors else Polynomial.atom(Atom(name))

    def _call(self, node: ast.Call, depth: int) -> Polynomial | None:
        name, own = self.text.called(node), frozenset[int]()
        if name in ("program_id", "num_programs"):
            named = self.text.program_axis(node)
            axis = None if named is None else self.polynomial(named, depth - 1)
            if axis is None or axis.value not in (0, 1, 2):
                return None
            text = f"{self.text.language}.{name}({axis.value})"
            return Polynomial.atom(Atom(text, own, name, None, axis))
        parts = [self.polynomial(argument, depth - 1) for argument in node.args]
        match name, parts:
            case "cdiv", [Polynomial() as first, Polynomial() as second]:
                return quotient(first + second - 1, "//", second)
            case "arange", [Polynomial() as first, Polynomial() as second]:
                # Two blocks of the same numbers need not lie along the same dimension.
                text = f"arange:{node.lineno}:{node.col_offset}"
                return Polynomial.atom(Atom(text, own, name, first, second))
        return None


def _along(block: Polynomial, places: str) -> Polynomial:
    """Return a block with dimensions added, which differs from one along other dimensions."""
    terms = {}
    for product, factor in block.terms:
        turned = (
            replace(atom, text=f"{atom.text}[{places}]") if atom.operator == "arange" else atom
            for atom in product
        )
        terms[tuple(sorted(turned, key=lambda atom: atom.text))] = factor
    return Polynomial.of(terms)


def quotient(left: Polynomial, sign: str, right: Polynomial) -> Polynomial:
    """Return ``left // right`` or ``left % right``."""
    first, second = left.value, right.value
    if first is not None and second:
        return Polynomial.constant(first // second if sign == "//" else first % second)
    return Polynomial.atom(
        Atom(f"(({left.text()}) {sign} ({right.text()}))", frozenset(), sign, left, right)
    )


_OPERATORS: dict[type[ast.operator], Callable[[Polynomial, Polynomial], Polynomial]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: quotient(left, "//", right),
    ast.Mod: lambda left, right: quotient(left, "%", right),
}
