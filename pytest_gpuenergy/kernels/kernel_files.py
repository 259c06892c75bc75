"""Kernels as files: read from CUDA text or a launch plan, and stored in folders for workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from pytest_gpuenergy.kernels.arguments import checked_arguments
from pytest_gpuenergy.kernels.kernel import (
    AnyKernel,
    Dim3,
    Kernel,
    Kind,
    Launch,
    Origin,
    RecordedFigures,
)
from pytest_gpuenergy.kernels.kernel_kinds import CudaProgram, LibraryCall, TritonKernel
from pytest_gpuenergy.kernels.needed_source import HOST_HEADER
from pytest_gpuenergy.kernels.tensor_map import TensorMap
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    convert,
    decode,
    decode_versioned,
    encode,
    is_file,
    is_folder,
    is_there,
    read_bytes,
    shown,
    write_atomically,
)
from pytest_gpuenergy.workloads import FLOATS, Tensor, whole_sizes

PLAN_VERSION = 1
"""``schema_version`` of the launch plans written and read here."""

_MAX_BYTES = 16 << 20
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_DTYPES = frozenset(["bool", *FLOATS, *_INTEGERS])
_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(ifdef|ifndef|if|endif|define)\b[ \t]*(\w*)", re.MULTILINE)
_DEPTHS = {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}
"""The change, by directive, of the number of conditions that the text after it depends on."""
_MACRO = re.compile(r"[A-Za-z_]\w*(?:\([\w, .]*\))?")
_MAX_FILES = 100
"""The most files that a kernel's file may include, directly or indirectly."""
_TEXT_SIGN = re.compile(r"[\n{};]|__global__")


class _Plan(Struct, frozen=True):
    source: str
    sha256: str
    language: Literal["cuda"]
    launches: tuple[Launch, ...]
    workspaces: tuple[Tensor, ...]
    origin: Origin
    recorded: tuple[RecordedFigures, ...]
    tensor_maps: tuple[TensorMap, ...] = ()


def load_kernel(
    path_or_source: str | PathLike[str],
    *,
    entry: str | None = None,
    grid: int | Sequence[int] | None = None,
    block: int | Sequence[int] | None = None,
    arguments: Sequence[str | Sequence[Any]] | None = None,
    shared_bytes: int = 0,
    folder: Path | None = None,
    include: Sequence[str | PathLike[str]] = (),
    define: Mapping[str, object] | None = None,
) -> Kernel:
    """Return a CUDA kernel from a source file, from source text or from an exported launch plan.

    Args:
        path_or_source: path of a CUDA source file (any suffix), whose includes in quotes are read
            with it, the CUDA text itself, or the path of a launch plan (``.json``), which already
            gives all the following. The text is UTF-8, or else Latin-1.
        entry: name of the ``__global__`` function, or an instance of a template: ``f<float, 4>``.
        grid: blocks of the grid in x, y and z; sizes left out are 1.
        block: threads of a block, likewise.
        arguments: names of the workload's tensors and scalars, in the order of the parameters; for
            a struct by value, a list of its members, which are names, and lists for its arrays.
        shared_bytes: dynamic shared memory of a block, in bytes.
        folder: base of relative paths; None: the current folder.
        include: folders in which the file's includes are looked for, as with ``nvcc -I``. Those in
            angle brackets are looked for in no others.
        define: macros that the text begins with, and their values, as with ``nvcc -D``; True
            stands for a macro without a value.

    Raises:
        InputError: the file, the text or the launch cannot be used.
    """
    launch_options = {"entry": entry, "grid": grid, "block": block, "arguments": arguments}
    text = fspath(path_or_source)
    if isinstance(path_or_source, str) and _TEXT_SIGN.search(text):
        source, origin = text, Origin("source")
    else:
        path = Path(text) if folder is None else folder / text
        if path.suffix == ".json":
            if clash := [name for name, value in launch_options.items() if value is not None]:
                raise InputError(
                    f"The launch plan {path} already gives {clash[0]!r}: leave that out, "
                    "or name the source file instead of the plan."
                )
            return read_plan(path)
        folders = [Path(name) if folder is None else folder / name for name in include]
        if missing_folder := next((str(path) for path in folders if not is_folder(path)), ""):
            raise InputError(
                f"The folder {missing_folder} of 'include' is not there: name one with headers."
            )
        source = _Includes(folders).text(path)
        origin = Origin("file", details={"path": str(path)})
    source = _definitions(define or {}) + source.replace("\r\n", "\n")
    if entry is None or grid is None or block is None or arguments is None:
        missing = next(name for name, value in launch_options.items() if value is None)
        raise InputError(f"load_kernel needs {missing!r} unless it gets a launch plan (.json).")
    _check_entry(source, entry)
    if isinstance(arguments, str):
        raise InputError(f"'arguments' must be a list of names, not the text {arguments!r}.")
    given = checked_arguments(arguments, entry)
    launch = Launch(entry, _dim3("grid", grid), _dim3("block", block), given, shared_bytes)
    return Kernel(source, (launch,), origin=origin)


def launch_plan(kernel: Kernel, source_name: str) -> dict[str, Any]:
    """Return the launch plan of ``kernel`` as JSON values, for a source file ``source_name``."""
    return {
        "schema_version": PLAN_VERSION,
        **kernel.content,
        "source": source_name,
        "sha256": kernel.digest,
        "workspaces": kernel.stored_workspaces,
        "origin": {
            "kind": kernel.origin.kind,
            "rank": kernel.origin.rank,
            "details": dict(kernel.origin.details),
        },
        "recorded": [asdict(figures) for figures in kernel.recorded],
    }


def read_plan(path: Path) -> Kernel:
    """Return the kernel that the launch plan at ``path`` describes; its source is beside the plan.

    Raises:
        InputError: the plan or its source is missing, damaged, or outside the plan's folder.
    """
    text = _read_text(path, "launch plan")
    try:
        try:
            plan = decode_versioned(text, _Plan, PLAN_VERSION)
        except InputError as error:  # refused by `Launch` or `TensorMap`
            raise InputError(f"In the launch plan {path}: {error}") from None
        _check_workspaces(plan.workspaces)
        # A plan is untrusted data: it must not name files outside its own folder.
        source = path.parent / plan.source
        try:
            folder = path.parent.resolve()
            inside = Path(plan.source).name == plan.source and source.resolve().parent == folder
        except (OSError, ValueError):  # not a possible file name
            inside = False
        if not inside:
            raise InputError(
                f"The launch plan {path} names the source {plan.source!r}, which is not a file in "
                "the plan's own folder: put the source beside the plan and name it without a "
                "folder."
            )
        kernel = Kernel(
            source=_read_text(source, "kernel source"),
            launches=plan.launches,
            tensor_maps=plan.tensor_maps,
            workspaces=plan.workspaces,
            origin=plan.origin,
            recorded=plan.recorded,
        )
    except FormError as error:
        raise InputError(
            f"The launch plan {path} cannot be used, because {error}: export it again."
        ) from None
    if plan.sha256 != kernel.digest:
        raise InputError(
            f"The launch plan {path} was written for a different {plan.source}: export it "
            "again, or give load_kernel the source file with its entry, grid, block and arguments."
        )
    for launch in kernel.launches:
        _check_entry(kernel.source, launch.entry)
    return kernel


def _read_text(path: Path, what: str) -> str:
    try:
        content = read_bytes(path, what, _MAX_BYTES)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # comments in another encoding do not matter
        text = content.decode("latin-1")
    if "\0" in text or text.startswith(("\xff\xfe", "\xfe\xff")):
        raise InputError(f"The {what} {path} is binary: give a text file.")
    if not text.strip():
        raise InputError(f"The {what} {path} is empty.")
    return text


class _Includes:
    """Replaces the includes of a file by the text of the files that they name.

    A file in quotes is looked for beside the one that includes it first; a header of the host's
    libraries is looked for nowhere else. The ``#include`` stays if the file is not found, or if too
    many files have been read. Each text counts once, as if it had ``#pragma once``. If its first
    ``#include`` depends on a condition, such as ``#ifdef USE_OTHER_HELPERS``, the text is repeated
    at the next one, and a macro lets the compiler read only one of the two.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._numbers: dict[Path, int] = {}
        self._certain: set[Path] = set()
        self._left = _MAX_FILES

    def text(self, path: Path, within: tuple[Path, ...] = (), *, certain: bool = True) -> str:
        """Return the text of a file.

        Args:
            path: the file.
            within: the files that are being read, of which each includes the next and the last
                one this file.
            certain: whether the file is included whatever macros are defined.
        """
        own = _read_text(path, "kernel source").replace("\r\n", "\n")
        within = (*within, path.resolve())
        conditions = _Conditions(own)

        def included(directive: re.Match[str]) -> str:
            header = directive[1] or directive[2]
            places = [path.parent] if directive[1] else []
            if not HOST_HEADER.fullmatch(header):
                places += self._folders
            there = next((folder / header for folder in places if is_file(folder / header)), None)
            if there is None or self._left < 1:
                return directive[0]
            found = there.resolve()
            if found in self._certain or found in within:
                return ""
            self._left -= 1
            always = certain and not conditions.hold_at(directive.start())
            if always:
                self._certain.add(found)
            text = self.text(there, within, certain=always)
            text = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", "", text, flags=re.MULTILINE)
            if always and found not in self._numbers:
                return text
            macro = f"GPUENERGY_INCLUDED_{self._numbers.setdefault(found, len(self._numbers))}"
            return f"#ifndef {macro}\n#define {macro}\n{text}\n#endif"

        return _INCLUDED.sub(included, own)


class _Conditions:
    """Where a text depends on macros, other than on the guard around all of it."""

    def __init__(self, text: str) -> None:
        lines = list(_DIRECTIVE.finditer(text))
        words = [line[1] for line in lines]
        guarded = (
            words[:2] == ["ifndef", "define"]
            and words[-1] == "endif"
            and lines[0][2] == lines[1][2]
        )
        self._steps = [(line.start(), _DEPTHS[line[1]]) for line in lines if line[1] in _DEPTHS]
        self._least = 1 if guarded else 0

    def hold_at(self, place: int) -> bool:
        """Return whether the text at ``place`` is there on a condition only."""
        return sum(step for at, step in self._steps if at < place) > self._least


def _definitions(macros: Mapping[str, object]) -> str:
    """Directives that define macros."""
    lines = []
    for name, value in macros.items():
        if not _MACRO.fullmatch(name):
            raise InputError(f"'define' has {name!r}, which is not the name of a macro.")
        if value is False or value is None or "\n" in str(value):
            raise InputError(
                f"'define' gives the macro {name} the value {value!r}: give it a number, a text of "
                "one line, or True for none, or leave it out."
            )
        lines.append(f"#define {name}{'' if value is True else f' {value}'}\n")
    return "".join(lines)


def _check_entry(source: str, entry: str) -> None:
    name = re.split(r"[<(]", entry)[0].split("::")[-1].strip()
    if not name or not re.search(rf"\b{re.escape(name)}\b", source):
        known = re.findall(r"__global__[^;{]*?(\w+)\s*\((?![^()]*\)\s*\w+\s*\()", source)
        hint = f"it has {', '.join(known)}" if known else "it has no __global__ function"
        raise InputError(f"The kernel source has no function {entry!r}: {hint}.")


def _dim3(what: str, value: int | Sequence[int]) -> Dim3:
    sizes = whole_sizes(value)
    if not 1 <= len(sizes) <= 3:
        raise InputError(f"The {what} must have one to three sizes, not {value!r}.")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _check_workspaces(workspaces: Iterable[Tensor]) -> None:
    """Raise a `FormError` if a workspace that a file describes has an unusable type or shape."""
    for number, space in enumerate(workspaces):
        if space.role != "workspace":
            raise FormError(f"workspaces[{number}] has the role {space.role!r}")
        if space.dtype not in _DTYPES:
            raise FormError(f"a workspace has the unknown type {shown(space.dtype)}")
        if space.size < 1 or min(space.shape, default=1) < 1:
            raise FormError(f"workspaces[{number}].shape has a size that is less than 1")


_PLAN, _SOURCE = "kernel.json", "kernel.cu"


class _StoredKind(Struct, frozen=True):
    kind: Kind = "cuda"
    sha256: str = ""


_KINDS: Mapping[str, type[AnyKernel]] = {
    kind.kind: kind for kind in (TritonKernel, LibraryCall, CudaProgram)
}
"""The kinds of kernels that are stored field by field."""


def write_kernel(folder: Path, kernel: AnyKernel) -> None:
    """Write ``kernel`` into ``folder``, unless there is one already.

    Raises:
        OSError: it cannot be written.
    """
    if is_there(folder / _PLAN):
        return
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(kernel, Kernel):
        write_atomically(folder / _SOURCE, kernel.source)
        content = launch_plan(kernel, _SOURCE)
    else:
        content = {
            **kernel.content,
            "workspaces": kernel.stored_workspaces,
            "origin": asdict(kernel.origin),
            "sha256": kernel.digest,
        }
        if isinstance(kernel, CudaProgram):
            content["headers_folder"] = kernel.headers and kernel.headers.folder
        elif isinstance(kernel, LibraryCall):
            content["opaque"] = kernel.opaque
    # The plan is written last: if it exists, the source is complete.
    write_atomically(folder / _PLAN, encode(content))


def read_kernel(folder: Path) -> AnyKernel:
    """Read a kernel that `write_kernel` has written.

    Raises:
        InputError: it is missing or damaged.
    """
    path = folder / _PLAN
    content = read_bytes(path, "kernel", _MAX_BYTES)
    try:
        stored = decode(content, _StoredKind)
        if stored.kind == "cuda":
            return read_plan(path)
        members = decode(content, dict[str, Any])
        if isinstance(headers := members.get("headers"), dict):
            members["headers"] = {**headers, "folder": members.get("headers_folder") or ""}
        kernel = convert(members, _KINDS[stored.kind])
        _check_workspaces(kernel.workspaces)
        if stored.sha256 != kernel.digest:
            raise FormError("its content does not match its sha256")
    except FormError as error:
        raise InputError(
            f"The kernel {path} cannot be used, because {error}: write it again."
        ) from None
    return kernel
