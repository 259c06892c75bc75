"""Where a search looks: TVM's own schedules of a convolution, and those of it as a matrix product.

A convolution is the product of its weights (CO x K, K = CI KH KW) with the matrix of its windows
(K x M, M = N OH OW), which is never stored: its elements are computed as they are loaded. Unlike
the convolution's own loops, M can be padded to a multiple of any tile, which matters where OH and
OW are 17 or 34, and K can be split among blocks, which matters where CO x M is small against the
GPU; the parts are then added up by a second kernel.

Every step is an instruction of the trace, so that a record of it applies to the plain convolution.
TVM is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.tuning.requirements import import_tvm
from pytest_gpuenergy.tuning.settings import Space
from pytest_gpuenergy.workloads.conv2d import Conv2dShape

_MAIN = "conv2d_nchw"
_PADDINGS = (1, 16, 32, 64)
_MOST_ADDED = 0.15
_TILE = 64 * 64
_BLOCKS = (200, 400)  # tiles of 64 x 64 that a split should come near to
_MOST_PARTS = 32
_LEAST_PART = 64  # elements of K in a part
_SUM_THREADS = 256
_THREADS = (32, 1024)
_LARGEST_INNER = 16
_LANES = [1, 2, 4]
_UNROLLED = [16, 64, 256, 1024]

_AXES = ("v_nn", "v_ff", "v_yy", "v_xx", "v_rc", "v_ry", "v_rx")

Axes = Mapping[str, Any]


@dataclass(frozen=True)
class GemmForm:
    """One way to write a convolution as a matrix product.

    Attributes:
        padding: M is rounded up to a multiple of it.
        parts: into how many parts K is split, each with blocks of its own; 1 is no split.
        weight_rows: whether a tile of weights keeps K, rather than CO, as its fastest dimension:
            loaded well and read badly, or the other way round.
        pipelined: whether a tile is loaded while the one before it is multiplied.
    """

    padding: int
    parts: int
    weight_rows: bool
    pipelined: bool


def gemm_forms(shape: Conv2dShape) -> tuple[GemmForm, ...]:
    """The forms that may be of use for ``shape``; none for a grouped convolution.

    Two paddings: the largest that adds no more than 15 % to M, and the largest of those that add
    the least. K is split where there are fewer tiles of 64 x 64 than a large GPU takes at once.
    """
    if shape.groups != 1:
        return ()
    tiles = shape.CO * _columns_of(shape) / _TILE
    return tuple(
        GemmForm(padding, parts, weight_rows, pipelined)
        for padding in _paddings(_columns_of(shape))
        for parts in _parts(tiles, shape.CI * shape.KH * shape.KW)
        for weight_rows in (False, True)
        for pipelined in (False, True)
    )


def _columns_of(shape: Conv2dShape) -> int:
    return shape.N * shape.OH * shape.OW


def _paddings(columns: int) -> list[int]:
    added = {padding: -columns % padding for padding in _PADDINGS}
    within = max(p for p in _PADDINGS if added[p] <= _MOST_ADDED * columns)
    least = max(p for p in _PADDINGS if added[p] == min(added[q] for q in _PADDINGS if q > 1))
    return sorted({padding if added[padding] else 1 for padding in (within, least)})


def _parts(tiles: float, depth: int) -> list[int]:
    """Divisors of ``depth``, the nearest (by ratio) to what makes each of the wanted blocks."""
    divisors = [
        parts
        for parts in range(1, _MOST_PARTS + 1)
        if depth % parts == 0 and (parts == 1 or depth // parts >= _LEAST_PART)
    ]

    def nearest(wanted: float) -> int:
        return min(divisors, key=lambda parts: max(parts / wanted, wanted / parts))

    return sorted({nearest(max(1.0, blocks / tiles)) for blocks in _BLOCKS})


def as_gemm(schedule: Any, shape: Conv2dShape, form: GemmForm) -> None:
    """Rewrite the convolution of ``schedule`` as ``form`` says, and tile it."""
    block = schedule.get_sblock(_MAIN)
    _reindex(schedule, block, shape, form)
    if form.padding > 1:
        schedule.pad_einsum(block, [1, form.padding, 1])
        (crop,) = schedule.get_consumers(block)
        schedule.compute_inline(crop)
    (output,) = schedule.get_consumers(block)
    if form.parts == 1:
        schedule.set_scope(block, 0, "local")
        _tile(schedule, block, output, form)
        return
    *_, depth = schedule.get_loops(block)
    part, _ = schedule.split(depth, [form.parts, None])
    product = schedule.rfactor(part, 0)
    rows, columns, part, depth = schedule.get_loops(product)
    schedule.reorder(part, rows, columns, depth)
    _add_up_at_output(schedule, block, output)
    _tile(schedule, product, schedule.cache_write(product, 0, "local"), form)


def _reindex(schedule: Any, block: Any, shape: Conv2dShape, form: GemmForm) -> None:
    """Give the computation three loops, CO, M and K, and its buffers two dimensions."""

    def row(at: Axes) -> Any:
        return at["v_ff"]

    def column(at: Axes) -> Any:
        return (at["v_nn"] * shape.OH + at["v_yy"]) * shape.OW + at["v_xx"]

    def depth(at: Axes) -> Any:
        return (at["v_rc"] * shape.KH + at["v_ry"]) * shape.KW + at["v_rx"]

    weights = (row, depth) if form.weight_rows else (depth, row)
    for kind, number, indices in (
        ("read", 0, (depth, column)),
        ("read", 1, weights),
        ("write", 0, (row, column)),
    ):
        copy = schedule.reindex(block, (kind, number))
        region = getattr(schedule.get(block), f"{kind}s")[number].region
        names = [str(axis.min.name) for axis in region]
        schedule.transform_layout(block, (kind, number), _index_map(names, indices))
        schedule.transform_block_layout(copy, _index_map(names, indices))
    schedule.transform_block_layout(block, _index_map(_AXES, (row, column, depth)))


def _index_map(names: Sequence[str], indices: Sequence[Callable[[Axes], Any]]) -> Any:
    """The map from axes of those names; TVM drops some of extent 1, which are then 0."""
    import tvm

    def to_indices(*axes: Any) -> list[Any]:
        at = dict.fromkeys(_AXES, 0) | dict(zip(names, axes, strict=True))
        return [index(at) for index in indices]

    return tvm.tirx.IndexMap.from_func(to_indices, ndim=len(names), index_dtype="int32")


def _add_up_at_output(schedule: Any, total: Any, output: Any) -> None:
    """Give each thread one output, for which it adds up the parts' sums."""
    fused = schedule.fuse(*schedule.get_loops(output))
    blocks, threads = schedule.split(fused, [None, _SUM_THREADS])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.compute_at(total, threads)
    schedule.set_scope(total, 0, "local")


def _tile(schedule: Any, block: Any, output: Any, form: GemmForm) -> Any:
    """Tile the product over the grid, virtual threads, threads, and the elements of a thread."""
    *part, rows, columns, depth = schedule.get_loops(block)
    tiles = [
        schedule.split(loop, schedule.sample_perfect_tile(loop, 4, _LARGEST_INNER))
        for loop in (rows, columns)
    ]
    outer, middle, inner = schedule.split(
        depth, schedule.sample_perfect_tile(depth, 3, _LARGEST_INNER)
    )
    (row_block, row_v, row_thread, row), (column_block, column_v, column_thread, column) = tiles
    schedule.reorder(
        *part, row_block, column_block, row_v, column_v, row_thread, column_thread,
        outer, middle, inner, row, column,
    )  # fmt: skip
    schedule.bind(schedule.fuse(*part, row_block, column_block), "blockIdx.x")
    schedule.bind(schedule.fuse(row_v, column_v), "vthread.x")
    thread = schedule.fuse(row_thread, column_thread)
    schedule.bind(thread, "threadIdx.x")
    for bound, extent in zip(("low", "high"), _THREADS, strict=True):
        schedule.annotate(block, f"meta_schedule.thread_extent_{bound}_inclusive", extent)
    schedule.reverse_compute_at(output, thread, preserve_unit_loops=True)
    for number in range(2):
        _load_together(schedule, block, number, outer)
    unrolled = schedule.sample_categorical(_UNROLLED, [1 / len(_UNROLLED)] * len(_UNROLLED))
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.unroll_explicit", unrolled)
    if form.pipelined:
        schedule.annotate(outer, "software_pipeline_stage", [0, 0, 1])
        schedule.annotate(outer, "software_pipeline_order", [0, 1, 2])


def _load_together(schedule: Any, block: Any, number: int, loop: Any) -> None:
    """Load what ``block`` reads into shared memory, at ``loop``, computing it on the way."""
    copy = schedule.cache_read(block, number, "shared")
    schedule.compute_at(copy, loop, preserve_unit_loops=True)
    schedule.fuse(*schedule.get_loops(copy)[-2:])
    lanes = schedule.sample_categorical(_LANES, [1 / len(_LANES)] * len(_LANES))
    schedule.annotate(copy, "meta_schedule.cooperative_fetch", lanes)
    while producers := list(schedule.get_producers(copy)):
        (producer,) = producers
        schedule.compute_inline(producer)


def space_generator(shape: Conv2dShape, space: Space) -> Any:
    """A MetaSchedule space generator for the convolution of ``shape``."""
    import_tvm()
    from tvm.ir.utils import derived_object
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    direct = ms.space_generator.PostOrderApply(
        sch_rules="cuda", postprocs="cuda", mutator_probs="cuda"
    )
    forms = () if space == "direct" else gemm_forms(shape)
    if space == "direct" or not forms:
        return direct

    @derived_object
    class Spaces(ms.space_generator.PySpaceGenerator):  # type: ignore[misc]
        """TVM's rules, applied to every form of the computation."""

        def __init__(self) -> None:
            super().__init__()
            self.sch_rules = list(direct.sch_rules)
            self.postprocs = list(direct.postprocs)
            self.mutator_probs = dict(direct.mutator_probs.items())

        def _initialize_with_tune_context(self, context: Any) -> None:
            direct._initialize_with_tune_context(context)

        def generate_design_space(self, module: Any) -> Any:
            found = list(direct.generate_design_space(module)) if space == "all" else []
            for form in forms:
                schedule = Schedule(module)
                as_gemm(schedule, shape, form)
                found.append(schedule)
            return found

        def clone(self) -> Any:
            return Spaces()

    return Spaces()
