"""The interfaces of search spaces, as a strategy sees them, and of strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct


class Action(NamedTuple):
    """One way to change a state.

    Attributes:
        label: the name of the action, unique among those of a state.
        child: the id of the state that results.
        predicted_gain: the natural logarithm of the expected speedup over the state; None if
            nothing is known.
        kind: the name that actions of different states share if experience with one is worth
            something for another; the label itself if empty.
        family: the name that actions share whose predictions have similar errors; none if empty.
    """

    label: str
    child: str
    predicted_gain: float | None = None
    kind: str = ""
    family: str = ""


class Space(Protocol):
    """States, and actions that lead from one to another; a state may be reached in several ways."""

    @property
    def root(self) -> str:
        """The id of the state where a search begins."""
        ...

    def actions(self, state: str) -> Sequence[Action]:
        """Return the actions of a state, in an order that depends on the state alone.

        A search calls this at most once per state, and only for states that did not fail.
        """
        ...


class Proposal(Struct, frozen=True):
    """A state to evaluate.

    Attributes:
        state: the id of the state.
        path: the ids of the states through which it was reached, from the root to its parent;
            empty for the root.
        label: the label of the parent's action; empty for the root.
    """

    state: str
    path: tuple[str, ...] = ()
    label: str = ""


class Incumbent(NamedTuple):
    """The best state so far; the earliest proposal among equals.

    Attributes:
        state: the id of the state.
        cost: the cost of the state.
    """

    state: str
    cost: float


def best_evaluated(costs: Mapping[str, float | None]) -> Incumbent | None:
    """Return the best of the evaluated states, given in the order of their proposals."""
    evaluated = [(cost, place, state) for place, (state, cost) in enumerate(costs.items()) if cost]
    if not evaluated:
        return None
    cost, _, state = min(evaluated)
    return Incumbent(state, cost)


class SearchStrategy(Protocol):
    """Chooses which states to evaluate; no state twice.

    The first proposal is the root, and there is no other before its result is known.
    """

    @property
    def incumbent(self) -> Incumbent | None:
        """The best state so far; None before any has succeeded."""
        ...

    def propose(self) -> Proposal | None:
        """Return a state that was never proposed before.

        None means that there is no state to propose: for now if results are outstanding, otherwise
        for good.
        """
        ...

    def learn(self, proposal: Proposal, cost: float | None) -> None:
        """Take the result of a proposal into account; its cost is None if the state failed."""
        ...
