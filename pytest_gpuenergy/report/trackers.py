"""Output for services that track benchmarks over time: Bencher, github-action-benchmark.

Both raise an alarm when a figure grows, so only clean measurements are passed on. The names of
emulated figures say so, which keeps them apart from those of a real GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_gpuenergy.record import Measurement, Metric
from pytest_gpuenergy.report.models import Models
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support import dump, emulated_mark

_BENCHER_MEASURES = {
    Metric.TIME: ("latency", 1e6),
    Metric.ENERGY: ("energy-mj", 1.0),
    Metric.EDP: ("edp-mj-ms", 1.0),
}
"""Name of the measure, and the factor from our unit to its unit."""
_BENCHER_NAME_LENGTH = 1024


def bencher_json(report: Report) -> str:
    """Bencher Metric Format: benchmark, then measure, then value with the interval's ends.

    Bencher's built-in measure ``latency`` is in nanoseconds; it creates ``energy-mj`` and
    ``edp-mj-ms`` when it first receives them.
    """
    document: dict[str, dict[str, Mapping[str, float]]] = {}
    for name, measurement in _clean(report):
        measures = document.setdefault(name[:_BENCHER_NAME_LENGTH], {})
        for metric, value in _figures(measurement):
            measure, scale = _BENCHER_MEASURES[metric]
            figures = {"value": value * scale}
            if interval := measurement.interval(metric):
                figures |= {
                    "lower_value": interval.low * scale,
                    "upper_value": interval.high * scale,
                }
            if all(map(math.isfinite, figures.values())):
                measures[measure] = figures
    return dump(document)


def github_action_json(report: Report) -> str:
    """The list of figures that github-action-benchmark reads as ``customSmallerIsBetter``."""
    models = Models(report)
    entries: list[dict[str, Any]] = []
    for name, measurement in _clean(report):
        for metric, value in _figures(measurement):
            entry = {
                "name": f"{name} {metric.label}",
                "unit": metric.unit,
                "value": value,
                "extra": f"{models.of(measurement)}\n{measurement.cap}, {measurement.cache} cache",
            }
            if interval := measurement.interval(metric):
                entry["range"] = f"± {(interval.high - interval.low) / 2:.3g}"
            entries.append(entry)
    return dump(entries)


def _clean(report: Report) -> Iterator[tuple[str, Measurement]]:
    """Measurements without a flag, with their names."""
    label = emulated_mark(report.run.emulated)
    for measurement in report.measurements:
        if measurement.measured and not measurement.validity:
            yield f"{measurement.node_id}{label}", measurement


def _figures(measurement: Measurement) -> Iterator[tuple[Metric, float]]:
    for metric in Metric:
        if (value := measurement.figure(metric)) is not None:
            yield metric, value
