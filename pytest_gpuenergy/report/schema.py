"""The JSON Schema of a report, derived from the records that read and write it."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.record import FIGURES
from pytest_gpuenergy.report.standings import ReportDocument
from pytest_gpuenergy.support import dump

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of ``report.json``."""
    return schema_of(ReportDocument, "Report of pytest-gpuenergy")


def schema_of(record: type[Struct], title: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of documents that are a ``record`` with measurements.

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
