"""Steps that come at regular times, fitted to the times at which some of them were seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_gpuenergy.energy.source import Edge


@dataclass(frozen=True)
class Schedule:
    """Steps at ``phase_s + k * period_s``, from a fit to seen steps.

    Attributes:
        count: number of seen steps.
        middle: mean of their ``k``.
        spread: sum of the squared deviations of their ``k`` from that mean.
        error_s: standard deviation of a seen step from the line.
        bracket_s: widest bracket around the time of a seen step.
    """

    phase_s: float
    period_s: float
    count: int
    middle: float
    spread: float
    error_s: float
    bracket_s: float

    def moment_s(self, number: int) -> float:
        """When step ``number`` is due."""
        return self.phase_s + number * self.period_s

    def number_at(self, moment_s: float) -> int:
        """The step due closest to ``moment_s``."""
        return round((moment_s - self.phase_s) / self.period_s)

    def moment_error_s(self, number: int) -> float:
        """Standard error of `moment_s`."""
        share = 1 / self.count + (number - self.middle) ** 2 / self.spread
        return self.error_s * math.sqrt(share)

    def times_s(self, numbers: Sequence[int]) -> list[float]:
        """The times of these steps."""
        return [self.moment_s(number) for number in numbers]

    def span_error_s(self, steps: int) -> float:
        """Standard error of the time taken by this many steps."""
        return self.error_s * steps / math.sqrt(self.spread)


def regular_times_s(
    edges: Sequence[Edge], period_s: float, begin: int = 0
) -> tuple[list[float], float]:
    """The edges' times, made precise by the regularity of the counter's updates.

    A read takes milliseconds, so the time of a single edge is known to within one or two; all edges
    lie on one line ``phase + k * period``, fitted here by least squares.

    Returns:
        The fitted times in seconds, and the standard error of the time from ``edges[begin]`` to the
        last. If the edges do not lie on a line to within their own uncertainty, their midpoints are
        returned instead.
    """
    if (line := schedule_of(edges, period_s)) is None:
        widths = [edge.before_s - edge.after_s for edge in edges]
        return [edge.time_s for edge in edges], float(np.mean(widths)) / math.sqrt(6)
    numbers = step_numbers(edges, period_s)
    return line.times_s(numbers), line.span_error_s(numbers[-1] - numbers[begin])


def schedule_of(edges: Sequence[Edge], period_s: float) -> Schedule | None:
    """A fit to successive edges; None if they are not on a line to within their uncertainty."""
    numbers = np.array(step_numbers(edges, period_s))
    if len(edges) < 3 or (np.diff(numbers) < 1).any():
        return None
    middles = np.array([edge.time_s for edge in edges])
    widths = np.array([edge.before_s - edge.after_s for edge in edges])
    off = numbers - numbers.mean()
    spread = float(off @ off)
    period = float(off @ (middles - middles.mean())) / spread
    phase = float(middles.mean()) - period * float(numbers.mean())
    residuals = middles - (phase + period * numbers)
    if np.abs(residuals).max() > widths.max():
        return None
    return Schedule(
        phase_s=phase,
        period_s=period,
        count=len(edges),
        middle=float(numbers.mean()),
        spread=spread,
        error_s=math.sqrt(float((residuals**2).sum()) / (len(edges) - 2)),
        bracket_s=float(widths.max()),
    )


def step_numbers(edges: Sequence[Edge], period_s: float) -> list[int]:
    """The number of each edge's step, counted from 0 at the first edge."""
    numbers = [0]
    # From edge to edge: over many steps, an error of the period could add up to a whole one.
    for before, after in pairwise(edges):
        numbers.append(numbers[-1] + round((after.time_s - before.time_s) / period_s))
    return numbers
