"""`grouped_gemm_colmajor`: blocks in an order in which neighbours in time share tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.base import Change, SourceMove
from pytest_gpuenergy.search.moves.layout import indented
from pytest_gpuenergy.search.moves.triton_order import order_of
from pytest_gpuenergy.search.source.accesses import Accesses
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.tree import indentation, nodes, statements, text_of
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel

if TYPE_CHECKING:
    from tree_sitter import Node

_GROUPS = (4, 8, 16)
_AXES = ("blockIdx.x", "blockIdx.y")


class GroupedGemmColmajor(SourceMove):
    """Groups of a few rows of blocks, by columns within a group, so that both operands stay in L2.

    For kernels whose blocks form rows and columns, as in matrix products.
    """

    name = "grouped_gemm_colmajor"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[Change]:
        members = list(nodes(kernel.text.function, "field_expression"))
        used = {axis: [n for n in members if text_of(n) == axis] for axis in _AXES}
        named = [n for n in nodes(kernel.text.root, "identifier") if text_of(n) == "blockIdx"]
        if not all(used.values()) or len(named) != sum(map(len, used.values())):
            return  # other uses, also in other functions
        if any(text_of(n).startswith("gridDim.") for n in members) or not _shares_tiles(kernel):
            return
        for rows in _GROUPS:
            if _has_groups(kernel.facts.grid, 1, rows):
                source = _regrouped(kernel, used, rows)
                yield Change(f"groups of {rows} rows of blocks", source, kernel.launch)

    def on_triton(self, kernel: TritonKernel) -> Iterator[Change]:
        order = order_of(kernel)
        for rows in _GROUPS if order is not None else ():
            if order is not None and any(count > rows for count in order.counts):
                source = edited(kernel.text.source, order.grouped(kernel, rows))
                yield Change(f"groups of {rows} rows of programs", source, kernel.launch)


def _shares_tiles(kernel: CudaKernel) -> bool:
    """Whether something is loaded by all blocks of a row, and something by those of a column."""
    offsets = [a.address.offset for a in Accesses(kernel).all if a.use == "load"]
    axes = [tuple(one.depends_on(axis) for axis in _AXES) for one in offsets if one is not None]
    return (True, False) in axes and (False, True) in axes


def _has_groups(grid: tuple[tuple[int, ...], ...], axis: int, rows: int) -> bool:
    """Whether there is more than one group, and more than one column, for some sizes."""
    others = grid[1 - axis]
    return any(
        count > rows and across > 1 for count, across in zip(grid[axis], others, strict=True)
    )


def _regrouped(kernel: CudaKernel, used: dict[str, list[Node]], rows: int) -> str:
    names = [kernel.fresh(name) for name in ("block_x", "block_y")]
    order, group, first, height, place = (
        kernel.fresh(f"block_{name}") for name in ("order", "group", "first", "height", "place")
    )
    lines = [
        f"const unsigned {order} = blockIdx.y * gridDim.x + blockIdx.x;",
        f"const unsigned {group} = {order} / ({rows} * gridDim.x);",
        f"const unsigned {first} = {group} * {rows};",
        f"const unsigned {height} = gridDim.y - {first} < {rows} ? gridDim.y - {first} : {rows};",
        f"const unsigned {place} = {order} % ({rows} * gridDim.x);",
        f"const unsigned {names[1]} = {first} + {place} % {height};",
        f"const unsigned {names[0]} = {place} / {height};",
    ]
    start = statements(kernel.text.body)[0]
    by = indentation(start, kernel.text.source)
    edits = [Edit(start.start_byte, start.start_byte, f"{indented(lines, by)}\n{by}")]
    for axis, name in zip(_AXES, names, strict=True):
        edits += [Edit(node.start_byte, node.end_byte, name) for node in used[axis]]
    return edited(kernel.text.source, edits)
