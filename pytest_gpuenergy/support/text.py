"""Columns, durations and the mark of emulated figures, as people read them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row: left-aligned columns, two spaces apart, without trailing blanks.

    Raises:
        ValueError: the rows differ in length.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def fitted(table: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """The table `aligned` if no line is longer than ``width``, otherwise a block for each row.

    A block begins with the row's first cell, and has a line with its title for each of the others.
    """
    lines = list(aligned(table))
    if width is None or max(map(len, lines), default=0) <= width:
        yield from lines
        return
    titles, *rows = table
    space = max(map(len, titles[1:]), default=0)
    for name, *cells in rows:
        yield from wrapped(name, width)
        for title, cell in zip(titles[1:], cells, strict=True):
            yield from wrapped(f"  {title.ljust(space)}  {cell}".rstrip(), width, 4)


def wrapped(
    line: str, width: int | None, indent: int = 2, *, whole_words: bool = False
) -> Iterator[str]:
    """``line`` in lines of at most ``width`` characters, broken at blanks where there are some.

    All but the first are indented further than the line itself is, by ``indent``. With
    ``whole_words``, a word that is longer, such as a path to be copied, is not broken.
    """
    if width is None or len(line) <= width:
        yield line
        return
    own = min(len(line) - len(line.lstrip()), width // 4)
    yield from textwrap.wrap(
        line.strip(),
        width,
        initial_indent=" " * own,
        subsequent_indent=" " * min(own + indent, width // 2),
        break_on_hyphens=False,
        break_long_words=not whole_words,
    )


def shortened(text: str, length: int) -> str:
    """``text`` in at most ``length`` characters, without its middle if it is longer."""
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def emulated_mark(emulated: bool) -> str:
    """What follows a title or a name where figures are emulated: `` (emulated)``, or nothing."""
    return " (emulated)" if emulated else ""


def span(seconds: float) -> str:
    """A span of time in words: ``0.53 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
