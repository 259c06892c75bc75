"""The figures of a measurement in one table: all views take titles, units and formats from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from pytest_gpuenergy.record import METRICS, VERIFIED, Estimate, Interval, Measurement, Metric
from pytest_gpuenergy.report.analysis.rooflines import Roofline, per_time
from pytest_gpuenergy.support import without_controls

_MARKUP = str.maketrans({c: f"&#{ord(c)};" for c in "|`*[]\\"})


def figures(value: float) -> str:
    """Return three significant digits, including trailing zeros: ``15.0``, ``0.600``, ``118``."""
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def time(time_ms: float) -> str:
    """Return a time with three significant digits, in µs or ms."""
    return f"{figures(time_ms)} ms" if time_ms >= 1 else f"{figures(time_ms * 1e3)} µs"


def energy(energy_mj: float) -> str:
    """Return an energy with three significant digits, in µJ, mJ or J."""
    if energy_mj >= 1e3:
        return f"{figures(energy_mj / 1e3)} J"
    return f"{figures(energy_mj)} mJ" if energy_mj >= 0.1 else f"{figures(energy_mj * 1e3)} µJ"


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


@dataclass(frozen=True)
class Figure:
    """A figure of a measurement.

    Attributes:
        label: the name for people.
        unit: the unit in which tables show it; empty if the label says it.
        better: whether less or more of it is better.
        value: a function that returns the figure in the recorded unit; None if there is none.
        interval: a function that returns its 95 % interval; None if there is none.
        words: the function that writes a value, in the recorded unit, for the terminal.
        digits: the format in which Markdown shows a value, in the shown unit.
        scale: the factor from the recorded unit to the unit in which tables show it.
        metric: the metric, if it is one by which kernels are compared.
    """

    label: str
    unit: str
    better: Literal["less", "more"]
    value: Callable[[Measurement, Roofline], float | None]
    interval: Callable[[Measurement, Roofline], Interval | None]
    words: Callable[[float], str] = figures
    digits: str = ".4g"
    scale: float = 1.0
    metric: Metric | None = None

    @property
    def title(self) -> str:
        """The label with its unit, ``EDP (mJ·ms)``."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def shown(self, m: Measurement) -> str:
        """Return the figure of a measured kernel as a Markdown table has it, with `spread`."""
        value = (self.value(m, Roofline()) or 0.0) * self.scale
        return f"{value:{self.digits}}{spread(m.estimate(self.metric)) if self.metric else ''}"


def _metric_figure(
    metric: Metric, unit: str, words: Callable[[float], str], digits: str, scale: float = 1.0
) -> Figure:
    return Figure(
        metric.label,
        unit,
        "less",
        lambda m, _: m.figure(metric),
        lambda m, _: m.interval(metric),
        words,
        digits,
        scale,
        metric,
    )


FIGURE_TABLE: Mapping[str, Figure] = {
    "time_us": _metric_figure(Metric.TIME, "µs", time, ".2f", scale=1e3),
    "energy_mj": _metric_figure(Metric.ENERGY, "mJ", energy, ".4g"),
    "edp_mj_ms": _metric_figure(Metric.EDP, "mJ·ms", figures, ".4g"),
    "power_w": Figure(
        "power", "W", "less", lambda m, _: m.power_w, _power_interval, "{:.1f}".format, ".1f"
    ),
    "gflops": Figure(
        "GFLOP/s",
        "",
        "more",
        lambda m, _: m.gflops,
        lambda m, _: per_time(m.gflops, m),
        "{:.0f}".format,
    ),
    "gflops_per_w": Figure(
        "GFLOP/s/W",
        "",
        "more",
        lambda m, _: m.gflops_per_w,
        _efficiency_interval,
        "{:.2f}".format,
        ".2f",
    ),
    "gb_s": Figure("GB/s", "", "more", lambda _, roof: roof.gb_s, lambda _, roof: roof.gb_s_ci95),
    "flop_per_byte": Figure(
        "FLOP/byte", "", "more", lambda _, roof: roof.flop_per_byte, lambda *_: None
    ),
    "percent_of_peak": Figure(
        "% of the card's peak",
        "",
        "more",
        lambda _, roof: roof.percent_of_peak,
        lambda _, roof: roof.percent_of_peak_ci95,
    ),
}
"""The figures by the names that the page's data has for them."""


def figure_words(m: Measurement, metric: Metric) -> str:
    """Return a figure of a measured kernel with three significant digits and its unit."""
    value = m.figure(metric) or 0.0
    if metric is Metric.EDP:
        return f"{figures(value)} mJ·ms"
    return time(value) if metric is Metric.TIME else energy(value)


def words(m: Measurement) -> str:
    """Return one line of figures: ``19.3 µs 7.62 mJ 0.147 mJ·ms``."""
    if not m.measured:
        return VERIFIED if m.verified_only else m.outcome
    return " ".join(figure_words(m, metric) for metric in METRICS)


def spread(found: Estimate | None) -> str:
    """Return half the interval's width, `` ±0.3 %``; empty without an interval."""
    if found is None or not found.value > 0:
        return ""
    return f" ±{100 * found.relative_half_width:.2g} %"


def signed_percent(log_ratio: float) -> str:
    """Return the logarithm of a ratio as a percentage such as ``+5.0 %``."""
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def percent_range(change: Estimate | None, unit: str = "") -> str:
    """``+1.2 [+0.9, +1.5]``: how far a ratio and its interval are from 1, in percent."""
    if change is None:
        return ""
    value, low, high = (100 * (end - 1) for end in (change.value, change.low, change.high))
    return f"{value:+.1f}{unit} [{low:+.1f}, {high:+.1f}]"


def title_label(*, emulated: bool, calibrated: bool = False) -> str:
    """Return what a title says of the figures below it, such as `` (emulated, calibrated)``."""
    remarks = {"emulated": emulated, "calibrated": calibrated}
    words = ", ".join(word for word, holds in remarks.items() if holds)
    return f" ({words})" if words else ""


def markdown_text(words: str) -> str:
    """``words`` escaped for one Markdown line or table cell."""
    return escape(without_controls(words), quote=False).translate(_MARKUP)


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text: Container[int] = (0,)
) -> str:
    """Return a Markdown table; ``text`` has the indices of the left-aligned columns."""
    rules = ["---" if column in text else "---:" for column in range(len(header))]
    cells = [[" ".join(cell.replace("|", "/").split()) for cell in row] for row in rows]
    lines = [header, rules, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_lines(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, figures: Container[int] = ()
) -> Iterator[str]:
    """Yield the lines of a Markdown table; ``figures`` has the indices of right-aligned columns.

    Cells are escaped as by `markdown_text`, titles are not.
    """
    yield f"| {' | '.join(titles)} |"
    rules = ("---:" if column in figures else "---" for column in range(len(titles)))
    yield f"|{'|'.join(rules)}|"
    for row in rows:
        yield f"| {' | '.join(map(markdown_text, row))} |"
