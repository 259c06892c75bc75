"""`enable_async_pipeline`: tiles are copied to shared memory while others are computed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.search.analysis.accesses import (
    SHARED_BYTES,
    Access,
    Accesses,
    array_bytes,
    shared_bytes,
)
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.source.cuda_text import BYTES, VECTOR_BYTES, CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import (
    Edit,
    apply_edits,
    braced_lines,
    edited_node_text,
    inclusion,
    indented_text,
    times,
)
from pytest_gpuenergy.search.source.tree import (
    bare,
    called,
    expression_operator,
    field,
    indentation,
    inside,
    is_call,
    loop_start,
    node_text,
    nodes,
    only,
    statements,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_BARRIER = "__syncthreads"
_COPIED_BYTES = (4, 8, 16)
_STAGES = (2, 3)
_TRITON_STAGES = (2, 3, 4, 5)
_HEADER = "<cuda_pipeline.h>"
_ALIGNMENT = 16


@dataclass(frozen=True)
class _Copy:
    """``shared = tensor``, or ``shared = condition ? tensor : other``.

    Attributes:
        statement: the statement, with its semicolon.
        to: the element that is written.
        source: the element that is read.
        condition: the condition under which the tensor is read; None if there is none.
        other: the value that is stored otherwise; None without a condition.
        size: the size of the copied element in bytes.
    """

    statement: Node
    to: Access
    source: Access
    condition: Node | None
    other: Node | None
    size: int


@dataclass(frozen=True)
class _TileLoop:
    """``for (...) { fill __syncthreads(); compute __syncthreads(); }``.

    Attributes:
        loop: the whole loop.
        fill: the statements before the first barrier, with comments.
        compute: the statements between the barriers.
        copies: the copies by which ``fill`` writes to shared memory, and there is nothing else.
        arrays: the arrays that are filled.
    """

    loop: CountedLoop
    fill: tuple[Node, ...]
    compute: tuple[Node, ...]
    copies: tuple[_Copy, ...]
    arrays: tuple[Variable, ...]


def _tile_loop(kernel: CudaKernel, accesses: Accesses, loop: CountedLoop) -> _TileLoop | None:
    """Return the parts of such a loop; None for others, or if its turns depend on each other."""
    inner = statements(loop.body)
    barriers = [i for i, statement in enumerate(inner) if is_call(statement, _BARRIER)]
    if len(barriers) != 2 or barriers[1] != len(inner) - 1 or 0 in barriers:
        return None
    if len(kernel.text.calls(loop.body, _BARRIER)) != 2:
        return None
    children = loop.body.named_children
    first, second = (children.index(inner[place]) for place in barriers)
    fill, compute = tuple(children[:first]), tuple(children[first + 1 : second])
    own = [a for statement in fill for a in accesses.within(statement)]
    copies = [_copy(kernel, accesses, a) for a in own if a.use != "load"]
    known = [copy for copy in copies if copy is not None and compute]
    fixed = accesses.read_only()
    if any(access.use == "load" and access.root not in fixed for access in own):
        return None  # what an earlier turn computes
    if not known or len(known) != len(copies) or not _is_apart(kernel, loop, fill):
        return None
    arrays = tuple(dict.fromkeys(copy.to.root for copy in known))
    for array in arrays:
        if array.key in accesses.unclear:
            return None
        for access in accesses.of(array):  # only in the loop, and always by its name
            named = all(node_text(name) == array.name for name in access.address.identifiers)
            is_plain = access.use == "load" or not access.function
            if not (inside(access.node, loop.body) and named and is_plain):
                return None
    return _TileLoop(loop, fill, compute, tuple(known), arrays)


def _copy(kernel: CudaKernel, accesses: Accesses, to: Access) -> _Copy | None:
    assignment = to.node.parent
    statement = assignment.parent if assignment is not None else None
    right = field(assignment, "right")
    if to.use != "store" or not to.root.shared or to.function or right is None:
        return None
    if statement is None or statement.type != "expression_statement":
        return None
    condition = other = None
    value = bare(right)
    if value.type == "conditional_expression":
        condition, other = field(value, "condition"), field(value, "alternative")
        value = bare(field(value, "consequence") or value)
        if other is None or any(nodes(other, "subscript_expression", "call_expression")):
            return None
    source = only([a for a in accesses.within(value) if a.node == value and a.use == "load"])
    if source is None or source.root.key not in kernel.tensors:
        return None
    kinds = [access.address.width or access.root.type for access in (to, source)]
    size = VECTOR_BYTES.get(kinds[0], BYTES.get(kinds[0], 0))
    if kinds[0] != kinds[1] or to.root.type != source.root.type or size not in _COPIED_BYTES:
        return None
    return _Copy(statement, to, source, condition, other, size)


def _is_apart(kernel: CudaKernel, loop: CountedLoop, fill: tuple[Node, ...]) -> bool:
    """Return whether the fill of a turn needs nothing of others, and leaves only tiles."""
    text = kernel.text
    for variable in text.variables:
        uses = [variable.node, *text.uses[variable.key]]
        in_fill = [use for use in uses if any(inside(use, filling) for filling in fill)]
        if not in_fill or variable == loop.variable or variable.dims:
            continue
        declared = any(inside(variable.node, filling) for filling in fill)
        if declared and len(in_fill) != len(uses):
            return False
        if not declared and text.changes(variable, loop.node):
            return False
    stops = ("break_statement", "continue_statement", "return_statement")
    calls = [called(call) for filling in fill for call in nodes(filling, "call_expression")]
    meets = any(name.startswith(("__pipeline", "__sync", "atomic", "__shfl")) for name in calls)
    return not meets and not any(nodes(loop.body, *stops))


class EnableAsyncPipeline(SourceMove):
    """Load the tiles of later turns of a loop during the computation of earlier ones.

    CUDA: with ``cp.async``, into 2 or 3 copies of the shared arrays. Triton: by ``num_stages``.
    """

    name = "enable_async_pipeline"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"overlap", "gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        accesses = Accesses(kernel)
        for number, loop in enumerate(kernel.text.loops, start=1):
            tiles, used = _tile_loop(kernel, accesses, loop), shared_bytes(kernel)
            if tiles is None or used is None:
                continue
            sizes = [array_bytes(kernel, array) or 1 for array in tiles.arrays]
            for stages in _STAGES if not any(size % _ALIGNMENT for size in sizes) else ():
                if used + (stages - 1) * sum(sizes) <= SHARED_BYTES:
                    what = f"loop {number} over {loop.variable.name} in {stages} stages"
                    yield TextChange.of(
                        kernel, what, _pipeline_edits(kernel, accesses, tiles, stages)
                    )

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        text = kernel.text
        loops = [loop for loop in text.loops if any(text.calls("load", within=loop.node))]
        for stages in _TRITON_STAGES if loops else ():
            if stages != kernel.launch.num_stages:
                launch = replace(kernel.launch, num_stages=stages)
                yield TextChange.of(kernel, f"{stages} stages", [], launch)
        for number, loop in enumerate(loops, start=1):
            named = [k for k in loop.call.keywords if k.arg == "num_stages"]
            if not loop.call.args or (loop.call.keywords and not named):
                continue
            for stages in _TRITON_STAGES:
                function = text.replaced(loop.call.func, f"{text.language}.range")
                option = (
                    text.replaced(named[0].value, str(stages))
                    if named
                    else text.with_keyword(loop.call, f"num_stages={stages}")
                )
                what = f"loop {number} over {loop.name} in {stages} stages"
                yield TextChange.of(kernel, what, [function, option])


def _pipeline_edits(
    kernel: CudaKernel, accesses: Accesses, tiles: _TileLoop, stages: int
) -> list[Edit]:
    loop, source = tiles.loop, kernel.text.source
    stage, ahead = kernel.fresh("stage"), kernel.fresh("ahead")
    name, kind, bound = loop.variable.name, loop.variable.type, node_text(loop.bound)
    later = kernel.fresh(f"{name}_later")
    start, by = node_text(loop.start), indentation(loop.node, source)
    distance = times(loop.step, stages - 1) if loop.step is not None else str(stages - 1)
    step = ""
    if loop.step is not None:
        factor = node_text(loop.step)
        step = f" * {factor}" if loop.step.child_count == 0 else f" * ({factor})"
    first = [
        f"const {kind} {name} = {start} + {ahead}{step};",
        *braced_lines(f"if ({name} < {bound})", _fill(kernel, accesses, tiles, ahead)),
        "__pipeline_commit();",
    ]
    inner = [f"const {kind} {name} = {later};"]
    inner += _fill(kernel, accesses, tiles, f"({stage} + {stages - 1}) % {stages}")
    turn = [
        f"const {kind} {later} = {name} + {distance};",
        *braced_lines(f"if ({later} < {bound})", inner),
        "__pipeline_commit();",
        f"__pipeline_wait_prior({stages - 1});",
        "__syncthreads();",
        *_lines(kernel, tiles.compute, _stage_subscripts(accesses, tiles, tiles.compute, stage)),
        "__syncthreads();",
        f"{stage} = ({stage} + 1) % {stages};",
    ]
    head = source[loop.node.start_byte : loop.body.start_byte].decode().rstrip()
    pragma = source[loop_start(loop.node) : loop.node.start_byte].decode().rstrip()
    lines = [
        *braced_lines(f"for (int {ahead} = 0; {ahead} < {stages - 1}; ++{ahead})", first),
        f"int {stage} = 0;",
        *([pragma] if pragma else []),
        *braced_lines(head, turn),
    ]
    declared = [Edit.after(array.node, f"[{stages}]") for array in tiles.arrays]
    whole = Edit(loop_start(loop.node), loop.node.end_byte, indented_text(lines, by))
    return [*inclusion(kernel.text.root, _HEADER), *declared, whole]


def _stage_subscripts(
    accesses: Accesses, tiles: _TileLoop, some: Iterable[Node], stage: str
) -> list[Edit]:
    """Return the edits that subscript each array with its copy."""
    return [
        Edit.after(name, f"[{stage}]")
        for node in some
        for access in accesses.within(node)
        if access.root in tiles.arrays
        for name in access.address.identifiers
    ]


def _fill(kernel: CudaKernel, accesses: Accesses, tiles: _TileLoop, stage: str) -> list[str]:
    """Return the lines that fill one copy of the arrays."""
    edits = []
    for copy in tiles.copies:
        node, source = copy.to.node, copy.source
        staged = _stage_subscripts(accesses, tiles, [node], stage)
        place = edited_node_text(kernel.text.source, node, staged)
        target = place[1:].strip() if node.type == "pointer_expression" else f"&{place}"
        if source.function:
            address = node_text(source.place)
        elif source.node.type == "pointer_expression" and expression_operator(source.node) == "*":
            address = node_text(field(source.node, "argument"))
        else:
            address = f"&{node_text(source.node)}"
        line = f"__pipeline_memcpy_async({target}, {address}, {copy.size});"
        if copy.condition is not None:
            condition = node_text(bare(copy.condition))
            line = f"if ({condition}) {line} else {place} = {node_text(copy.other)};"
        edits.append(Edit.of(copy.statement, line))
    return _lines(kernel, tiles.fill, edits)


def _lines(kernel: CudaKernel, some: tuple[Node, ...], edits: list[Edit]) -> list[str]:
    """Return statements as lines without their indentation."""
    text = apply_edits(kernel.text.source, edits, some[0].start_byte, some[-1].end_byte)
    by = indentation(some[0], kernel.text.source)
    return [line.removeprefix(by) for line in text.rstrip().split("\n")]
