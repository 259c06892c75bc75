"""A softmax's maximum and sum, of two loops over the same elements, formed in the first one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.base import Change
from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.moves.layout import block_of, indented
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.tree import (
    arguments_of,
    bare,
    called,
    field,
    indentation,
    inside,
    nodes,
    operator_of,
    start_of,
    statements,
    text_of,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMA = ("fmaxf", "max", "fmax")
_EXPONENTIALS = ("expf", "__expf", "exp")
_LEAST = "-3.402823466e+38f"


@dataclass(frozen=True)
class _Maximum:
    """``m = fmaxf(m, element)`` in a loop."""

    loop: Loop
    variable: Variable
    element: Node


@dataclass(frozen=True)
class _Sum:
    """``s += expf(element - maximum)`` in a loop."""

    loop: Loop
    variable: Variable
    element: Node
    maximum: Node
    function: str


def fused_sums(kernel: CudaKernel) -> Iterator[Change]:
    """A thread's sum is scaled whenever its maximum grows, and once more to the final maximum."""
    maxima = list(filter(None, (_maximum(kernel, loop) for loop in kernel.text.loops)))
    sums = list(filter(None, (_sum(kernel, loop) for loop in kernel.text.loops)))
    for one in maxima:
        for two in sums:
            if _belong_together(kernel, one, two):
                line = one.loop.node.start_point[0] + 1
                source = edited(kernel.text.source, _fused(kernel, one, two))
                yield Change(f"online sum from line {line}", source, kernel.launch)


def _only_assignment(loop: Loop) -> Node | None:
    inner = statements(loop.body)
    if len(inner) != 1 or inner[0].type != "expression_statement":
        return None
    found = inner[0].named_children[0] if inner[0].named_children else None
    return found if found is not None and found.type == "assignment_expression" else None


def _maximum(kernel: CudaKernel, loop: Loop) -> _Maximum | None:
    node = _only_assignment(loop)
    left, right = field(node, "left"), field(node, "right")
    if node is None or operator_of(node) != "=" or left is None or right is None:
        return None
    variable, arguments = kernel.text.variable(left), arguments_of(bare(right))
    if called(bare(right)) not in _MAXIMA or len(arguments) != 2 or variable is None:
        return None
    if variable.type != "float" or variable.dims or variable.pointer:
        return None
    others = [one for one in arguments if kernel.text.variable(bare(one)) != variable]
    return _Maximum(loop, variable, others[0]) if len(others) == 1 else None


def _sum(kernel: CudaKernel, loop: Loop) -> _Sum | None:
    node = _only_assignment(loop)
    left, right = field(node, "left"), field(node, "right")
    if node is None or operator_of(node) != "+=" or left is None or right is None:
        return None
    variable, arguments = kernel.text.variable(left), arguments_of(bare(right))
    if called(bare(right)) not in _EXPONENTIALS or len(arguments) != 1 or variable is None:
        return None
    difference = bare(arguments[0])
    element, maximum = field(difference, "left"), field(difference, "right")
    if operator_of(difference) != "-" or element is None or maximum is None:
        return None
    zero = text_of(variable.value).rstrip("fF") in ("0", "0.", "0.0")
    if variable.type != "float" or variable.dims or variable.pointer or not zero:
        return None
    return _Sum(loop, variable, element, maximum, called(bare(right)))


def _belong_together(kernel: CudaKernel, one: _Maximum, two: _Sum) -> bool:
    """Whether both loops have the same elements, and nothing comes between that matters."""
    text, first, second = kernel.text, one.loop, two.loop
    if first.node.parent != second.node.parent or first.node.end_byte > second.node.start_byte:
        return False
    if any(start_of(loop.node) != loop.node.start_byte for loop in (first, second)):
        return False
    if first.node.parent is None or first.node.parent.type != "compound_statement":
        return False
    heads = [
        [kernel.polynomial(n) if n is not None else None for n in (o.start, o.bound, o.step)]
        for o in (first, second)
    ]
    if (
        heads[0] != heads[1]
        or None in heads[0][:2]
        or (first.step is None) != (second.step is None)
    ):
        return False
    if _tokens(one.element, first) != _tokens(two.element, second):
        return False
    writes = text.writes(two.variable)
    before = [n for n in writes if n.start_byte < second.node.start_byte]
    if before or not text.is_fixed(two.maximum, second.node):
        return False
    started = [n for n in text.writes(one.variable) if n.start_byte < first.node.start_byte]
    return not started and one.variable.value is not None and _stays(kernel, one, two)


def _is_least(variable: Variable) -> bool:
    text = text_of(variable.value)
    return text in ("-INFINITY", "-FLT_MAX") or text.startswith(("-3.4", "-1e3", "-1e20"))


def _tokens(node: Node, loop: Loop) -> list[str]:
    """The words of an expression; the loop's variable is called the same in all loops."""
    words = (text_of(n) for n in walk(bare(node)) if n.child_count == 0)
    return ["#" if word == loop.variable.name else word for word in words]


def _stays(kernel: CudaKernel, one: _Maximum, two: _Sum) -> bool:
    """Whether the elements are the same in both loops: nothing is stored between that they read."""
    begin, end = one.loop.node.start_byte, two.loop.node.end_byte
    for node in nodes(one.element, "identifier"):
        variable = kernel.text.variable(node)
        if variable is None or variable == one.loop.variable:
            continue
        if any(begin <= write.start_byte < end for write in kernel.text.writes(variable)):
            return False
        if (variable.dims or variable.pointer) and not variable.const:
            return False
        if variable.node.start_byte >= begin and not inside(variable.node, one.loop.node):
            return False
    return True


def _fused(kernel: CudaKernel, one: _Maximum, two: _Sum) -> list[Edit]:
    source, first, second = kernel.text.source, one.loop.node, two.loop.node
    by = indentation(first, source)
    own = kernel.fresh(f"{two.variable.name}_online")
    most, element = kernel.fresh(f"{one.variable.name}_online"), kernel.fresh("element")
    head = source[first.start_byte : one.loop.body.start_byte].decode().rstrip()
    function = two.function
    grown = [f"{own} *= {function}({most} - {element});", f"{most} = {element};"]
    largest = most if _is_least(one.variable) else f"fmaxf({one.variable.name}, {most})"
    lines = [
        f"float {most} = {_LEAST};",
        f"float {own} = 0.0f;",
        *block_of(
            head,
            [
                f"const float {element} = {text_of(one.element)};",
                *block_of(f"if ({element} > {most})", grown),
                f"{own} += {function}({element} - {most});",
            ],
        ),
        f"{one.variable.name} = {largest};",
    ]
    scaled = f"{two.variable.name} = {own} * {function}({most} - {text_of(two.maximum)});"
    return [
        Edit(first.start_byte, first.end_byte, indented(lines, by)),
        Edit(second.start_byte, second.end_byte, scaled),
    ]
