"""Chooses the next state of a search, by a strategy and the predicted gains of moves."""

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
    """The move that a search makes next.

    Attributes:
        parent: the state to which the move is applied.
        application: the application of the move, with the state that results.
    """

    parent: State
    application: Application


class GraphExplorer:
    """Chooses the states of a search, by Monte Carlo Graph Search (see `GraphStrategy`).

    To the strategy, it is the `ActionSpace` of the states that moves reach from the baseline. It
    chooses the same states if it learns the same results in the same order, because a search is
    resumed by letting it choose again.

    Args:
        spec: the spec of the kernel.
        moves: the moves that can be made. `LlmMoves` predict their gains themselves, and are given
            a function that returns how the time of a state is shared among regions.
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
            self._llm.regions_of = self._time_shares
        self._parameters = parameters or SearchParameters()
        self._prior = prior
        self._profile = profile
        self._states = {self.root: spec.baseline}
        self._results: dict[str, Result] = {}
        self._applications: dict[tuple[str, str], Application] = {}
        """All applications by state and label."""
        self._rule_applications: dict[tuple[str, str], tuple[Application, ...]] = {}
        """The applications of rules, all moves but a language model's, by move and state."""
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
        busy_shares = {} if result.cost is None else self._profile(state.id)
        if self._prior is not None and busy_shares:
            self._prior.profiled(state, busy_shares)
        self._strategy.learn(self._proposed.pop(state.id), result.cost)

    def likely_next(self, count: int) -> list[State]:
        """Return at most ``count`` states that are likely to be chosen next; none is chosen."""
        actions = self.actions if self._llm is None else lambda _: ()  # a model is not asked ahead
        proposals = self._strategy.likely_next(actions, count)
        return [self._next_move(proposal).application.state for proposal in proposals]

    def precompute(self, state: State) -> None:
        """Apply the moves to a state and estimate the costs of the resulting states, in advance.

        Needs no results. May run in another thread: both are cached, and no choice depends on it.
        """
        for move in self._moves:
            if move is not self._llm:
                for application in self._move_applications(move, state):
                    if self._prior is not None:
                        self._prior.costs(application.state)

    def actions(self, state: str) -> list[Action]:
        """Return all applications of all moves; none if the state leaves too little to gain."""
        parent, result = self._states[state], self._results[state]
        min_gain = self._parameters.min_pred_gain
        if result.time_ms and 1 - result.floor_ms / result.time_ms < min_gain:
            return []
        actions = []
        for move in self._moves:
            for application in self._move_applications(move, parent):
                label = f"{application.move} {application.what}"
                self._applications[state, label] = application
                self._states.setdefault(application.state.id, application.state)
                predicted_gain = None
                if self._llm is not None and self._llm.has_proposed(application):
                    predicted_gain = self._llm.prior or None
                elif self._prior is not None:
                    predicted_gain = self._prior.gain(parent, result, move, application)
                actions.append(
                    Action(label, application.state.id, predicted_gain, family=application.move)
                )
        return actions

    def graph(self) -> GraphRecord:
        """Return the graph of the search, as it is stored."""
        return self._strategy.graph.record()

    def observations(self) -> Iterator[Observation]:
        """Yield the gain of each known edge that begins at a state with a known bottleneck.

        An edge counts whether or not the search went along it.
        """
        graph = self._strategy.graph
        for state in graph.nodes:
            for tail, edge, head in graph.known_edges_from(state):
                parent, result = self._states[state], self._results[state]
                situation = None if self._prior is None else self._prior.situation(parent, result)
                if situation is not None:
                    move = self._applications[state, edge.label].move
                    gain = None if head.cost is None else head.own - tail.own
                    yield move, situation.bottleneck, gain

    def _move_applications(self, move: Move, state: State) -> Sequence[Application]:
        """Return the applications of a move to a state; only those of rules are cached."""
        if move is self._llm:
            return tuple(move.applications(state, self._spec))
        key = move.name, state.id
        if key not in self._rule_applications:
            self._rule_applications[key] = tuple(move.applications(state, self._spec))
        return self._rule_applications[key]

    def _time_shares(self, result: Result) -> Mapping[Region, float]:
        """Return the shares of a state's time by region; empty if they are unknown."""
        state = self._states.get(result.id)
        if state is None or self._prior is None:
            return {}
        situation = self._prior.situation(state, result)
        return {} if situation is None else situation.time_shares

    def _propose(self) -> Proposal | None:
        """Return the strategy's next proposal, which is kept until its result is learned."""
        proposal = self._strategy.propose()
        if proposal is not None:
            self._proposed[proposal.state] = proposal
        return proposal

    def _next_move(self, proposal: Proposal) -> NextMove:
        parent = proposal.path[-1]
        return NextMove(self._states[parent], self._applications[parent, proposal.label])
