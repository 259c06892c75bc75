"""`vectorize_global_loads`: consecutive elements are loaded and stored together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import BLOCK, THREAD, WARP, CudaKernel
from pytest_gpuenergy.search.analysis.sharing import Sharing
from pytest_gpuenergy.search.moves.element_kernel import ElementKernel, without_early_return
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.moves.neighbours import by_neighbours
from pytest_gpuenergy.search.moves.thread_coarsening import work_side_by_side
from pytest_gpuenergy.search.moves.vector_parts import VectorWork, work_by_parts
from pytest_gpuenergy.search.source.cuda_text import CountedLoop
from pytest_gpuenergy.search.source.edits import Edit, braced_lines, indented_text, times
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import indentation, inside, node_text

if TYPE_CHECKING:
    from tree_sitter import Node

_WIDTHS = (2, 4, 8)


class VectorizeGlobalLoads(SourceMove):
    """Have a thread take 2, 4 or 8 consecutive elements at a time.

    In loops of one thread, in loops that the threads of a warp, block or grid share, where each
    thread has one element, and where a thread names its elements one by one. What is loaded must
    be aligned for the sizes that are measured; if it is not for others, the kernel looks at the
    address. Elements that are named must be aligned for all sizes.
    """

    name = "vectorize_global_loads"
    languages = frozenset({"cuda"})
    relieves = frozenset({"gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        accesses = Accesses(kernel, moved=True)
        for width in _WIDTHS:
            yield from _loop_changes(kernel, accesses, width)
            yield from by_neighbours(kernel, width)
        guarded = without_early_return(kernel)
        accesses = Accesses(guarded, moved=True)
        for width in _WIDTHS:
            yield from _thread_changes(guarded, accesses, width)


def _loop_changes(kernel: CudaKernel, accesses: Accesses, width: int) -> Iterator[TextChange]:
    shared: dict[str, list[CountedLoop]] = {}
    for number, loop in enumerate(kernel.text.loops, start=1):
        start, step = kernel.polynomial(loop.start), kernel.loop_step(loop)
        if start is None or step is None:
            continue
        if step.value == 1 and kernel.is_multiple(start, width):
            if start.depends_on("threadIdx"):
                continue  # what a thread has left
            edit = _widen_loop(kernel, loop, width, _work_by_parts(kernel, accesses, loop, width))
            if edit is not None:
                what = f"loop {number} over {loop.variable.name} by {width}"
                yield TextChange.of(kernel, what, [edit])
        elif (group := _group(kernel, start, step)) and (
            Sharing(kernel, group, loop).may_be_redistributed()
        ):
            shared.setdefault(group, []).append(loop)
    for loops in shared.values():
        yield from _shared_loop_changes(kernel, accesses, loops, width)


def _group(kernel: CudaKernel, start: Polynomial, step: Polynomial) -> str:
    """Return the group, if any, whose threads share all numbers: "warp", "block" or "grid"."""
    x, y, z = kernel.block
    warp = Polynomial.constant(WARP)
    lane = Atom(f"(({THREAD.text()}) % ({WARP}))", frozenset(), "%", THREAD, warp)
    groups = {
        (THREAD, Polynomial.constant(x)): "block",
        (BLOCK * x + THREAD, Polynomial.atom(Atom("gridDim.x")) * x): "grid",
        (Polynomial.atom(lane), warp): "warp",
    }
    return groups.get((start, step), "") if y * z == 1 else ""


def _shared_loop_changes(
    kernel: CudaKernel, accesses: Accesses, loops: list[CountedLoop], width: int
) -> Iterator[TextChange]:
    """Yield the change of all loops at once, so that each element stays with one thread."""
    done: list[CountedLoop] = []
    edits: list[Edit] = []
    for loop in loops:  # the order of its turns is free
        bound = node_text(loop.bound)
        work = _work_by_parts(kernel, accesses, loop, width) or work_side_by_side(
            kernel, accesses, loop.variable, loop.body, bound, width
        )
        if (edit := _widen_loop(kernel, loop, width, work)) is not None:
            done.append(loop)
            edits.append(edit)
    if edits and not _is_torn(accesses, [loop.body for loop in done]):
        names = ", ".join(dict.fromkeys(loop.variable.name for loop in done))
        lines = "/".join(str(loop.node.start_point[0] + 1) for loop in done)
        yield TextChange.of(kernel, f"shared loops over {names} at line {lines} by {width}", edits)


def _is_torn(accesses: Accesses, bodies: list[Node]) -> bool:
    """Return whether something written in the bodies is used elsewhere, by other threads."""

    def is_within(access: Access) -> bool:
        return any(inside(access.node, body) for body in bodies)

    for access in accesses.all:
        is_own = bool(access.root.dims) and not access.root.shared
        if (access.use == "load" and not is_own) or not is_within(access):
            continue
        if access.root.key in accesses.unclear or not all(
            is_within(use) for use in accesses.of(access.root)
        ):
            return True
    return False


def _work_by_parts(
    kernel: CudaKernel, accesses: Accesses, loop: CountedLoop, width: int
) -> VectorWork | None:
    bound = node_text(loop.bound)
    return work_by_parts(kernel, accesses, loop.variable, loop.body, loop.node, bound, width)


def _widen_loop(
    kernel: CudaKernel, loop: CountedLoop, width: int, work: VectorWork | None
) -> Edit | None:
    """Return the edit of a loop to steps of ``width`` elements; None if it ends before."""
    end = kernel.polynomial(loop.bound)
    if work is None or (end is not None and end.value is not None and end.value < width):
        return None
    first, bound = work.first, node_text(loop.bound)
    start, step = times(loop.start, width), times(loop.step, width)
    if kernel.loop_step(loop) == Polynomial.constant(1):
        start, step = node_text(loop.start), str(width)
    head = f"{loop.variable.type} {first} = {start}; {first} < {bound}; {first} += {step}"
    is_whole = (
        end is not None
        and kernel.is_multiple(end, width)
        and all(not atom.variables or kernel.values(atom) is not None for atom in end.atoms)
    )
    lines = work.either(*([] if is_whole else [f"{first} + {width} <= {bound}"]))
    text = indented_text(
        braced_lines(f"for ({head})", lines), indentation(loop.node, kernel.text.source)
    )
    return Edit.of(loop.node, text)


def _thread_changes(kernel: CudaKernel, accesses: Accesses, width: int) -> Iterator[TextChange]:
    """Yield the changes of a kernel with one element for each thread."""
    element = ElementKernel.of(kernel)
    if element is None:
        return
    variable, body, bound = element.variable, element.body, node_text(element.bound)
    works = {
        "": work_by_parts(kernel, accesses, variable, body, body, bound, width),
        " side by side": work_side_by_side(kernel, accesses, variable, body, bound, width),
    }
    blocks, *others = kernel.launch.grid
    launch = replace(kernel.launch, grid=(f"ceil_div({blocks}, {width})", *others))
    for how, work in works.items():
        if work is None:
            continue
        lines = work.either(f"{work.first} + {width} <= {bound}")
        if element.others:
            parts = [f"({node_text(part)})" for part in element.others]
            lines = braced_lines(f"if ({' && '.join(parts)})", lines)
        text = indented_text(lines, indentation(element.guard, kernel.text.source))
        declared = f"{variable.type} {work.first} = {times(element.index, width)};"
        edits = [Edit.of(element.declaration, declared), Edit.of(element.guard, text)]
        yield TextChange.of(kernel, f"{width} elements per thread{how}", edits, launch)
