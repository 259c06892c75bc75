"""Columns and durations as people read them."""

from __future__ import annotations

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
