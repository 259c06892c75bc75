"""Figures with 95 % confidence intervals, and the common error that the intervals include."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from pytest_gpuenergy.record.metrics import Metric

WANDER: Mapping[Metric, float] = {
    Metric.TIME: 0.0012,
    Metric.ENERGY: 0.0025,
    Metric.EDP: 0.0032,
}
"""Relative standard deviation that all trials of an item share on a warm card, so that their
scatter cannot show it. It comes from the state of the card, whose actual clock and power change in
steps from time to time; a step is up to 1.5 % of the power. What a card adds that has yet to warm
or to cool is counted apart (`energy.leakage.step_error`).

496 items on six H200s, each measured between parts of 12 s of its kernel, deviated from these by
0.16 % in time, 0.24 % in energy and 0.30 % in EDP (root mean square). The placement of the buffers
and the scatter of the trials, which each interval already includes, explain most of it. With these
values 95 % of the intervals of time hold, 98 % of energy and 99 % of EDP; see
docs/notes/common-error.md.
"""


class Interval(Struct, frozen=True, gc=False):
    """Ends of a 95 % confidence interval, as a report stores them next to the figure."""

    low: float
    high: float


class Estimate(Struct, frozen=True, gc=False):
    """A value and the ends of its two-sided confidence interval, in the value's unit."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> Interval:
        """The interval without the value."""
        return Interval(self.low, self.high)

    @property
    def half_width(self) -> float:
        """Half the interval's width, in the value's unit."""
        return (self.high - self.low) / 2

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width, as a fraction of the value."""
        return self.half_width / abs(self.value) if self.value else math.inf
