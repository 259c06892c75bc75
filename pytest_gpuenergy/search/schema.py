"""The JSON Schema of kernel specs, derived from the records that read them."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from pytest_gpuenergy.report import DIALECT
from pytest_gpuenergy.search.spec import KernelSpec
from pytest_gpuenergy.search.spec_file import SPEC_VERSION
from pytest_gpuenergy.support import dump


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a kernel spec; unknown properties are not allowed."""
    _, definitions = msgspec.json.schema_components([KernelSpec], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        description = inspect.cleandoc(definition.get("description", ""))
        definition["description"] = description.replace("``", "`")
    whole = definitions.pop(KernelSpec.__name__)
    whole["properties"]["schema_version"] = {"const": SPEC_VERSION}
    whole["required"] = [*whole["required"], "schema_version"]
    whole["oneOf"] = [{"required": ["source"]}, {"required": ["file"]}]
    whole["properties"]["file"] = {"type": "string"}
    return {
        "$schema": DIALECT,
        **whole,
        "title": "Kernel spec of gpuenergy optimize",
        "$defs": dict(sorted(definitions.items())),
    }


def schema_document() -> str:
    """`spec_schema` as the published JSON document."""
    return dump(spec_schema())
