"""The interface of a move: a way to rewrite a kernel so that it still computes the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol, get_args

from msgspec import Struct

from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, State

Region = Literal["compute", "gmem", "sfu", "atomics", "smem", "overlap"]
"""A part of a card on which time is spent: arithmetic, global memory, special functions, atomics,
shared memory, or waiting that other work could hide."""
REGIONS: tuple[Region, ...] = get_args(Region)


class Application(Struct, frozen=True):
    """One way to apply a move to a state.

    Attributes:
        move: the name of the move.
        what: the place and the parameters, in a few words that are unique among the applications of
            this move to a state.
        state: the resulting state.
    """

    move: str
    what: str
    state: State


class Move(Protocol):
    """A kind of rewriting.

    It need not be right in every case, because every result is verified. It should be right in most
    cases, and must never leave the text unchanged.

    Attributes:
        name: the name in the documentation.
        languages: the languages that it can rewrite.
        relieves: the regions whose time it may cut.
    """

    name: str
    languages: frozenset[Language]
    relieves: frozenset[Region]

    def applications(self, state: State, spec: KernelSpec) -> Iterable[Application]:
        """Return all ways to apply it, in an order that depends on the state alone."""
        ...
