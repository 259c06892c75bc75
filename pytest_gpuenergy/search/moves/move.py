"""What a move is: a way to rewrite a kernel that computes the same thing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol, get_args

from msgspec import Struct

from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, State

Region = Literal["compute", "gmem", "sfu", "atomics", "smem", "overlap"]
"""What a kernel's time can be spent on: arithmetic, global memory, special functions, atomics,
shared memory, and waiting that other work could hide."""
REGIONS: tuple[Region, ...] = get_args(Region)


class Application(Struct, frozen=True):
    """One place and way in which a move applies to a state.

    Attributes:
        move: its name.
        what: the place and the parameters, in a few words that are unique among the applications
            of this move to a state.
        state: the result.
    """

    move: str
    what: str
    state: State


class Move(Protocol):
    """A kind of rewriting.

    It need not be right in every case, since every result is verified; it should be right in most,
    and never leave the text unchanged.

    Attributes:
        name: as in the documentation.
        languages: it can rewrite.
        relieves: the regions whose time it may cut.
    """

    name: str
    languages: frozenset[Language]
    relieves: frozenset[Region]

    def applications(self, state: State, spec: KernelSpec) -> Iterable[Application]:
        """All ways to apply it, in an order that depends on the state alone."""
        ...
