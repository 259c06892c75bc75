"""What kinds of actions have brought so far, in one search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pytest_gpuenergy.search.graph_record import Edge, Node

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

    def observe(self, edges: Iterable[tuple[Node, Edge, Node]]) -> None:
        """Take edges into account, each with its tail and head; each edge once."""
        for tail, edge, head in edges:
            self._counts[edge.kind] += 1
            self._totals[edge.kind] += round((head.own - tail.own) * _UNITS)

    def gain(self, edge: Edge) -> float:
        """The gain that is expected of an action: the predicted one, corrected by experience."""
        predicted = self._prediction_count * (edge.gain or 0.0)
        observed = self._totals[edge.kind] / _UNITS
        return (predicted + observed) / (self._prediction_count + self._counts[edge.kind])
