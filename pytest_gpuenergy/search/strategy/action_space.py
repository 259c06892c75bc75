"""What a search strategy sees of what it searches, and what every strategy offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct


class Action(NamedTuple):
    """One way to change a state.

    Attributes:
        label: unique among the actions of a state.
        child: id of the state that results.
        predicted_gain: natural logarithm of the speedup over the state that is expected; None if
            nothing is known.
        kind: what actions of different states have in common, so that experience with one is
            worth something for another; the label itself if empty.
        family: what actions have in common whose predictions err alike; nothing if empty.
    """

    label: str
    child: str
    predicted_gain: float | None = None
    kind: str = ""
    family: str = ""


class Space(Protocol):
    """States, and actions that lead from one to another; a state may be reached in several ways.

    Attributes:
        root: id of the state where a search begins.
    """

    @property
    def root(self) -> str: ...

    def actions(self, state: str) -> Sequence[Action]:
        """The actions of a state, in an order that depends on the state alone.

        A search asks at most once, and only for states that were evaluated without a failure.
        """
        ...


class Proposal(Struct, frozen=True):
    """A state to evaluate.

    Attributes:
        state: its id.
        path: the ids of the states through which it was reached, from the root to its parent;
            empty for the root.
        label: of the action of that parent; empty for the root.
    """

    state: str
    path: tuple[str, ...] = ()
    label: str = ""


class Incumbent(NamedTuple):
    """The best state so far; the earliest proposal among equals.

    Attributes:
        state: its id.
        cost: what is minimized.
    """

    state: str
    cost: float


class Strategy(Protocol):
    """Chooses which states to evaluate; no state twice.

    The first proposal is the root, and there is no other before its result is known.
    """

    @property
    def incumbent(self) -> Incumbent | None:
        """The best so far; None before anything has succeeded."""
        ...

    def propose(self) -> Proposal | None:
        """A state that was never proposed before.

        None if there is nothing to propose: for now if results are outstanding, else for good.
        """
        ...

    def learn(self, proposal: Proposal, cost: float | None) -> None:
        """Take the result of a proposal into account; None if the state failed."""
        ...
