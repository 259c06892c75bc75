"""Chooses the next state of a search: the moves, what is expected of them, and the strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.moves.move import Application, Move, Region
from pytest_gpuenergy.search.priors.prior import BottleneckPrior
from pytest_gpuenergy.search.priors.tactics import Observation
from pytest_gpuenergy.search.running.ncu_profiler import Profiler
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.strategy.action_space import Action, Proposal
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.search.strategy.policy import GraphStrategy
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters
from pytest_gpuenergy.search.validation.result import Result


class NextMove(Struct, frozen=True):
    """A move that the search makes next.

    Attributes:
        parent: the state to which the move is made.
        application: the application of the move.
    """

    parent: State
    application: Application


class MoveOutcome(NamedTuple):
    """A move whose outcome is known.

    Attributes:
        state: the state to which the move was made.
        result: the result of that state.
        application: the application of the move.
        gain: the natural logarithm of the improvement; None if the new state failed.
    """

    state: State
    result: Result
    application: Application
    gain: float | None


class GraphExplorer:
    """Chooses the states of a search, by Monte Carlo Graph Search (see `GraphStrategy`).

    It chooses the same states if it learns the same results in the same order, because a search is
    resumed by letting it choose again.

    Args:
        spec: the spec of the kernel.
        moves: the moves that can be made.
        seed: the seed of the random choices.
        parameters: the parameters of the strategy. States that could improve by less than
            ``min_pred_gain``, by the least time of the card's peaks, are not expanded.
        guide: predicts gains; None if nothing is known of them.
    """

    def __init__(
        self,
        spec: KernelSpec,
        moves: Sequence[Move],
        *,
        seed: int,
        parameters: SearchParameters | None = None,
        guide: Guide | None = None,
    ) -> None:
        self._has_rules_only = not any(isinstance(move, LlmMoves) for move in moves)
        self._parameters = parameters or SearchParameters()
        self._guide = guide
        self._space = _StateSpace(spec, moves, self._parameters.min_pred_gain, guide)
        self._strategy = GraphStrategy(self._space, self._parameters, seed=seed)
        self._proposed: dict[str, Proposal] = {}
        self._propose()  # the baseline

    def propose(self) -> NextMove | None:
        """Return the move to make next, never the same twice; None if there is none left."""
        proposal = self._propose()
        return None if proposal is None else self._space.next_move(proposal)

    def learn(self, state: State, result: Result) -> None:
        """Take the result of a state into account; that of the baseline comes first."""
        if self._guide is not None:
            self._guide.learn(state, result)
        self._space.results[result.id] = result
        self._strategy.learn(self._proposed.pop(state.id), result.cost)

    def foreseen(self, count: int) -> list[State]:
        """Return at most ``count`` states that are likely to be chosen next; choose none."""
        actions = self._space.actions if self._has_rules_only else lambda _: ()
        found = self._strategy.foreseen(actions, count)
        return [self._space.next_move(proposal).application.state for proposal in found]

    def precompute(self, state: State) -> None:
        """Make the moves to a state and count their work, which takes no result.

        This may run in another thread: no choice depends on it, and both are cached.
        """
        self._space.precompute(state)

    @property
    def settings(self) -> dict[str, float]:
        """The parameters of the strategy, on which its choices depend besides the results."""
        return asdict(self._parameters)

    def graph(self) -> GraphRecord:
        """Return what the strategy knows about the states, as it is stored."""
        return self._strategy.graph.record()

    def steps(self) -> Iterator[MoveOutcome]:
        """Yield the moves between evaluated states, whether or not the search made them."""
        nodes = self._strategy.graph.nodes
        for state, node in nodes.items():
            for edge in node.edges or ():
                child = nodes.get(edge.child)
                if child is not None and child.standing != "running":
                    gain = None if child.cost is None else child.own - node.own
                    application = self._space.applications[state, edge.label]
                    source, result = self._space.states[state], self._space.results[state]
                    yield MoveOutcome(source, result, application, gain)

    def _propose(self) -> Proposal | None:
        proposal = self._strategy.propose()
        if proposal is not None:
            self._proposed[proposal.state] = proposal
        return proposal


class _StateSpace:
    """The states that moves reach from a spec's baseline, as a strategy sees them.

    Attributes:
        states: the states that were reached, by id.
        results: the results of evaluated states, by id.
        applications: the applications of moves, by the id of the state and the action's label.
    """

    def __init__(
        self, spec: KernelSpec, moves: Sequence[Move], min_gain: float, guide: Guide | None
    ) -> None:
        self._spec = spec
        self._moves = [
            move if isinstance(move, LlmMoves) else _CachingMove(move)
            for move in moves
            if spec.language in move.languages
        ]
        self._min_gain = min_gain
        self._guide = guide
        self.states = {spec.baseline.id: spec.baseline}
        self.results: dict[str, Result] = {}
        self.applications: dict[tuple[str, str], Application] = {}

    @property
    def root(self) -> str:
        """The id of the baseline."""
        return self._spec.baseline.id

    def actions(self, state: str) -> list[Action]:
        """Return all applications of all moves; none if the state leaves too little to gain."""
        source, result = self.states[state], self.results[state]
        if result.time_ms and 1 - result.floor_ms / result.time_ms < self._min_gain:
            return []
        found = []
        for move in self._moves:
            for application in move.applications(source, self._spec):
                label = f"{application.move} {application.what}"
                self.applications[state, label] = application
                self.states.setdefault(application.state.id, application.state)
                expected = None
                if self._guide is not None:
                    expected = self._guide.expected(source, result, move, application)
                found.append(Action(label, application.state.id, expected, family=application.move))
        return found

    def precompute(self, state: State) -> None:
        """Make the moves to a state and count the work of the new states."""
        for move in self._moves:
            if isinstance(move, _CachingMove):
                for application in move.applications(state, self._spec):
                    if self._guide is not None:
                        self._guide.prior.costs(application.state)

    def next_move(self, proposal: Proposal) -> NextMove:
        """Return the move that a strategy has chosen."""
        parent = proposal.path[-1]
        return NextMove(self.states[parent], self.applications[parent, proposal.label])


class _CachingMove:
    """A move that caches its applications per state; they depend on the state and the spec alone.

    Args:
        move: the move.
    """

    def __init__(self, move: Move) -> None:
        self.name = move.name
        self.languages = move.languages
        self.relieves = move.relieves
        self._move = move
        self._cached: dict[str, tuple[Application, ...]] = {}

    def applications(self, state: State, spec: KernelSpec) -> Iterable[Application]:
        """Return the applications of the move."""
        if state.id not in self._cached:
            self._cached[state.id] = tuple(self._move.applications(state, spec))
        return self._cached[state.id]


@dataclass
class Guide:
    """Predicts gains from bottlenecks, which a profiler measures now and then.

    Attributes:
        prior: predicts gains by bottlenecks and by what moves have gained in other kernels.
        place: returns the folder of a state by its id.
        profiler: the profiler, if there is one.
        llm: the language model, if there is one; it states itself what its proposals should gain.
    """

    prior: BottleneckPrior
    place: Callable[[str], Path]
    profiler: Profiler | None = None
    llm: LlmMoves | None = None
    _states: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.llm is not None:
            self.llm.regions_of = self.regions

    def learn(self, state: State, result: Result) -> None:
        """Take a result into account, and profile its state if it is its turn.

        Raises:
            InputError: an existing profile is damaged.
            OutputError: a profile cannot be written.
        """
        self._states[state.id] = state
        if self.profiler is not None and result.cost is not None:
            used = self.profiler.visit(self.place(state.id))
            if used:
                self.prior.profiled(state, used)

    def expected(
        self, state: State, result: Result, move: Move, application: Application
    ) -> float | None:
        """Return the gain to expect, as a natural logarithm; None if nothing is known."""
        if self.llm is not None and self.llm.has_made(application):
            return self.llm.prior or None
        return self.prior.gain(state, result, move, application)

    def regions(self, result: Result) -> Mapping[Region, float]:
        """Return the shares of a state's time by region; empty if they are unknown."""
        state = self._states.get(result.id)
        found = None if state is None else self.prior.situation(state, result)
        return {} if found is None else found.time_shares

    def observations(self, steps: Iterator[MoveOutcome]) -> Iterator[Observation]:
        """Yield the gains of moves to states whose bottleneck is known."""
        for step in steps:
            situation = self.prior.situation(step.state, step.result)
            if situation is not None:
                yield step.application.move, situation.bottleneck, step.gain
