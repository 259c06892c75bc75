"""What kinds of actions have brought so far, in one search."""

from __future__ import annotations

from collections import defaultdict

from pytest_gpuenergy.search.graph import Edge, Node, SearchGraph

_UNITS = 1e9
"""Of a gain. Whole numbers add up to the same in any order, so that a resumed search goes on as one
that was never interrupted."""


class Experience:
    """The gains observed with each kind of action.

    An edge is observed once both its ends have results, whether or not the search went along it:
    all paths to a state teach something. What counts is the mean over all states, as in AMAF (S.
    Gelly and D. Silver, "Monte-Carlo tree search and rapid action value estimation in computer Go",
    Artificial Intelligence 175, 2011).

    Args:
        prediction_count: see `SearchParameters`.
    """

    def __init__(self, prediction_count: float) -> None:
        self._prediction_count = prediction_count
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._totals: defaultdict[str, int] = defaultdict(int)

    def observe(self, graph: SearchGraph, state: str) -> None:
        """Observe all edges from or to a state whose result, or whose actions, are new."""
        for tail, edge, head in graph.known_edges(state):
            self._add(tail, edge, head)

    def observe_all(self, graph: SearchGraph) -> None:
        """Observe all edges of a graph."""
        for tail, edge, head in graph.all_known_edges():
            self._add(tail, edge, head)

    def gain(self, edge: Edge) -> float:
        """The gain that is expected of an action: the predicted one, corrected by experience."""
        predicted = self._prediction_count * (edge.gain or 0.0)
        observed = self._totals[edge.kind] / _UNITS
        return (predicted + observed) / (self._prediction_count + self._counts[edge.kind])

    def _add(self, tail: Node, edge: Edge, head: Node) -> None:
        self._counts[edge.kind] += 1
        self._totals[edge.kind] += round((head.own - tail.own) * _UNITS)
