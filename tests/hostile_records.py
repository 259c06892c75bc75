"""What tests put into the strings of records, and where strings are."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

LAMBDA = 'threadIdx.x + ([]{ return __builtin_printf("%s", getenv("SECRET")); }())'
WORDS = ("pragma_import_c", "pragma_import_llvm", "asm", "getenv")
HOSTILE = (
    LAMBDA,
    'x"; system("id"); "',
    "shared\n#include </etc/passwd>\n",
    *WORDS,
    "*/ int main() {} /*",
    "__attribute__((constructor))",
    "λ",
    "\ud800",
    "\0",
)

Place = tuple[Any, ...]


def strings(value: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all strings, keys of objects among them (as a place that ends in None)."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict):
        for key, part in value.items():
            yield (*place, key, None)
            yield from strings(part, (*place, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from strings(part, (*place, number))


def changed(value: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    """``value`` with the string at ``place`` replaced by what ``change`` makes of it."""
    if not place:
        return change(value)
    step, *rest = place
    if rest == [None]:
        return {change(k) if k == step else k: part for k, part in value.items()}
    copy = value.copy()
    copy[step] = changed(value[step], tuple(rest), change)
    return copy


def module_of(stored: str) -> Any:
    """The objects of a line of ``database_workload.json``."""
    return json.loads(base64.b64decode(json.loads(stored)[1])[8:])


def stored_with(module: Any) -> list[str]:
    """Such a line with other objects."""
    text = json.dumps(module).encode()
    return ["1", base64.b64encode(len(text).to_bytes(8, "little") + text).decode()]
