"""Which state to try next: the interface of a search's policy, and the policy over a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct

from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.moves.move import Application, Move, Region
from pytest_gpuenergy.search.priors.prior import BottleneckPrior
from pytest_gpuenergy.search.priors.tactics import Observation
from pytest_gpuenergy.search.running.ncu_profiler import Profiler
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.strategy.action_space import Action, Proposal
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.search.strategy.policy import GraphStrategy, StoredSearch
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters
from pytest_gpuenergy.search.trust.result import Result
from pytest_gpuenergy.support import decode, encode


class Rewrite(Struct, frozen=True):
    """An application of a move, and the state that it was made to."""

    parent: State
    application: Application


class Step(NamedTuple):
    """A move whose result is known.

    Attributes:
        state, result: to which it was made.
        application: of the move.
        gain: the natural logarithm of what it improved; None if its result failed.
    """

    state: State
    result: Result
    application: Application
    gain: float | None


Expected = Callable[[State, Result, Move, Application], float | None]


class Explorer(Protocol):
    """Chooses the states of a search.

    It must choose the same ones when it is told the same results in the same order, because a
    search is resumed by having it choose again.
    """

    @property
    def settings(self) -> dict[str, float]:
        """What its choices depend on, besides the results."""
        ...

    def propose(self) -> Rewrite | None:
        """The next state to try, never the same twice; None if there is none left."""
        ...

    def learn(self, state: State, result: Result) -> None:
        """Take note of what became of a state; that of the baseline comes first."""
        ...

    def foreseen(self, count: int) -> list[State]:
        """States that are likely to be proposed next, at most so many; nothing is changed."""
        ...

    def think(self, state: State) -> None:
        """Work out what can be known of a state's moves without its result.

        It may run beside all else: nothing that is chosen depends on it.
        """
        ...

    def graph(self) -> GraphRecord:
        """What it knows of the states so far."""
        ...


class StateSpace:
    """The states that moves reach from a spec's baseline, as a strategy sees them.

    Args:
        spec: what is searched.
        moves: that can be made.
        min_gain, expected: see `GraphExplorer`.
    """

    def __init__(
        self,
        spec: KernelSpec,
        moves: Sequence[Move],
        min_gain: float,
        expected: Expected,
    ) -> None:
        self._spec = spec
        self._moves = [
            move if isinstance(move, LlmMoves) else Remembered(move)
            for move in moves
            if spec.language in move.languages
        ]
        self._min_gain = min_gain
        self._expected = expected
        self._states = {spec.baseline.id: spec.baseline}
        self._results: dict[str, Result] = {}
        self._applications: dict[tuple[str, str], Application] = {}

    @property
    def root(self) -> str:
        """The baseline."""
        return self._spec.baseline.id

    def evaluated(self, state: str) -> tuple[State, Result]:
        """A state that was evaluated, with what became of it."""
        return self._states[state], self._results[state]

    def application(self, state: str, label: str) -> Application:
        """What an action of a state stands for."""
        return self._applications[state, label]

    def know(self, result: Result) -> None:
        """Take note of what became of a state."""
        self._results[result.id] = result

    def actions(self, state: str) -> list[Action]:
        """All applications of all moves; none to a state that leaves too little to gain."""
        source, result = self.evaluated(state)
        if _possible_gain(result) < self._min_gain:
            return []
        found = []
        for move in self._moves:
            for one in move.applications(source, self._spec):
                label = f"{one.move} {one.what}"
                self._applications[state, label] = one
                self._states.setdefault(one.state.id, one.state)
                expected = self._expected(source, result, move, one)
                found.append(Action(label, one.state.id, expected, family=one.move))
        return found

    def think(self, state: State, count: Callable[[State], object]) -> None:
        """Make the applications to a state, whose results are counted."""
        for move in self._moves:
            if isinstance(move, Remembered):
                for one in move.applications(state, self._spec):
                    count(one.state)

    def proposal(self, chosen: Proposal) -> Rewrite:
        """What a strategy has chosen, as the search makes it."""
        parent = chosen.path[-1]
        return Rewrite(self._states[parent], self._applications[parent, chosen.label])


class GraphExplorer:
    """Monte Carlo Graph Search over the states of a spec, see `GraphStrategy`.

    Args:
        spec: what is searched.
        moves: that can be made.
        seed: of the random choices.
        expected: the gain that is expected of applying a move to a state with a result, as a
            natural logarithm; None if nothing is known.
        parameters: of the strategy; states that could be improved by less than its
            ``min_pred_gain``, because of the least time by the card's peaks, are not expanded.
        learned: called with each state and what became of it, before anything depends on it.
        counted: remembers what ``expected`` needs to know of a state.
    """

    def __init__(
        self,
        spec: KernelSpec,
        moves: Sequence[Move],
        *,
        seed: int,
        expected: Expected = lambda *_: None,
        parameters: SearchParameters | None = None,
        learned: Callable[[State, Result], None] = lambda *_: None,
        counted: Callable[[State], object] = lambda _: None,
    ) -> None:
        self._has_rules_only = not any(isinstance(move, LlmMoves) for move in moves)
        self._parameters = parameters or SearchParameters()
        self._space = StateSpace(spec, moves, self._parameters.min_pred_gain, expected)
        self._strategy = GraphStrategy(self._space, self._parameters, seed=seed)
        self._learned, self._counted = learned, counted
        self._proposed: dict[str, Proposal] = {}
        self._note(self._strategy.propose())  # the baseline

    def propose(self) -> Rewrite | None:
        """The state that the strategy chooses."""
        chosen = self._note(self._strategy.propose())
        return None if chosen is None else self._space.proposal(chosen)

    def learn(self, state: State, result: Result) -> None:
        """Tell the strategy what became of a state."""
        self._learned(state, result)
        self._space.know(result)
        self._strategy.learn(self._proposed.pop(state.id), result.cost)

    def foreseen(self, count: int) -> list[State]:
        """What the strategy would choose if no result came, see `foreseen`."""
        actions = self._space.actions if self._has_rules_only else lambda _: ()
        found = foreseen(self._strategy, actions, count)
        return [self._space.proposal(one).application.state for one in found]

    def think(self, state: State) -> None:
        """Make the moves to a state and count their work, which are remembered."""
        self._space.think(state, self._counted)

    @property
    def settings(self) -> dict[str, float]:
        """The parameters of the strategy."""
        return asdict(self._parameters)

    def graph(self) -> GraphRecord:
        """What the strategy knows of the states, as it is stored."""
        return self._strategy.record().graph

    def steps(self) -> Iterator[Step]:
        """The moves between states that were evaluated, whether or not the search made them."""
        nodes = self._strategy.graph.nodes
        for state, node in nodes.items():
            for edge in node.edges or ():
                child = nodes.get(edge.child)
                if child is not None and child.standing != "running":
                    gain = None if child.cost is None else child.own - node.own
                    application = self._space.application(state, edge.label)
                    yield Step(*self._space.evaluated(state), application, gain)

    def _note(self, chosen: Proposal | None) -> Proposal | None:
        if chosen is not None:
            self._proposed[chosen.state] = chosen
        return chosen


def _possible_gain(result: Result) -> float:
    """The fraction of its time that a variant takes beyond the least."""
    return 1.0 if not result.time_ms else 1 - result.floor_ms / result.time_ms


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


@dataclass
class Guide:
    """Predicts gains from bottlenecks, which a profiler measures now and then.

    Attributes:
        prior: by bottlenecks and what moves have brought in other kernels.
        place: the folder of a state by its id.
        profiler: None without one.
        llm: a language model, of whose proposals it says itself what to expect; None without.
    """

    prior: BottleneckPrior
    place: Callable[[str], Path]
    profiler: Profiler | None = None
    llm: LlmMoves | None = None
    _states: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.llm is not None:
            self.llm.regions_of = self.regions

    def learned(self, state: State, result: Result) -> None:
        """Take note of a result, and profile its state if it is its turn.

        Raises:
            InputError: a profile that is there is damaged.
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
        """The gain to expect, as a natural logarithm; None if nothing is known."""
        if self.llm is not None and self.llm.has_made(application):
            return self.llm.prior or None
        return self.prior.gain(state, result, move, application)

    def regions(self, result: Result) -> Mapping[Region, float]:
        """Shares of the time of a state that was learned; empty if they are not known."""
        state = self._states.get(result.id)
        found = None if state is None else self.prior.situation(state, result)
        return {} if found is None else found.time_shares

    def observations(self, steps: Iterator[Step]) -> Iterator[Observation]:
        """What became of moves to states whose bottleneck is known."""
        for step in steps:
            situation = self.prior.situation(step.state, step.result)
            if situation is not None:
                yield step.application.move, situation.bottleneck, step.gain
