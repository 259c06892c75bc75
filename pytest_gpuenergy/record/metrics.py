"""The metrics by which kernels are compared, estimates with intervals, and how they repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

# Annotated numbers: a report that violates a bound is refused when it is read. Whole numbers have
# at most 64 bits, as in Parquet and in other tools that read reports.
NotNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]

_MOST = 2**63 - 1
Whole = Annotated[int, Meta(ge=-_MOST - 1, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Extent = Annotated[int, Meta(ge=1, le=_MOST)]
Bytes = Count
Megahertz = Annotated[int, Meta(ge=1, le=_MOST)]


class Metric(StrEnum):
    """A figure of one launch; lower is better."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    @property
    def label(self) -> str:
        """The metric's name for people."""
        return "EDP" if self is Metric.EDP else self.value

    @property
    def unit(self) -> str:
        """The metric's unit."""
        return _UNITS[self]

    @property
    def field(self) -> str:
        """The attribute of a `Measurement`, `Window` or `Reading` that holds the figure."""
        return _FIELDS[self]


METRICS = tuple(Metric)
_UNITS = {Metric.TIME: "ms", Metric.ENERGY: "mJ", Metric.EDP: "mJ·ms"}
_FIELDS = {Metric.TIME: "time_ms", Metric.ENERGY: "energy_mj", Metric.EDP: "edp_mj_ms"}


WANDER: Mapping[Metric, float] = {
    Metric.TIME: 0.0012,
    Metric.ENERGY: 0.0025,
    Metric.EDP: 0.0032,
}
"""Relative standard deviation of the error that all trials of an item share on a warm card.

The scatter of the trials cannot show it. It comes from the state of the card, whose actual clock
and power change in steps from time to time; a step is up to 1.5 % of the power. A card that has yet
to warm up or cool down adds an error that is counted separately (`energy.step_error`).

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


SAME_BOARD_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0017,
    Metric.ENERGY: 0.0044,
    Metric.EDP: 0.0054,
}
"""Standard deviation of a figure between sessions on one board, as a fraction.

It is the root mean square of 16 differences on one H200. Ten are between an item and 12 s of the
same kernel before and after it; six, divided by the square root of two, are between items of two
runs a few minutes apart (docs/explanation/gate.md, "The deviation between sessions").
"""

OTHER_BOARD_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0016,
    Metric.ENERGY: 0.029,
    Metric.EDP: 0.029,
}
"""Standard deviation of a figure between boards of one model, as a fraction.

Time: the upper end of the 95 % interval from four H200s in four runs. Energy and EDP: a uniform
distribution over the +-5 % by which more boards deviated in Z. Yang, K. Adamek and W. Armour,
"Part-time Power Measurements", arXiv:2312.02741; the four H200s differed by 1.9 %, four others by
up to 2.6 %.
"""
