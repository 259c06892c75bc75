"""What kinds of actions have brought so far, in one search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pytest_gpuenergy.search.graph_record import Edge, GraphNode

_UNITS = 1e9
"""Of a gain. Whole numbers add up to the same in any order, so that a resumed search goes on as one
that was never interrupted."""


class Experience:
    """The gains observed with each kind of action.

    An edge is observed once both its ends have results, whether or not the search went along it:
    all paths to a state teach something. What counts is the mean over all states, as in AMAF (S.
    Gelly and D. Silver, "Monte-Carlo tree search and rapid action value estimation in computer Go",
    Artificial Intelligence 175, 2011).

    The predictions for one move err alike in one kernel, wherever it is made: what some of them
    missed on average is expected of the others, too.

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

    def observe(self, edges: Iterable[tuple[GraphNode, Edge, GraphNode]]) -> None:
        """Take edges into account, each with its tail and head; each edge once."""
        for tail, edge, head in edges:
            gain = head.own - tail.own
            self._counts[edge.kind] += 1
            self._totals[edge.kind] += round(gain * _UNITS)
            if edge.family and edge.gain is not None:
                self._predicted[edge.family] += 1
                self._errors[edge.family] += round((gain - edge.gain) * _UNITS)

    def gain(self, edge: Edge) -> float:
        """The gain that is expected of an action: the predicted one, corrected by experience."""
        predicted = self._prediction_count * self._corrected(edge)
        observed = self._totals[edge.kind] / _UNITS
        return (predicted + observed) / (self._prediction_count + self._counts[edge.kind])

    def _corrected(self, edge: Edge) -> float:
        if edge.gain is None or not edge.family:
            return edge.gain or 0.0
        seen = self._no_error_count + self._predicted[edge.family]
        return edge.gain + self._errors[edge.family] / _UNITS / seen
