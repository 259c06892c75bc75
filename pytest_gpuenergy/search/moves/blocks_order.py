"""`grouped_gemm_colmajor`: blocks in an order in which neighbours in time share tiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.moves.base import Change, SourceMove
from pytest_gpuenergy.search.moves.cuda_access import Accesses
from pytest_gpuenergy.search.moves.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.moves.cuda_tree import indentation, nodes, statements, text_of
from pytest_gpuenergy.search.moves.edits import Edit, edited
from pytest_gpuenergy.search.moves.layout import indented
from pytest_gpuenergy.search.moves.triton_kernel import TritonKernel

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
        members = [n for n in nodes(kernel.text.function, "field_expression")]
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
        pair = _programs(kernel)
        if pair is None:
            return
        first, second, last = pair
        tl = kernel.text.language
        for rows in _GROUPS:
            if _has_groups(kernel.facts.grid, 1, rows):
                line = (
                    f"{second}, {first} = {tl}.swizzle2d({second}, {first}, "
                    f"{tl}.num_programs(1), {tl}.num_programs(0), {rows})"
                )
                edit = kernel.text.inserted_after(last, line)
                source = edited(kernel.text.source, [edit])
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


def _programs(kernel: TritonKernel) -> tuple[str, str, ast.stmt] | None:
    """The names of the program's ids in both dimensions, and the statement that sets the second."""
    found: dict[int, list[ast.stmt]] = {0: [], 1: []}
    for statement in kernel.text.function.body:
        match statement:
            case ast.Assign(targets=[ast.Name()], value=ast.Call(args=[ast.Constant(value=axis)])):
                if kernel.text.called(statement.value) == "program_id" and axis in found:
                    found[axis].append(statement)
    calls = list(kernel.text.calls("program_id"))
    if len(found[0]) != 1 or len(found[1]) != 1 or len(calls) != 2:
        return None
    first, second = found[0][0], found[1][0]
    names = [kernel.text.text(s.targets[0]) for s in (first, second) if isinstance(s, ast.Assign)]
    last = max(first, second, key=lambda statement: statement.lineno)
    between = kernel.text.function.body
    begin, end = sorted(map(between.index, (first, second)))
    read = [
        node.id
        for statement in between[begin + 1 : end]
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    ]
    if set(names) & set(read) or any(len(kernel.text.assignments[name]) != 1 for name in names):
        return None
    return names[0], names[1], last
