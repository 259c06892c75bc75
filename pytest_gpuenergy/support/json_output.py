"""Writing JSON: whole, without NaN, and in ASCII, so that any text can be written."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def plain(value: object) -> Any:
    """Dictionaries, lists, strings, numbers and None from records that hold these.

    Numbers that NumPy derives from Python's own become Python's own.

    Raises:
        TypeError: it holds something else.
    """
    # Bytes stay what they are, and are refused when they are written.
    return msgspec.to_builtins(value, enc_hook=_own, builtin_types=(bytes, bytearray))


def encode(value: object) -> bytes:
    """``value`` as one line of JSON, without a newline.

    Raises:
        TypeError: it holds something that JSON has no place for.
        ValueError: it holds NaN or an infinity.
    """
    return json.dumps(plain(value), allow_nan=False).encode()


def dump(document: object) -> str:
    """JSON for people too: indented.

    Raises:
        TypeError, ValueError: as `encode`.
    """
    return msgspec.json.format(encode(document), indent=1).decode() + "\n"


def _own(value: object) -> float | str:
    for kind in (float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a value of type {type(value).__name__} has no place in JSON")
