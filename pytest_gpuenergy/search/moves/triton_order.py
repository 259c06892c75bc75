"""The order in which the programs of a Triton function take the tiles of a matrix."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.search.source.edits import Edit
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel

_Named = tuple[str, ast.stmt]


@dataclass(frozen=True)
class ProgramOrder:
    """Programs that follow one another along a row.

    Attributes:
        row, column: the program's place, as text.
        height, width: numbers of rows and columns, as text.
        counts: numbers of rows for each set of sizes; zero where there is but one column.
        calls: of ``program_id`` that stand for the row and the column, in this order.
        last: the statement after which both are known, and before which none is used; None where
            they are known at once.
    """

    row: str
    column: str
    height: str
    width: str
    counts: tuple[int, ...]
    calls: tuple[Sequence[ast.Call], Sequence[ast.Call]] = ((), ())
    last: ast.stmt | None = None

    def grouped(self, kernel: TritonKernel, rows: int) -> list[Edit]:
        """The edits by which groups of rows are taken, each by columns."""
        text = kernel.text
        sizes = f"{self.height}, {self.width}, {rows}"
        call = f"{text.language}.swizzle2d({self.row}, {self.column}, {sizes})"
        if self.last is not None:
            line = f"{self.row}, {self.column} = {call}"
            return [text.inserted_after(self.last, line)]
        names = text.fresh("program_row"), text.fresh("program_column")
        replaced = [
            text.replaced(one, name)
            for name, some in zip(names, self.calls, strict=True)
            for one in some
        ]
        return [
            text.inserted_before(_first_of(text.function), f"{', '.join(names)} = {call}"),
            *replaced,
        ]


def _first_of(function: ast.FunctionDef) -> ast.stmt:
    """The first statement that is no docstring."""
    is_text = ast.get_docstring(function, clean=False) is not None and len(function.body) > 1
    return function.body[1 if is_text else 0]


def order_of(kernel: TritonKernel) -> ProgramOrder | None:
    """Of a grid with two dimensions, or of one that is divided into rows; None for others."""
    text = kernel.text
    calls: dict[object, list[ast.Call]] = {}
    for call in text.calls("program_id"):
        axis = text.axis_of(call)
        calls.setdefault(axis.value if isinstance(axis, ast.Constant) else None, []).append(call)
    if any(text.calls("swizzle2d")) or None in calls:
        return None
    if 0 in calls and 1 in calls:
        return _of_two_dimensions(kernel, calls[1], calls[0])
    return _of_one_dimension(kernel) if set(calls) == {0} and len(calls[0]) == 1 else None


def _of_two_dimensions(
    kernel: TritonKernel, rows: Sequence[ast.Call], columns: Sequence[ast.Call]
) -> ProgramOrder:
    tl, (across, down, _) = kernel.text.language, kernel.facts.grid
    counts = tuple(count if wide > 1 else 0 for count, wide in zip(down, across, strict=True))
    ids = f"{tl}.program_id(1)", f"{tl}.program_id(0)"
    sizes = f"{tl}.num_programs(1)", f"{tl}.num_programs(0)"
    return ProgramOrder(*ids, *sizes, counts, (rows, columns))


def _of_one_dimension(kernel: TritonKernel) -> ProgramOrder | None:
    """``row = program // width; column = program % width``."""
    program = _named_program(kernel)
    found: dict[type[ast.operator], tuple[_Named, ast.expr]] = {}
    for statement in kernel.text.function.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.BinOp(left=ast.Name(id=divided), op=op, right=width),
            ) if divided == program:
                found[type(op)] = ((name, statement), width)
    uses = [n for n in ast.walk(kernel.text.function) if isinstance(n, ast.Name)]
    if set(found) != {ast.FloorDiv, ast.Mod} or sum(n.id == program for n in uses) != 3:
        return None
    (row, width), (column, other) = found[ast.FloorDiv], found[ast.Mod]
    last, columns = _last_of(kernel, row, column), kernel.polynomial(width)
    if last is None or columns is None or ast.dump(width) != ast.dump(other):
        return None
    counts = []
    for case, programs in enumerate(kernel.facts.grid[0]):
        ends = kernel.interval(columns, case)
        if ends is None or ends[0] != ends[1] or ends[0] < 1 or programs % ends[0]:
            return None
        counts.append(programs // ends[0] if ends[0] > 1 else 0)
    across = kernel.text.operand(width)
    down = f"{kernel.text.language}.num_programs(0) // {across}"
    return ProgramOrder(row[0], column[0], down, across, tuple(counts), last=last)


def _named_program(kernel: TritonKernel) -> str | None:
    """The name that gets the program's id."""
    for statement in kernel.text.function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if kernel.text.called(value) == "program_id":
                    return name
    return None


def _last_of(kernel: TritonKernel, row: _Named, column: _Named) -> ast.stmt | None:
    """The later statement; None if one of the names is used before, or set again."""
    body = kernel.text.function.body
    begin, end = sorted((body.index(row[1]), body.index(column[1])))
    names = {row[0], column[0]}
    between = (node for one in body[begin + 1 : end] for node in ast.walk(one))
    used = any(isinstance(node, ast.Name) and node.id in names for node in between)
    again = any(len(kernel.text.assignments[name]) != 1 for name in names)
    return None if used or again else body[end]
