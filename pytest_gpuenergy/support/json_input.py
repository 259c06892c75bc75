"""Reads JSON from untrusted files, and explains in a clause what is wrong with it."""

from __future__ import annotations

import gc
import gzip
import io
import lzma
import math
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_gpuenergy.support.errors import InputError

_T = TypeVar("_T")


_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""An escape sequence of JSON; ``half`` is half of a surrogate pair."""

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "null": "null",
    "object": "an object",
    "array": "a list",
}
_BOUNDS = {">=": "less than", ">": "not greater than", "<=": "greater than", "<": "not less than"}
# The messages of msgspec, see `explain`.
_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?", re.DOTALL)
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`(?:, got `(?P<found>[^`]*)`)?")
_BOUND = re.compile(r"Expected `(?:int|float)` (?P<sign>[<>]=?) (?P<limit>\S+)")
_LENGTH = re.compile(r"Expected `array` of length (?P<sign>>= )?(?P<wanted>\d+)(?:, got \d+)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_type_info = cache(msgspec.inspect.type_info)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?:\d+|\.\.\.)\]")
_MAX_QUOTED = 60
"""The most characters that a message quotes."""
_MAX_CHOICES = 12
"""The most allowed values that a message lists."""


class FormError(ValueError):
    """A value does not have the expected form; the message is a clause without a period."""


class NotJsonError(FormError):
    """A text is not one complete JSON value."""


def read_bytes(path: Path, what: str, largest_bytes: int) -> bytes:
    """Return the content of the regular file ``path``; messages call it ``what``.

    Raises:
        InputError: the file cannot be read, is not a regular file, or is larger than
            ``largest_bytes``.
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
    """Return what `read_bytes` does, decompressed if gzip or xz has compressed it.

    The name does not tell: browsers decompress ``trace.json.gz`` without renaming it.

    Raises:
        InputError: as for `read_bytes`; or the content cannot be decompressed, or is then larger
            than ``largest_bytes``.
    """
    content = read_bytes(path, what, largest_bytes)
    openers = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open}
    opener: Any = openers.get(content[:2])
    if opener is None:
        return content
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
        NotJsonError: the text is not one complete JSON value, or is nested too deeply.
        FormError: the value does not fit the type; the message names the place:
            ``measurements[3].trials[0].seconds is a string instead of a number``.
    """
    try:
        with garbage_ignored():
            text = content if isinstance(content, str) else content.decode("utf-8")
            return _decoded(text, kind, what)
    except UnicodeDecodeError:
        raise NotJsonError(f"{what} is not UTF-8 text") from None
    except RecursionError:
        raise NotJsonError(f"{what} is nested too deeply") from None


@contextmanager
def garbage_ignored() -> Iterator[None]:
    """Make many objects that are kept, without Python looking for cycles among them all the time.

    That takes longer the more objects there are, such as those of PyTorch and transformers.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()


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
        reason = str(error).removeprefix("JSON is malformed: ")
        reason = reason[:1].lower() + reason[1:]
        raise NotJsonError(f"{what} is not complete JSON ({reason})") from None


class _Versioned(msgspec.Struct):
    schema_version: object = None


def schema_version(content: bytes | str) -> object:
    """Return the ``schema_version`` of a JSON object, whatever else it contains; None without one.

    Raises:
        NotJsonError: the text is not one complete JSON value, or is nested too deeply.
        FormError: the value is not an object.
    """
    return decode(content, _Versioned).schema_version


def decode_versioned(content: bytes | str, kind: type[_T], version: int) -> _T:
    """Decode a JSON object whose ``schema_version`` must be this one.

    Raises:
        FormError: it has another version, or does not fit the type; see `decode`.
    """
    if (found := schema_version(content)) != version:
        raise FormError(f"its schema_version is {shown(found)}, but this gpuenergy reads {version}")
    return decode(content, kind)


def read_record(
    path: Path,
    what: str,
    kind: type[_T],
    largest_bytes: int,
    *,
    version: int | None = None,
    remedy: str = "",
) -> _T:
    """Read a JSON file; messages call it ``what`` and end with ``remedy``, which says what to do.

    Raises:
        InputError: the file cannot be read, has another ``schema_version`` than a given one, or
            does not fit the type.
    """
    content = read_bytes(path, what, largest_bytes)
    with _usable(path, what, remedy):
        if version is not None:
            return decode_versioned(content, kind, version)
        return decode(content, kind)


def read_records(
    path: Path, what: str, kind: type[_T], largest_bytes: int, *, remedy: str = ""
) -> list[_T]:
    """Read a file that has one JSON value per line, as `read_record` does.

    Raises:
        InputError: the file cannot be read, or a line does not fit the type.
    """
    content = read_bytes(path, what, largest_bytes)
    with _usable(path, what, remedy):
        return [decode(line, kind) for line in content.splitlines()]


@contextmanager
def _usable(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Replace a `FormError` by an `InputError` that names the file."""
    try:
        yield
    except FormError as error:
        raise InputError(
            f"The {what} {path} cannot be used, because {error}{remedy and f': {remedy}'}."
        ) from None


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
    """Return the JSON value of ``content``.

    Raises:
        FormError: the text is not one complete JSON value, is nested too deeply, or contains a
            number that is not finite.
    """
    value: Any = decode(content, object)
    return value


def member(value: dict[str, Any], key: str, kind: type[_T]) -> _T:
    """Return the member ``key`` of ``value``, whose type must be exactly ``kind``.

    Raises:
        FormError: the member is missing, or has another type.
    """
    if key not in value:
        raise FormError(f"{key!r} is missing")
    return typed(value[key], kind, repr(key))


def typed(value: object, kind: type[_T], what: str) -> _T:
    """Return ``value`` if its type is exactly ``kind`` (a bool is not an int).

    Raises:
        FormError: the value has another type.
    """
    if type(value) is not kind:
        name = {dict: "an object", list: "a list", str: "a string", int: "an integer"}
        raise FormError(f"{what} is {shown(value)} instead of {name.get(kind, kind.__name__)}")
    return value


def positive(value: object, what: str) -> float:
    """Return ``value`` as a finite number above zero.

    Raises:
        FormError: the value is not one.
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


def explain(message: str, what: str = "it", kind: Any = None) -> str:
    """Turn msgspec's message about a value that does not fit into a clause that names its place.

    Args:
        message: for example ``Expected `float`, got `str` - at `$.trials[0].seconds```.
        what: the name of the whole document.
        kind: the type of the document, from which the clause names the values allowed there.

    Returns:
        For example ``trials[0].seconds is a string instead of a number``.
    """
    parts = _PLACE.fullmatch(message)
    assert parts is not None
    problem, place = parts["problem"], _place(parts["path"] or "$")
    if missing := _MISSING.fullmatch(problem):
        name = missing["name"]
        if " " in place:
            return f"{name} is missing in {place}"
        return f"{place}.{name} is missing" if place else f"{name} is missing"
    place = place or what
    if bound := _BOUND.fullmatch(problem):
        return f"{place} is {_BOUNDS[bound['sign']]} {float(bound['limit']):g}"
    if length := _LENGTH.fullmatch(problem):
        return (
            f"{place} does not have {'at least ' * bool(length['sign'])}{length['wanted']} values"
        )
    if kinds := _TYPE.fullmatch(problem):
        wanted = _kinds(kinds["wanted"])
        found = f"{_kinds(kinds['found'])} instead of" if kinds["found"] else "not"
        return f"{place} is {found} {wanted}"
    if value := _VALUE.fullmatch(problem):
        choices = _choices(kind, parts["path"] or "$")
        instead = f": give {choices}" if choices else ""
        return f"{place} is {_shortened(value['value'])}, which is not allowed{instead}"
    if unknown := _UNKNOWN.fullmatch(problem):
        return f"{place} has the unknown field {_shortened(unknown['name'])}"
    if problem.endswith("out of range"):
        return f"{place} is a number that is too large"
    return f"{place} is wrong: {_shortened(problem)}"


def _choices(kind: Any, path: str) -> str:
    """Return the allowed values at a place, as text; empty if they are unknown or too many."""
    if kind is None:
        return ""
    types = [_type_info(kind)]
    for step in _STEP.finditer(path):
        types = [part for outer in types for part in _parts(outer, step["name"])]
    values = [str(value) for found in types for value in getattr(found, "values", ())]
    if not 0 < len(values) <= _MAX_CHOICES:
        return ""
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


def _parts(kind: msgspec.inspect.Type, name: str | None) -> list[msgspec.inspect.Type]:
    """Return the types of a field or, if ``name`` is None, of a list's or object's values."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return [part for member_type in kind.types for part in _parts(member_type, name)]
    inner = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
    if name is None:
        return [inner] if inner is not None else list(getattr(kind, "item_types", ()))
    fields = getattr(kind, "fields", ())
    return [field.type for field in fields if field.encode_name == name]


def _place(path: str) -> str:
    """Return ``a[0].b`` for ``$.a[0].b``, and ``a value of a`` for ``$.a[...]`` (of an object)."""
    place = path.removeprefix("$").removeprefix(".")
    while "[...]" in place:
        whole, _, rest = place.rpartition("[...]")
        whole = whole or "it"
        place = f"{rest.removeprefix('.')} in a value of {whole}" if rest else f"a value of {whole}"
    return place


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_QUOTED else f"{line[: _MAX_QUOTED - 3]}..."
