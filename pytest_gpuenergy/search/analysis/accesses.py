"""Where a CUDA kernel reads and writes its tensors and shared arrays, and how large these are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_text import BYTES, Variable
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    call_arguments,
    called,
    expression_operator,
    field,
    inside,
    node_text,
    nodes,
    only,
    sides,
)

if TYPE_CHECKING:
    from tree_sitter import Node

Use = Literal["load", "store", "update", "atomic"]

HINTED_LOADS = frozenset(["__ldg", "__ldca", "__ldcg", "__ldcs", "__ldlu", "__ldcv"])
HINTED_STORES = frozenset(["__stwb", "__stcg", "__stcs", "__stwt"])
"""CUDA's loads and stores with a cache hint."""
_COPY = "__pipeline_memcpy_async"
_KINDS = ("subscript_expression", "pointer_expression", "call_expression")
SHARED_BYTES = 48 << 10
"""A block's static shared memory (CUDA C++ Programming Guide)."""


@dataclass(frozen=True)
class Address:
    """A place in a tensor or an array.

    Attributes:
        root: the parameter or array that the place lies in.
        offset: the distance from the root in elements; None if it is unknown, or if the root is an
            array with several dimensions.
        subscripts: the subscripts of an array.
        width: the vector type that the pointer is cast to, if any; distances count in its units.
        identifiers: the identifiers in the text that lead to the root.
    """

    root: Variable
    offset: Polynomial | None
    subscripts: tuple[Node, ...] = ()
    width: str = ""
    identifiers: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Access:
    """One read or write of an element.

    Attributes:
        node: the expression that stands for the value, or the call that makes the access.
        use: what the access does to the element.
        address: the place that is accessed.
        place: the expression for the element (a subscript), or for a pointer to it.
        function: the name of the function that makes the access, if it is a call.
    """

    node: Node
    use: Use
    address: Address
    place: Node
    function: str = ""

    @property
    def root(self) -> Variable:
        """The parameter or array that is accessed."""
        return self.address.root


class Accesses:
    """All accesses of a kernel.

    With ``moved``, parameters count as understood that the kernel first moves on, as in
    ``x += blockIdx.x * n;``. Their names then mean another place than the tensor's start.
    """

    def __init__(self, kernel: CudaKernel, *, moved: bool = False) -> None:
        self._kernel = kernel
        self._text = kernel.text
        self._starts = dict(_moved_parameters(kernel)) if moved else {}

    @cached_property
    def all(self) -> tuple[Access, ...]:
        """The accesses in the order of the text."""
        return tuple(
            access
            for node in nodes(self._text.body, *_KINDS)
            for access in (
                self._call_accesses(node)
                if node.type == "call_expression"
                else self._place_accesses(node)
            )
        )

    def of(self, root: Variable) -> tuple[Access, ...]:
        """Return the accesses to one parameter or array."""
        return tuple(access for access in self.all if access.root == root)

    def within(self, node: Node) -> tuple[Access, ...]:
        """Return the accesses in a part of the text."""
        return tuple(access for access in self.all if inside(access.node, node))

    @cached_property
    def unclear(self) -> frozenset[int]:
        """The keys of parameters and arrays with a use that is not understood."""
        seen = {node.id for access in self.all for node in access.address.identifiers}
        seen |= {node.id for node, _ in self._starts.values()}
        return frozenset(
            variable.key
            for variable in self._text.variables
            if (variable.parameter and variable.pointer) or variable.dims
            for node in self._uses(variable)
            if node.id not in seen
        )

    def _uses(self, variable: Variable) -> Iterator[Node]:
        """Yield the identifiers that mean a variable, or a pointer into it."""
        for node in self._text.uses[variable.key]:
            alias = next((a for a in self._aliases if self._defines_pointer(node, a)), None)
            if alias is None:
                yield node
            else:
                yield from self._uses(alias)

    def _defines_pointer(self, node: Node, alias: Variable) -> bool:
        """Return whether an identifier is what a pointer is defined by."""
        if alias.value is None or not inside(node, alias.value):
            return False
        address = self.address(alias.value)
        return address is not None and any(node.id == n.id for n in address.identifiers)

    @cached_property
    def _aliases(self) -> tuple[Variable, ...]:
        """The pointers that always point to where they are declared to."""
        return tuple(
            variable
            for variable in self._text.variables
            if variable.pointer
            and not variable.parameter
            and not variable.dims
            and variable.value is not None
            and not self._text.writes(variable)
            and self._text.is_fixed_address(variable.value, variable.scope)
        )

    def read_only(self) -> tuple[Variable, ...]:
        """Return the parameters from which the kernel surely only reads."""
        return tuple(
            parameter
            for parameter in self._text.parameters
            if parameter.key in self._kernel.tensors
            and parameter.key not in self.unclear
            and all(access.use == "load" for access in self.of(parameter))
            and self.of(parameter)
        )

    def address(self, node: Node) -> Address | None:
        """Return the place that a pointer points to; None if that is not understood."""
        node = bare(node)
        match node.type:
            case "identifier":
                return self._variable_address(node)
            case "binary_expression":
                return self._sum_address(node)
            case "pointer_expression" if expression_operator(node) == "&":
                target = field(node, "argument")
                return None if target is None else self._element(bare(target))
            case "subscript_expression":
                row = self._element(node)
                dims = len(row.root.dims) if row is not None else 0
                return row if row is not None and len(row.subscripts) < dims else None
            case "cast_expression":
                inner, kind = field(node, "value"), field(node, "type")
                return None if inner is None else self._cast(inner, kind)
            case "call_expression":
                function = field(node, "function")
                if node_text(field(function, "name")) != "reinterpret_cast":
                    return None
                (only,) = call_arguments(node) or (None,)
                kind = next(nodes(node, "type_descriptor"), None)
                return None if only is None else self._cast(only, kind)
        return None

    def _variable_address(self, node: Node) -> Address | None:
        variable = self._text.variable(node)
        if variable is None:
            return None
        if (variable.parameter and variable.pointer) or (variable.dims and not variable.pointer):
            _, offset = self._starts.get(variable.key, (node, Polynomial()))
            return Address(variable, offset, (), "", (node,))
        if variable in self._aliases and variable.value is not None:
            inner = self.address(variable.value)
            return None if inner is None else replace(inner, identifiers=(node,))
        return None

    def _sum_address(self, node: Node) -> Address | None:
        if (parts := sides(node, "+", "-")) is None:
            return None
        base, by, sign = self.address(parts[0]), parts[1], expression_operator(node)
        if base is None and sign == "+":
            base, by = self.address(parts[1]), parts[0]
        if base is None:
            return None
        distance = self._kernel.polynomial(by)
        return self._shift(base, -distance if distance is not None and sign == "-" else distance)

    def _shift(self, base: Address, distance: Polynomial | None) -> Address:
        plain = not base.width and not base.subscripts and len(base.root.dims) < 2
        if not plain or base.offset is None or distance is None:
            return replace(base, offset=None)
        return replace(base, offset=base.offset + distance)

    def _element(self, node: Node) -> Address | None:
        """Return the place of what can be assigned to."""
        if node.type == "pointer_expression" and expression_operator(node) == "*":
            target = field(node, "argument")
            return None if target is None else self.address(target)
        if node.type != "subscript_expression":
            return None
        base, indices = field(node, "argument"), field(node, "indices")
        index = None if indices is None else only(indices.named_children)
        if base is None or index is None:
            return None
        base = bare(base)
        outer = self._element(base) if base.type == "subscript_expression" else self.address(base)
        if outer is None:
            return None
        if outer.root.dims and not outer.width:
            subscripts = (*outer.subscripts, index)
            whole = outer.offset == Polynomial() and not outer.subscripts
            plain = whole and len(outer.root.dims) == 1
            offset = self._kernel.polynomial(index) if plain else None
            return replace(outer, offset=offset, subscripts=subscripts)
        return self._shift(outer, self._kernel.polynomial(index))

    def _cast(self, inner: Node, kind: Node | None) -> Address | None:
        address = self.address(inner)
        if address is None or address.width or kind is None:
            return None
        names = list(nodes(kind, "sized_type_specifier"))
        name = only(names or list(nodes(kind, "type_identifier", "primitive_type")))
        return None if name is None else replace(address, width=node_text(name))

    def _place_accesses(self, node: Node) -> Iterator[Access]:
        """Yield the access that a subscript or a pointer that is followed stands for."""
        if node.type == "pointer_expression" and expression_operator(node) != "*":
            return
        address, outer = self._element(node), node.parent
        if address is None or outer is None:
            return
        root = address.root
        if root.dims and not address.width and len(address.subscripts) < len(root.dims):
            return
        while outer.type in ("parenthesized_expression", "field_expression"):
            outer = outer.parent or outer
        if outer.type == "pointer_expression" and expression_operator(outer) == "&":
            return
        if not self._text.gets_a_name(node):
            yield Access(node, _element_use(node, outer), address, node)

    def _call_accesses(self, node: Node) -> Iterator[Access]:
        """Yield the accesses that a call makes by itself."""
        name, arguments = called(node), call_arguments(node)
        uses: tuple[Use, ...] = ()
        if name in HINTED_LOADS:
            uses = ("load",)
        elif name in HINTED_STORES:
            uses = ("store",)
        elif name.startswith("atomic"):
            uses = ("atomic",)
        elif name == _COPY and len(arguments) == 3:
            uses = ("store", "load")
        for place, use in zip(arguments, uses, strict=False):
            address = self.address(place)
            if address is not None and name == _COPY:
                size = node_text(arguments[2])
                address = replace(address, width="" if size == "4" else f"{size} bytes")
            if address is not None:
                yield Access(node, use, address, place, name)


def _element_use(node: Node, outer: Node) -> Use:
    """Return what an expression around an element does with it."""
    if outer.type == "update_expression":
        return "update"
    left = field(outer, "left") if outer.type == "assignment_expression" else None
    if left is None or not inside(node, left):
        return "load"
    around = (n for n in ancestors(node) if inside(n, left))
    if any(n.type == "subscript_argument_list" for n in around):
        return "load"
    return "store" if expression_operator(outer) == "=" else "update"


def _moved_parameters(kernel: CudaKernel) -> Iterator[tuple[int, tuple[Node, Polynomial]]]:
    """Yield the pointer parameters that a kernel moves on once, before it uses them.

    Each comes as its key, the identifier that changes it, and the distance.
    """
    text = kernel.text
    for parameter in text.parameters:
        written = text.writes(parameter)
        change = written[0].parent if parameter.pointer and len(written) == 1 else None
        statement = change.parent if change is not None else None
        if change is None or statement is None or statement.parent != text.body:
            continue
        parts = sides(change, "+=")
        if parts is None:
            continue
        by = parts[1]
        distance = kernel.polynomial(by) if text.is_fixed(by, text.body) else None
        later = (node for node in text.uses[parameter.key] if node != written[0])
        if distance is not None and all(use.start_byte > change.end_byte for use in later):
            yield parameter.key, (written[0], distance)


def array_dims(kernel: CudaKernel, array: Variable) -> tuple[int, ...] | None:
    """Return the dimensions of an array; None if they are not numbers."""
    sizes = [None if node is None else kernel.polynomial(node) for node in array.dims]
    found = tuple(size.value for size in sizes if size is not None and size.value is not None)
    return found if len(found) == len(sizes) else None


def array_bytes(kernel: CudaKernel, array: Variable) -> int | None:
    """Return the size of an array; None if unknown."""
    dims = array_dims(kernel, array)
    return None if dims is None or array.type not in BYTES else math.prod(dims) * BYTES[array.type]


def shared_bytes(kernel: CudaKernel) -> int | None:
    """Return the bytes of a kernel's shared memory; None if unknown or dynamic."""
    # An array of unknown length is extern, and as long as the launch says.
    arrays = [v for v in kernel.text.variables if v.shared and v.dims != (None,)]
    sizes = [array_bytes(kernel, array) for array in arrays]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) and kernel.launch.shared_bytes == 0 else None
