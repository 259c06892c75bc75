"""Simpler strategies for comparison: random search, hill climbing, and a fixed list of states."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from pytest_gpuenergy.search.strategy.action_space import (
    Action,
    Incumbent,
    Proposal,
    Space,
    best_evaluated,
)


class ListedSpace(Space, Protocol):
    """A space whose states are all known beforehand."""

    @property
    def states(self) -> Sequence[str]:
        """The ids of the states, in a fixed order."""
        ...


class _Remembering:
    """Remembers the costs of the evaluated states, in the order of their results."""

    def __init__(self) -> None:
        self._costs: dict[str, float | None] = {}
        self._proposed: set[str] = set()

    @property
    def incumbent(self) -> Incumbent | None:
        """The best state so far; the first one among equals."""
        return best_evaluated(self._costs)

    def learn(self, proposal: Proposal, cost: float | None) -> None:
        """Remember the cost."""
        self._costs[proposal.state] = cost


class Exhaustive(_Remembering):
    """Proposes the root and then the states of a list, for example all block sizes of a kernel."""

    def __init__(self, space: Space, states: Iterable[str]) -> None:
        super().__init__()
        self._root = space.root
        self._waiting = deque(dict.fromkeys([space.root, *states]))

    def propose(self) -> Proposal | None:
        """Return the next state of the list."""
        if not self._waiting or (self._waiting[0] != self._root and self._root not in self._costs):
            return None
        state = self._waiting.popleft()
        return Proposal(state, () if state == self._root else (self._root,))


class RandomSearch(Exhaustive):
    """Proposes all states in random order."""

    def __init__(self, space: ListedSpace, *, seed: int = 0) -> None:
        states = list(space.states)
        random.Random(seed).shuffle(states)  # noqa: S311 -- no secret
        super().__init__(space, states)


class RandomExpansion(_Remembering):
    """Takes a random action of a random state, among those that lead to a new state.

    This is random search in a space whose states are not known beforehand.
    """

    def __init__(self, space: Space, *, seed: int = 0) -> None:
        super().__init__()
        self._space = space
        self._random = random.Random(seed)  # noqa: S311 -- no secret
        self._frontier: list[Proposal] = []

    def propose(self) -> Proposal | None:
        """Return the root, and then random states of those that can be reached so far."""
        if not self._proposed:
            self._proposed.add(self._space.root)
            return Proposal(self._space.root)
        while self._frontier:
            place = self._random.randrange(len(self._frontier))
            self._frontier[place], self._frontier[-1] = self._frontier[-1], self._frontier[place]
            proposal = self._frontier.pop()
            if proposal.state not in self._proposed:
                self._proposed.add(proposal.state)
                return proposal
        return None

    def learn(self, proposal: Proposal, cost: float | None) -> None:
        """Remember the cost, and the actions of a state that did not fail."""
        super().learn(proposal, cost)
        if cost is not None:
            path = (*proposal.path, proposal.state)
            self._frontier += [
                Proposal(action.child, path, action.label)
                for action in self._space.actions(proposal.state)
            ]


class HillClimbing(_Remembering):
    """Moves to a better neighbour until there is none, then starts again elsewhere.

    It starts at the root, and later at random states that were not evaluated yet. Neighbours that
    were evaluated before count without being evaluated again.

    Args:
        space: the space to search.
        improvement: whether to move to the ``first`` better neighbour, in random order, or, with
            ``steepest``, to the best of all neighbours.
        seed: the seed of the random choices.
    """

    def __init__(
        self,
        space: ListedSpace,
        *,
        improvement: Literal["first", "steepest"] = "first",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._space = space
        self._first = improvement == "first"
        self._random = random.Random(seed)  # noqa: S311 -- no secret
        self._starts = [state for state in space.states if state != space.root]
        self._random.shuffle(self._starts)
        self._starts.append(space.root)
        self._at: str | None = None
        self._neighbours: list[str] = []
        self._waiting: list[Action] = []
        self._running = 0

    def propose(self) -> Proposal | None:
        """Return the next neighbour or another start; None while a start is being evaluated."""
        while True:
            self._move()
            if self._waiting:
                action = self._waiting.pop()
                if action.child not in self._proposed:
                    assert self._at is not None
                    return self._begin(Proposal(action.child, (self._at,), action.label))
                continue
            while self._starts and self._starts[-1] in self._proposed:
                self._starts.pop()
            if self._running or not self._starts:
                return None
            self._at, start = None, self._starts.pop()
            return self._begin(
                Proposal(start, () if start == self._space.root else (self._space.root,))
            )

    def learn(self, proposal: Proposal, cost: float | None) -> None:
        """Remember the cost, and go to the state if it is a start that did not fail."""
        super().learn(proposal, cost)
        self._running -= 1
        if self._at is None and cost is not None:
            self._go_to(proposal.state)

    def _begin(self, proposal: Proposal) -> Proposal:
        self._running += 1
        self._proposed.add(proposal.state)
        return proposal

    def _go_to(self, state: str) -> None:
        self._at = state
        self._waiting = list(self._space.actions(state))
        self._neighbours = [action.child for action in self._waiting]
        self._random.shuffle(self._waiting)

    def _move(self) -> None:
        """Move to better neighbours, for ``steepest`` only once all neighbours are evaluated."""
        while self._at is not None:
            has_new = any(action.child not in self._proposed for action in self._waiting)
            if not self._first and (self._running or has_new):
                return
            here = self._costs[self._at]
            costs = [(cost, near) for near in self._neighbours if (cost := self._costs.get(near))]
            if here is None or not costs or min(costs)[0] >= here:
                return
            self._go_to(min(costs)[1])
