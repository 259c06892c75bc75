"""JSON from files that anyone may have written: bounded, complete and free of NaN, or refused."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import stat
import zlib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_gpuenergy.support.errors import InputError

_T = TypeVar("_T")


class FormError(ValueError):
    """A value is not of the expected form; the message is a clause without a full stop."""


def read_bytes(path: Path, what: str, largest_bytes: int) -> bytes:
    """The content of the regular file ``path``, which is called ``what`` in messages.

    Raises:
        InputError: it cannot be read, is not a regular file, or is larger than ``largest_bytes``.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"The {what} {str(path)!r} is not a file.")
        with path.open("rb") as stream:
            content = stream.read(largest_bytes + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"The {what} {str(path)!r} cannot be read: {reason}.") from None
    if len(content) > largest_bytes:
        raise InputError(
            f"The {what} {path} is larger than {largest_bytes >> 20} MiB, which no {what} is: "
            "name another file."
        )
    return content


def read_unpacked(path: Path, what: str, largest_bytes: int) -> bytes:
    """As `read_bytes`, decompressed when the name ends in ``.gz`` or ``.xz``.

    Raises:
        InputError: as for `read_bytes`, or it cannot be decompressed, or is larger than
            ``largest_bytes`` once it is.
    """
    content = read_bytes(path, what, largest_bytes)
    if path.suffix not in (".gz", ".xz"):
        return content
    opener: Any = gzip.open if path.suffix == ".gz" else lzma.open
    try:
        with opener(io.BytesIO(content)) as stream:
            plain: bytes = stream.read(largest_bytes + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        raise InputError(
            f"The {what} {path} cannot be decompressed: fetch or write it again."
        ) from None
    if len(plain) > largest_bytes:
        raise InputError(
            f"The {what} {path} is larger than {largest_bytes >> 20} MiB once decompressed: "
            "name another file."
        )
    return plain


def parse(content: str | bytes) -> Any:
    """The JSON value of ``content``.

    Raises:
        FormError: it is not one complete JSON value, is nested too deeply, or holds NaN or an
            infinity.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except UnicodeDecodeError:
        raise FormError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise FormError(
            f"it is not complete JSON: {error.msg.lower()} at line {error.lineno}, "
            f"column {error.colno}"
        ) from None
    except RecursionError:
        raise FormError("it is nested too deeply") from None
    except FormError:
        raise
    except ValueError:  # an integer of thousands of digits
        raise FormError("it has a number that is too long") from None


def member(value: dict[str, Any], key: str, kind: type[_T]) -> _T:
    """The member ``key`` of ``value``, of exactly the type ``kind``.

    Raises:
        FormError: there is none, or it is of another type.
    """
    if key not in value:
        raise FormError(f"{key!r} is missing")
    return typed(value[key], kind, repr(key))


def typed(value: object, kind: type[_T], what: str) -> _T:
    """``value`` if its type is exactly ``kind`` (a bool is no int).

    Raises:
        FormError: it is of another type.
    """
    if type(value) is not kind:
        name = {dict: "an object", list: "a list", str: "a text", int: "an integer"}
        raise FormError(f"{what} is {shown(value)} instead of {name.get(kind, kind.__name__)}")
    return value


def positive(value: object, what: str) -> float:
    """``value`` as a finite number above zero.

    Raises:
        FormError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormError(f"{what} is {shown(value)} instead of a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise FormError(f"{what} is {shown(value)} instead of a positive number")
    return number


def shown(value: object) -> str:
    """``value`` for a message: its beginning, on one line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _refuse(constant: str) -> NoReturn:
    raise FormError(f"it holds {constant}, which is no number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise FormError(f"it holds {shown(text)}, which is too large")
    return number
