"""Writes JSON: without NaN, and in ASCII, so that any text can be written."""

from __future__ import annotations

import json
from typing import Any

import msgspec


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
