"""The report as JSON: the document, the best of each workload in it, and its schema."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.record import FIGURES, BoardGain, CalibratedItem, Interval, Metric
from pytest_gpuenergy.report.analysis.best_kernels import ClockSaving, best_of_each
from pytest_gpuenergy.report.analysis.board_calibration import Boards, calibrated_items
from pytest_gpuenergy.report.analysis.gpu_models import by_model
from pytest_gpuenergy.report.store import SCHEMA_VERSION, Report
from pytest_gpuenergy.report.views.view_files import write_view
from pytest_gpuenergy.support import dump


class Leaders(Struct, frozen=True):
    """The least figure of a workload by one metric, and all that may be as good within noise.

    ``items`` are node ids, first the one with the least figure. ``kernels`` and ``caps``
    (setpoints) are the labels among them, the best kernel and the lowest cap first.
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


def json_document(report: Report) -> str:
    """Return the report as JSON, ``schema_version`` 1, with the best of each workload."""
    best = []
    for workload in [
        leader for part in by_model(report) for leader in best_of_each(part.measurements)
    ]:
        leaders = {
            metric: Leaders(
                tied.best.figure(metric) or 0.0,
                tied.best.interval(metric),
                tuple(row.node_id for row in tied.rows),
                tied.kernels,
                tied.caps,
            )
            for metric, tied in workload.ties.items()
        }
        standing = Standing(
            workload.name,
            workload.rows[0].cache,
            leaders[Metric.TIME],
            leaders[Metric.ENERGY],
            leaders[Metric.EDP],
            front=tuple(m.node_id for m in workload.front),
            near_front=tuple(m.node_id for m in workload.near),
            clock_savings=tuple(workload.savings.values()),
        )
        best.append(standing)
    boards = Boards(report)
    return dump(
        ReportDocument(
            report.run,
            report.measurements,
            report.anchors,
            report.stations,
            report.board_checks,
            tuple(best),
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
    """Return the JSON Schema (draft 2020-12) of ``report.json``, as it is published."""
    return dump(document_schema(ReportDocument, "Report of pytest-gpuenergy"))
