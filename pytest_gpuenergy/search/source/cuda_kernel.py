"""A CUDA kernel as its text, its launch plan and its spec together tell it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.source.counted_loops import with_counted_loops
from pytest_gpuenergy.search.source.cuda_text import NARROW, CountedLoop, CudaText, Variable
from pytest_gpuenergy.search.source.edits import fresh_name
from pytest_gpuenergy.search.source.polynomials import (
    Atom,
    Facts,
    Interval,
    Polynomial,
    loop_range,
    quotient_range,
)
from pytest_gpuenergy.search.source.tree import (
    bare,
    expression,
    field,
    operator_of,
    text_of,
)
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State, TensorSpec

if TYPE_CHECKING:
    from tree_sitter import Node

_AXES = ("x", "y", "z")
_DEEPEST = 40
_CASTS = frozenset(
    [
        *("int", "unsigned", "unsigned int", "size_t", "long", "long long", "unsigned long long"),
        *("int32_t", "uint32_t", "int64_t", "uint64_t"),
    ]
)
_WARP = 32
_QUOTIENTS = frozenset(["/", "%", "&", ">>"])


class CudaKernel:
    """A text that is understood, with the values of its parameters for each set of sizes.

    Attributes:
        text: the text, after `with_counted_loops`.
        launch: the launch plan.
        spec: the spec of what the kernel computes.
        facts: the values of scalars and of the grid for each set of sizes.
    """

    def __init__(self, text: CudaText, state: State, spec: KernelSpec, facts: Facts) -> None:
        self.text = text
        self.launch = state.launch
        self.spec = spec
        self.facts = facts
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
        pairs = zip(self.text.parameters, self.spec.arguments, strict=True)
        return {
            parameter.key: by_name[name]
            for parameter, name in pairs
            if name in by_name and parameter.pointer and self.spec.arguments.count(name) == 1
        }

    @cached_property
    def _arguments(self) -> dict[int, str]:
        pairs = zip(self.text.parameters, self.spec.arguments, strict=True)
        return {parameter.key: name for parameter, name in pairs if not parameter.pointer}

    @cached_property
    def _fixed(self) -> frozenset[int]:
        """The keys of the parameters that nothing changes."""
        return frozenset(
            parameter.key for parameter in self.text.parameters if not self.text.writes(parameter)
        )

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
        if key not in self._fixed:
            return None
        return self.facts.scalars.get(self._arguments.get(key, ""))

    def interval(self, polynomial: Polynomial, case: int) -> Interval | None:
        """Return the range of an expression over all threads, for one set of sizes."""
        return polynomial.interval(lambda atom: self._range(atom, case, _DEEPEST))

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
        return self._range_of_loop(loop, case, depth) if loop is not None else None

    def _range_of_quotient(self, atom: Atom, case: int, depth: int) -> Interval | None:
        if atom.left is None or atom.right is None:
            return None
        left, right = self._ends(atom.left, case, depth), self._ends(atom.right, case, depth)
        return quotient_range(left, atom.operator, right)

    def _ends(self, polynomial: Polynomial, case: int, depth: int) -> Interval | None:
        return polynomial.interval(lambda part: self._range(part, case, depth - 1))

    def _range_of_loop(self, loop: CountedLoop, case: int, depth: int) -> Interval | None:
        ends = []
        for node in (loop.start, loop.bound, loop.step):
            part = Polynomial.constant(1) if node is None else self.polynomial(node)
            found = None if part is None else self._ends(part, case, depth)
            if found is None:
                return None
            ends.append(found)
        return loop_range(*ends)

    def polynomial(self, node: Node, depth: int = _DEEPEST) -> Polynomial | None:
        """Return an integer expression; None if it depends on memory, or is not understood."""
        key = node, depth
        if key not in self._polynomials:
            self._polynomials[key] = self._polynomial(bare(node), depth)
        return self._polynomials[key]

    def _polynomial(self, node: Node, depth: int) -> Polynomial | None:
        if depth == 0:
            return None
        if node.type == "number_literal":
            return _number(text_of(node))
        if node.type == "identifier":
            return self._named(node, depth)
        if node.type == "field_expression":
            return self._member(text_of(node))
        if node.type == "binary_expression":
            return self._binary(node, depth)
        if node.type == "unary_expression" and operator_of(node) in ("-", "+"):
            inner = self._part(node, "argument", depth)
            return -inner if inner is not None and operator_of(node) == "-" else inner
        if node.type == "cast_expression" and text_of(field(node, "type")) in _CASTS:
            return self._part(node, "value", depth)
        if node.type == "call_expression" and (tile := self.text.tile_of(node)) is not None:
            return self._rank(*tile)
        if node.type == "call_expression" and _is_integer_cast(node):
            inside = field(node, "arguments")
            only = inside.named_children if inside is not None else []
            return self.polynomial(only[0], depth - 1) if len(only) == 1 else None
        return None

    def _part(self, node: Node, name: str, depth: int) -> Polynomial | None:
        inner = field(node, name)
        return None if inner is None else self.polynomial(inner, depth - 1)

    def _named(self, node: Node, depth: int) -> Polynomial | None:
        name = text_of(node)
        variable = self.text.variable(node)
        if variable is None:
            known = _WARP if name == "warpSize" else self.constant(name)
            return Polynomial.atom(Atom(name)) if known is None else Polynomial.constant(known)
        if variable.pointer or variable.dims or variable.reference:
            return None
        if variable.type in NARROW:  # what it is given may not fit
            return Polynomial.atom(Atom(name, frozenset([variable.key])))
        if self.is_definition(variable) and variable.value is not None:
            value = self.polynomial(variable.value, depth - 1)
            if value is not None:
                return value
        return Polynomial.atom(Atom(name, frozenset([variable.key])))

    def is_definition(self, variable: Variable) -> bool:
        """Return whether a variable always has the value that it is declared with."""
        if variable.key not in self._definitions:
            self._definitions[variable.key] = self._is_definition(variable)
        return self._definitions[variable.key]

    def _is_definition(self, variable: Variable) -> bool:
        if variable.parameter or variable.value is None or self.text.writes(variable):
            return False
        return self.text.is_fixed(variable.value, variable.scope)

    def _member(self, text: str) -> Polynomial | None:
        base, _, axis = text.partition(".")
        if base not in ("threadIdx", "blockIdx", "blockDim", "gridDim") or axis not in _AXES:
            return None
        if base == "blockDim":
            return Polynomial.constant(self.block[_AXES.index(axis)])
        return Polynomial.atom(Atom(text))

    def _rank(self, threads: int, method: str) -> Polynomial | None:
        """Return the value of a method of a tile of ``threads`` threads."""
        x, y, z = self.block
        thread, size = Polynomial.atom(Atom("threadIdx.x")), Polynomial.constant(threads)
        if method in ("size", "num_threads"):
            return size
        if y * z != 1 or x % threads:
            return None
        if method == "meta_group_size":
            return Polynomial.constant(x // threads)
        return _quotient(thread, {"thread_rank": "%", "meta_group_rank": "/"}[method], size)

    def _binary(self, node: Node, depth: int) -> Polynomial | None:
        left, right = self._part(node, "left", depth), self._part(node, "right", depth)
        if left is None or right is None:
            return None
        match operator_of(node):
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "<<" if right.value is not None and 0 <= right.value < 31:
                return left * Polynomial.constant(1 << right.value)
            case sign if sign in _QUOTIENTS:
                return _quotient(left, sign, right)
        return None

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
        return fresh_name(name, self._names.union(besides))

    @cached_property
    def _names(self) -> frozenset[str]:
        return self.text.words | frozenset(self.launch.constants)

    def constant(self, name: str, depth: int = 8) -> int | None:
        """Return the value of a macro or a constant of the file, if it is one whole number."""
        given, written = self.launch.constants.get(name), self.text.constants.get(name)
        value = None
        if written is not None and depth > 0:
            found = self.polynomial(expression(written), depth)
            value = found.value if found is not None else None
        if given is None or isinstance(given, float):
            return value
        return int(given) if written is None or value == given else None


def _is_integer_cast(call: Node) -> bool:
    function = field(call, "function")
    if function is None or function.type in ("identifier", "primitive_type"):
        return text_of(function) in ("int", "size_t")
    kinds = text_of(field(function, "arguments"))
    return text_of(field(function, "name")) == "static_cast" and kinds[1:-1].strip() in _CASTS


def _number(text: str) -> Polynomial | None:
    try:
        return Polynomial.constant(int(text.rstrip("uUlL"), 0))
    except ValueError:
        return None


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
