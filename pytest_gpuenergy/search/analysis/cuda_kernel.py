"""A CUDA kernel as its text, its launch plan and its spec together tell it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuenergy.kernels import argument_names
from pytest_gpuenergy.search.analysis.spec_kernel import MAX_DEPTH, Facts, SpecKernel
from pytest_gpuenergy.search.source.counted_loops import with_counted_loops
from pytest_gpuenergy.search.source.cuda_text import NARROW, CountedLoop, CudaText, Variable
from pytest_gpuenergy.search.source.edits import fresh_name
from pytest_gpuenergy.search.source.polynomials import Atom, Interval, Polynomial
from pytest_gpuenergy.search.source.tree import (
    bare,
    call_arguments,
    expression,
    expression_operator,
    field,
    node_text,
    only,
    sides,
    whole_number,
)
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State, TensorSpec

if TYPE_CHECKING:
    from tree_sitter import Node

WARP = 32
"""The threads of a warp."""
THREAD = Polynomial.atom(Atom("threadIdx.x"))
BLOCK = Polynomial.atom(Atom("blockIdx.x"))
_AXES = ("x", "y", "z")
_CASTS = frozenset(
    [
        *("int", "unsigned", "unsigned int", "size_t", "long", "long long", "unsigned long long"),
        *("int32_t", "uint32_t", "int64_t", "uint64_t"),
    ]
)

_CONSTANT_DEPTH = 8
"""The limit on the depth of the expression of a constant of the file."""


class CudaKernel(SpecKernel):
    """A text that is understood, with the values of its parameters for each set of sizes.

    Attributes:
        text: the text, after `with_counted_loops`.
    """

    def __init__(self, text: CudaText, state: State, spec: KernelSpec, facts: Facts) -> None:
        super().__init__(state.launch, spec, facts)
        self.text = text
        self._polynomials: dict[tuple[Node, int], Polynomial | None] = {}
        self._definitions: dict[int, bool] = {}

    @classmethod
    def of(cls, state: State, spec: KernelSpec) -> CudaKernel | None:
        """Return the kernel; None if its text is not understood or does not fit the spec.

        Raises:
            UnavailableError: tree-sitter is not installed.
        """
        text = CudaText.of(with_counted_loops(state.source, spec.entry), spec.entry)
        facts = Facts.of(state.launch, spec)
        if text is None or facts is None or len(text.parameters) != len(spec.arguments):
            return None
        return cls(text, state, spec, facts)

    @cached_property
    def threads(self) -> int:
        """The number of threads of a block."""
        x, y, z = self.block
        return x * y * z

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of a block in x, y and z."""
        x, y, z = (*self.launch.block, 1, 1, 1)[:3]
        return x, y, z

    @cached_property
    def tensors(self) -> dict[int, TensorSpec]:
        """The tensors by the key of their parameter, without those that are passed twice."""
        by_name = {tensor.name: tensor for tensor in self.spec.tensors}
        passed = list(argument_names(self.spec.arguments))
        pairs = zip(self.text.parameters, self.spec.arguments, strict=True)
        return {
            parameter.key: by_name[name]
            for parameter, name in pairs
            if isinstance(name, str)
            and name in by_name
            and parameter.pointer
            and passed.count(name) == 1
        }

    @cached_property
    def _scalars(self) -> dict[int, tuple[int, ...]]:
        """The values of the parameters that nothing changes, by their key."""
        pairs = zip(self.text.parameters, self.spec.arguments, strict=True)
        return {
            parameter.key: self.facts.scalars[name]
            for parameter, name in pairs
            if isinstance(name, str)
            and name in self.facts.scalars
            and not parameter.pointer
            and not self.text.writes(parameter)
        }

    @cached_property
    def _loops(self) -> dict[int, CountedLoop]:
        return {loop.variable.key: loop for loop in self.text.loops}

    def values(self, atom: Atom) -> tuple[int, ...] | None:
        """Return the values of a parameter or a size of the grid, one for each set of sizes."""
        for axis, sizes in zip(_AXES, self.facts.grid, strict=True):
            if atom.text == f"gridDim.{axis}":
                return sizes
        if atom.operator or len(atom.variables) != 1:
            return None
        (key,) = atom.variables
        return self._scalars.get(key)

    def _range(self, atom: Atom, case: int, depth: int) -> Interval | None:
        for axis, threads, blocks in zip(_AXES, self.block, self.facts.grid, strict=True):
            if atom.text == f"threadIdx.{axis}":
                return 0, threads - 1
            if atom.text == f"blockIdx.{axis}":
                return 0, blocks[case] - 1
        if (known := self.values(atom)) is not None:
            return known[case], known[case]
        if depth == 0:
            return None
        if atom.operator:
            return self._range_of_quotient(atom, case, depth)
        (loop,) = [self._loops.get(key) for key in atom.variables] if atom.variables else [None]
        if loop is None:
            return None
        ends = [self.polynomial(loop.start), self.polynomial(loop.bound), self.loop_step(loop)]
        return self._range_of_loop(ends, case, depth)

    def loop_step(self, loop: CountedLoop) -> Polynomial | None:
        """Return the step of a loop; None if it is not understood."""
        return Polynomial.constant(1) if loop.step is None else self.polynomial(loop.step)

    def polynomial(self, node: Node, depth: int = MAX_DEPTH) -> Polynomial | None:
        """Return an integer expression; None if it depends on memory, or is not understood."""
        key = node, depth
        if key not in self._polynomials:
            self._polynomials[key] = self._polynomial(bare(node), depth) if depth else None
        return self._polynomials[key]

    def _polynomial(self, node: Node, depth: int) -> Polynomial | None:
        inner: Node | None = None
        match node.type:
            case "number_literal":
                number = whole_number(node_text(node))
                return None if number is None else Polynomial.constant(number)
            case "identifier":
                return self._name_polynomial(node, depth)
            case "field_expression":
                base, _, axis = node_text(node).partition(".")
                if base == "blockDim" and axis in _AXES:
                    return Polynomial.constant(self.block[_AXES.index(axis)])
                known = base in ("threadIdx", "blockIdx", "gridDim") and axis in _AXES
                return Polynomial.atom(Atom(node_text(node))) if known else None
            case "binary_expression":
                return self._binary(node, depth)
            case "unary_expression" if expression_operator(node) in ("-", "+"):
                inner = field(node, "argument")
            case "cast_expression" if node_text(field(node, "type")) in _CASTS:
                inner = field(node, "value")
            case "call_expression" if (tile := self.text.tile_method(node)) is not None:
                return self._rank(*tile)
            case "call_expression" if _is_integer_cast(node):
                inner = only(call_arguments(node))
        value = None if inner is None else self.polynomial(inner, depth - 1)
        return -value if value is not None and expression_operator(node) == "-" else value

    def _name_polynomial(self, node: Node, depth: int) -> Polynomial | None:
        name = node_text(node)
        variable = self.text.variable(node)
        if variable is None:
            known = WARP if name == "warpSize" else self.constant(name)
            return Polynomial.atom(Atom(name)) if known is None else Polynomial.constant(known)
        if variable.pointer or variable.dims or variable.reference:
            return None
        # What a narrow variable is given may not fit.
        if variable.type not in NARROW and self.is_definition(variable) and variable.value:
            value = self.polynomial(variable.value, depth - 1)
            if value is not None:
                return value
        return variable.number

    def is_definition(self, variable: Variable) -> bool:
        """Return whether a variable always has the value that it is declared with."""
        if variable.key not in self._definitions:
            value = None if variable.parameter else variable.value
            fixed = value is not None and not self.text.writes(variable)
            self._definitions[variable.key] = (
                fixed and value is not None and self.text.is_fixed(value, variable.scope)
            )
        return self._definitions[variable.key]

    def _rank(self, threads: int, method: str) -> Polynomial | None:
        """Return the value of a method of a tile of ``threads`` threads."""
        x, y, z = self.block
        size = Polynomial.constant(threads)
        if method in ("size", "num_threads"):
            return size
        if y * z != 1 or x % threads:
            return None
        if method == "meta_group_size":
            return Polynomial.constant(x // threads)
        return _quotient(THREAD, {"thread_rank": "%", "meta_group_rank": "/"}[method], size)

    def _binary(self, node: Node, depth: int) -> Polynomial | None:
        parts = sides(node, *("+", "-", "*", "<<", "/", "%", "&", ">>"))
        if parts is None:
            return None
        left, right = (self.polynomial(part, depth - 1) for part in parts)
        if left is None or right is None:
            return None
        match expression_operator(node):
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "<<":
                places = right.value
                return None if places is None or not 0 <= places < 31 else left * (1 << places)
            case sign:
                return _quotient(left, sign, right)

    def is_multiple(self, polynomial: Polynomial, of: int) -> bool:
        """Return whether an expression is a multiple for all sets of sizes."""
        return polynomial.is_multiple(of, self.values)

    def is_measured_multiple(self, polynomial: Polynomial, of: int) -> bool:
        """Return whether an expression is a multiple for the first sizes, which are measured."""

        def first(atom: Atom) -> tuple[int, ...] | None:
            known = self.values(atom)
            return None if known is None else known[:1]

        return polynomial.is_multiple(of, first)

    def fresh(self, name: str, besides: Iterable[str] = ()) -> str:
        """Return ``name``, or one made of it that neither the text nor ``besides`` has."""
        return fresh_name(name, self.text.words.union(self.launch.constants, besides))

    def constant(self, name: str) -> int | None:
        """Return the value of a macro or a constant of the file, if it is one whole number."""
        launched, written = self.launch.constants.get(name), self.text.constants.get(name)
        value = None
        if written is not None:
            found = self.polynomial(expression(written), _CONSTANT_DEPTH)
            value = found.value if found is not None else None
        if launched is None or isinstance(launched, float):
            return value
        return int(launched) if written is None or value == launched else None


def _is_integer_cast(call: Node) -> bool:
    function = field(call, "function")
    if function is None or function.type in ("identifier", "primitive_type"):
        return node_text(function) in ("int", "size_t")
    kinds = node_text(field(function, "arguments"))
    return node_text(field(function, "name")) == "static_cast" and kinds[1:-1].strip() in _CASTS


def _quotient(left: Polynomial, sign: str, right: Polynomial) -> Polynomial | None:
    divisor = right.value
    if divisor is not None and sign == ">>":
        sign, divisor = "/", 1 << divisor if 0 <= divisor < 31 else 0
    elif divisor is not None and sign == "&":
        sign, divisor = "%", divisor + 1 if divisor & (divisor + 1) == 0 else 0
    elif sign in ("&", ">>"):
        return None
    if divisor is not None and divisor <= 0:
        return None
    if divisor is not None and left.value is not None and left.value >= 0:
        number = left.value // divisor if sign == "/" else left.value % divisor
        return Polynomial.constant(number)
    right = right if divisor is None else Polynomial.constant(divisor)
    text = f"(({left.text()}) {sign} ({right.text()}))"
    variables = left.variables | right.variables
    return Polynomial.atom(Atom(text, variables, sign, left, right))
