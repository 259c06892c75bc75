"""Explains what is wrong with a JSON document, in terms its author understands."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

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
_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?", re.DOTALL)
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`(?:, got `(?P<found>[^`]*)`)?")
_BOUND = re.compile(r"Expected `(?:int|float)` (?P<sign>[<>]=?) (?P<limit>\S+)")
_LENGTH = re.compile(r"Expected `array` of length (?P<sign>>= )?(?P<wanted>\d+)(?:, got \d+)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?:\d+|\.\.\.)\]")
_LONGEST = 60
_MOST_CHOICES = 12


def explain(message: str, what: str = "it", kind: Any = None) -> str:
    """Turn msgspec's message about a value that does not fit into a clause that names its place.

    Args:
        message: for example ``Expected `float`, got `str` - at `$.trials[0].seconds```.
        what: the name of the whole document.
        kind: its type, for the values that are allowed where only some are.

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
    """The values that may stand at a place; empty if that is not known, or if there are many."""
    if kind is None:
        return ""
    found = [_described(kind)]
    for step in _STEP.finditer(path):
        found = [part for one in found for part in _parts(one, step["name"])]
    known = [str(value) for one in found for value in getattr(one, "values", ())]
    if not 0 < len(known) <= _MOST_CHOICES:
        return ""
    return " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))


@cache
def _described(kind: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def _parts(kind: msgspec.inspect.Type, name: str | None) -> list[msgspec.inspect.Type]:
    """What a type has at a field, or in a list or an object."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return [part for one in kind.types for part in _parts(one, name)]
    inner = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
    if name is None:
        return [inner] if inner is not None else list(getattr(kind, "item_types", ()))
    fields = getattr(kind, "fields", ())
    return [one.type for one in fields if one.encode_name == name]


def _place(path: str) -> str:
    """``$.a[0].b`` as ``a[0].b``; ``$.a[...]`` (some value of an object) as ``a value of a``."""
    place = path.removeprefix("$").removeprefix(".")
    while "[...]" in place:
        whole, _, rest = place.rpartition("[...]")
        place = f"{rest.removeprefix('.')} in a value of {whole}" if rest else f"a value of {whole}"
    return place


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
