"""`enable_async_pipeline`: tiles are copied to shared memory while others are computed with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.search.moves.base import Change, SourceMove
from pytest_gpuenergy.search.moves.layout import block_of, indented, times
from pytest_gpuenergy.search.moves.shared_memory import SHARED_BYTES, bytes_of, shared_bytes
from pytest_gpuenergy.search.moves.tile_loops import Copy, TileLoop, address_text, tile_loop
from pytest_gpuenergy.search.source.accesses import Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.tree import (
    bare,
    field,
    indentation,
    nodes,
    start_of,
    text_of,
)
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel

if TYPE_CHECKING:
    from tree_sitter import Node

_STAGES = (2, 3)
_TRITON_STAGES = (2, 3, 4, 5)
_HEADER = "<cuda_pipeline.h>"
_ALIGNMENT = 16


class EnableAsyncPipeline(SourceMove):
    """Tiles of later turns of a loop are loaded during the computation of earlier ones.

    CUDA: with ``cp.async``, into 2 or 3 copies of the shared arrays. Triton: by ``num_stages``.
    """

    name = "enable_async_pipeline"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"overlap", "gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[Change]:
        accesses = Accesses(kernel)
        for number, loop in enumerate(kernel.text.loops, start=1):
            tiles = tile_loop(kernel, accesses, loop)
            if tiles is None:
                continue
            for stages in _STAGES:
                if _has_room(kernel, tiles, stages):
                    source = edited(kernel.text.source, _pipelined(kernel, accesses, tiles, stages))
                    what = f"loop {number} over {loop.variable.name} in {stages} stages"
                    yield Change(what, source, kernel.launch)

    def on_triton(self, kernel: TritonKernel) -> Iterator[Change]:
        text = kernel.text
        loops = [loop for loop in text.loops if any(text.calls("load", within=loop.node))]
        for stages in _TRITON_STAGES if loops else ():
            if stages != kernel.launch.num_stages:
                launch = replace(kernel.launch, num_stages=stages)
                yield Change(f"{stages} stages", text.source.decode(), launch)
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
                source = edited(text.source, [function, option])
                what = f"loop {number} over {loop.name} in {stages} stages"
                yield Change(what, source, kernel.launch)


def _has_room(kernel: CudaKernel, tiles: TileLoop, stages: int) -> bool:
    used = shared_bytes(kernel)
    sizes = [bytes_of(kernel, array) for array in tiles.arrays]
    known = [size for size in sizes if size is not None]
    if used is None or len(known) != len(sizes) or any(size % _ALIGNMENT for size in known):
        return False
    return used + (stages - 1) * sum(known) <= SHARED_BYTES


def _pipelined(kernel: CudaKernel, accesses: Accesses, tiles: TileLoop, stages: int) -> list[Edit]:
    loop, source = tiles.loop, kernel.text.source
    stage, ahead = kernel.fresh("stage"), kernel.fresh("ahead")
    name, kind, bound = loop.variable.name, loop.variable.type, text_of(loop.bound)
    later = kernel.fresh(f"{name}_later")
    start, by = text_of(loop.start), indentation(loop.node, source)
    distance = times(loop.step, stages - 1) if loop.step is not None else str(stages - 1)
    step = f" * {_factor(loop.step)}" if loop.step is not None else ""
    first = [
        f"const {kind} {name} = {start} + {ahead}{step};",
        *block_of(f"if ({name} < {bound})", _fill(kernel, accesses, tiles, ahead)),
        "__pipeline_commit();",
    ]
    inner = [f"const {kind} {name} = {later};"]
    inner += _fill(kernel, accesses, tiles, f"({stage} + {stages - 1}) % {stages}")
    turn = [
        f"const {kind} {later} = {name} + {distance};",
        *block_of(f"if ({later} < {bound})", inner),
        "__pipeline_commit();",
        f"__pipeline_wait_prior({stages - 1});",
        "__syncthreads();",
        *_compute(kernel, accesses, tiles, stage),
        "__syncthreads();",
        f"{stage} = ({stage} + 1) % {stages};",
    ]
    head = source[loop.node.start_byte : loop.body.start_byte].decode().rstrip()
    pragma = source[start_of(loop.node) : loop.node.start_byte].decode().rstrip()
    lines = [
        *block_of(f"for (int {ahead} = 0; {ahead} < {stages - 1}; ++{ahead})", first),
        f"int {stage} = 0;",
        *([pragma] if pragma else []),
        *block_of(head, turn),
    ]
    declared = [
        Edit(array.node.end_byte, array.node.end_byte, f"[{stages}]") for array in tiles.arrays
    ]
    whole = Edit(start_of(loop.node), loop.node.end_byte, indented(lines, by))
    return [*_included(kernel), *declared, whole]


def _factor(step: Node | None) -> str:
    simple = step is not None and step.child_count == 0
    return text_of(step) if simple else f"({text_of(step)})"


def _included(kernel: CudaKernel) -> list[Edit]:
    known = (text_of(field(n, "path")) for n in nodes(kernel.text.root, "preproc_include"))
    return [] if _HEADER in known else [Edit(0, 0, f"#include {_HEADER}\n")]


def _staged(accesses: Accesses, tiles: TileLoop, node: Node, stage: str) -> list[Edit]:
    """The subscripts that choose the copy of each array."""
    return [
        Edit(one.end_byte, one.end_byte, f"[{stage}]")
        for access in accesses.within(node)
        if access.root in tiles.arrays
        for one in access.address.identifiers
    ]


def _fill(kernel: CudaKernel, accesses: Accesses, tiles: TileLoop, stage: str) -> list[str]:
    edits = []
    for copy in tiles.copies:
        at, staged = copy.statement, _staged(accesses, tiles, copy.to.node, stage)
        edits.append(Edit(at.start_byte, at.end_byte, _async(kernel, copy, staged)))
    return _lines(kernel, tiles.fill, edits)


def _async(kernel: CudaKernel, copy: Copy, staged: list[Edit]) -> str:
    node = copy.to.node
    place = edited(kernel.text.source, staged, node.start_byte, node.end_byte)
    target = place[1:].strip() if node.type == "pointer_expression" else f"&{place}"
    call = f"__pipeline_memcpy_async({target}, {address_text(copy.of)}, {copy.size});"
    if copy.condition is None:
        return call
    otherwise = f"{place} = {text_of(copy.other)};"
    return f"if ({text_of(bare(copy.condition))}) {call} else {otherwise}"


def _compute(kernel: CudaKernel, accesses: Accesses, tiles: TileLoop, stage: str) -> list[str]:
    edits = [edit for one in tiles.compute for edit in _staged(accesses, tiles, one, stage)]
    return _lines(kernel, tiles.compute, edits)


def _lines(kernel: CudaKernel, some: tuple[Node, ...], edits: list[Edit]) -> list[str]:
    """Statements as lines without the indentation that they have."""
    text = edited(kernel.text.source, edits, some[0].start_byte, some[-1].end_byte)
    by = indentation(some[0], kernel.text.source)
    return [line.removeprefix(by) for line in text.rstrip().split("\n")]
