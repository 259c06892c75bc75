"""Read, check and write kernel specs as JSON files, and publish their JSON Schema."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_gpuenergy.report import DIALECT
from pytest_gpuenergy.search.source.entry_extraction import extract
from pytest_gpuenergy.search.source.preprocessor import Read
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.spec_checks import check_spec
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode_versioned,
    dump,
    is_file,
    is_folder,
    read_bytes,
    shown,
    write_atomically,
)

SPEC_VERSION = 1
"""The ``schema_version`` of the specs that this version reads."""

_MAX_SPEC_BYTES = 64 << 20
"""The limit on a spec's file, which may contain the elements of inputs."""


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
    content = read_bytes(path, "kernel spec", _MAX_SPEC_BYTES)
    try:
        return decode_versioned(content, KernelSpec, SPEC_VERSION)
    except (FormError, InputError) as error:  # the latter of its arguments
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
        spec = _load_source(spec, path, sources)
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


_SOURCES = "sources"
"""The folder beside a spec in which its checkout is looked for."""

_MAX_SOURCE_BYTES = 4 << 20
"""The limit on a file with source text."""


def _load_source(spec: KernelSpec, path: Path, sources: Path | None = None) -> KernelSpec:
    """Return the spec with the text in ``source``, and the entry's name in that text.

    It may need a checkout, which by default is `_SOURCES` beside the spec. What is wrong with the
    file is a `FormError`; it is an `InputError` if it cannot be read.
    """
    if not spec.file:
        if spec.extract or spec.checkout is not None:
            raise FormError("extract and checkout are for a spec with file")
        return replace(spec, source=spec.source.replace("\r\n", "\n"))
    if spec.extract and spec.language != "cuda":
        raise FormError("extract is for CUDA only: give the module of a Triton function as it is")
    inner = PurePosixPath(spec.file)
    if inner.is_absolute() or ".." in inner.parts or "\0" in spec.file:
        where = "the folder of the spec" if spec.checkout is None else "its checkout"
        raise FormError(f"its file {shown(spec.file)} is not in {where}: put it there")
    root = path.parent
    if spec.checkout is not None:
        root = path.parent / _SOURCES if sources is None else sources
        if not is_folder(root) or not is_file(root / inner):
            raise FormError(
                f"{shown(spec.file)} of {spec.checkout.repository} is not in {root}: clone that "
                f"repository (commit {spec.checkout.revision}), and name its folder with --sources"
            )
    root = root.resolve()
    if spec.extract:
        found = extract(inner, spec.entry, _reader(root, inner), spec.launch.constants)
        source, entry, texts = found.source, found.entry, list(found.files.values())
    else:
        source, entry = _text_within(root, inner), spec.entry
        texts = [source]
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()
    if spec.checkout is not None and spec.checkout.sha256 not in ("", digest):
        raise FormError(
            f"{spec.file} in {root} is not as in commit {spec.checkout.revision}, for which the "
            "spec was written: check that commit out, or leave sha256 out of the spec if the "
            "kernel still computes the same"
        )
    # Moves and diffs expect the line ends of Unix.
    source = source.replace("\r\n", "\n")
    return replace(spec, source=source, entry=entry, file="", checkout=None, extract=False)


def _reader(root: Path, file: PurePosixPath) -> Read:
    """Return a function that reads a file, and what it includes from the same folder."""

    def read(path: PurePosixPath) -> str | None:
        if path == file:
            return _text_within(root, path)
        try:
            return _text_within(root, path) if is_file(root / path) else None
        except FormError:
            return None  # an include of the host, for all that is known

    return read


def _text_within(root: Path, inner: PurePosixPath) -> str:
    """Return the text of a file in a folder or below, without symbolic links."""
    path = root / inner
    try:
        linked = path.resolve() != path
    except (OSError, RuntimeError):  # a loop of links
        linked = True
    if linked:
        raise FormError(f"its file {shown(str(inner))} is a symbolic link: name the file itself")
    try:
        return read_bytes(path, "kernel source", _MAX_SOURCE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormError(f"its file {shown(str(inner))} is not UTF-8 text") from None
