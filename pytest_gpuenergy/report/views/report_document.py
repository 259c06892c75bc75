"""The report as JSON: the document, the best of each workload in it, and its schema."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.record import (
    FIGURES,
    BoardGain,
    CalibratedItem,
    Interval,
    Measurement,
    Metric,
)
from pytest_gpuenergy.report.analysis.best_kernels import ClockSaving, Tie, best_of_each
from pytest_gpuenergy.report.analysis.board_calibration import Boards, calibrated_items
from pytest_gpuenergy.report.analysis.gpu_models import by_model
from pytest_gpuenergy.report.store import SCHEMA_VERSION, Report
from pytest_gpuenergy.report.views.view_files import write_view
from pytest_gpuenergy.support import dump


class Leaders(Struct, frozen=True):
    """The least figure of a workload by one metric, and all that may be as good within noise.

    ``items`` are node ids: that of the figure first, then those of the rest. ``kernels`` and
    ``caps`` (setpoints) are the labels among them, the best kernel and the lowest cap first.
    """

    value: float
    ci95: Interval | None
    items: tuple[str, ...]
    kernels: tuple[str, ...]
    caps: tuple[str, ...]


class Standing(Struct, frozen=True):
    """The best of one workload in one cache state, over all kernels and setpoints.

    ``front`` are the node ids of the Pareto front of time and energy, from fast to frugal,
    ``near_front`` all those that may be on it within noise. ``clock_savings`` has what the best
    locked clock saves over the best cap without one, by metric, where both were measured.
    """

    workload: str
    cache: str
    time: Leaders
    energy: Leaders
    edp: Leaders
    front: tuple[str, ...]
    near_front: tuple[str, ...]
    clock_savings: tuple[ClockSaving, ...] = ()


class ReportDocument(Report, frozen=True, tag_field="schema_version", tag=SCHEMA_VERSION):
    """A run's identity with its measurements; for merged runs, the identity of the last one.

    ``anchors`` are the checks of anchor kernels, in chronological order. ``stations`` are the GPUs
    that took part, in the order in which they joined. ``board_checks`` are measurements of the
    kernels that every one of several boards measures. ``best``, ``boards`` and ``calibrated`` are
    made from the rest when the report is written, and ignored when it is read.
    """

    best: tuple[Standing, ...] = ()
    boards: tuple[BoardGain, ...] = ()
    calibrated: tuple[CalibratedItem, ...] = ()


def standings(measurements: Iterable[Measurement]) -> tuple[Standing, ...]:
    """Return the standing of each workload and cache state with figures, by first appearance."""
    return tuple(
        Standing(
            one.name,
            one.rows[0].cache,
            _leaders(one.ties[Metric.TIME]),
            _leaders(one.ties[Metric.ENERGY]),
            _leaders(one.ties[Metric.EDP]),
            tuple(m.node_id for m in one.front),
            tuple(m.node_id for m in one.near),
            tuple(one.savings.values()),
        )
        for one in best_of_each(measurements)
    )


def _leaders(found: Tie) -> Leaders:
    best = found.best
    return Leaders(
        best.figure(found.metric) or 0.0,
        best.interval(found.metric),
        tuple(row.node_id for row in found.rows),
        found.kernels,
        found.caps,
    )


def json_document(report: Report) -> str:
    """Return the report as JSON, ``schema_version`` 1, with the best of each workload."""
    best = tuple(one for part in by_model(report) for one in standings(part.measurements))
    boards = Boards(report)
    return dump(
        ReportDocument(
            report.run,
            report.measurements,
            report.anchors,
            report.stations,
            report.board_checks,
            best,
            boards.gains,
            calibrated_items(report, boards),
        )
    )


def write_json(report: Report, path: Path) -> None:
    """Write `json_document` to ``path`` atomically.

    Raises:
        ReportError: it cannot be written.
    """
    write_view(path, json_document(report))


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of ``report.json``."""
    return document_schema(ReportDocument, "Report of pytest-gpuenergy")


def document_schema(record: type[Struct], title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of documents that are a ``record`` with measurements.

    Unknown properties are allowed, because later releases may add some; readers ignore them.
    """
    _, definitions = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        description = inspect.cleandoc(definition.get("description", ""))
        definition["description"] = description.replace("``", "`")
    # All figures, or none.
    definitions["Measurement"]["anyOf"] = [
        {"properties": {name: {"type": "null"} for name in FIGURES}},
        {
            "properties": {name: {"type": "number"} for name in FIGURES},
            "required": list(FIGURES),
        },
    ]
    whole = definitions.pop(record.__name__)
    return {"$schema": DIALECT, **whole, "title": title, "$defs": dict(sorted(definitions.items()))}


def schema_document() -> str:
    """`report_schema` as the published JSON document."""
    return dump(report_schema())
