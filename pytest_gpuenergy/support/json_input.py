"""Reads JSON from untrusted files; refuses it unless bounded, complete and free of NaN."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import re
import stat
import zlib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.json_problems import explain

_T = TypeVar("_T")


_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


class FormError(ValueError):
    """A value does not have the expected form; the message is a clause without a period."""


class NotJsonError(FormError):
    """A text is not one complete JSON value."""


def read_bytes(path: Path, what: str, largest_bytes: int) -> bytes:
    """The content of the regular file ``path``; messages call it ``what``.

    Raises:
        InputError: it cannot be read, is not a regular file, or is larger than ``largest_bytes``.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"The {what} {str(path)!r} is not a file: move it away, or name another."
            )
        content = b""
        if (size := status.st_size) <= largest_bytes:
            with path.open("rb") as stream:
                content = stream.read(largest_bytes + 1)
            size = len(content)  # it may grow
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"The {what} {str(path)!r} cannot be read: {reason}.") from None
    if size > largest_bytes:
        raise InputError(
            f"The {what} {path} is larger than {largest_bytes >> 20} MiB, too large for a {what}: "
            "name another file."
        )
    return content


def read_unpacked(path: Path, what: str, largest_bytes: int) -> bytes:
    """As `read_bytes`, but decompressed if the name ends in ``.gz`` or ``.xz``.

    Raises:
        InputError: as for `read_bytes`, or it cannot be decompressed, or is larger than
            ``largest_bytes`` once decompressed.
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
            f"The {what} {path} cannot be decompressed: download or write it again."
        ) from None
    if len(plain) > largest_bytes:
        raise InputError(
            f"The {what} {path} is larger than {largest_bytes >> 20} MiB once decompressed: "
            "name another file."
        )
    return plain


def decode(content: bytes | str, kind: type[_T], what: str = "it") -> _T:
    """Decode a JSON text to a value of type ``kind``. Unknown fields are ignored.

    Half of a surrogate pair, which JSON allows although it is not valid text, is read as a question
    mark.

    Args:
        content: the text.
        kind: any type that msgspec decodes: a structure, a dataclass, a union, a tuple.
        what: the name of the whole value in messages.

    Raises:
        NotJsonError: it is not one complete JSON value, or is nested too deeply.
        FormError: it does not fit the type; the message names the place:
            ``measurements[3].trials[0].seconds is a string instead of a number``.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        return _decoded(text, kind, what)
    except UnicodeDecodeError:
        raise NotJsonError(f"{what} is not UTF-8 text") from None
    except RecursionError:
        raise NotJsonError(f"{what} is nested too deeply") from None


def _decoded(text: str, kind: type[_T], what: str) -> _T:
    try:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError as error:
            msgspec.json.decode(text, type=msgspec.Raw)  # truncated text is reported as such
            raise FormError(explain(str(error), what, kind)) from None
    except msgspec.DecodeError as error:
        whole = _ESCAPE.sub(lambda found: "?" if found["half"] else found[0], text)
        if whole != text:
            return _decoded(whole, kind, what)
        raise NotJsonError(f"{what} is not complete JSON ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    reason = str(error).removeprefix("JSON is malformed: ")
    return reason[:1].lower() + reason[1:]


class _Versioned(msgspec.Struct):
    schema_version: object = None


def schema_version(content: bytes | str, what: str = "it") -> object:
    """The ``schema_version`` of a JSON object, whatever else is in it; None without one.

    Raises:
        NotJsonError: it is not one complete JSON value, or is nested too deeply.
        FormError: it is not an object.
    """
    return decode(content, _Versioned, what).schema_version


def convert(value: object, kind: type[_T], what: str = "it") -> _T:
    """Convert dictionaries, lists, strings and numbers to a value of type ``kind``.

    Raises:
        FormError: as `decode`.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FormError(explain(str(error), what, kind)) from None


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
    """The member ``key`` of ``value``, whose type must be exactly ``kind``.

    Raises:
        FormError: it is missing, or has another type.
    """
    if key not in value:
        raise FormError(f"{key!r} is missing")
    return typed(value[key], kind, repr(key))


def typed(value: object, kind: type[_T], what: str) -> _T:
    """``value`` if its type is exactly ``kind`` (a bool is not an int).

    Raises:
        FormError: it has another type.
    """
    if type(value) is not kind:
        name = {dict: "an object", list: "a list", str: "a string", int: "an integer"}
        raise FormError(f"{what} is {shown(value)} instead of {name.get(kind, kind.__name__)}")
    return value


def positive(value: object, what: str) -> float:
    """``value`` as a finite number above zero.

    Raises:
        FormError: it is not one.
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
    raise FormError(f"it contains {constant}, which is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise FormError(f"it contains {shown(text)}, which is too large")
    return number
