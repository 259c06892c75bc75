"""The forms of a convolution as a matrix product, in addition to TVM's own schedules of it.

A convolution is the product of its weights (CO x K, K = CI KH KW) with the matrix of its windows
(K x M, M = N OH OW), which is never stored: its elements are computed as they are loaded. Unlike
the convolution's own loops, M can be padded to a multiple of any tile, which matters if OH and OW
are 17 or 34.

TVM is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_gpuenergy.tvm.gemm_forms import (
    GemmForm,
    ProductSizes,
    apply_form,
    forms_of,
    index_map,
)
from pytest_gpuenergy.workloads import Conv2dShape

_MAIN = "conv2d_nchw"
_WEIGHTS = 1
"""The position of the weights among what the convolution reads."""

_AXES = ("v_nn", "v_ff", "v_yy", "v_xx", "v_rc", "v_ry", "v_rx")

Axes = Mapping[str, Any]


def gemm_forms(shape: Conv2dShape) -> tuple[GemmForm, ...]:
    """The forms that may be useful for ``shape``.

    There are none for a grouped convolution, and none for a single output position: that is a
    matrix-vector product, and TVM drops the axis M, which can then be neither padded nor tiled.
    """
    sizes = _sizes(shape)
    return () if shape.groups != 1 or sizes.columns == 1 else forms_of(sizes)


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

    In a tile of weights K remains the fastest dimension, as the weights are stored: in searches of
    five cases on an H200 that could choose, so did 82 of the 100 fastest schedules
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
    """The map from axes of those names; axes of extent 1 that TVM has dropped count as 0."""

    def to_indices(*axes: Any) -> list[Any]:
        at = dict.fromkeys(_AXES, 0) | dict(zip(names, axes, strict=True))
        return [index(at) for index in indices]

    return index_map(len(names), to_indices)
