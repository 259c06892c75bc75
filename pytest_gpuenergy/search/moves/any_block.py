"""CUDA kernels that compute the same with any number of threads in a block, or of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.source.accesses import Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.sharing import Sharing, meets_others
from pytest_gpuenergy.search.source.tree import field, inside, nodes, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_WARP_NAMES = ("warpSize", "__activemask")
_NAMES = {
    "block": ("threadIdx", "blockDim"),
    "grid": ("threadIdx", "blockDim", "blockIdx", "gridDim"),
}


def fits_any_block(kernel: CudaKernel) -> bool:
    """Whether threads of a block, or of the grid, only share loops, and have nothing else to do.

    Each loop goes from the thread's number in steps of the number of threads, what it writes are
    elements of its own, and threads neither wait for each other nor exchange values.
    """
    return _only_shares(kernel, "block") or fits_any_grid(kernel)


def fits_any_grid(kernel: CudaKernel) -> bool:
    """The same of the threads of the whole grid, of which there may then be any number."""
    return _only_shares(kernel, "grid")


def _only_shares(kernel: CudaKernel, group: str) -> bool:
    text = kernel.text
    _, y, z = kernel.block
    loops = [loop for loop in text.loops if _is_shared(kernel, loop, group)]
    if y * z != 1 or not loops or meets_others(kernel, text.body):
        return False
    names = _NAMES[group]
    if any(variable.shared for variable in text.variables) or any(_threads(names, *text.functions)):
        return False
    if any(text_of(node) in _WARP_NAMES for node in nodes(text.body, "identifier")):
        return False
    return (
        all(Sharing(kernel, group).may_be_redistributed(loop) for loop in loops)
        and all(_is_alone(kernel, loop) for loop in loops)
        and all(_is_of_loop(kernel, node, loops) for node in _threads(names, text.body))
        and _writes_in(kernel, loops)
    )


def _is_shared(kernel: CudaKernel, loop: Loop, group: str) -> bool:
    step = None if loop.step is None else kernel.polynomial(loop.step)
    start, threads = Polynomial.atom(Atom("threadIdx.x")), Polynomial.constant(kernel.block[0])
    if group == "grid":
        start += Polynomial.atom(Atom("blockIdx.x")) * threads
        threads *= Polynomial.atom(Atom("gridDim.x"))
    same = kernel.polynomial(loop.start) == start and step == threads
    return same and all(_is_named(kernel, end) for end in _ends(loop, group))


def _ends(loop: Loop, group: str) -> list[Node]:
    """What depends on the number of threads."""
    step = [] if loop.step is None else [loop.step]
    return step if group == "block" else [loop.start, *step]


def _is_named(kernel: CudaKernel, end: Node) -> bool:
    """Whether an end of a loop depends on the size of the block by its name, not by a number."""
    variable = kernel.text.variable(end)
    node = end if variable is None else variable.value
    if node is None or any(nodes(node, "number_literal")):
        return False
    return any(text_of(one) == "blockDim.x" for one in nodes(node, "field_expression"))


def _threads(names: tuple[str, ...], *parts: Node) -> Iterator[Node]:
    """Mentions of threads, of the size of the block and, for a grid, of blocks."""
    for part in parts:
        for node in nodes(part, "field_expression"):
            if text_of(field(node, "argument")) in names:
                yield node


def _is_of_loop(kernel: CudaKernel, node: Node, loops: list[Loop]) -> bool:
    """Whether a mention is only there for loops to start from, or to go on by."""
    ends = [end for loop in loops for end in (loop.start, loop.step) if end is not None]
    if any(inside(node, end) for end in ends):
        return True
    for variable in kernel.text.variables:
        value = variable.value
        if value is not None and inside(node, value) and not kernel.text.writes(variable):
            uses = kernel.text.uses[variable.key]
            return all(any(inside(use, end) for end in ends) for use in uses)
    return False


def _is_alone(kernel: CudaKernel, loop: Loop) -> bool:
    """Whether a turn leaves nothing in variables of the thread."""
    text = kernel.text
    return all(
        inside(variable.node, loop.body) or not any(inside(w, loop.body) for w in written)
        for variable in text.variables
        if variable != loop.variable
        for written in [text.writes(variable)]
    ) and not any(
        access.root.dims and not inside(access.root.node, loop.body) and access.use != "load"
        for access in Accesses(kernel).within(loop.body)
    )


def _writes_in(kernel: CudaKernel, loops: list[Loop]) -> bool:
    """Whether tensors are written in these loops only, in ways that are understood."""
    accesses = Accesses(kernel)
    if any(parameter.key in accesses.unclear for parameter in kernel.text.parameters):
        return False
    return all(
        any(inside(access.node, loop.body) for loop in loops)
        for access in accesses.all
        if access.use != "load" and not access.root.dims
    )
