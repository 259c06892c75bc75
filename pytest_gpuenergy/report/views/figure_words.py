"""Figures with units and names, formatted for people to read."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from html import escape

from pytest_gpuenergy.record import (
    VERIFIED,
    Estimate,
    Measurement,
    Metric,
)
from pytest_gpuenergy.support import without_controls

_MARKUP = str.maketrans({c: f"&#{ord(c)};" for c in "|`*[]\\"})


def markdown_text(words: str) -> str:
    """``words`` escaped for one Markdown line or table cell."""
    return escape(without_controls(words), quote=False).translate(_MARKUP)


def spread(found: Estimate | None) -> str:
    """Return half the interval's width, `` ±0.3 %``; empty without an interval."""
    if found is None or not found.value > 0:
        return ""
    return f" ±{100 * found.relative_half_width:.2g} %"


def signed_percent(log_ratio: float) -> str:
    """Return the logarithm of a ratio as a percentage such as ``+5.0 %``."""
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def figures(value: float) -> str:
    """Return three significant digits, including trailing zeros: ``15.0``, ``0.600``, ``118``."""
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def words(m: Measurement) -> str:
    """Return one line of figures: ``19.3 µs 7.62 mJ 0.147 mJ·ms``."""
    if m.time_ms is None or m.energy_mj is None or m.edp_mj_ms is None:
        return VERIFIED if m.verified_only else m.outcome
    return f"{time(m.time_ms)} {energy(m.energy_mj)} {figures(m.edp_mj_ms)} mJ·ms"


def time(time_ms: float) -> str:
    """Return a time with three significant digits, in µs or ms."""
    return f"{figures(time_ms)} ms" if time_ms >= 1 else f"{figures(time_ms * 1e3)} µs"


def energy(energy_mj: float) -> str:
    """Return an energy with three significant digits, in µJ, mJ or J."""
    if energy_mj >= 1e3:
        return f"{figures(energy_mj / 1e3)} J"
    return f"{figures(energy_mj)} mJ" if energy_mj >= 0.1 else f"{figures(energy_mj * 1e3)} µJ"


def figure(m: Measurement, metric: Metric) -> str:
    """Return a figure of a measured kernel with three significant digits and its unit."""
    value = m.figure(metric) or 0.0
    if metric is Metric.EDP:
        return f"{figures(value)} mJ·ms"
    return time(value) if metric is Metric.TIME else energy(value)


def title_label(*, emulated: bool, calibrated: bool = False) -> str:
    """Return what a title says of the figures below it, such as `` (emulated, calibrated)``."""
    remarks = {"emulated": emulated, "calibrated": calibrated}
    words = ", ".join(word for word, holds in remarks.items() if holds)
    return f" ({words})" if words else ""


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
