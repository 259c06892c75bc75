"""The text of a spec's kernel: from a file beside it, or in a checkout of somebody's repository."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from pytest_gpuenergy.search.source.entry_extraction import extract
from pytest_gpuenergy.search.source.preprocessor import Read
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.support import FormError, is_file, is_folder, read_bytes, shown

SOURCES = "sources"
"""The folder beside a spec in which its checkout is looked for."""

_LARGEST_BYTES = 4 << 20


def with_source(spec: KernelSpec, path: Path, sources: Path | None = None) -> KernelSpec:
    """Return the spec with the text in ``source``, and the entry's name in that text.

    Args:
        spec: the spec, with either ``source`` or ``file``.
        path: the path of the spec.
        sources: the checkout that the spec may need; by default `SOURCES` beside the spec.

    Raises:
        FormError: the file cannot be used; the message is a clause.
        InputError: the file cannot be read.
        UnavailableError: a kernel is to be taken out of it, and tree-sitter is not installed.
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
        root = path.parent / SOURCES if sources is None else sources
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
        source, entry = _text_of(root, inner), spec.entry
        texts = [source]
    if spec.checkout is not None and spec.checkout.sha256 not in ("", sha256_of(texts)):
        raise FormError(
            f"{spec.file} in {root} is not as in commit {spec.checkout.revision}, for which the "
            "spec was written: check that commit out, or leave sha256 out of the spec if the "
            "kernel still computes the same"
        )
    # Moves and diffs expect the line ends of Unix.
    source = source.replace("\r\n", "\n")
    return replace(spec, source=source, entry=entry, file="", checkout=None, extract=False)


def sha256_of(texts: Iterable[str]) -> str:
    """Return the digest by which a spec recognizes the files that it uses."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _reader(root: Path, file: PurePosixPath) -> Read:
    """Return a function that reads a file, and what it includes from the same folder."""

    def read(path: PurePosixPath) -> str | None:
        if path == file:
            return _text_of(root, path)
        try:
            return _text_of(root, path) if is_file(root / path) else None
        except FormError:
            return None  # an include of the host, for all that is known

    return read


def _text_of(root: Path, inner: PurePosixPath) -> str:
    """Return the text of a file in a folder or below, without symbolic links."""
    path = root / inner
    try:
        linked = path.resolve() != path
    except (OSError, RuntimeError):  # a loop of links
        linked = True
    if linked:
        raise FormError(f"its file {shown(str(inner))} is a symbolic link: name the file itself")
    try:
        return read_bytes(path, "kernel source", _LARGEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormError(f"its file {shown(str(inner))} is not UTF-8 text") from None
