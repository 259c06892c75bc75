"""Chooses the next state of a search: the moves, what is expected of them, and the strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.moves.move import Application, Move, Region
from pytest_gpuenergy.search.priors.prior import BottleneckPrior
from pytest_gpuenergy.search.priors.tactics import Observation
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.strategy.action_space import Action, Proposal
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.search.strategy.policy import GraphStrategy
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters
from pytest_gpuenergy.search.validation.result import Result


class NextMove(Struct, frozen=True):
    """A move that the search makes next, and the state to which it is made."""

    parent: State
    application: Application


class GraphExplorer:
    """Chooses the states of a search, by Monte Carlo Graph Search (see `GraphStrategy`).

    The strategy sees it as the space of the states that moves reach from the baseline. It chooses
    the same states if it learns the same results in the same order, because a search is resumed by
    letting it choose again.

    Args:
        spec: the spec of the kernel.
        moves: the moves that can be made. Those of a language model state their gains themselves,
            and ask where the time of a state goes.
        seed: the seed of the random choices.
        parameters: the parameters of the strategy. States that could improve by less than
            ``min_pred_gain``, by the least time of the card's peaks, are not expanded.
        prior: predicts gains; None if nothing is known of them.
        profile: returns the share of the time for which each unit is busy, for a correct state by
            its id; empty if it is not profiled.
    """

    def __init__(
        self,
        spec: KernelSpec,
        moves: Sequence[Move],
        *,
        seed: int,
        parameters: SearchParameters | None = None,
        prior: BottleneckPrior | None = None,
        profile: Callable[[str], Mapping[Region, float]] = lambda _: {},
    ) -> None:
        self.root = spec.baseline.id
        self._spec = spec
        self._moves = [move for move in moves if spec.language in move.languages]
        self._llm = next((move for move in moves if isinstance(move, LlmMoves)), None)
        if self._llm is not None:
            self._llm.regions_of = self._regions
        self._parameters = parameters or SearchParameters()
        self._prior = prior
        self._profile = profile
        self._states = {self.root: spec.baseline}
        self._results: dict[str, Result] = {}
        self._applications: dict[tuple[str, str], Application] = {}  # by state and label
        self._by_rules: dict[tuple[str, str], tuple[Application, ...]] = {}  # by move and state
        self._strategy = GraphStrategy(self, self._parameters, seed=seed)
        self._proposed: dict[str, Proposal] = {}
        self._propose()  # the baseline

    def propose(self) -> NextMove | None:
        """Return the move to make next, never the same twice; None if there is none left."""
        proposal = self._propose()
        return None if proposal is None else self._next_move(proposal)

    def learn(self, state: State, result: Result) -> None:
        """Take the result of a state into account; that of the baseline comes first.

        Raises:
            InputError: an existing profile is damaged.
            OutputError: a profile cannot be written.
        """
        self._states[state.id] = state
        self._results[state.id] = result
        used = {} if result.cost is None else self._profile(state.id)
        if self._prior is not None and used:
            self._prior.profiled(state, used)
        self._strategy.learn(self._proposed.pop(state.id), result.cost)

    def foreseen(self, count: int) -> list[State]:
        """Return at most ``count`` states that are likely to be chosen next; choose none."""
        actions = self.actions if self._llm is None else lambda _: ()  # a model is not asked ahead
        proposals = self._strategy.foreseen(actions, count)
        return [self._next_move(proposal).application.state for proposal in proposals]

    def precompute(self, state: State) -> None:
        """Make the moves to a state and count the work of the new states, which takes no result.

        This may run in another thread: no choice depends on it, and both are cached.
        """
        for move in self._moves:
            if move is not self._llm:
                for application in self._applications_of(move, state):
                    if self._prior is not None:
                        self._prior.costs(application.state)

    def actions(self, state: str) -> list[Action]:
        """Return all applications of all moves; none if the state leaves too little to gain."""
        source, result = self._states[state], self._results[state]
        min_gain = self._parameters.min_pred_gain
        if result.time_ms and 1 - result.floor_ms / result.time_ms < min_gain:
            return []
        actions = []
        for move in self._moves:
            for application in self._applications_of(move, source):
                label = f"{application.move} {application.what}"
                self._applications[state, label] = application
                self._states.setdefault(application.state.id, application.state)
                expected = None
                if self._llm is not None and self._llm.has_proposed(application):
                    expected = self._llm.prior or None
                elif self._prior is not None:
                    expected = self._prior.gain(source, result, move, application)
                actions.append(
                    Action(label, application.state.id, expected, family=application.move)
                )
        return actions

    def graph(self) -> GraphRecord:
        """Return what the strategy knows about the states, as it is stored."""
        return self._strategy.graph.record()

    def observations(self) -> Iterator[Observation]:
        """Yield what moves to states with a known bottleneck have gained, made or not."""
        graph = self._strategy.graph
        for state in graph.nodes:
            for tail, edge, head in graph.known_edges_from(state):
                source, result = self._states[state], self._results[state]
                situation = None if self._prior is None else self._prior.situation(source, result)
                if situation is not None:
                    move = self._applications[state, edge.label].move
                    gain = None if head.cost is None else head.own - tail.own
                    yield move, situation.bottleneck, gain

    def _applications_of(self, move: Move, state: State) -> Sequence[Application]:
        """Return the applications of a move; those of rules depend on the state and spec alone."""
        if move is self._llm:
            return tuple(move.applications(state, self._spec))
        if (move.name, state.id) not in self._by_rules:
            self._by_rules[move.name, state.id] = tuple(move.applications(state, self._spec))
        return self._by_rules[move.name, state.id]

    def _regions(self, result: Result) -> Mapping[Region, float]:
        """Return the shares of a state's time by region; empty if they are unknown."""
        state = self._states.get(result.id)
        if state is None or self._prior is None:
            return {}
        situation = self._prior.situation(state, result)
        return {} if situation is None else situation.time_shares

    def _propose(self) -> Proposal | None:
        proposal = self._strategy.propose()
        if proposal is not None:
            self._proposed[proposal.state] = proposal
        return proposal

    def _next_move(self, proposal: Proposal) -> NextMove:
        parent = proposal.path[-1]
        return NextMove(self._states[parent], self._applications[parent, proposal.label])
