"""Foresees which states a search will propose, so that they can be compiled meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.search.move import Application, Move
from pytest_gpuenergy.search.policy import GraphStrategy, StoredSearch
from pytest_gpuenergy.search.space import Action, Proposal
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.kernel_spec.kernel_spec import KernelSpec
from pytest_gpuenergy.support import decode, encode


def foreseen(
    strategy: GraphStrategy, actions: Callable[[str], Sequence[Action]], count: int
) -> list[Proposal]:
    """What a strategy would propose next if no result came.

    A copy of the strategy goes on, and the strategy itself stays as it is.

    Args:
        strategy: of a search.
        actions: of a state for which the strategy has not asked yet, see `Space`.
        count: the most proposals.
    """
    running = [name for name, one in strategy.graph.nodes.items() if one.standing == "running"]
    record = decode(encode(strategy.record()), StoredSearch)
    copy = GraphStrategy.resumed(_Foresight(strategy.graph.root, actions), record)
    found: list[Proposal] = []
    while len(found) < count and (proposal := copy.propose()) is not None:
        if proposal.state not in running:  # which the copy proposes again
            found.append(proposal)
    return found


class Remembered:
    """A move that makes its applications to a state once, although they are asked for twice.

    Args:
        move: whose applications depend on the state and the spec alone.

    Attributes:
        name, languages, relieves: those of the move.
    """

    def __init__(self, move: Move) -> None:
        self.name = move.name
        self.languages = move.languages
        self.relieves = move.relieves
        self._move = move
        self._made: dict[str, tuple[Application, ...]] = {}

    def applications(self, state: State, spec: KernelSpec) -> Iterable[Application]:
        """Those of the move."""
        if state.id not in self._made:
            self._made[state.id] = tuple(self._move.applications(state, spec))
        return self._made[state.id]


@dataclass(frozen=True)
class _Foresight:
    """The space of a copy.

    Attributes:
        root: where the search begins.
        actions: of a state.
    """

    root: str
    actions: Callable[[str], Sequence[Action]]
