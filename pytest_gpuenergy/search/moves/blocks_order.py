"""`grouped_gemm_colmajor`: blocks in an order in which neighbours in time share tiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.source.edits import Edit, indented_text
from pytest_gpuenergy.search.source.tree import indentation, node_text, nodes, statements

if TYPE_CHECKING:
    from tree_sitter import Node

_GROUPS = (4, 8, 16)
_AXES = ("blockIdx.x", "blockIdx.y")


class GroupedGemmColmajor(SourceMove):
    """Take blocks in groups of a few rows, by columns in a group, so that operands stay in L2.

    For kernels whose blocks form rows and columns, as in matrix products.
    """

    name = "grouped_gemm_colmajor"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        members = list(nodes(kernel.text.function, "field_expression"))
        used = {axis: [n for n in members if node_text(n) == axis] for axis in _AXES}
        named = [n for n in nodes(kernel.text.root, "identifier") if node_text(n) == "blockIdx"]
        if not all(used.values()) or len(named) != sum(map(len, used.values())):
            return  # other uses, also in other functions
        if any(node_text(n).startswith("gridDim.") for n in members) or not _shares_tiles(kernel):
            return
        across, down, _ = kernel.facts.grid
        for rows in _GROUPS:
            if any(high > rows and wide > 1 for wide, high in zip(across, down, strict=True)):
                edits = _regroup_edits(kernel, used, rows)
                yield TextChange.of(kernel, f"groups of {rows} rows of blocks", edits)

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        order = _program_order(kernel)
        for rows in _GROUPS:
            if order is not None and any(count > rows for count in order.counts):
                edits = order.grouped(kernel, rows)
                yield TextChange.of(kernel, f"groups of {rows} rows of programs", edits)


def _shares_tiles(kernel: CudaKernel) -> bool:
    """Return whether the blocks of a row share a load, and those of a column another."""
    offsets = [a.address.offset for a in Accesses(kernel).all if a.use == "load"]
    axes = [
        tuple(offset.depends_on(axis) for axis in _AXES) for offset in offsets if offset is not None
    ]
    return (True, False) in axes and (False, True) in axes


def _regroup_edits(kernel: CudaKernel, used: dict[str, list[Node]], rows: int) -> list[Edit]:
    """Return the edits by which blocks are numbered by groups of rows."""
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
    edits = [Edit.before(start, f"{indented_text(lines, by)}\n{by}")]
    for axis, name in zip(_AXES, names, strict=True):
        edits += [Edit.of(node, name) for node in used[axis]]
    return edits


@dataclass(frozen=True)
class _ProgramOrder:
    """The order of programs that follow one another along a row.

    Attributes:
        row, column: the expressions of the program's row and column.
        height, width: the expressions of the numbers of rows and columns.
        counts: the number of rows for each set of sizes; zero where there is only one column.
        calls: the calls of ``program_id`` that stand for the row and for the column.
        last: the statement after which both have names, and before which neither is used; None if
            they have no names.
    """

    row: str
    column: str
    height: str
    width: str
    counts: tuple[int, ...]
    calls: tuple[Sequence[ast.Call], Sequence[ast.Call]] = ((), ())
    last: ast.stmt | None = None

    def grouped(self, kernel: TritonFunction, rows: int) -> list[Edit]:
        """Return the edits by which groups of rows are taken, each by columns."""
        text = kernel.text
        sizes = f"{self.height}, {self.width}, {rows}"
        call = f"{text.language}.swizzle2d({self.row}, {self.column}, {sizes})"
        if self.last is not None:
            line = f"{self.row}, {self.column} = {call}"
            return [text.inserted_after(self.last, line)]
        names = text.fresh("program_row"), text.fresh("program_column")
        replaced = [
            text.replaced(member, name)
            for name, some in zip(names, self.calls, strict=True)
            for member in some
        ]
        # A docstring stays the first statement.
        is_text = ast.get_docstring(text.function, clean=False) is not None
        first = text.function.body[1 if is_text and len(text.function.body) > 1 else 0]
        return [text.inserted_before(first, f"{', '.join(names)} = {call}"), *replaced]


def _program_order(kernel: TritonFunction) -> _ProgramOrder | None:
    """Return the order of programs in two dimensions, or in one that is divided into rows."""
    text = kernel.text
    calls: dict[object, list[ast.Call]] = {}
    for call in text.calls("program_id"):
        axis = text.program_axis(call)
        calls.setdefault(axis.value if isinstance(axis, ast.Constant) else None, []).append(call)
    if any(text.calls("swizzle2d")) or None in calls:
        return None
    if set(calls) == {0} and len(calls[0]) == 1:
        return _divided_order(kernel)
    if 0 not in calls or 1 not in calls:
        return None
    tl, (across, down, _) = text.language, kernel.facts.grid
    counts = tuple(count if wide > 1 else 0 for count, wide in zip(down, across, strict=True))
    ids = f"{tl}.program_id(1)", f"{tl}.program_id(0)"
    sizes = f"{tl}.num_programs(1)", f"{tl}.num_programs(0)"
    return _ProgramOrder(*ids, *sizes, counts, (calls[1], calls[0]))


def _divided_order(kernel: TritonFunction) -> _ProgramOrder | None:
    """Return the order of ``row = program // width; column = program % width``."""
    text, body, program = kernel.text, kernel.text.function.body, ""
    found: dict[type[ast.operator], tuple[str, ast.stmt, ast.expr]] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                not program and text.called(value) == "program_id"
            ):
                program = name
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.BinOp(left=ast.Name(id=divided), op=op, right=width),
            ) if divided == program:
                found[type(op)] = (name, statement, width)
    uses = [n for n in ast.walk(text.function) if isinstance(n, ast.Name)]
    if set(found) != {ast.FloorDiv, ast.Mod} or sum(n.id == program for n in uses) != 3:
        return None
    (row, row_set, width), (column, column_set, other) = found[ast.FloorDiv], found[ast.Mod]
    columns, names = kernel.polynomial(width), {row, column}
    # Neither name may be used before both are set, or be set again.
    begin, end = sorted((body.index(row_set), body.index(column_set)))
    between = (node for statement in body[begin + 1 : end] for node in ast.walk(statement))
    if any(isinstance(node, ast.Name) and node.id in names for node in between):
        return None
    if any(len(text.assignments[name]) != 1 for name in names):
        return None
    if columns is None or ast.dump(width) != ast.dump(other):
        return None
    counts = []
    for case, programs in enumerate(kernel.facts.grid[0]):
        ends = kernel.interval(columns, case)
        if ends is None or ends[0] != ends[1] or ends[0] < 1 or programs % ends[0]:
            return None
        counts.append(programs // ends[0] if ends[0] > 1 else 0)
    across = text.operand(width)
    down = f"{text.language}.num_programs(0) // {across}"
    return _ProgramOrder(row, column, down, across, tuple(counts), last=body[end])
