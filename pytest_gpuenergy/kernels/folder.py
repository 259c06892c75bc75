"""A kernel as a folder: its description as JSON, and its CUDA source beside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.kernels.calls import LibraryCall, Option
from pytest_gpuenergy.kernels.kernel import AnyKernel, Dim3, Kernel, Kind, Origin
from pytest_gpuenergy.kernels.program import CudaProgram, Headers
from pytest_gpuenergy.kernels.source import StoredWorkspace, plan_of, read_plan, workspace_of
from pytest_gpuenergy.kernels.triton import Constant, TritonKernel
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    encode,
    is_there,
    read_bytes,
    write_atomically,
)

_PLAN, _SOURCE = "kernel.json", "kernel.cu"
_LARGEST_BYTES = 16 << 20


class _Kind(Struct, frozen=True):
    kind: Kind = "cuda"


class _Stored(Struct, frozen=True, kw_only=True):
    sha256: str
    workspaces: tuple[StoredWorkspace, ...]
    origin: Origin


class _Triton(_Stored, frozen=True, kw_only=True):
    source: str
    function: str
    grid: Dim3
    arguments: tuple[str, ...]
    constants: dict[str, Constant]
    num_warps: int
    num_stages: int


class _Library(_Stored, frozen=True, kw_only=True):
    entry: str
    tensors: dict[str, str]
    options: dict[str, Option]


class _Headers(Struct, frozen=True, kw_only=True):
    name: str
    sha256: str


class _Program(_Stored, frozen=True, kw_only=True):
    source: str
    name: str
    arguments: tuple[str, ...]
    numbers: tuple[int, ...]
    headers: _Headers | None
    headers_folder: str | None


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
        content = plan_of(kernel, _SOURCE)
    else:
        content = {
            **kernel.content,
            "workspaces": kernel.stored_workspaces,
            "origin": asdict(kernel.origin),
            "sha256": kernel.digest,
        }
        if isinstance(kernel, CudaProgram):
            content["headers_folder"] = kernel.headers and kernel.headers.folder
    # The plan is written last: if it exists, the source is complete.
    write_atomically(folder / _PLAN, encode(content))


def read_kernel(folder: Path) -> AnyKernel:
    """Read a kernel that `write_kernel` has written.

    Raises:
        InputError: it is missing or damaged.
    """
    path = folder / _PLAN
    content = read_bytes(path, "kernel", _LARGEST_BYTES)
    try:
        kind = decode(content, _Kind).kind
        if kind == "cuda":
            return read_plan(path)
        stored, kernel = _READERS[kind](content)
        if stored.sha256 != kernel.digest:
            raise FormError("its content does not match its sha256")
    except FormError as error:
        raise InputError(
            f"The kernel {path} cannot be used, because {error}: write it again."
        ) from None
    return kernel


def _triton(content: bytes) -> tuple[_Stored, AnyKernel]:
    stored = decode(content, _Triton)
    return stored, TritonKernel(
        stored.source,
        stored.function,
        stored.grid,
        stored.arguments,
        stored.constants,
        stored.num_warps,
        stored.num_stages,
        workspaces=tuple(map(workspace_of, stored.workspaces)),
        origin=stored.origin,
    )


def _library(content: bytes) -> tuple[_Stored, AnyKernel]:
    stored = decode(content, _Library)
    return stored, LibraryCall(
        stored.entry,
        stored.tensors,
        stored.options,
        workspaces=tuple(map(workspace_of, stored.workspaces)),
        origin=stored.origin,
    )


def _program(content: bytes) -> tuple[_Stored, AnyKernel]:
    stored = decode(content, _Program)
    known = stored.headers
    return stored, CudaProgram(
        stored.source,
        stored.name,
        stored.arguments,
        stored.numbers,
        None if known is None else Headers(known.name, known.sha256, stored.headers_folder or ""),
        workspaces=tuple(map(workspace_of, stored.workspaces)),
        origin=stored.origin,
    )


_READERS = {"triton": _triton, "library": _library, "program": _program}
