"""`vectorize_global_loads`: consecutive elements are loaded and stored together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.sharing import Sharing
from pytest_gpuenergy.search.moves.element_kernel import ElementKernel, without_early_return
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.moves.neighbours import by_neighbours
from pytest_gpuenergy.search.moves.side_by_side import SideBySide, guarded_by, tail_of
from pytest_gpuenergy.search.moves.vector_parts import (
    Span,
    VectorPart,
    alignment_checks,
    part_lines,
    store_lines,
)
from pytest_gpuenergy.search.source.cuda_text import CountedLoop
from pytest_gpuenergy.search.source.edits import (
    Edit,
    block_of,
    edited,
    indented,
    inner_lines,
    times,
)
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import indentation, inside, nodes, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_WIDTHS = (2, 4, 8)
_WARP = 32
_Work = tuple[str, list[str], list[str], list[str]]
"""The name of the first element; the conditions of a vector, the lines with and without it."""


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
            yield from _in_loops(kernel, accesses, width)
            yield from by_neighbours(kernel, width)
        guarded = without_early_return(kernel)
        accesses = Accesses(guarded, moved=True)
        for width in _WIDTHS:
            for change in (
                _in_threads(guarded, accesses, width),
                _side_by_side(guarded, accesses, width),
            ):
                if change is not None:
                    yield change


def _in_loops(kernel: CudaKernel, accesses: Accesses, width: int) -> Iterator[TextChange]:
    shared: dict[str, list[CountedLoop]] = {}
    for number, loop in enumerate(kernel.text.loops, start=1):
        start, step = _start_and_step(kernel, loop)
        if start is None or step is None:
            continue
        if step.value == 1 and kernel.is_multiple(start, width):
            if start.depends_on("threadIdx"):
                continue  # what a thread has left
            edit = _widened(kernel, loop, width, _by_parts(kernel, accesses, loop, width))
            if edit is not None:
                what = f"loop {number} over {loop.variable.name} by {width}"
                yield TextChange(what, edited(kernel.text.source, [edit]), kernel.launch)
        elif (group := _group(kernel, start, step)) and (
            Sharing(kernel, group).may_be_redistributed(loop)
        ):
            shared.setdefault(group, []).append(loop)
    for loops in shared.values():
        yield from _in_shared_loops(kernel, accesses, loops, width)


def _start_and_step(
    kernel: CudaKernel, loop: CountedLoop
) -> tuple[Polynomial | None, Polynomial | None]:
    unit = Polynomial.constant(1)
    step = unit if loop.step is None else kernel.polynomial(loop.step)
    return kernel.polynomial(loop.start), step


def _group(kernel: CudaKernel, start: Polynomial, step: Polynomial) -> str:
    """Return the group, if any, whose threads share all numbers: "warp", "block" or "grid"."""
    x, y, z = kernel.block
    thread = Polynomial.atom(Atom("threadIdx.x"))
    if y * z != 1:
        return ""
    of_grid = Polynomial.atom(Atom("blockIdx.x")) * Polynomial.constant(x) + thread
    blocks = Polynomial.atom(Atom("gridDim.x")) * Polynomial.constant(x)
    lane = Atom(f"(({thread.text()}) % ({_WARP}))", frozenset(), "%", thread, _constant(_WARP))
    groups = {
        (thread, _constant(x)): "block",
        (of_grid, blocks): "grid",
        (Polynomial.atom(lane), _constant(_WARP)): "warp",
    }
    return groups.get((start, step), "")


def _constant(number: int) -> Polynomial:
    return Polynomial.constant(number)


def _in_shared_loops(
    kernel: CudaKernel, accesses: Accesses, loops: list[CountedLoop], width: int
) -> Iterator[TextChange]:
    """Yield the change of all loops at once, so that each element stays with one thread."""
    edits = [_widened_shared(kernel, accesses, loop, width) for loop in loops]
    done = [loop for loop, edit in zip(loops, edits, strict=True) if edit is not None]
    made = [edit for edit in edits if edit is not None]
    bodies = [loop.body for loop in done]
    if made and not _is_torn(accesses, bodies):
        names = ", ".join(dict.fromkeys(loop.variable.name for loop in done))
        lines = "/".join(str(loop.node.start_point[0] + 1) for loop in done)
        what = f"shared loops over {names} at line {lines} by {width}"
        yield TextChange(what, edited(kernel.text.source, made), kernel.launch)


def _is_torn(accesses: Accesses, bodies: list[Node]) -> bool:
    """Return whether something written in the bodies is used elsewhere, by other threads."""
    for access in accesses.all:
        is_own = bool(access.root.dims) and not access.root.shared
        if (access.use == "load" and not is_own) or not _within(access, bodies):
            continue
        uses = accesses.of(access.root)
        if access.root.key in accesses.unclear or not all(_within(use, bodies) for use in uses):
            return True
    return False


def _within(access: Access, bodies: list[Node]) -> bool:
    return any(inside(access.node, body) for body in bodies)


def _widened_shared(
    kernel: CudaKernel, accesses: Accesses, loop: CountedLoop, width: int
) -> Edit | None:
    """Return the edit of a loop that threads share, so that the order of its turns is free."""
    work = _by_parts(kernel, accesses, loop, width) or _by_statements(kernel, accesses, loop, width)
    return _widened(kernel, loop, width, work)


def _widened(kernel: CudaKernel, loop: CountedLoop, width: int, work: _Work | None) -> Edit | None:
    if work is None or _ends_before(kernel, loop, width):
        return None
    first, checks, lines, tail = work
    bound, kind = text_of(loop.bound), loop.variable.type
    start, step = times(loop.start, width), times(loop.step, width)
    if _start_and_step(kernel, loop)[1] == _constant(1):
        head = f"{kind} {first} = {text_of(loop.start)}; {first} < {bound}; {first} += {width}"
    else:
        head = f"{kind} {first} = {start}; {first} < {bound}; {first} += {step}"
    if not _is_whole(kernel, loop, width):
        checks.insert(0, f"{first} + {width} <= {bound}")
    if checks:
        lines = [*block_of(f"if ({' && '.join(checks)})", lines), *block_of("else", tail)]
    text = indented(block_of(f"for ({head})", lines), indentation(loop.node, kernel.text.source))
    return Edit(loop.node.start_byte, loop.node.end_byte, text)


def _by_parts(
    kernel: CudaKernel, accesses: Accesses, loop: CountedLoop, width: int
) -> _Work | None:
    """Return the work on elements one after the other."""
    span = Span(kernel, accesses, loop.variable, loop.body, loop.node)
    parts = span.parts(width) if span.can_be_split() else []
    if not any(part.loaded for part in parts):
        return None
    first = kernel.fresh(f"{loop.variable.name}_first")
    lines = _vector_lines(span, parts, first, width)
    if lines is None:
        return None
    tail = _tail(span, parts, first, text_of(loop.bound), width)
    return first, alignment_checks(span, parts, first, width), lines, tail


def _by_statements(
    kernel: CudaKernel, accesses: Accesses, loop: CountedLoop, width: int
) -> _Work | None:
    """Return the work on all elements by each statement, if the body has loops of its own."""
    if not any(nodes(loop.body, "for_statement")):
        return None
    work = SideBySide.of(kernel, accesses, loop.variable, loop.body, width)
    if work is None:
        return None
    tail = tail_of(loop.variable, loop.body, text_of(loop.bound), work.first, width)
    return work.first, work.checks, work.lines, tail


def _tail(span: Span, parts: list[VectorPart], first: str, bound: str, width: int) -> list[str]:
    """Return a loop over the elements that are left, or that are not aligned."""
    name, kind = span.variable.name, span.variable.type
    end = f"{name} < {bound}"
    if any(part.checked for part in parts):
        end = f"{name} < {first} + {width} && {end}"
    head = f"for ({kind} {name} = {first}; {end}; ++{name})"
    return block_of(head, inner_lines(text_of(span.body)))


def _ends_before(kernel: CudaKernel, loop: CountedLoop, width: int) -> bool:
    bound = kernel.polynomial(loop.bound)
    return bound is not None and bound.value is not None and bound.value < width


def _is_whole(kernel: CudaKernel, loop: CountedLoop, width: int) -> bool:
    bound = kernel.polynomial(loop.bound)
    if bound is None or not kernel.is_multiple(bound, width):
        return False
    return all(
        atom.variables == frozenset() or kernel.values(atom) is not None for atom in bound.atoms
    )


def _vector_lines(span: Span, parts: list[VectorPart], first: str, width: int) -> list[str] | None:
    """Return the lines that work on ``width`` elements."""
    lane = span.kernel.fresh(f"{span.variable.name}_lane")
    body, names_element = span.element_text(parts, lane)
    loads = part_lines(span, parts, first, width)
    if loads is None:
        return None
    name, kind = span.variable.name, span.variable.type
    inner = [f"const {kind} {name} = {first} + {lane};"] if names_element else []
    return [
        *loads,
        "#pragma unroll",
        *block_of(
            f"for (int {lane} = 0; {lane} < {width}; ++{lane})", [*inner, *inner_lines(body)]
        ),
        *store_lines(span, parts, first, width),
    ]


def _in_threads(kernel: CudaKernel, accesses: Accesses, width: int) -> TextChange | None:
    """Return the change of a kernel with one element for each thread."""
    found = ElementKernel.of(kernel)
    if found is None:
        return None
    span = Span(kernel, accesses, found.variable, found.body, found.body)
    parts = span.parts(width) if span.can_be_split() else []
    first = kernel.fresh(f"{found.variable.name}_first")
    lines = _vector_lines(span, parts, first, width)
    if lines is None or not any(part.loaded for part in parts):
        return None
    checks = [
        f"{first} + {width} <= {text_of(found.bound)}",
        *alignment_checks(span, parts, first, width),
    ]
    tail = _tail(span, parts, first, text_of(found.bound), width)
    return _by_elements(kernel, found, width, first, (checks, lines, tail))


def _side_by_side(kernel: CudaKernel, accesses: Accesses, width: int) -> TextChange | None:
    """Return the change of a kernel whose thread uses its element in loops."""
    found = ElementKernel.of(kernel)
    if found is None or not any(nodes(found.body, "for_statement")):
        return None
    work = SideBySide.of(kernel, accesses, found.variable, found.body, width)
    if work is None:
        return None
    checks = [f"{work.first} + {width} <= {text_of(found.bound)}", *work.checks]
    bound = text_of(found.bound)
    tail = tail_of(found.variable, found.body, bound, work.first, width)
    parts = checks, work.lines, tail
    change = _by_elements(kernel, found, width, work.first, parts)
    return TextChange(f"{change.what} side by side", change.source, change.launch)


def _by_elements(
    kernel: CudaKernel,
    found: ElementKernel,
    width: int,
    first: str,
    parts: tuple[list[str], list[str], list[str]],
) -> TextChange:
    """Return the kernel with ``width`` elements a thread.

    ``parts`` are the conditions of a vector, the lines that use it, and the lines that do not.
    """
    checks, lines, tail = parts
    both = [*block_of(f"if ({' && '.join(checks)})", lines), *block_of("else", tail)]
    text = indented(guarded_by(found, both), indentation(found.guard, kernel.text.source))
    declared = f"{found.variable.type} {first} = {times(found.index, width)};"
    edits = [
        Edit(found.declaration.start_byte, found.declaration.end_byte, declared),
        Edit(found.guard.start_byte, found.guard.end_byte, text),
    ]
    blocks, *others = kernel.launch.grid
    launch = replace(kernel.launch, grid=(f"ceil_div({blocks}, {width})", *others))
    return TextChange(f"{width} elements per thread", edited(kernel.text.source, edits), launch)
