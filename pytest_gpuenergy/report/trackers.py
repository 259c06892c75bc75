"""What services that follow benchmarks over time read: Bencher, github-action-benchmark.

Both raise an alarm when a figure grows, so only clean measurements are told, and those of an
emulated GPU say so in their names, which keeps them apart from those of a real one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.record.measurement import Interval, Measurement
from pytest_gpuenergy.report.store import Report, dump


@dataclass(frozen=True)
class Metric:
    """A figure of which less is better, as the field of a `Measurement` and in words."""

    name: str
    unit: str
    field: str

    def value(self, measurement: Measurement) -> float:
        """The figure; the measurement has one."""
        value: float = getattr(measurement, self.field)
        return value

    def interval(self, measurement: Measurement) -> Interval | None:
        """Its 95 % interval."""
        found: Interval | None = getattr(measurement, f"{self.field}_ci95")
        return found


METRICS = (
    Metric("time", "ms", "time_ms"),
    Metric("energy", "mJ", "energy_mj"),
    Metric("EDP", "mJ·ms", "edp_mj_ms"),
)
_BENCHER_MEASURES = {
    "time_ms": ("latency", 1e6),
    "energy_mj": ("energy-mj", 1.0),
    "edp_mj_ms": ("edp-mj-ms", 1.0),
}
"""Name of the measure, and what its unit is of ours."""
_BENCHER_NAME_LENGTH = 1024


def bencher_json(report: Report) -> str:
    """Bencher Metric Format: benchmark, then measure, then value with the interval's ends.

    Bencher's own measure ``latency`` is in nanoseconds; ``energy-mj`` and ``edp-mj-ms`` are made
    by it at first sight.
    """
    document: dict[str, dict[str, Mapping[str, float]]] = {}
    for name, measurement in _clean(report):
        measures = document.setdefault(name[:_BENCHER_NAME_LENGTH], {})
        for metric in METRICS:
            measure, scale = _BENCHER_MEASURES[metric.field]
            figures = {"value": metric.value(measurement) * scale}
            if interval := metric.interval(measurement):
                figures |= {
                    "lower_value": interval.low * scale,
                    "upper_value": interval.high * scale,
                }
            if all(map(math.isfinite, figures.values())):
                measures[measure] = figures
    return dump(document)


def github_action_json(report: Report) -> str:
    """What github-action-benchmark's tool ``customSmallerIsBetter`` reads: a list of figures."""
    entries: list[dict[str, Any]] = []
    for name, measurement in _clean(report):
        for metric in METRICS:
            entry = {
                "name": f"{name} {metric.name}",
                "unit": metric.unit,
                "value": metric.value(measurement),
                "extra": f"{report.run.gpu_name}\n{measurement.cap}, {measurement.cache} cache",
            }
            if interval := metric.interval(measurement):
                entry["range"] = f"± {(interval.high - interval.low) / 2:.3g}"
            entries.append(entry)
    return json.dumps(entries, indent=1, allow_nan=False) + "\n"


def _clean(report: Report) -> Iterator[tuple[str, Measurement]]:
    """What was measured without a flag, by name."""
    label = " (emulated)" if report.run.emulated else ""
    for measurement in report.measurements:
        if measurement.measured and not measurement.validity:
            yield f"{measurement.node_id}{label}", measurement
