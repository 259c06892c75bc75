"""The values in the lines of a list of kernels, in any of the forms that tools write them in.

Each function returns None for what it does not understand.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pytest_gpuenergy.replay.trace import PHASES, Sizes
from pytest_gpuenergy.support import FormError, decode

_LARGEST = 1 << 63
_LONGEST_US = 1e17
_NUMBERS = re.compile(r"\s*[\[(]?\s*(\d{1,18})\s*[,x]\s*(\d{1,18})\s*[,x]\s*(\d{1,18})\s*[\])]?\s*")
_LAYER = re.compile(r"\s*(?:layer[ ._:=]?)?(\d{1,6})\s*", re.IGNORECASE)
_PYTHON = str.maketrans({"(": "[", ")": "]", "'": '"'})
_TRAILING = re.compile(r",\s*\]")


def plain(name: str) -> str:
    """A field's name, whatever its case, blanks and underscores."""
    return re.sub(r"[\s_-]", "", name).lower()


def microseconds(value: object, unit_us: float) -> float | None:
    """A time that is not negative."""
    number = _number(value)
    if number is None:
        return None
    found = number * unit_us
    return found if 0 <= found <= _LONGEST_US else None


def whole(value: object) -> int | None:
    """A whole number that is not negative."""
    number = _number(value)
    if number is None or not 0 <= number < _LARGEST or number != int(number):
        return None
    return value if type(value) is int else int(number)


def sizes(value: object) -> Sizes | None:
    """Three extents: a list, an object with x, y and z, or a text such as ``[4,2,1]``."""
    if isinstance(value, str):
        found = _NUMBERS.fullmatch(value)
        value = None if found is None else list(found.groups())
    if isinstance(value, dict):
        value = [value.get(axis) for axis in "xyz"]
    if not isinstance(value, list) or len(value) != 3:
        return None
    numbers = [number for number in map(whole, value) if number is not None]
    return tuple(numbers) if len(numbers) == 3 else None


def entries(value: object) -> list[Any] | None:
    """A list with an entry for each argument, or the text of one, by JSON or Python."""
    if isinstance(value, str):
        text = _TRAILING.sub("]", value.translate(_PYTHON))
        try:
            value = decode(text, list[Any])
        except FormError:
            return None
    return value if isinstance(value, list) else None


def phase(value: object) -> str | None:
    """One of our phases, if it is named."""
    word = value.lower() if isinstance(value, str) else ""
    return next((one for one in PHASES if one in word), None)


def layers(value: object) -> tuple[int, ...] | None:
    """The numbers of layers, one or several, also in words such as ``layer 3``."""
    found = [_layer(one) for one in (value if isinstance(value, list) else [value])]
    known = {one for one in found if one is not None}
    return tuple(sorted(known)) if None not in found else None


def _layer(value: object) -> int | None:
    if isinstance(value, str):
        found = _LAYER.fullmatch(value)
        return None if found is None else int(found[1])
    return whole(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
