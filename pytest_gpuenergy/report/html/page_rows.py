"""The page's measurements as plain values, and what else can be put on an axis of its plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.record import (
    METRICS,
    VERIFIED,
    Measurement,
    Metric,
    clock_label,
    limit_label,
)
from pytest_gpuenergy.report.analysis.best_kernels import Best
from pytest_gpuenergy.report.analysis.figure_columns import FIGURE_COLUMNS, FigureColumn
from pytest_gpuenergy.report.analysis.rooflines import Roofline, roofline
from pytest_gpuenergy.report.analysis.subjects import Subjects, with_cache
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.tidy_table import tidy_columns, tidy_rows

Values = dict[str, Any]


@dataclass(frozen=True)
class RowMarks:
    """Which measurements are on a Pareto front, within noise of it, or best by a metric.

    All are by `id`, because measurements may be equal.
    """

    front: frozenset[int]
    near: frozenset[int]
    tied: Mapping[Metric, frozenset[int]]

    @classmethod
    def of(cls, best: Sequence[Best]) -> RowMarks:
        """From the best of each workload."""
        return cls(
            frozenset(id(m) for one in best for m in one.front),
            frozenset(id(m) for one in best for m in one.near),
            {
                metric: frozenset(id(m) for one in best for m in one.ties[metric].rows)
                for metric in METRICS
            },
        )


def row_values(m: Measurement, gpu_name: str, standing: RowMarks, subjects: Subjects) -> Values:
    """Return one measurement; figures that are not finite numbers are None.

    Args:
        m: the measurement.
        gpu_name: the name of the card whose peaks its figures are compared with.
        standing: the marks of all measurements.
        subjects: the subjects of all measurements.
    """
    roof = roofline(m, gpu_name)
    return {
        "workload": subjects.of(m),
        "known_as": with_cache(m.workload.name, m),
        "kernel": m.kernel.label,
        "band": str(m.kernel.details.get("band", m.kernel.origin)),
        "cap": m.cap,
        "limit": limit_label(m),
        "clock": clock_label(m),
        "lock_mhz": m.sm_clock_mhz,
        "limit_w": finite(m.enforced_power_limit_w or m.power_limit_w),
        **{
            key: value
            for name, column in FIGURE_COLUMNS.items()
            for key, value in _with_ends(name, column, m, roof).items()
        },
        "roof": roof.roof,
        "temperature_c": _temperature_c(m),
        "sm_clock_mhz": m.end.sm_clock_mhz if m.end else None,
        "effective_sm_clock_mhz": finite(m.effective_sm_clock_mhz),
        "clock_states": [f"{state.share:.0%} at {state.name}" for state in m.clock_states]
        if len(m.clock_states) > 1
        else [],
        "binding": m.cap_binding,
        "pareto": id(m) in standing.front,
        "near_pareto": id(m) in standing.near,
        "best_of": [str(metric) for metric, tied in standing.tied.items() if id(m) in tied],
        "flags": list(m.validity),
        "state": _kind(m),
        "outcome": m.outcome,
        "error": VERIFIED if m.verified_only else m.error,
        "digest": m.kernel.digest[:12],
        "variant": str(m.kernel.details.get("state", "")),
        "item": m.node_id,
    }


def finite(value: float | None, scale: float = 1.0) -> float | None:
    """``value`` times ``scale``; None if it is not a finite number."""
    if value is None:
        return None
    scaled = value * scale
    return scaled if math.isfinite(scaled) else None


def _kind(m: Measurement) -> str:
    if not m.measured:
        return "verified" if m.verified_only else "failed"
    return "flagged" if m.validity else "clean"


def _with_ends(name: str, column: FigureColumn, m: Measurement, roof: Roofline) -> Values:
    """Return the figure in its unit, and the ends of its interval with ``_low`` and ``_high``."""
    value, interval = column.value(m, roof), column.interval(m, roof)
    low, high = (interval.low, interval.high) if interval else (value, value)
    ends = {name: value, f"{name}_low": low, f"{name}_high": high}
    return {key: finite(end, column.scale) for key, end in ends.items()}


def _temperature_c(m: Measurement) -> float | None:
    """Return the mean over the trials; in older records, the reading after them."""
    if m.temperature_c is None:
        return None if m.end is None else m.end.temperature_c
    return finite(m.temperature_c)


Axis = dict[str, Any]
MOST_TEXTS = 100
"""Distinct texts on an axis."""
_SHOWN = frozenset(
    (
        *("node_id", "workload_name", "kernel_label", "kernel_digest", "kernel_origin", "cap"),
        *("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w", "gb_s"),
        *("flop_per_byte", "percent_of_peak", "error", "outcome", "validity", "started"),
        *("parameters", "pareto", "best_of"),
    )
)
"""Columns that a row has by another name, or that are of no use on an axis."""
_UNITS = {
    "ms": "ms",
    "s": "s",
    "us": "µs",
    "mj": "mJ",
    "j": "J",
    "w": "W",
    "mw": "mW",
    "mhz": "MHz",
    "c": "°C",
    "mib": "MiB",
    "bytes": "bytes",
}
"""At the end of a column's name, and on an axis."""
_ENDS = ("_ci95_low", "_ci95_high")


def axes(report: Report) -> list[Axis]:
    """Columns with a ``name``, a ``title``, and a value for each measurement.

    Mappings, such as a workload's parameters, become a column for each of their names. Left out is
    what has the same value in all measurements, and text with more than `MOST_TEXTS` values.
    """
    rows = list(tidy_rows(report))
    found = []
    for place, column in enumerate(tidy_columns(report.measurements)):
        if column.name in _SHOWN or column.name.endswith(_ENDS):
            continue
        for name, values in _spread(column.name, [row[place] for row in rows]):
            if (axis := _axis(name, values)) is not None:
                found.append(axis)
    return found


def _spread(name: str, cells: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the column itself, or one for each name in its mappings."""
    mappings = [_mapping(cell) for cell in cells]
    if not any(mappings):
        yield name, cells
        return
    for key in dict.fromkeys(key for one in mappings for key in one):
        yield f"{name}.{key}", [one.get(key) for one in mappings]


def _mapping(cell: object) -> dict[str, Any]:
    if not isinstance(cell, str) or not cell.startswith("{"):
        return {}
    try:
        found = json.loads(cell)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _axis(name: str, values: Sequence[Any]) -> Axis | None:
    known = [value for value in values if value is not None and value != ""]
    numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in known)
    cleaned = [_number(one) if numeric else _text(one) for one in values]
    distinct = set(cleaned) - {None}
    if len(distinct) < 2 or (not numeric and len(distinct) > MOST_TEXTS):
        return None
    return {"name": name, "title": _title(name), "values": cleaned}


def _title(name: str) -> str:
    """Return the name as words, with its unit as usual: ``effective sm clock (MHz)``."""
    words, _, last = name.rpartition("_")
    known = words and _UNITS.get(last)
    return f"{words.replace('_', ' ')} ({known})" if known else name.replace("_", " ")


def _number(value: Any) -> float | None:
    return value if value not in (None, "") and math.isfinite(value) else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value))
    return None if value is None or value == "" else str(value)
