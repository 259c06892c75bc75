"""Which state to try next: the interface of a search policy, and a simple best-first one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from pytest_gpuenergy.search.move import Application, Move
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.spec import KernelSpec
from pytest_gpuenergy.search.state import State


class Proposal(Struct, frozen=True):
    """An application of a move, and the state that it was made to."""

    parent: State
    application: Application


class Explorer(Protocol):
    """Chooses the states of a search.

    It must choose the same ones when it is told the same results in the same order, because a
    search is resumed by having it choose again.
    """

    def propose(self) -> Proposal | None:
        """The next state to try, never the same twice; None if there is none left."""
        ...

    def learn(self, state: State, result: Result) -> None:
        """Take note of what became of a state; that of the baseline comes first."""
        ...


class BestFirst:
    """Expands the best states first, one application of a move at a time.

    Args:
        spec: what is searched.
        moves: that can be made.
        min_gain: states that could be improved by less than this fraction, because of the least
            time by the card's peaks, are not expanded.
        seed: of the order of a state's applications.
        first: which of them come before all others; None if none do.
    """

    def __init__(
        self,
        spec: KernelSpec,
        moves: Sequence[Move],
        *,
        min_gain: float,
        seed: int,
        first: Callable[[Application], bool] | None = None,
    ) -> None:
        self._spec = spec
        self._moves = [move for move in moves if spec.language in move.languages]
        self._min_gain = min_gain
        self._seed = seed
        self._first = first or (lambda _: False)
        self._seen = {spec.baseline.id}
        self._open: dict[str, tuple[float, State, Iterator[Application]]] = {}

    def propose(self) -> Proposal | None:
        """An application to the best state that has any left."""
        while self._open:
            name = min(self._open, key=lambda name: self._open[name][0])
            _, parent, rest = self._open[name]
            for application in rest:
                if application.state.id not in self._seen:
                    self._seen.add(application.state.id)
                    return Proposal(parent, application)
            del self._open[name]
        return None

    def learn(self, state: State, result: Result) -> None:
        """Add a correct state that leaves room for improvement to those that are expanded."""
        if result.cost is None or _possible_gain(result) < self._min_gain:
            return
        found = [one for move in self._moves for one in move.applications(state, self._spec)]
        random.Random(f"{self._seed} {state.id}").shuffle(found)  # noqa: S311 -- no secret
        found.sort(key=lambda one: not self._first(one))
        self._open[state.id] = (result.cost, state, iter(found))


def _possible_gain(result: Result) -> float:
    """The fraction of its time that a variant takes beyond the least."""
    return 1.0 if not result.time_ms else 1 - result.floor_ms / result.time_ms
