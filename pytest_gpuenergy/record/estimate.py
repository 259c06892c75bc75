"""Figures with 95 % confidence intervals, and the common error that the intervals include."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from pytest_gpuenergy.record.metrics import Metric

WANDER: Mapping[Metric, float] = {
    Metric.TIME: 0.0012,
    Metric.ENERGY: 0.0033,
    Metric.EDP: 0.0043,
}
"""Relative standard deviation that all trials of an item share, so that their scatter cannot show
it. It comes from the state of the card, whose actual clock and power change in steps from time to
time; a step is up to 1.5 % of the power.

On two H200s, 160 items of four kernels deviated from 12 s of their kernel running around them by
0.11 % in time, 0.26 % in energy and 0.27 % in EDP (root mean square). The placement of the buffers,
which each interval already includes, explains all of the deviation in time; the scatter of the
trials explains 0.21 % in energy. The worst kernel on one card deviated by 0.46 % in energy, of
which the trials explain 0.13 %. The values lie between the mean and the worst kernel; see
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
