"""The move ``change_block_sizes``: other numbers of threads, and other constants of the launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.kernels import cuda_tokens, function_name
from pytest_gpuenergy.search.analysis.accesses import Access, Accesses, array_dims
from pytest_gpuenergy.search.analysis.cuda_kernel import BLOCK, THREAD, WARP, CudaKernel
from pytest_gpuenergy.search.analysis.sharing import Sharing, synchronizes_or_exchanges
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import Application, Region
from pytest_gpuenergy.search.source.cuda_text import CountedLoop
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    conjuncts,
    field,
    inside,
    node_text,
    nodes,
    only,
    parse,
    sides,
    unscoped_name,
)
from pytest_gpuenergy.search.spec.kernel_spec import (
    KernelSpec,
    Language,
    LaunchPlan,
    State,
)
from pytest_gpuenergy.search.spec.sizes import used_names

if TYPE_CHECKING:
    from tree_sitter import Node

_AXES = ("block_x", "block_y", "block_z")
_THREADS = (32, 64, 128, 256, 512, 1024)
_FACTORS = (2, 4)
_MAX_WARPS = 32
_REACH = 16
"""The limit on how far a constant moves from the baseline's, lest one thread do all work."""
_MAX_THREADS = 1024
_WARP_NAMES = ("warpSize", "__activemask")
_NAMES = {
    "block": ("threadIdx", "blockDim"),
    "grid": ("threadIdx", "blockDim", "blockIdx", "gridDim"),
}
_OF_WARPS = frozenset([0, 1, 2, WARP - 1, WARP])
"""Numbers that a text may state whatever the size of the block."""


class ChangeBlockSizes:
    """Change the size of a CUDA block or a Triton program, or one of its constants.

    A size of a CUDA block is changed if an expression of the launch has its name, so that the grid
    follows, or if the text does the same with any number of threads, or is likely to; a number of
    blocks if they share loops and do nothing else; a Triton program gets other numbers of warps.
    A constant that the text uses is changed if the grid depends on it, if a loop of a Triton
    function goes on by it, or if it states a size of the CUDA block, which then changes with it;
    never one that tensors and scalars depend on.
    """

    name = "change_block_sizes"
    languages: frozenset[Language] = frozenset({"cuda", "triton"})
    relieves: frozenset[Region] = frozenset({"gmem", "overlap", "atomics"})

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """Yield all other sizes of one axis or one constant at a time, in ascending order."""
        bound, least, most = "", 1, _MAX_THREADS
        free: Iterable[tuple[str, LaunchPlan]] = ()
        if state.language == "cuda":
            bound = _launch_bounds(state.source, spec.entry)
            if len([size for size in state.launch.block if size > 1]) == 1 and (
                kernel := CudaKernel.of(state, spec)
            ):
                least, most = _threads_for_numbers(kernel), _room_for_threads(kernel) or most
                free = _free_plans(kernel)
        number = int(bound) if bound.isdecimal() else _MAX_THREADS
        for what, launch in [*launches(state, spec), *free]:
            # An array may depend on a constant that changes.
            threads = prod(launch.block)
            fits = launch.constants != state.launch.constants or threads <= most
            if fits and least <= threads <= launch.constants.get(bound, number):
                yield Application(self.name, what, replace(state, launch=launch))


def launches(state: State, spec: KernelSpec) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield launches that differ in one number, which the grid or the text's loops follow."""
    baseline = spec.launch
    # The constants that state a size of the block, with the axis.
    tied = {
        name: axis
        for axis, threads in enumerate(baseline.block)
        for name, value in baseline.constants.items()
        if value == threads > 1
    }
    # The names that tensors and scalars depend on.
    sizes = [size for tensor in spec.tensors for size in (*tensor.shape, *(tensor.strides or ()))]
    values = [scalar.value for scalar in spec.scalars if isinstance(scalar.value, str)]
    fixed = frozenset().union(*map(used_names, (*sizes, *values)))
    if state.language == "triton":
        plans = _triton_plans(state, spec, fixed)
    else:
        plans = _plans(state, tied, fixed)
    first = {name: v for name, v in baseline.constants.items() if name not in tied}
    for what, launch in plans:
        near = all(
            first[name] <= value * _REACH <= first[name] * _REACH**2
            for name, value in launch.constants.items()
            if name in first
        )
        if near and prod(launch.block) <= _MAX_THREADS:
            yield what, launch


def _names_in_launch(launch: LaunchPlan) -> frozenset[str]:
    """Return the names in expressions of a launch."""
    return frozenset().union(*map(used_names, (*launch.grid, launch.shared_bytes)))


def _free_plans(kernel: CudaKernel) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield plans for a kernel that fits any number of threads, which its launch does not name."""
    launch, name = kernel.launch, _AXES[0]
    if name in _names_in_launch(launch):
        return
    fits_any_grid = _only_shares(kernel, "grid")
    fits_any_block = fits_any_grid or _only_shares(kernel, "block")
    most = _MAX_THREADS if fits_any_block else _most_threads(kernel)
    for threads in _THREADS:
        if threads != launch.block[0] and threads <= most:
            yield f"{name}={threads}", replace(launch, block=_with(launch, 0, threads))
    blocks, *others = launch.grid
    if isinstance(blocks, int) and fits_any_grid:
        for number in _others(blocks):
            yield f"{number} blocks", replace(launch, grid=(number, *others))


def _plans(
    state: State, tied: Mapping[str, int], fixed: frozenset[str]
) -> Iterator[tuple[str, LaunchPlan]]:
    launch = state.launch
    used = _names_in_launch(launch)
    words = {w for t in cuda_tokens(state.source) for w in re.findall(r"\w+", t.text)}
    for axis, name in enumerate(_AXES[: len(launch.block)]):
        if name in used:
            # Where a block has several axes, also small sizes.
            others = prod(launch.block) // launch.block[axis]
            near = [size for size in _others(launch.block[axis]) if size * others >= _THREADS[0]]
            for threads in sorted({*_THREADS, *(near if others > 1 else ())}):
                if threads != launch.block[axis]:
                    yield f"{name}={threads}", replace(launch, block=_with(launch, axis, threads))
    for name, value in launch.constants.items():
        if type(value) is not int or value < 1 or name not in words or name in fixed:
            continue
        if name in tied:
            values = [threads for threads in _THREADS if threads != value]
        else:
            values = _others(value) if name in used else []
        for other in values:
            block = _with(launch, tied[name], other) if name in tied else launch.block
            constants = {**launch.constants, name: other}
            yield f"{name}={other}", replace(launch, block=block, constants=constants)


def _triton_plans(
    state: State, spec: KernelSpec, fixed: frozenset[str]
) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield other numbers of warps, and other values of what the grid or a loop follows."""
    launch, kernel = state.launch, TritonFunction.of(state, spec)
    if kernel is None:
        return
    for warps in _others(launch.num_warps):
        if warps <= _MAX_WARPS:
            yield f"num_warps={warps}", replace(launch, num_warps=warps)
    used = (_names_in_launch(launch) | kernel.text.names_in_ranges) - fixed
    for name, value in launch.constants.items():
        if type(value) is int and value > 0 and name in used:
            for other in _others(value):
                constants = {**launch.constants, name: other}
                yield f"{name}={other}", replace(launch, constants=constants)


def _others(value: int) -> list[int]:
    smaller = [value // factor for factor in _FACTORS[::-1] if value % factor == 0]
    return [*smaller, *(value * factor for factor in _FACTORS)]


def _with(launch: LaunchPlan, axis: int, threads: int) -> tuple[int, ...]:
    return (*launch.block[:axis], threads, *launch.block[axis + 1 :])


def _only_shares(kernel: CudaKernel, group: str) -> bool:
    """Return whether threads of a block or of the grid do nothing but share loops.

    Each loop then begins at the thread's number and advances by the number of threads, each thread
    writes elements of its own, and threads neither wait for each other nor exchange values. So any
    number of threads computes the same.
    """
    text, names = kernel.text, _NAMES[group]
    _, y, z = kernel.block
    loops = [loop for loop in text.loops if _is_shared(kernel, loop, group)]
    if y * z != 1 or not loops or synchronizes_or_exchanges(kernel, text.body):
        return False
    if any(variable.shared for variable in text.variables) or any(_threads(names, *text.functions)):
        return False
    if any(node_text(node) in _WARP_NAMES for node in nodes(text.body, "identifier")):
        return False
    accesses = Accesses(kernel)
    if any(parameter.key in accesses.unclear for parameter in text.parameters):
        return False
    return (
        all(Sharing(kernel, group, loop).may_be_redistributed() for loop in loops)
        and all(_is_alone(kernel, accesses, loop) for loop in loops)
        and all(_is_of_loop(kernel, node, loops) for node in _threads(names, text.body))
        and all(  # writes to tensors are in these loops
            any(inside(access.node, loop.body) for loop in loops)
            for access in accesses.all
            if access.use != "load" and not access.root.dims
        )
    )


def _is_shared(kernel: CudaKernel, loop: CountedLoop, group: str) -> bool:
    start, threads = THREAD, Polynomial.constant(kernel.block[0])
    if group == "grid":
        start += BLOCK * threads
        threads *= Polynomial.atom(Atom("gridDim.x"))
    if kernel.polynomial(loop.start) != start or kernel.loop_step(loop) != threads:
        return False
    # The parts that depend on the number of threads must do so by its name.
    ends = (loop.step,) if group == "block" else (loop.start, loop.step)
    for end in ends:
        variable = None if end is None else kernel.text.variable(end)
        value = end if variable is None else variable.value
        if end is not None and (
            value is None or any(nodes(value, "number_literal")) or not _names_block(value)
        ):
            return False
    return True


def _names_block(node: Node) -> bool:
    return any(node_text(inner) == "blockDim.x" for inner in nodes(node, "field_expression"))


def _threads(names: tuple[str, ...], *parts: Node) -> Iterator[Node]:
    """Yield mentions of threads, of the size of the block and, for a grid, of blocks."""
    for part in parts:
        for node in nodes(part, "field_expression"):
            if node_text(field(node, "argument")) in names:
                yield node


def _is_of_loop(kernel: CudaKernel, node: Node, loops: list[CountedLoop]) -> bool:
    """Return whether a mention only serves as the start or the step of loops."""
    ends = [end for loop in loops for end in (loop.start, loop.step) if end is not None]
    if any(inside(node, end) for end in ends):
        return True
    for variable in kernel.text.variables:
        value = variable.value
        if value is not None and inside(node, value) and not kernel.text.writes(variable):
            uses = kernel.text.uses[variable.key]
            return all(any(inside(use, end) for end in ends) for use in uses)
    return False


def _is_alone(kernel: CudaKernel, accesses: Accesses, loop: CountedLoop) -> bool:
    """Return whether a turn of a loop leaves nothing in variables of the thread."""
    for variable in kernel.text.variables:
        written = any(inside(write, loop.body) for write in kernel.text.writes(variable))
        if written and variable != loop.variable and not inside(variable.node, loop.body):
            return False
    return not any(
        access.root.dims and not inside(access.root.node, loop.body) and access.use != "load"
        for access in accesses.within(loop.body)
    )


def _most_threads(kernel: CudaKernel) -> int:
    """Return the largest block for which a kernel likely computes the same; 0 if unknown."""
    threads, y, z = kernel.block
    shared = [variable for variable in kernel.text.variables if variable.shared]
    if y * z != 1 or threads % WARP or not shared:
        return 0
    if not kernel.text.calls(kernel.text.body, "__syncthreads"):
        return 0
    if any(array.dims == (None,) for array in shared):
        return 0
    if not any(_goes_on_by_block(kernel, loop) for loop in kernel.text.loops):
        return 0
    stated = {threads, threads - 1, threads // 2, threads * 2, threads // WARP} - _OF_WARPS
    return 0 if stated & set(_numbers(kernel)) else _room_for_threads(kernel)


def _room_for_threads(kernel: CudaKernel) -> int:
    """Return the largest block whose threads have room in shared arrays; 0 if unknown."""
    most = _MAX_THREADS
    accesses = Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or array.dims == (None,):  # as long as the launch says
            continue
        dims = array_dims(kernel, array)
        if dims is None:
            return 0
        for access in accesses.of(array):
            most = min(most, _largest_block(kernel, access, dims))
    return most


def _largest_block(kernel: CudaKernel, access: Access, dims: tuple[int, ...]) -> int:
    """Return the largest block for which the threads' own elements are in a shared array."""
    most = _MAX_THREADS
    for subscript, size in zip(access.address.subscripts, dims, strict=False):
        index = kernel.polynomial(subscript)
        for atom in index.atoms if index is not None else ():
            if atom.text == THREAD.text() and not _is_below(kernel, access.node, size):
                most = min(most, size)
            elif atom.operator == "/" and atom.left == THREAD and atom.right is not None:
                most = min(most, size * (atom.right.value or 1))
    return most


def _threads_for_numbers(kernel: CudaKernel) -> int:
    """Return the smallest block whose threads fill all places of arrays that are read by number.

    As in ``part[threadIdx.x / 32] = sum; ... part[0] + part[1]``, which needs two warps.
    """
    fewest, accesses = 1, Accesses(kernel)
    for array in kernel.text.variables:
        if not array.shared or len(array.dims) != 1:
            continue
        known = [
            (access.use, index)
            for access in accesses.of(array)
            if len(access.address.subscripts) == 1
            and (index := kernel.polynomial(access.address.subscripts[0])) is not None
        ]
        share = max((_share(index) for use, index in known if use != "load"), default=0)
        numbers = [index.value for use, index in known if use != "store"]
        for number in numbers:
            if number is not None and share:
                fewest = max(fewest, number * share + 1)
    return fewest


def _share(index: Polynomial) -> int:
    """Return how many threads share a place that is their number or a part of it; else 0."""
    if index == THREAD:
        return 1
    atom = only(list(index.atoms))
    if atom is None or atom.operator != "/" or atom.left != THREAD or not atom.right:
        return 0
    return (atom.right.value or 0) if index == Polynomial.atom(atom) else 0


def _goes_on_by_block(kernel: CudaKernel, loop: CountedLoop) -> bool:
    """Return whether threads of a block or grid share a loop by the name of the block's size."""
    step = loop.step
    if step is not None and step.type == "identifier":
        variable = kernel.text.variable(step)
        step = variable.value if variable is not None else None
    if step is None or not _names_block(step):
        return False
    mentions = nodes(loop.start, "field_expression", "identifier")
    known = kernel.polynomial(loop.start)
    named = any(node_text(node) == "threadIdx.x" for node in mentions)
    return named or (known is not None and known.depends_on("threadIdx"))


def _numbers(kernel: CudaKernel) -> Iterator[int]:
    """Yield the numbers that a text states, without the sizes of shared arrays."""
    text = kernel.text
    sizes = [
        size
        for variable in text.variables
        if variable.shared
        for size in variable.dims
        if size is not None
    ]
    for part in (text.body, *text.functions):
        for node in nodes(part, "number_literal", "identifier"):
            if any(inside(node, size) for size in sizes):
                continue
            known = kernel.polynomial(node) if text.variable(node) is None else None
            if known is not None and known.value is not None:
                yield known.value


def _is_below(kernel: CudaKernel, node: Node, size: int) -> bool:
    """Return whether only threads with a number below a size reach a part of the text."""
    for around in ancestors(node):
        condition = field(around, "condition")
        if around.type not in ("if_statement", "conditional_expression") or condition is None:
            continue
        for compared in conjuncts(bare(condition)):
            parts = sides(compared, "<")
            end = None if parts is None else kernel.polynomial(parts[1])
            if parts is None or end is None or end.value is None:
                continue
            # A bound that names the size of the block grows with it.
            growth = _MAX_THREADS // kernel.threads if _names_block(parts[1]) else 1
            if kernel.polynomial(parts[0]) == THREAD and end.value * growth <= size:
                return True
    return False


def _launch_bounds(source: str, entry: str) -> str:
    """Return the first argument of ``__launch_bounds__`` as text; empty if there is none.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    for function in nodes(parse(source.encode("utf-8", "replace")), "function_definition"):
        for bounds in function.children if unscoped_name(function) == function_name(entry) else ():
            if bounds.type == "launch_bounds" and bounds.named_children:
                return node_text(bounds.named_children[0])
    return ""
