"""The rows and columns that the programs of a Triton function form."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from pytest_gpuenergy.search.moves.edits import Edit
from pytest_gpuenergy.search.moves.triton_kernel import TritonKernel

_Named = tuple[str, ast.stmt]


@dataclass(frozen=True)
class ProgramOrder:
    """Programs that follow one another along a row.

    Attributes:
        row, column: names of the program's place.
        height, width: numbers of rows and columns, as text.
        counts: numbers of rows for each set of sizes; zero where there is but one column.
        last: the statement after which both names are known, and before which none is used.
    """

    row: str
    column: str
    height: str
    width: str
    counts: tuple[int, ...]
    last: ast.stmt

    def grouped(self, kernel: TritonKernel, rows: int) -> Edit:
        """The edit that takes groups of rows, each by columns."""
        sizes = f"{self.height}, {self.width}, {rows}"
        call = f"{kernel.text.language}.swizzle2d({self.row}, {self.column}, {sizes})"
        return kernel.text.inserted_after(self.last, f"{self.row}, {self.column} = {call}")


def order_of(kernel: TritonKernel) -> ProgramOrder | None:
    """Of a grid with two dimensions, or of one that is divided into rows; None for others."""
    named = _named_programs(kernel)
    calls = list(kernel.text.calls("program_id"))
    if len(named) != len(calls):
        return None
    if len(calls) == 2 and set(named) == {0, 1}:
        return _of_two_dimensions(kernel, named[1], named[0])
    return _of_one_dimension(kernel, named[0]) if len(calls) == 1 and 0 in named else None


def _named_programs(kernel: TritonKernel) -> dict[int, _Named]:
    """The names that get a program's id, by its axis."""
    found: dict[int, _Named] = {}
    for statement in kernel.text.function.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Constant(value=int(axis))])
            ) if kernel.text.called(statement.value) == "program_id":
                found[int(axis)] = (name, statement)
    return found


def _of_two_dimensions(kernel: TritonKernel, row: _Named, column: _Named) -> ProgramOrder | None:
    last = _last_of(kernel, row, column)
    tl, (across, down, _) = kernel.text.language, kernel.facts.grid
    sizes = f"{tl}.num_programs(1)", f"{tl}.num_programs(0)"
    counts = tuple(rows if columns > 1 else 0 for rows, columns in zip(down, across, strict=True))
    return None if last is None else ProgramOrder(row[0], column[0], *sizes, counts, last)


def _of_one_dimension(kernel: TritonKernel, program: _Named) -> ProgramOrder | None:
    """``row = program // width; column = program % width``."""
    found: dict[type[ast.operator], tuple[_Named, ast.expr]] = {}
    for statement in kernel.text.function.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.BinOp(left=ast.Name(id=divided), op=op, right=width),
            ) if divided == program[0]:
                found[type(op)] = ((name, statement), width)
    uses = [n for n in ast.walk(kernel.text.function) if isinstance(n, ast.Name)]
    if set(found) != {ast.FloorDiv, ast.Mod} or sum(n.id == program[0] for n in uses) != 3:
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
    return ProgramOrder(row[0], column[0], down, across, tuple(counts), last)


def _last_of(kernel: TritonKernel, row: _Named, column: _Named) -> ast.stmt | None:
    """The later statement; None if one of the names is used before, or set again."""
    body = kernel.text.function.body
    begin, end = sorted((body.index(row[1]), body.index(column[1])))
    names = {row[0], column[0]}
    between = (node for one in body[begin + 1 : end] for node in ast.walk(one))
    used = any(isinstance(node, ast.Name) and node.id in names for node in between)
    again = any(len(kernel.text.assignments[name]) != 1 for name in names)
    return None if used or again else body[end]
