"""Writes CSV that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

Cell = str | int | float | bool | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets begin a formula with, see
https://owasp.org/www-community/attacks/CSV_Injection."""


def csv_text(rows: Iterable[Iterable[Cell]]) -> str:
    """The rows, each with a newline, and with every cell made `harmless`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(harmless, row) for row in rows)
    return text.getvalue()


def harmless(cell: Cell) -> Cell:
    """``cell``, with an apostrophe before a text that begins as a formula does; numbers stay.

    A carriage return, which not every version of Python quotes, becomes a blank.
    """
    if not isinstance(cell, str):
        return cell
    return ("'" if cell.startswith(_FORMULA) else "") + cell.replace("\r", " ")
