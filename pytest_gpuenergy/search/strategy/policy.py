"""Monte Carlo Graph Search: chooses the next state by PUCT, and learns from the results."""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from pytest_gpuenergy.search.strategy.action_space import (
    Action,
    Incumbent,
    Proposal,
    Space,
    best_evaluated,
)
from pytest_gpuenergy.search.strategy.graph import GraphEdge, GraphNode, SearchGraph
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters

_UNITS = 1e9
"""Units of a gain when gains are added: sums of integers do not depend on their order, so a resumed
search continues like one that was never interrupted."""
_MIN_COST = 1e-150
"""Least cost, and 1 / the largest; the ratio of two such costs is finite and above zero."""


class GraphStrategy:
    """Monte Carlo Graph Search.

    A proposal follows a path from the root. At each state it takes the action of the greatest

        Q(s, a) + puct_c S P(s, a) sqrt(N(s)) / (1 + N(s, a))

    (PUCT, see `SearchParameters`). N counts visits, and S is the standard deviation of the values
    so far, because speedups have no natural scale. If an action was tried, here or along another
    path, Q is the value of the state to which it leads. Otherwise (first play urgency) Q is the
    value of this state's own result plus the gain to expect by the prediction and by experience
    with this kind of action. P grows exponentially with that gain, and has a share of noise at the
    root. The path ends at a state that was never proposed.

    All random numbers are functions of the seed, the state and the action. A search is therefore a
    function of its seed and the results, and a resumed one continues as if it had never stopped.

    Args:
        space: the space to search.
        parameters: the parameters of the policy.
        seed: the seed of the random choices.
    """

    def __init__(
        self, space: Space, parameters: SearchParameters | None = None, *, seed: int = 0
    ) -> None:
        self.parameters = parameters or SearchParameters()
        self.graph = SearchGraph(space.root, self._prunes)
        self._actions: Callable[[str], Sequence[Action]] = space.actions
        self._seed = seed
        self._experience = Experience(
            self.parameters.prediction_count, self.parameters.no_error_count
        )
        self._scale: tuple[float, float] | None = None

    @property
    def incumbent(self) -> Incumbent | None:
        """The best state so far; None before the root has succeeded."""
        return best_evaluated({state: node.cost for state, node in self.graph.nodes.items()})

    def likely_next(self, actions: Callable[[str], Sequence[Action]], count: int) -> list[Proposal]:
        """Return what would be proposed next if no result came; this changes nothing.

        Args:
            actions: returns the actions of a state that is not expanded yet.
            count: the number of proposals, at most.
        """
        twin = copy.copy(self)
        twin.graph = self.graph.copy()
        twin._experience = copy.deepcopy(self._experience)
        twin._actions = actions
        proposals = (twin.propose() for _ in range(count))
        return [proposal for proposal in proposals if proposal is not None]

    def propose(self) -> Proposal | None:
        """Return the next state to evaluate.

        None means that there is no state to propose: for now if results are outstanding, otherwise
        for good, because everything that can be reached was tried or pruned.
        """
        root = self.graph.root
        if root not in self.graph.nodes:
            return self._begin(Proposal(root))
        while self.graph.nodes[root].open:
            if proposal := self._descend():
                return self._begin(proposal)
        return None

    def learn(self, proposal: Proposal, cost: float | None) -> None:
        """Take a result into account.

        Args:
            proposal: a proposal whose result is outstanding.
            cost: the cost of the state, above zero; None if the state failed.

        Raises:
            ValueError: the result of this proposal is not outstanding, or the cost is not a
                positive number.
        """
        node = self.graph.nodes.get(proposal.state)
        if node is None or node.standing != "running":
            raise ValueError(f"no result of {proposal.state!r} is outstanding")
        if cost is not None and not _MIN_COST <= cost <= 1 / _MIN_COST:
            raise ValueError("a cost must be a positive number")
        baseline = self.graph.nodes[self.graph.root].cost if proposal.path else cost
        value = self.parameters.failure_value
        if cost is not None and baseline is not None:
            value = max(value, math.log(baseline / cost))
        self.graph.finish(proposal, value, cost)
        self._experience.observe(self.graph.known_edges_to(proposal.state))
        self._scale = None

    def _begin(self, proposal: Proposal) -> Proposal:
        self.graph.add(proposal)
        return proposal

    def _prunes(self, edge: GraphEdge) -> bool:
        return edge.gain is not None and -math.expm1(-edge.gain) < self.parameters.min_pred_gain

    def _descend(self) -> Proposal | None:
        """Return a path to a new state; None if a state on the way has nothing left to try."""
        state, path = self.graph.root, []
        while True:
            node = self.graph.nodes[state]
            if node.edges is None:
                self._expand(state)
                if not node.open:
                    return None
            edge = self._choose(state, node)
            path.append(state)
            if edge.child not in self.graph.nodes:
                return Proposal(edge.child, tuple(path), edge.label)
            state = edge.child

    def _expand(self, state: str) -> None:
        actions = self._actions(state)
        draws = [self._random(state, action.label).random() for action in actions]
        self.graph.expand(state, actions, draws)
        if state == self.graph.root:
            edges = self.graph.nodes[state].edges or []
            alpha = self.parameters.root_noise_alpha
            drawn = [self._random("noise", edge.label).gammavariate(alpha, 1) for edge in edges]
            total = math.fsum(drawn)
            for edge, noise in zip(edges, drawn, strict=True):
                edge.noise = noise / total if total else 1 / len(edges)
        self._experience.observe(self.graph.known_edges_from(state))

    def _random(self, *words: str) -> random.Random:
        return random.Random(repr((self._seed, *words)))  # noqa: S311 -- no secret

    def _choose(self, state: str, node: GraphNode) -> GraphEdge:
        """Return the action to take at a state that is open."""
        self._set_priors(state, node)
        edges = node.edges or []
        tried = [edge for edge, child in self.graph.forward(state) if child.open]
        untried = sorted(self.graph.untried(state), key=lambda edge: (-edge.prior, edge.draw))
        parameters = self.parameters
        visits_here = node.visits + node.running
        widened = math.pow(max(1, visits_here), parameters.prog_widen_exponent)
        allowed_count = math.ceil(parameters.prog_widen_thresh * widened)
        room = allowed_count - sum(1 for edge in edges if edge.visits or edge.running)
        allowed = untried[: max(room, 0 if tried else 1)]
        if self._scale is None:
            values = [node.own for node in self.graph.nodes.values() if node.standing != "running"]
            mean = math.fsum(values) / len(values)
            variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
            self._scale = math.sqrt(variance), min(values)
        spread, lost = self._scale
        best_share = parameters.best_share
        reach = parameters.puct_c * spread * math.sqrt(visits_here)

        def score(edge: GraphEdge) -> tuple[float, float]:
            virtual = parameters.virtual_loss * edge.running
            exploration = reach * edge.prior / (1 + edge.visits + virtual)
            child = self.graph.nodes.get(edge.child)
            if child is None:
                return node.own + self._experience.gain(edge) + exploration, -edge.draw
            visits = max(1, edge.visits)
            below = best_share * child.best + (1 - best_share) * child.mean
            value = (visits * below + virtual * lost) / (visits + virtual)
            return value + exploration, -edge.draw

        return max([*tried, *allowed], key=score)

    def _set_priors(self, state: str, node: GraphNode) -> None:
        nodes = self.graph.nodes
        edges = [e for e in node.edges or () if e.child in nodes or not self._prunes(e)]
        gains = [self._experience.gain(edge) / self.parameters.prior_temperature for edge in edges]
        most = max(gains)
        weights = [math.exp(gain - most) for gain in gains]
        total = math.fsum(weights)
        noise = self.parameters.root_noise_eps if state == self.graph.root else 0.0
        for edge, weight in zip(edges, weights, strict=True):
            edge.prior = (1 - noise) * weight / total + noise * edge.noise


class Experience:
    """The gains observed with each kind of action.

    An edge is observed once both its ends have results, whether or not the search went along it,
    because all paths to a state are informative. What counts is the mean over all states, as in
    AMAF (S. Gelly and D. Silver, "Monte-Carlo tree search and rapid action value estimation in
    computer Go", Artificial Intelligence 175, 2011).

    The predictions for one move in one kernel have similar errors at all states, so their mean
    error corrects the predictions that are still untested.

    Args:
        prediction_count, no_error_count: see `SearchParameters`.
    """

    def __init__(self, prediction_count: float, no_error_count: float) -> None:
        self._prediction_count = prediction_count
        self._no_error_count = no_error_count
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._totals: defaultdict[str, int] = defaultdict(int)
        self._predicted: defaultdict[str, int] = defaultdict(int)
        self._errors: defaultdict[str, int] = defaultdict(int)

    def observe(self, edges: Iterable[tuple[GraphNode, GraphEdge, GraphNode]]) -> None:
        """Take edges into account, each with its tail and head; each edge once."""
        for tail, edge, head in edges:
            gain = head.own - tail.own
            self._counts[edge.kind] += 1
            self._totals[edge.kind] += round(gain * _UNITS)
            if edge.family and edge.gain is not None:
                self._predicted[edge.family] += 1
                self._errors[edge.family] += round((gain - edge.gain) * _UNITS)

    def gain(self, edge: GraphEdge) -> float:
        """Return the gain to expect of an action: the predicted one, corrected by experience."""
        predicted = edge.gain or 0.0
        if edge.gain is not None and edge.family:
            count = self._no_error_count + self._predicted[edge.family]
            predicted += self._errors[edge.family] / _UNITS / count
        observed = self._totals[edge.kind] / _UNITS
        weight = self._prediction_count
        return (weight * predicted + observed) / (weight + self._counts[edge.kind])
