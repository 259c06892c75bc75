"""The arguments of a launch, and the layout of structs that a kernel takes by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads import Scalar

Argument = str | tuple[Any, ...]
"""The name of a tensor, workspace or scalar, or a tuple of the members of a struct or array.

A member is an argument itself. An array has the layout of a struct with a member for each element.
"""

_MAX_LEVELS = 16
"""The deepest nesting of structs and arrays; files are not trusted."""
_POINTER_BYTES = 8


def checked_arguments(given: Iterable[object], entry: str) -> tuple[Argument, ...]:
    """Return arguments as tuples, also of those that were given as lists.

    Raises:
        InputError: one is neither a name nor a list of members, or structs are nested too deeply.
    """

    def checked(one: object, level: int) -> Argument:
        if isinstance(one, str):
            return one
        if not isinstance(one, (list, tuple)):
            raise InputError(
                f"{entry!r} cannot have the argument {shown(one)}: give the name of a tensor or "
                "scalar, or for a struct a list of its members' names."
            )
        if level == _MAX_LEVELS:
            raise InputError(f"An argument of {entry!r} has more than {_MAX_LEVELS} levels.")
        return tuple(checked(member, level + 1) for member in one)

    return tuple(checked(argument, 0) for argument in given)


def argument_names(arguments: Iterable[Argument]) -> Iterator[str]:
    """Yield the names in arguments, with those of members, in order; one may occur repeatedly."""
    for argument in arguments:
        if isinstance(argument, str):
            yield argument
        else:
            yield from argument_names(argument)


def argument_text(argument: Argument) -> str:
    """Return an argument as people read it, such as ``{n, alpha, x}`` for a struct."""
    if isinstance(argument, str):
        return argument
    return f"{{{', '.join(map(argument_text, argument))}}}"


@dataclass(frozen=True)
class StructLayout:
    """Where the members of a struct lie in memory, by the rules of C++ on a GPU and its host.

    Each member begins at a multiple of its alignment, which of a number or pointer is its size. A
    struct has the largest alignment of its members, and its size is a multiple of it.

    Attributes:
        nbytes: the size in bytes.
        alignment: the alignment in bytes.
        members: the offset in bytes and the name of each number and pointer.
    """

    nbytes: int
    alignment: int
    members: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, argument: Argument, scalars: Mapping[str, Scalar]) -> StructLayout:
        """Return the layout of an argument; a name that is not that of a scalar is a pointer."""
        if isinstance(argument, str):
            size = scalars[argument].stored.nbytes if argument in scalars else _POINTER_BYTES
            return cls(size, size, ((0, argument),))
        end, alignment = 0, 1
        members: list[tuple[int, str]] = []
        for member in argument:
            inner = cls.of(member, scalars)
            begin = _multiple(end, inner.alignment)
            members += [(begin + offset, name) for offset, name in inner.members]
            end, alignment = begin + inner.nbytes, max(alignment, inner.alignment)
        # A struct without members has a byte: each object has an address of its own.
        return cls(_multiple(max(end, 1), alignment), alignment, tuple(members))


def _multiple(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
