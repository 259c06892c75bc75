"""Figures with 95 % confidence intervals, and what such an interval holds beside the scatter."""

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
"""What an item's trials have in common, so that they cannot show it: the state that the card is in.
Its real clock and its power change in steps, by up to 1.5 % of the power, every now and then.

On two H200s 160 items of four kernels were off by 0.11 % in time, 0.26 % in energy and 0.27 % in
EDP, root mean square, from 12 s of running among them. Of the time the places of the buffers, which
an interval takes from the item itself, explain all; of the energy the trials 0.21 %. One kernel on
one card was off by 0.46 % in energy, of which they explain 0.13 %. The values lie between the mean
and the worst kernel. docs/notes/common-error.md says what they are taken from.
"""


class Interval(Struct, frozen=True, gc=False):
    """Ends of a 95 % confidence interval, as a report holds them beside the figure."""

    low: float
    high: float


class Estimate(Struct, frozen=True, gc=False):
    """A value and the ends of its two-sided confidence interval, in the value's unit."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> Interval:
        """The ends alone."""
        return Interval(self.low, self.high)

    @property
    def half_width(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    @property
    def relative_half_width(self) -> float:
        """The same as a fraction of the value."""
        return self.half_width / abs(self.value) if self.value else math.inf
