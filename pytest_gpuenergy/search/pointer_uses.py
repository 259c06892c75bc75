"""Follows a pointer through the functions of a text, in any language, see `output_reads`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Passed(NamedTuple):
    """To which parameter of which function a pointer is passed, by place or name."""

    function: str
    parameter: int | str


Use = str | Passed | None
"""A name that the pointer is given, a parameter that it is passed to, or nothing: a store."""


class ReadError(Exception):
    """Something else is done with the pointer."""


def follow(first: Passed, uses_in: Callable[[Passed], Iterable[Passed]]) -> None:
    """Look at all functions that a pointer reaches.

    Args:
        first: where the pointer comes in.
        uses_in: to what a function passes it on; everything else that it does must be stores.

    Raises:
        ReadError: raised by ``uses_in``.
    """
    waiting, seen = [first], set()
    while waiting:
        passed = waiting.pop()
        if passed not in seen:
            seen.add(passed)
            waiting += uses_in(passed)
