"""When the power of a variant need not be measured: it is so slow that it cannot be the best."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.search_state import Node

_LEAST_OF_LEAST = 0.7
"""A guess: a variant draws no less than this share of the least power of any so far."""


class Limit(Struct, frozen=True):
    """Beyond what time the power of a variant is not measured.

    Attributes:
        time_ms: of one launch in the first moments (`Result.burst_time_ms`), which are the fastest.
        power_w: that is assumed of a variant which takes longer.
    """

    time_ms: float
    power_w: float


def limit_of(nodes: Sequence[Node], objective: Metric) -> Limit | None:
    """The limit that the best of the evaluated states sets.

    A variant beyond it would not be better even if it drew `_LEAST_OF_LEAST` of the least power so
    far. It is assumed to draw the median of the powers, as in `engine.objective`.

    Args:
        nodes: evaluated so far.
        objective: what is minimized.

    Returns:
        None if the objective needs no power, or nothing is known.
    """
    if objective == Metric.TIME:
        return None
    exponent = 2 if objective == Metric.EDP else 1
    known = [
        (node.cost, node.cost / node.time_ms**exponent)
        for node in nodes
        if node.cost is not None and node.time_ms is not None
    ]
    if not known:
        return None
    best = min(cost for cost, _ in known)
    powers = [power_w for _, power_w in known]
    longest_ms = (best / (_LEAST_OF_LEAST * min(powers))) ** (1 / exponent)
    return Limit(longest_ms, median(powers))
