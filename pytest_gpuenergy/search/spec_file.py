"""Kernel specs as JSON files: read, checked, and written."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_gpuenergy.search.checks import check_spec
from pytest_gpuenergy.search.source.source_files import with_source
from pytest_gpuenergy.search.spec import KernelSpec
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
"""``schema_version`` of the specs read here."""

_LARGEST_BYTES = 64 << 20


def spec_paths(place: Path) -> list[Path]:
    """The specs that ``place`` stands for: itself, or the JSON files of a folder, by name.

    Raises:
        InputError: it is a folder without any.
    """
    if not is_folder(place):
        return [place]
    found = sorted(path for path in place.glob("*.json"))
    if not found:
        raise InputError(f"The folder {place} has no kernel specs (*.json): name one that has.")
    return found


def read_spec(path: Path, sources: Path | None = None) -> KernelSpec:
    """Read a spec, with the text of its source in ``source``.

    Args:
        path: of the spec.
        sources: the checkout that it may need; ``sources`` beside the spec by default.

    Raises:
        InputError: it cannot be read or used.
        UnavailableError: a kernel is to be taken out of a file, and tree-sitter is not installed.
    """
    return _complete(raw_spec(path), path, sources)


def raw_spec(path: Path) -> KernelSpec:
    """A spec as its file has it: neither checked, nor with the text of its source.

    Raises:
        InputError: it cannot be read.
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
        InputError: it is not valid.
        OSError: it cannot be written.
    """
    _complete(spec, path)
    write_atomically(path, dump({"schema_version": spec.schema_version, **_fields(spec)}))


def _complete(spec: KernelSpec, path: Path, sources: Path | None = None) -> KernelSpec:
    """The spec with the text of its source, checked."""
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


def _fields(spec: KernelSpec) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(spec)
    return fields
