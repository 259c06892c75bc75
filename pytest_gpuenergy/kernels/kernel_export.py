"""Writes kernels as plain CUDA sources that build and run without this package.

For each kernel the folder holds its source, its launch plan (JSON, which `load_kernel` reads) and
the same plan for the driver: a header, and a source that launches. All kernels share a host driver,
a reference for each kind of workload, a CMakeLists.txt and a table.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.kernels.arguments import argument_text
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.kernel_files import launch_plan
from pytest_gpuenergy.support import (
    Cell,
    FormError,
    InputError,
    csv_text,
    cuda_dir,
    decode,
    encode,
    is_file,
    is_link,
    is_there,
    read_bytes,
    write_atomically,
)
from pytest_gpuenergy.workloads import NORMAL, Workload, is_plain_name

_TENSOR_MAPS = "tensor_maps.cuh"
"""The header that encodes tensor maps, for sources that have some."""

_TYPES = {
    "float16": "half",
    "bfloat16": "nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long long",
}
"""The types of the driver's ``Type``, in C++."""


@dataclass(frozen=True)
class RankedKernel:
    """One kernel of a workload and its rank in the selection (1 = fastest)."""

    workload: Workload
    rank: int
    kernel: Kernel

    @property
    def stem(self) -> str:
        """File name without suffix: ``kernel01``."""
        return f"kernel{self.rank:02d}"


_NUMBERS = re.compile("[0-9]+(,[0-9]+)*")
"""A list of numbers, such as the rows of groups."""
_DRIVER = ("driver.cu", "energy.cuh", "replays.cuh")
_BUILD, _NATIVE = "CMakeLists.txt", "native) # this machine's GPUs; to build elsewhere, set 90, say"
_HOPPER = "sm_90a"
"""The architecture whose instructions take tensor maps; CMake's ``native`` lacks them."""
_RECORDED = ("tuned_for", "time_ms", "power_w", "energy_mj")
_COLUMNS = (
    *("workload", "rank", "launch", "file", "entry", "sha256"),
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes"),
    *("arguments", "flops", *_RECORDED),
)


def export_kernels(
    kernels: Iterable[RankedKernel], folder: Path, architecture: str | None = None
) -> list[Path]:
    """Write ``kernels`` into ``folder``, in place of what an earlier export has written there.

    Args:
        kernels: the kernels to write.
        folder: the folder to write to.
        architecture: the architecture to build for, such as ``sm_90``, unless whoever builds names
            another; None stands for that of the machine that builds. Kernels with tensor maps are
            built for sm_90a.

    Returns:
        The files written, the table first.

    Raises:
        InputError: the folder contains something else or cannot be written, or a kernel cannot be
            exported.
    """
    ranked = sorted(kernels, key=lambda item: (item.workload.name, item.rank))
    content = {"kernel_metadata.csv": _table(ranked)}
    shared = {*_DRIVER, _BUILD}
    for item in ranked:
        if not is_plain_name(item.workload.name):  # it goes into paths, C++ and CMake text
            raise InputError(
                f"A workload called {item.workload.name!r} cannot be exported: use letters, "
                "digits, '_', '-' and '.' in its name."
            )
        reference = f"references/{item.workload.kind}.cuh"
        if not is_file(cuda_dir() / "export" / reference):
            raise InputError(
                f"{item.workload.name} is of kind {item.workload.kind}, for which the exported "
                "driver has no reference: choose kernels of other workloads."
            )
        shared.add(reference)
        pointers = _pointers(item)
        base = f"kernels/{item.workload.name}/{item.stem}"
        content[f"{base}.cu"] = item.kernel.source
        content[f"{base}.json"] = _plan(item)
        content[f"{base}.workload.cuh"] = _workload_header(item, reference)
        content[f"{base}.launch.cu"] = _launch_source(item, pointers)
    if any(item.kernel.tensor_maps for item in ranked):
        shared.add(_TENSOR_MAPS)
        architecture = _HOPPER
    for name in sorted(shared):
        content[name] = (cuda_dir() / "export" / name).read_text(encoding="utf-8")
    if architecture is not None:
        number = architecture.removeprefix("sm_")
        content[_BUILD] = content[_BUILD].replace(_NATIVE, f"{number}) # of the GPU they are for")
    return write_export(content, folder)


def _table(ranked: Sequence[RankedKernel]) -> str:
    """Return the table of all launches as CSV."""
    rows: list[Sequence[Cell]] = [_COLUMNS]
    for item in ranked:
        recorded: tuple[str | float, ...] = ("",) * len(_RECORDED)
        if item.kernel.recorded:
            figures = item.kernel.recorded[0]
            recorded = (figures.gpu, figures.time_ms, figures.power_w, figures.energy_mj)
        file = f"kernels/{item.workload.name}/{item.stem}.cu"
        rows += [
            (
                *(item.workload.name, item.rank, number, file, launch.entry, item.kernel.digest),
                *(*launch.grid, *launch.block, launch.shared_bytes),
                *(" ".join(map(argument_text, launch.arguments)), item.workload.flops, *recorded),
            )
            for number, launch in enumerate(item.kernel.launches)
        ]
    return csv_text(rows)


def _plan(item: RankedKernel) -> str:
    """Return the launch plan with the kernel's rank and workload, as JSON text."""
    tensors = [
        {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "role": t.role}
        for t in item.workload.tensors
    ]
    workload = {
        "name": item.workload.name,
        "parameters": dict(item.workload.parameters),
        "tensors": tensors,
        "flops": item.workload.flops,
    }
    plan = {**launch_plan(item.kernel, f"{item.stem}.cu"), "rank": item.rank, "workload": workload}
    return json.dumps(plan, indent=2) + "\n"


def _pointers(item: RankedKernel) -> dict[str, str]:
    """Return a pointer to each tensor and workspace, in C++, or refuse a type the driver lacks."""
    pointers = {}
    arrays = {"tensors": item.workload.tensors, "workspaces": item.kernel.workspaces}
    for array, buffers in arrays.items():
        for index, tensor in enumerate(buffers):
            if tensor.dtype not in _TYPES:
                raise InputError(
                    f"{item.workload.name} {item.stem} has the {tensor.role} {tensor.name} of type "
                    f"{tensor.dtype}, but the exported driver only supports {', '.join(_TYPES)}."
                )
            pointers[tensor.name] = f"static_cast<{_TYPES[tensor.dtype]}*>({array}[{index}])"
    return pointers


def _workload_header(item: RankedKernel, reference: str) -> str:
    """Return the C++ header through which ``driver.cu`` knows what the kernel computes."""
    workload, spaces = item.workload, item.kernel.workspaces
    parameters = "\n".join(
        f"#define PARAMETER_{name} {value}"
        if isinstance(value, int) or _NUMBERS.fullmatch(str(value))
        # The preprocessor cannot compare words.
        else f"#define PARAMETER_{name}_{value}"
        for name, value in workload.parameters.items()
        if isinstance(value, int) or f"_{value}".isidentifier() or _NUMBERS.fullmatch(str(value))
    )
    tensors = []
    for tensor in workload.tensors:
        bound = workload.bound_of(tensor)
        is_output, bounds = "false", "0, 0"
        if tensor.is_written:
            is_output, bounds = "true", f"{bound.max_relative!r}, {bound.normwise!r}"
        kind = f"Type::{tensor.dtype}"
        tensors.append(f'    {{"{tensor.name}", {kind}, {tensor.size}, {is_output}, {bounds}}},')
    lines = "\n".join(tensors)
    distribution, _, zeros = str(workload.parameters.get("distribution", NORMAL)).partition(":")
    return f"""\
// {workload.name} {item.stem}, for driver.cu; {item.stem}.json says the same.
#pragma once

{parameters}
#include "../../{reference}"

constexpr char LABEL[] = "{workload.name} {item.stem}";
constexpr double FLOPS = {float(workload.flops)!r};
constexpr Inputs INPUTS = Inputs::{distribution.upper()};
constexpr double SHARE_OF_ZEROS = {float(zeros or 0)!r};
constexpr Tensor TENSORS[] = {{
{lines}
}};
constexpr int WORKSPACES = {len(spaces)};
constexpr size_t WORKSPACE_BYTES[] = {{{", ".join(str(space.nbytes) for space in spaces) or "0"}}};
"""


def _launch_source(item: RankedKernel, pointers: Mapping[str, str]) -> str:
    """Return the CUDA source that contains the kernel and launches it for ``driver.cu``.

    It is compiled on its own, so that the names and macros of kernel and driver do not meet.
    """
    kernel, name = item.kernel, f"{item.workload.name} {item.stem}"
    statements = []
    for tensor_map in kernel.tensor_maps:
        if tensor_map.tensor not in pointers:
            raise InputError(
                f"{name} has a tensor map of {tensor_map.tensor!r}, which is not a tensor of "
                f"{item.workload.name}: it has {', '.join(pointers)}."
            )
        lists = [tensor_map.dims, tensor_map.strides_bytes, tensor_map.box]
        if tensor_map.im2col is not None:
            lists += [
                tensor_map.im2col.lower,
                tensor_map.im2col.upper,
                (1, *tensor_map.im2col.strides, 1),
            ]
        sizes = ", ".join(f"{{{', '.join(map(str, some))}}}" for some in lists)
        function = "tensor_map" if tensor_map.im2col is None else "im2col_map"
        swizzle = f"{tensor_map.swizzle_bytes}B" if tensor_map.swizzle_bytes else "NONE"
        statements.append(
            f"  const CUtensorMap {tensor_map.name} = {function}({pointers[tensor_map.tensor]}, "
            f"CU_TENSOR_MAP_DATA_TYPE_{tensor_map.dtype.upper()},\n"
            f"      {sizes}, CU_TENSOR_MAP_SWIZZLE_{swizzle});"
        )
    attributes = ""
    known = {**pointers, **{tensor_map.name: tensor_map.name for tensor_map in kernel.tensor_maps}}
    for launch in kernel.launches:
        if unknown := [argument for argument in launch.arguments if argument not in known]:
            raise InputError(
                f"{name} takes {argument_text(unknown[0])!r}, which is not a tensor of "
                f"{item.workload.name}: it has {', '.join(known)}."
            )
        grid, block = (", ".join(map(str, sizes)) for sizes in (launch.grid, launch.block))
        arguments = ", ".join(known[name] for name in launch.names)
        statements.append(
            f"  ::{launch.entry}<<<dim3({grid}), dim3({block}), {launch.shared_bytes}, "
            f"stream>>>(\n      {arguments});"
        )
        # Without this, static and dynamic shared memory together are limited to 48 KiB.
        if launch.shared_bytes:
            attributes += (
                f"  if (cudaError_t status = cudaFuncSetAttribute((const void*)::{launch.entry},\n"
                f"          cudaFuncAttributeMaxDynamicSharedMemorySize, {launch.shared_bytes})) "
                "return status;\n"
            )
    include = f'#include "../../{_TENSOR_MAPS}"\n' if kernel.tensor_maps else ""
    calls = "\n".join(statements)
    return f"""\
// Launches {name}, for driver.cu; {item.stem}.json says the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

{include}#include "{item.stem}.cu"

namespace exported {{

cudaError_t prepare() {{
{attributes}  return cudaSuccess;
}}

void launch(void* const* tensors, void* const* workspaces, cudaStream_t stream) {{
  (void)workspaces;
{calls}
}}

}}  // namespace exported
"""


SIGN = "gpuenergy-export.json"
"""The file that lists what an export has written."""

_MAX_BYTES = 64 << 20


class _Sign(Struct, frozen=True):
    """The content of the list: the SHA-256 of each exported file, by its path in the folder."""

    made_by: Literal["pytest-gpuenergy"]
    files: dict[str, str]


@dataclass(frozen=True)
class ExportedFolder:
    """The files that exports have written to a folder.

    Attributes:
        path: the folder.
        own: files that are there as they were written.
        changed: files that somebody has changed since, or replaced by something else.
    """

    path: Path
    own: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()

    @classmethod
    def find(cls, folder: Path) -> ExportedFolder | None:
        """Return what exports have written to ``folder``; None if none has.

        Raises:
            InputError: it cannot be read.
        """
        sign = folder / SIGN
        if not _is_regular(sign):
            return None
        try:
            listed = decode(read_bytes(sign, "list of exported files", _MAX_BYTES), _Sign)
        except FormError as error:
            raise InputError(f"{sign} cannot be used: {error}. Remove it by hand.") from None
        own: list[Path] = []
        changed: list[Path] = []
        for name, digest in listed.files.items():
            parts = PurePosixPath(name).parts
            leaves = not parts or ".." in parts or parts[0] == "/" or "\0" in name
            if leaves or any(is_link(folder.joinpath(*parts[:n])) for n in range(1, len(parts))):
                raise InputError(f"{sign} names {name[:80]!r}, which is not in its folder.")
            path = folder.joinpath(*parts)
            if is_there(path):
                same = _is_regular(path) and sha256(path.read_bytes()).hexdigest() == digest
                (own if same else changed).append(path)
        return cls(folder, tuple(own), tuple(changed))

    def remove(self) -> None:
        """Remove what exports have written, and the folders that are empty then.

        Raises:
            OSError: a file cannot be removed.
        """
        for path in self.own:
            path.unlink(missing_ok=True)
        for folder in self.folders:
            if is_there(folder) and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of these files below the exported one, the deepest first."""
        found = {
            parent
            for path in self.own
            for parent in path.parents
            if parent != self.path and parent.is_relative_to(self.path)
        }
        return tuple(sorted(found, key=lambda folder: -len(folder.parts)))


def check_exportable(folder: Path) -> ExportedFolder | None:
    """Check that ``folder`` is missing, empty, or one that only exports have written to.

    Files that a build adds, in a folder such as ``build``, are left alone.

    Returns:
        What an earlier export has written there.

    Raises:
        InputError: it is something else, or somebody has changed what was exported.
    """
    try:
        if not is_there(folder) or not any(folder.iterdir()):
            return None
        earlier = ExportedFolder.find(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from None
    if earlier is None:
        raise InputError(
            f"The folder {folder} is not empty, and no earlier export has written it: name a new "
            "one."
        )
    if earlier.changed:
        raise InputError(
            f"{earlier.changed[0]} was changed after it had been exported: move it elsewhere, or "
            "name a new folder."
        )
    return earlier


def write_export(content: Mapping[str, str], folder: Path) -> list[Path]:
    """Replace what an earlier export has written to ``folder`` by ``content``, by relative paths.

    Returns:
        The files written.

    Raises:
        InputError: as `check_exportable`; a file of somebody else is in the way; or one cannot be
            written.
    """
    earlier = check_exportable(folder)
    own = set(earlier.own) if earlier else set()
    for name in content:
        if (path := folder / name) not in own and is_there(path):
            raise InputError(f"{path} is in the way, and was not exported: move it elsewhere.")
    digests = {name: sha256(text.encode()).hexdigest() for name, text in content.items()}
    try:
        if earlier is not None:
            earlier.remove()
        folder.mkdir(parents=True, exist_ok=True)
        # First: what an interrupted export has written is known to be ours.
        write_atomically(folder / SIGN, encode(_Sign("pytest-gpuenergy", digests)) + b"\n")
        for name, text in content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return [folder / name for name in content]


def _is_regular(path: Path) -> bool:
    return is_there(path) and stat.S_ISREG(path.lstat().st_mode)
