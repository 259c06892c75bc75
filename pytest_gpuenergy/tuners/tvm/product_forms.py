"""The forms of a convolution as a matrix product, in addition to TVM's own schedules of it.

A convolution is the product of its weights (CO x K, K = CI KH KW) with the matrix of its windows
(K x M, M = N OH OW), which is never stored: its elements are computed as they are loaded. Unlike
the convolution's own loops, M can be padded to a multiple of any tile, which matters if OH and OW
are 17 or 34.

TVM is imported inside the functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.workloads import Conv2dShape

_GRIDS = ((2, 32), (4, 16), (8, 8), (4, 32), (8, 16), (8, 32), (16, 16))
_OUTPUTS = ((4, 2), (8, 2), (4, 4), (8, 4), (8, 8))
_MAX_ADDED = 0.35
_THREADS = (512 * 132, 1024 * 132)  # total numbers of threads that a split aims for
_MAX_PARTS = 32
_MIN_PART = 64  # products of a sum in a part
_SUM_THREADS, _SUM_COLUMNS = 256, 32  # of a block that adds up parts
_LARGEST_INNER = 8
_LARGEST_DEPTH = 64  # products of a sum whose operands are in shared memory at a time
_SHARED_FLOATS = 48 * 1024 // 4
_PITCH_FACTOR, _PITCH_OFFSET = 8, 4  # elements from one row of an operand to the next: 8 n + 4
_LANES = [1, 2, 4]
_UNROLLED = [16, 64, 256, 1024]


@dataclass(frozen=True)
class GemmForm:
    """One way to compute a matrix product.

    A block computes a tile of the output, of ``threads`` x ``outputs`` elements in each direction;
    rows and columns are rounded up to multiples of the tile, if necessary.

    Attributes:
        threads: the threads of a block, along rows and columns.
        outputs: the outputs of a thread, along rows and columns.
        parts: the number of parts of each sum, each with its own blocks; 1 means no split.
        pipelined: whether a tile is loaded while the previous one is multiplied.
    """

    threads: tuple[int, int]
    outputs: tuple[int, int]
    parts: int
    pipelined: bool

    @property
    def tile(self) -> tuple[int, int]:
        """The outputs of a block, along rows and columns."""
        rows, columns = (t * o for t, o in zip(self.threads, self.outputs, strict=True))
        return rows, columns

    @property
    def max_depth(self) -> int:
        """The most products of a sum whose float32 operands fit into shared memory at a time."""
        floats = _SHARED_FLOATS // (2 if self.pipelined else 1)
        gaps = self.tile[0] * (_PITCH_FACTOR - 1)
        return min(_LARGEST_DEPTH, (floats - gaps) // sum(self.tile))


@dataclass(frozen=True)
class ProductSizes:
    """The sizes of a product.

    Attributes:
        rows: the rows of the output.
        columns: the columns of the output.
        depth: the products in each sum.
        step: the sums are padded with zeros to a multiple of this number of products.
    """

    rows: int
    columns: int
    depth: int
    step: int = 1

    @property
    def outputs(self) -> tuple[int, int]:
        """The rows and columns of the output."""
        return self.rows, self.columns

    @property
    def padded_depth(self) -> int:
        """The products in each sum that are computed, with padding."""
        return -(-self.depth // self.step) * self.step


def useful_forms(sizes: ProductSizes) -> tuple[GemmForm, ...]:
    """Return the forms of a product that may be useful.

    Only tiles whose padding adds at most 35 % of outputs are used or, if there are none, those that
    add the least. Sums are split if there are fewer blocks than a large GPU runs at a time.
    """
    outputs = sizes.outputs
    tiles = {
        (grid, each): math.prod(
            -(-size // (threads * own))
            for size, threads, own in zip(outputs, grid, each, strict=True)
        )
        for grid in _GRIDS
        for each in _OUTPUTS
    }
    added = {
        key: blocks * math.prod((*key[0], *key[1])) / math.prod(outputs)
        for key, blocks in tiles.items()
    }
    most = max(1 + _MAX_ADDED, min(added.values()))
    return tuple(
        GemmForm(grid, each, parts, pipelined)
        for (grid, each), blocks in tiles.items()
        if added[grid, each] <= most
        for parts in _parts(blocks * math.prod(grid), sizes.padded_depth)
        for pipelined in (False, True)
    )


def _parts(threads: int, depth: int) -> list[int]:
    """Return the divisors of ``depth`` that give about the wanted numbers of threads."""
    divisors = [
        parts
        for parts in range(1, _MAX_PARTS + 1)
        if depth % parts == 0 and (parts == 1 or depth // parts >= _MIN_PART)
    ]

    def nearest(wanted: float) -> int:
        return min(divisors, key=lambda parts: max(parts / wanted, wanted / parts))

    return sorted({nearest(max(1.0, wanted / threads)) for wanted in _THREADS})


def apply_form(
    schedule: Any, block: Any, sizes: ProductSizes, form: GemmForm, deep: Sequence[int]
) -> None:
    """Compute the product of ``block`` as ``form`` says.

    Args:
        schedule: the schedule. In it ``block`` has three loops: rows, columns and depth. The block
            reads two buffers of two dimensions, rows x depth and depth x columns, in any order,
            each made by a block that only copies, and writes one of rows x columns.
        block: the block of the product.
        sizes: the sizes of the product.
        form: the form in which to compute it.
        deep: the numbers of the buffers whose faster dimension is the depth.
    """
    tiles = (*form.tile, sizes.step)
    if any(size % tile for size, tile in zip((*sizes.outputs, sizes.depth), tiles, strict=True)):
        schedule.pad_einsum(block, list(tiles))
    (output,) = schedule.get_consumers(block)
    while list(schedule.get_consumers(output)):  # blocks between, such as crops, are inlined
        schedule.compute_inline(output)
        (output,) = schedule.get_consumers(block)
    if form.parts == 1:
        schedule.set_scope(block, 0, "local")
        _tile(schedule, block, output, form, deep)
        return
    *_, depth = schedule.get_loops(block)
    part, _ = schedule.split(depth, [form.parts, None])
    product = schedule.rfactor(part, 0)
    rows, columns, part, depth = schedule.get_loops(product)
    schedule.reorder(part, rows, columns, depth)
    _add_up_at_output(schedule, block, output, sizes.columns)
    _tile(schedule, product, schedule.cache_write(product, 0, "local"), form, deep)


def index_map(ndim: int, to_indices: Callable[..., Sequence[Any]]) -> Any:
    """Return a map of indices for traces, which TVM names after the parameters of ``to_indices``.

    Only the names of ``*axes`` are accepted in records (`tvm_graph.is_index_map`).
    """
    import tvm

    return tvm.tirx.IndexMap.from_func(to_indices, ndim=ndim, index_dtype="int32")


def _add_up_at_output(schedule: Any, total: Any, output: Any, columns: int) -> None:
    """Give each thread one output, for which it adds up the parts' sums.

    Rows and columns are split separately: from a fused index, TVM cannot tell an output's row and
    column in the padded product.
    """
    across = min(_SUM_COLUMNS, 1 << (columns - 1).bit_length())
    (row_block, row), (column_block, column) = (
        schedule.split(loop, [None, threads])
        for loop, threads in zip(
            schedule.get_loops(output), (_SUM_THREADS // across, across), strict=True
        )
    )
    schedule.reorder(row_block, column_block, row, column)
    schedule.bind(schedule.fuse(row_block, column_block), "blockIdx.x")
    thread = schedule.fuse(row, column)
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at(total, thread)
    schedule.set_scope(total, 0, "local")


def _tile(schedule: Any, block: Any, output: Any, form: GemmForm, deep: Sequence[int]) -> None:
    """Tile the product over the grid, virtual threads, threads, and the outputs of a thread."""
    *part, rows, columns, depth = schedule.get_loops(block)
    (row_block, row_v, row_thread, row), (column_block, column_v, column_thread, column) = (
        _cut(schedule, loop, threads, outputs)
        for loop, threads, outputs in zip((rows, columns), form.threads, form.outputs, strict=True)
    )
    outer, inner = schedule.split(depth, schedule.sample_perfect_tile(depth, 2, form.max_depth))
    schedule.reorder(
        *part, row_block, column_block, row_v, column_v, row_thread, column_thread,
        outer, inner, row, column,
    )  # fmt: skip
    schedule.bind(schedule.fuse(*part, row_block, column_block), "blockIdx.x")
    schedule.bind(schedule.fuse(row_v, column_v), "vthread.x")
    thread = schedule.fuse(row_thread, column_thread)
    schedule.bind(thread, "threadIdx.x")
    for bound in ("low", "high"):
        extent = math.prod(form.threads)
        schedule.annotate(block, f"meta_schedule.thread_extent_{bound}_inclusive", extent)
    schedule.reverse_compute_at(output, thread, preserve_unit_loops=True)
    copies = [_load_together(schedule, block, number, outer) for number in range(2)]
    for number in deep:
        # A warp reads the same k of several rows at a time; they must be in different banks.
        schedule.storage_align(copies[number], 0, 0, _PITCH_FACTOR, _PITCH_OFFSET)
    unrolled = schedule.sample_categorical(_UNROLLED, [1 / len(_UNROLLED)] * len(_UNROLLED))
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.unroll_explicit", unrolled)
    if form.pipelined:
        schedule.annotate(outer, "software_pipeline_stage", [0, 0, 1])
        schedule.annotate(outer, "software_pipeline_order", [0, 1, 2])


def _cut(schedule: Any, loop: Any, threads: int, outputs: int) -> Sequence[Any]:
    """Split a loop into loops over blocks, virtual threads, threads, and adjacent outputs.

    How a thread's outputs are divided between virtual threads and adjacent ones is drawn at random,
    which needs a temporary loop over them.
    """
    block, tile = schedule.split(loop, [None, threads * outputs])
    own, other = schedule.split(tile, [outputs, threads])
    virtual, inner = schedule.sample_perfect_tile(own, 2, _LARGEST_INNER)
    tile = schedule.fuse(own, other)
    return [block, *schedule.split(tile, [virtual, threads, inner])]


def _load_together(schedule: Any, block: Any, number: int, loop: Any) -> Any:
    """Load what ``block`` reads into shared memory at ``loop``, computing it as it is loaded.

    Returns:
        The block that loads it.
    """
    copy = schedule.cache_read(block, number, "shared")
    schedule.compute_at(copy, loop, preserve_unit_loops=True)
    schedule.fuse(*schedule.get_loops(copy)[-2:])
    lanes = schedule.sample_categorical(_LANES, [1 / len(_LANES)] * len(_LANES))
    schedule.annotate(copy, "meta_schedule.cooperative_fetch", lanes)
    while producers := list(schedule.get_producers(copy)):
        (producer,) = producers
        schedule.compute_inline(producer)
    return copy


_MAIN = "conv2d_nchw"
"""The name of the convolution's block in TOPI."""
_WEIGHTS = 1
"""The position of the weights among what the convolution reads."""

_AXES = ("v_nn", "v_ff", "v_yy", "v_xx", "v_rc", "v_ry", "v_rx")

Axes = Mapping[str, Any]


def gemm_forms(shape: Conv2dShape) -> tuple[GemmForm, ...]:
    """Return the forms that may be useful for ``shape``.

    There are none for a grouped convolution, and none for a single output position. The latter is a
    matrix-vector product: TVM drops its axis M, which can then be neither padded nor tiled.
    """
    sizes = _sizes(shape)
    return () if shape.groups != 1 or sizes.columns == 1 else useful_forms(sizes)


def as_gemm(schedule: Any, shape: Conv2dShape, form: GemmForm) -> None:
    """Rewrite the convolution of ``schedule`` as ``form`` says, and tile it."""
    block = schedule.get_sblock(_MAIN)
    _reindex(schedule, block, shape)
    apply_form(schedule, block, _sizes(shape), form, deep=[_WEIGHTS])


def _sizes(shape: Conv2dShape) -> ProductSizes:
    columns, depth = shape.N * shape.OH * shape.OW, shape.CI * shape.KH * shape.KW
    return ProductSizes(shape.CO, columns, depth)


def _reindex(schedule: Any, block: Any, shape: Conv2dShape) -> None:
    """Give the computation three loops, CO, M and K, and its buffers two dimensions.

    In a tile of weights K remains the fastest dimension, as the weights are stored. Where searches
    of five cases on an H200 could choose, 82 of the 100 fastest schedules did so
    (bench/results/nvidia-h200-2026-11-21/searches.tar.xz, 20 of each case).
    """

    def row(at: Axes) -> Any:
        return at["v_ff"]

    def column(at: Axes) -> Any:
        return (at["v_nn"] * shape.OH + at["v_yy"]) * shape.OW + at["v_xx"]

    def depth(at: Axes) -> Any:
        return (at["v_rc"] * shape.KH + at["v_ry"]) * shape.KW + at["v_rx"]

    for kind, number, indices in (
        ("read", 0, (depth, column)),
        ("read", 1, (row, depth)),
        ("write", 0, (row, column)),
    ):
        copy = schedule.reindex(block, (kind, number))
        region = getattr(schedule.get(block), f"{kind}s")[number].region
        names = [str(axis.min.name) for axis in region]
        schedule.transform_layout(block, (kind, number), _index_map(names, indices))
        schedule.transform_block_layout(copy, _index_map(names, indices))
    schedule.transform_block_layout(block, _index_map(_AXES, (row, column, depth)))


def _index_map(names: Sequence[str], indices: Sequence[Callable[[Axes], Any]]) -> Any:
    """Return the map from axes of these names; axes of extent 1, which TVM drops, count as 0."""

    def to_indices(*axes: Any) -> list[Any]:
        at = dict.fromkeys(_AXES, 0) | dict(zip(names, axes, strict=True))
        return [index(at) for index in indices]

    return index_map(len(names), to_indices)
