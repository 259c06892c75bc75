"""How many threads the blocks of a CUDA kernel may have.

Beside bounds that the text states, this is about kernels whose threads share loops and then put
together what they have. That these compute the same with other numbers of threads is likely, not
certain: the text nowhere states a number of threads, and shared arrays have room for them.
Verification decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.cuda_loops import Loop
from pytest_gpuenergy.search.moves.shared_memory import dims_of
from pytest_gpuenergy.search.source.accesses import Access, Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    conjuncts,
    field,
    inside,
    nodes,
    operator_of,
    parse,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_WARP = 32
_MOST_THREADS = 1024
_THREAD = Polynomial.atom(Atom("threadIdx.x"))
_OF_WARPS = frozenset([0, 1, 2, _WARP - 1, _WARP])
"""Numbers that say nothing of the block."""


def most_threads(kernel: CudaKernel) -> int:
    """The largest block for which a kernel is likely to compute the same; 0 if nothing is known."""
    threads, y, z = kernel.block
    shared = [one for one in kernel.text.variables if one.shared]
    if y * z != 1 or threads % _WARP or not shared:
        return 0
    if not kernel.text.calls(kernel.text.body, "__syncthreads"):
        return 0
    if any(one.dims == (None,) for one in shared):
        return 0
    if not any(_goes_on_by_block(kernel, loop) for loop in kernel.text.loops):
        return 0
    stated = {threads, threads - 1, threads // 2, threads * 2, threads // _WARP} - _OF_WARPS
    if stated & set(_numbers(kernel)):
        return 0
    return room_for_threads(kernel)


def room_for_threads(kernel: CudaKernel) -> int:
    """The largest block of which each thread has its place in shared arrays; 0 if not known."""
    most = _MOST_THREADS
    accesses = Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or array.dims == (None,):  # as long as the launch says
            continue
        dims = dims_of(kernel, array)
        if dims is None:
            return 0
        for access in accesses.of(array):
            most = min(most, _threads_for(kernel, access, dims))
    return most


def threads_for_numbers(kernel: CudaKernel) -> int:
    """The smallest block whose threads fill the places of shared arrays that are read by number.

    As in ``part[threadIdx.x / 32] = sum; ... part[0] + part[1]``, which needs two warps.
    """
    fewest, accesses = 1, Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or len(array.dims) != 1:
            continue
        known = [
            (access.use, kernel.polynomial(access.address.subscripts[0]))
            for access in accesses.of(array)
            if len(access.address.subscripts) == 1
        ]
        shares = [_share(index) for use, index in known if use != "load" and index is not None]
        numbers = [index.value for use, index in known if use != "store" and index is not None]
        for number in numbers:
            if number is not None and any(shares):
                fewest = max(fewest, number * max(shares) + 1)
    return fewest


def _share(index: Polynomial) -> int:
    """How many threads share a place, if it is the thread's number or a part of it; else 0."""
    if index == _THREAD:
        return 1
    (atom, *others) = index.atoms or (None,)
    if atom is None or others or atom.operator != "/" or atom.left != _THREAD or not atom.right:
        return 0
    return (atom.right.value or 0) if index == Polynomial.atom(atom) else 0


def _goes_on_by_block(kernel: CudaKernel, loop: Loop) -> bool:
    """Whether threads share a loop, of a block or of the grid, by the block's size by name."""
    step = loop.step
    if step is not None and step.type == "identifier":
        variable = kernel.text.variable(step)
        step = variable.value if variable is not None else None
    if step is None or not any(text_of(n) == "blockDim.x" for n in nodes(step, "field_expression")):
        return False
    mentions = nodes(loop.start, "field_expression", "identifier")
    known = kernel.polynomial(loop.start)
    named = any(text_of(node) == "threadIdx.x" for node in mentions)
    return named or (known is not None and known.depends_on("threadIdx"))


def _numbers(kernel: CudaKernel) -> Iterator[int]:
    """Those that the entry and the functions of the text state, but for sizes of shared arrays."""
    text = kernel.text
    sizes = [size for one in text.variables if one.shared for size in one.dims if size is not None]
    for part in (text.body, *text.functions):
        for node in nodes(part, "number_literal", "identifier"):
            if any(inside(node, size) for size in sizes):
                continue
            known = kernel.polynomial(node) if text.variable(node) is None else None
            if known is not None and known.value is not None:
                yield known.value


def _threads_for(kernel: CudaKernel, access: Access, dims: tuple[int, ...]) -> int:
    """The largest block for which the threads' own elements are in a shared array."""
    most = _MOST_THREADS
    for subscript, size in zip(access.address.subscripts, dims, strict=False):
        known = kernel.polynomial(subscript)
        for atom in known.atoms if known is not None else ():
            if atom.text == _THREAD.text() and not _is_below(kernel, access.node, size):
                most = min(most, size)
            elif atom.operator == "/" and atom.left == _THREAD and atom.right is not None:
                most = min(most, size * (atom.right.value or 1))
    return most


def _is_below(kernel: CudaKernel, node: Node, size: int) -> bool:
    """Whether only threads with numbers below a size come to a part of the text."""
    for around in ancestors(node):
        condition = field(around, "condition")
        if around.type not in ("if_statement", "conditional_expression") or condition is None:
            continue
        for compared in conjuncts(bare(condition)):
            left, right = field(compared, "left"), field(compared, "right")
            if operator_of(compared) != "<" or left is None or right is None:
                continue
            end = kernel.polynomial(right)
            if end is None or end.value is None or kernel.polynomial(left) != _THREAD:
                continue
            named = any(text_of(n) == "blockDim.x" for n in nodes(right, "field_expression"))
            if end.value * (_MOST_THREADS // kernel.threads if named else 1) <= size:
                return True
    return False


def launch_bounds(source: str, entry: str) -> str:
    """The text of how many threads a block may have; empty if ``__launch_bounds__`` does not say.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    for function in nodes(parse(source.encode("utf-8", "replace")), "function_definition"):
        declared = field(next(nodes(function, "function_declarator"), None), "declarator")
        for bounds in function.children if text_of(declared) == entry.split("::")[-1] else ():
            if bounds.type == "launch_bounds" and bounds.named_children:
                return text_of(bounds.named_children[0])
    return ""
