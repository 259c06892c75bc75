"""A table of kernels with their figures, as wide as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.support import InputError, shortened, wrapped

_USUAL_LABEL, _SHORT_LABEL, _LEAST_LABEL = 10, 16, 4
_NOTE_INDENT = 4


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        title: its heading.
        width: its width where there is room.
        leaves: the higher, the earlier it is left out where there is none.
    """

    title: str
    width: int
    leaves: int


@dataclass(frozen=True)
class Row:
    """A kernel.

    Attributes:
        mark: one character before its label.
        label: its name.
        cells: its figures, one for each column; none if there are no figures.
        note: what follows them, such as flags, or what there is in their place.
    """

    mark: str
    label: str
    cells: tuple[str, ...] = ()
    note: str = ""


def figure_table(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None
) -> Iterator[str]:
    """Lines of at most ``width`` characters: a heading and the rows.

    Where there is too little room, columns are as narrow as their cells, then those that leave
    first are left out, and at last labels lose their middles. What is left out is said.
    """
    label = max(_USUAL_LABEL, *(len(row.label) for row in rows))
    shown = {column.title: column.width for column in columns}
    if width is not None and _width_of(label, shown) > width:
        label, shown = _narrowed(columns, rows, width)
    titles = [title.rjust(space) for title, space in shown.items()]
    yield f"  {'kernel':<{label}} {' '.join(titles)}"
    for row in rows:
        line = f"{row.mark} {shortened(row.label, label):<{label}}"
        for column, cell in zip(columns, row.cells, strict=False):
            if column.title in shown:
                line += f" {cell:>{shown[column.title]}}"
        yield from _with_note(line, row.note, "  " if row.cells else " ", width)
    if absent := [column.title for column in columns if column.title not in shown]:
        yield from wrapped(f"  no room for {', '.join(absent)}", width)


def _width_of(label: int, shown: Mapping[str, int]) -> int:
    return 2 + label + sum(1 + space for space in shown.values())


def _narrowed(
    columns: Sequence[Column], rows: Sequence[Row], width: int
) -> tuple[int, dict[str, int]]:
    """The width of the labels, and those of the columns for which there is room, by title."""
    shown = {
        column.title: max(len(column.title), *(len(row.cells[i]) for row in rows if row.cells), 0)
        for i, column in enumerate(columns)
    }
    longest = max(len("kernel"), *(len(row.label) for row in rows))
    for column in sorted(columns, key=lambda column: -column.leaves)[:-1]:
        if _width_of(min(longest, _SHORT_LABEL), shown) > width:
            del shown[column.title]
    room = width - _width_of(0, shown)
    return max(_LEAST_LABEL, min(longest, room)), shown


def _with_note(line: str, note: str, gap: str, width: int | None) -> Iterator[str]:
    if not note:
        yield line
    elif width is None or len(line) + len(gap) + len(note) <= width:
        yield f"{line}{gap}{note}"
    else:
        yield line.rstrip()
        yield from wrapped(f"{' ' * _NOTE_INDENT}{note}", width, 0)


_Key = Callable[[Measurement], float | str]


def _least(name: str) -> _Key:
    return lambda m: inf if getattr(m, name) is None else getattr(m, name)


def _most(name: str) -> _Key:
    return lambda m: inf if getattr(m, name) is None else -getattr(m, name)


SORTS: dict[str, _Key] = {
    "rank": lambda m: inf if m.kernel.rank is None else m.kernel.rank,
    "name": lambda m: m.kernel.label,
    "time": _least("time_ms"),
    "energy": _least("energy_mj"),
    "edp": _least("edp_mj_ms"),
    "power": _least("power_w"),
    "gflops": _most("gflops"),
    "gflops_per_w": _most("gflops_per_w"),
}
"""What the rows of a table can be sorted by, the best first; kernels without figures are last."""


def arranged(rows: Iterable[Measurement], by: str) -> list[Measurement]:
    """The rows sorted by a key of `SORTS`; those that are equal keep their order."""
    return sorted(rows, key=SORTS[by])


def check_sort(text: str, option: str) -> str:
    """The key of `SORTS` that a user means.

    Raises:
        InputError: there is none of that name.
    """
    name = text.strip().lower().replace("-", "_").replace("/", "_per_")
    name = {"gflop_per_s": "gflops", "gflops_per_s": "gflops"}.get(name, name)
    if name not in SORTS:
        raise InputError(f"{option} {text[:40]!r} is not understood: give {', '.join(SORTS)}.")
    return name
