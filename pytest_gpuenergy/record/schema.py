"""The JSON Schema of a report, derived from the dataclasses that read and write it."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from pytest_gpuenergy.record.measurement import (
    ABOVE_ZERO,
    FIGURES,
    NOT_NEGATIVE,
    SCHEMA_VERSION,
    Measurement,
    RunInfo,
)
from pytest_gpuenergy.report.anchor import AnchorCheck
from pytest_gpuenergy.report.store import dump

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def report_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of ``report.json``.

    Unknown properties are allowed, as later releases may add some; readers leave them out.
    """
    definitions: dict[str, Any] = {}
    run, measurement, check = (
        _schema(kind, definitions) for kind in (RunInfo, Measurement, AnchorCheck)
    )
    # All figures, or none.
    definitions["Measurement"]["anyOf"] = [
        {"properties": {name: {"type": "null"} for name in FIGURES}},
        {
            "properties": {name: {"type": "number"} for name in FIGURES},
            "required": list(FIGURES),
        },
    ]
    return {
        "$schema": DIALECT,
        "title": "Report of pytest-gpuenergy",
        "type": "object",
        "required": ["schema_version", "run", "measurements"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "run": run,
            "measurements": {"type": "array", "items": measurement},
            "anchors": {"type": "array", "items": check},
        },
        "$defs": definitions,
    }


def schema_document() -> str:
    """`report_schema` as it is published."""
    return dump(report_schema())


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(argument, definitions) for argument in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if not (is_dataclass(kind) and isinstance(kind, type)):
        raise TypeError(f"a report cannot hold {kind!r}")
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or "").replace("``", "`"),
        "required": [
            item.name
            for item in fields(kind)
            if item.default is MISSING and item.default_factory is MISSING
        ],
        "properties": {
            item.name: _schema(hints[item.name], definitions) | _least(kind, item.name)
            for item in fields(kind)
        },
    }


def _least(kind: type, name: str) -> dict[str, int]:
    if name in ABOVE_ZERO.get(kind, ()):
        return {"exclusiveMinimum": 0}
    return {"minimum": 0} if name in NOT_NEGATIVE.get(kind, ()) else {}
