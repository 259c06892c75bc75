"""Reads, checks and writes kernel specs as JSON files, and publishes their JSON Schema."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

from pytest_gpuenergy.report import DIALECT
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.source_files import with_source
from pytest_gpuenergy.search.spec.spec_checks import check_spec
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    dump,
    is_folder,
    read_bytes,
    schema_version,
    shown,
    write_atomically,
)

SPEC_VERSION = 1
"""The ``schema_version`` of the specs that this version reads."""

_LARGEST_BYTES = 64 << 20
"""Size of a spec's file, which may contain the elements of inputs."""


def spec_paths(place: Path) -> list[Path]:
    """Return the path of a spec, or the JSON files of a folder in the order of their names.

    Raises:
        InputError: the folder has no JSON files.
    """
    if not is_folder(place):
        return [place]
    found = sorted(path for path in place.glob("*.json"))
    if not found:
        raise InputError(f"The folder {place} has no kernel specs (*.json): name one that has.")
    return found


def read_spec(path: Path, sources: Path | None = None) -> KernelSpec:
    """Read and check a spec, with the text of its source in ``source``.

    Args:
        path: the file of the spec.
        sources: the checkout that it may need; by default ``sources`` beside the spec.

    Raises:
        InputError: the spec cannot be read or used.
        UnavailableError: a kernel must be extracted from a file, and tree-sitter is not installed.
    """
    return _complete(raw_spec(path), path, sources)


def raw_spec(path: Path) -> KernelSpec:
    """Read a spec without checking it, and without the text of its source.

    Raises:
        InputError: the file cannot be read.
    """
    content = read_bytes(path, "kernel spec", _LARGEST_BYTES)
    try:
        version = schema_version(content)
        if version != SPEC_VERSION:
            raise FormError(
                f"its schema_version is {shown(version)}, but this gpuenergy reads {SPEC_VERSION}"
            )
        return decode(content, KernelSpec)
    except FormError as error:
        raise _refusal(path, error) from None


def write_spec(spec: KernelSpec, path: Path) -> None:
    """Write a spec that was built in Python.

    Raises:
        InputError: the spec is not valid.
        OSError: the file cannot be written.
    """
    _complete(spec, path)
    fields: dict[str, object] = msgspec.to_builtins(spec)
    write_atomically(path, dump({"schema_version": spec.schema_version, **fields}))


def _complete(spec: KernelSpec, path: Path, sources: Path | None = None) -> KernelSpec:
    """Return the spec, checked, with the text of its source."""
    try:
        if bool(spec.source) == bool(spec.file):
            raise FormError("it needs either source, the text itself, or file, a path")
        spec = with_source(spec, path, sources)
        check_spec(spec.on(emulated=False))
        check_spec(spec.on(emulated=True))
    except (FormError, InputError) as error:
        raise _refusal(path, error) from None
    return spec


def _refusal(path: Path, error: Exception) -> InputError:
    clause = str(error).removesuffix(".")
    if isinstance(error, InputError):
        clause = clause[:1].lower() + clause[1:]
    return InputError(f"The kernel spec {path} cannot be used, because {clause}.")


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kernel spec, which allows no other properties."""
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
    """Return `spec_schema` as the published JSON document."""
    return dump(spec_schema())
