"""The text of a spec's kernel: from a file beside it, or in a checkout of somebody's repository."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from pytest_gpuenergy.search.source.entry_extraction import extract
from pytest_gpuenergy.search.spec.kernel_spec import Checkout, KernelSpec
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
        return replace(spec, source=_with_newlines(spec.source))
    if spec.extract and spec.language != "cuda":
        raise FormError("extract is for CUDA only: give the module of a Triton function as it is")
    where = "the folder of the spec" if spec.checkout is None else "its checkout"
    _check_inside(spec.file, where)
    root = _root(spec, path, sources)
    if spec.extract:
        source, entry, texts = _extracted(spec, root)
    else:
        source, entry = _text_of(root, PurePosixPath(spec.file)), spec.entry
        texts = [source]
    if spec.checkout is not None and spec.checkout.sha256 not in ("", sha256_of(texts)):
        raise FormError(
            f"{spec.file} in {root} is not as in commit {spec.checkout.revision}, for which the "
            "spec was written: check that commit out, or leave sha256 out of the spec if the "
            "kernel still computes the same"
        )
    source = _with_newlines(source)
    return replace(spec, source=source, entry=entry, file="", checkout=None, extract=False)


def _with_newlines(text: str) -> str:
    """Return a text with the line ends of Unix, as moves and diffs expect them."""
    return text.replace("\r\n", "\n")


def sha256_of(texts: Iterable[str]) -> str:
    """Return the digest by which a spec recognizes the files that it uses."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _root(spec: KernelSpec, path: Path, sources: Path | None) -> Path:
    if spec.checkout is None:
        return path.parent.resolve()
    folder = path.parent / SOURCES if sources is None else sources
    if not is_folder(folder) or not is_file(folder / PurePosixPath(spec.file)):
        raise FormError(_missing(spec.file, spec.checkout, folder))
    return folder.resolve()


def _missing(file: str, checkout: Checkout, folder: Path) -> str:
    return (
        f"{shown(file)} of {checkout.repository} is not in {folder}: clone that repository (commit "
        f"{checkout.revision}), and name its folder with --sources"
    )


def _extracted(spec: KernelSpec, root: Path) -> tuple[str, str, list[str]]:
    def read(path: PurePosixPath) -> str | None:
        if path == PurePosixPath(spec.file):
            return _text_of(root, path)
        try:
            return _text_of(root, path) if is_file(root / path) else None
        except FormError:
            return None  # an include of the host, for all that is known

    found = extract(PurePosixPath(spec.file), spec.entry, read, spec.launch.constants)
    return found.source, found.entry, list(found.files.values())


def _check_inside(name: str, where: str) -> None:
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts or "\0" in name:
        raise FormError(f"its file {shown(name)} is not in {where}: put it there")


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
