"""JSON without NaN and in ASCII, and CSV that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

import msgspec

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


def plain(value: object) -> Any:
    """Convert records to dictionaries, lists, strings, numbers and None.

    Subclasses of Python's numbers and strings, such as NumPy's, become Python's own.

    Raises:
        TypeError: it holds something else.
    """
    # Bytes are left as they are, and refused when they are written.
    return msgspec.to_builtins(value, enc_hook=_own, builtin_types=(bytes, bytearray))


def encode(value: object) -> bytes:
    """``value`` as one line of JSON, without a newline.

    Raises:
        TypeError: it holds something that JSON cannot represent.
        ValueError: it holds NaN or an infinity.
    """
    return json.dumps(plain(value), allow_nan=False).encode()


def dump(document: object) -> str:
    """Human-readable JSON, indented.

    Raises:
        TypeError: as `encode`.
        ValueError: as `encode`.
    """
    return msgspec.json.format(encode(document), indent=1).decode() + "\n"


def _own(value: object) -> float | str:
    for kind in (float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"JSON cannot represent a value of type {type(value).__name__}")
