"""What else can be put on an axis: each column of the tidy table that tells rows apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.tidy import tidy_columns, tidy_rows

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
    """The column itself, or one for each name in its mappings."""
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
    """The name as words, with its unit as usual: ``effective sm clock (MHz)``."""
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
