"""The page's boards: their gains, and the figures that are calibrated by them."""

from __future__ import annotations

import math
from typing import Any

from pytest_gpuenergy.record import BoardGain, Interval, Measurement, Metric
from pytest_gpuenergy.report.board_lines import short
from pytest_gpuenergy.report.boards import Boards, calibrated_name

Values = dict[str, Any]
_SCALES = {Metric.TIME: 1e3, Metric.ENERGY: 1.0, Metric.EDP: 1.0}
_NAMES = {
    Metric.EDP: "edp_calibrated_mj_ms",
    Metric.ENERGY: "energy_calibrated_mj",
    Metric.TIME: "time_calibrated_us",
}
_TITLES = {
    Metric.EDP: "EDP, calibrated (mJ·ms)",
    Metric.ENERGY: "energy, calibrated (mJ)",
    Metric.TIME: "time, calibrated (µs)",
}


def calibrated_figures(boards: Boards) -> dict[str, dict[str, str]]:
    """Titles of the calibrated figures, as those of `rows.FIGURES`; none without gains."""
    if not boards.compared:
        return {}
    return {name: {"title": _TITLES[metric], "better": "less"} for metric, name in _NAMES.items()}


def calibrated_values(m: Measurement, boards: Boards) -> Values:
    """The calibrated figures of a row with the ends of their intervals; nothing without gains."""
    if not boards.compared:
        return {}
    found = boards.calibrated(m)
    values: Values = {}
    for metric, name in _NAMES.items():
        value: float | None = getattr(found, calibrated_name(metric))
        ends: Interval | None = getattr(found, f"{calibrated_name(metric)}_ci95")
        low, high = (None, None) if ends is None else (ends.low, ends.high)
        for key, end in ((name, value), (f"{name}_low", low), (f"{name}_high", high)):
            values[key] = _finite(end, _SCALES[metric])
    return values


def gain_values(gain: BoardGain) -> Values:
    """A gain, in percent above or below the mean board."""
    ends: Values = {}
    for metric in Metric:
        ratio = gain.of(metric)
        for name, end in (("", "value"), ("_low", "low"), ("_high", "high")):
            change = None if ratio is None else getattr(ratio, end) - 1
            ends[f"{metric}{name}"] = _finite(change, 100.0)
    return {
        "board": short(gain.gpu_uuid),
        "host": gain.host,
        "gpu": gain.gpu_name,
        "cap": gain.cap if gain.cache == "hot" else f"{gain.cap}, {gain.cache}",
        **ends,
        "why": gain.left_out or "",
    }


def _finite(value: float | None, scale: float) -> float | None:
    return None if value is None or not math.isfinite(value * scale) else value * scale
