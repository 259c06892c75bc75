"""The figures of a measurement, in one table from which views take titles, units and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.record import Interval, Measurement, Metric
from pytest_gpuenergy.report.analysis.rooflines import Roofline, per_time

LESS: Literal["less"] = "less"
MORE: Literal["more"] = "more"


@dataclass(frozen=True)
class FigureColumn:
    """A figure of a measurement.

    Attributes:
        label: the name for people.
        unit: the unit in which it is shown; empty if the label says it.
        better: whether less or more of it is better.
        value: a function that returns the figure; None if there is none.
        interval: a function that returns its 95 % interval; None if there is none.
        scale: the factor from the recorded unit to the unit in which it is shown.
    """

    label: str
    unit: str
    better: Literal["less", "more"]
    value: Callable[[Measurement, Roofline], float | None]
    interval: Callable[[Measurement, Roofline], Interval | None]
    scale: float = 1.0

    @property
    def title(self) -> str:
        """The label with its unit, ``EDP (mJ·ms)``."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


def _of_metric(metric: Metric, unit: str, scale: float = 1.0) -> FigureColumn:
    return FigureColumn(
        metric.label,
        unit,
        LESS,
        lambda m, _: m.figure(metric),
        lambda m, _: m.interval(metric),
        scale,
    )


def _power_interval(m: Measurement, _: Roofline) -> Interval | None:
    """Return the interval of the power, as if energy and time were independent."""
    energy, time = m.estimate(Metric.ENERGY), m.estimate(Metric.TIME)
    if m.power_w is None or energy is None or time is None:
        return None
    half = m.power_w * math.hypot(energy.relative_half_width, time.relative_half_width)
    return Interval(m.power_w - half, m.power_w + half)


def _efficiency_interval(m: Measurement, _: Roofline) -> Interval | None:
    """Return the interval of GFLOP/s/W, which is inverse to the energy."""
    rate, ends = m.gflops_per_w, m.energy_mj_ci95
    if rate is None or ends is None or m.energy_mj is None or not ends.low > 0:
        return None
    return Interval(rate * m.energy_mj / ends.high, rate * m.energy_mj / ends.low)


FIGURE_COLUMNS: Mapping[str, FigureColumn] = {
    "time_us": _of_metric(Metric.TIME, "µs", 1e3),
    "energy_mj": _of_metric(Metric.ENERGY, "mJ"),
    "edp_mj_ms": _of_metric(Metric.EDP, "mJ·ms"),
    "power_w": FigureColumn("power", "W", LESS, lambda m, _: m.power_w, _power_interval),
    "gflops": FigureColumn(
        "GFLOP/s", "", MORE, lambda m, _: m.gflops, lambda m, _: per_time(m.gflops, m)
    ),
    "gflops_per_w": FigureColumn(
        "GFLOP/s/W", "", MORE, lambda m, _: m.gflops_per_w, _efficiency_interval
    ),
    "gb_s": FigureColumn("GB/s", "", MORE, lambda _, roof: roof.gb_s, lambda _, r: r.gb_s_ci95),
    "flop_per_byte": FigureColumn(
        "FLOP/byte", "", MORE, lambda _, roof: roof.flop_per_byte, lambda *_: None
    ),
    "percent_of_peak": FigureColumn(
        "% of the card's peak",
        "",
        MORE,
        lambda _, roof: roof.percent_of_peak,
        lambda _, roof: roof.percent_of_peak_ci95,
    ),
}
"""The figures by the names that data of the page has for them."""
