"""Writes JSON without NaN and in ASCII, and CSV in which no spreadsheet finds a formula."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

import msgspec

Cell = str | int | float | bool | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The characters with which a formula may begin in a spreadsheet, see
https://owasp.org/www-community/attacks/CSV_Injection."""

_JSON = json.JSONEncoder(allow_nan=False)


def csv_text(rows: Iterable[Iterable[Cell]]) -> str:
    """Return the rows as lines of CSV, with every cell made `harmless`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(
        [harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()


def harmless(cell: Cell) -> Cell:
    """Return ``cell``, with an apostrophe before a text that would be a formula.

    A carriage return, which not every version of Python quotes, becomes a blank. Numbers are left
    as they are.
    """
    if not isinstance(cell, str):
        return cell
    return ("'" if cell.startswith(_FORMULA) else "") + cell.replace("\r", " ")


def plain(value: object) -> Any:
    """Convert records to dictionaries, lists, strings, numbers and None.

    Subclasses of Python's numbers and strings, such as NumPy's, become Python's own.

    Raises:
        TypeError: the value contains something else.
    """
    # Bytes are left as they are here; `encode` refuses them.
    return msgspec.to_builtins(value, enc_hook=_to_builtin, builtin_types=(bytes, bytearray))


def encode(value: object) -> bytes:
    """Return ``value`` as one line of JSON, without a newline.

    Raises:
        TypeError: the value contains something that JSON cannot represent.
        ValueError: the value contains NaN or an infinity.
    """
    return _JSON.encode(plain(value)).encode()


def dump(document: object) -> str:
    """Return a document as human-readable, indented JSON.

    Raises:
        TypeError: as `encode`.
        ValueError: as `encode`.
    """
    return msgspec.json.format(encode(document), indent=1).decode() + "\n"


def _to_builtin(value: object) -> float | str:
    for kind in (float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"JSON cannot represent a value of type {type(value).__name__}")
