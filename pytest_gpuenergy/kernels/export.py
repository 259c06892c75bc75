"""Writes kernels as plain CUDA sources that build and run without this package.

For each kernel the folder holds its source, its launch plan (JSON, which `load_kernel` reads) and
the same plan for the driver: a header, and a source that launches. All kernels share a host driver,
a reference for each kind of workload, a CMakeLists.txt and a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.kernels.source import plan_of
from pytest_gpuenergy.support.csv_output import Cell, csv_text
from pytest_gpuenergy.support.cuda_sources import cuda_dir
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_file, is_there, write_atomically
from pytest_gpuenergy.workloads.distributions import NORMAL
from pytest_gpuenergy.workloads.workload import Tensor, Workload, is_plain_name

_TYPES = {
    "float16": "half",
    "bfloat16": "nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long long",
}
"""The types of the driver's ``Type``, in C++."""
_DEFAULT_SHARED_BYTES = 48 << 10
"""Dynamic shared memory available to a launch by default (CUDA C++ Programming Guide)."""

_DRIVER = ("driver.cu", "energy.cuh", "replays.cuh")
_BUILD, _NATIVE = "CMakeLists.txt", "native) # this machine's GPUs; to build elsewhere, set 90, say"
_RECORDED = ("tuned_for", "time_ms", "power_w", "energy_mj")
_COLUMNS = (
    *("workload", "rank", "launch", "file", "entry", "sha256"),
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes"),
    *("arguments", "flops", *_RECORDED),
)


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


def export_kernels(
    kernels: Iterable[RankedKernel], folder: Path, architecture: str | None = None
) -> list[Path]:
    """Write ``kernels`` into ``folder``, which must be new or empty.

    Args:
        kernels: what to write.
        folder: where to.
        architecture: such as ``sm_90``, for which they are built unless the builder names another;
            None stands for that of the machine where they are built.

    Returns:
        The files written, the table first.

    Raises:
        InputError: the folder is not empty or cannot be written, or a kernel cannot be exported.
    """
    ranked = sorted(kernels, key=lambda item: (item.workload.name, item.rank))
    for item in ranked:
        if not is_plain_name(item.workload.name):  # it goes into paths, C++ and CMake text
            raise InputError(
                f"A workload called {item.workload.name!r} cannot be exported: use letters, "
                "digits, '_', '-' and '.' in its name."
            )
    content: dict[str, str] = {"kernel_metadata.csv": _table(ranked)}
    for item in ranked:
        base = f"kernels/{item.workload.name}/{item.stem}"
        content[f"{base}.cu"] = item.kernel.source
        content[f"{base}.json"] = json.dumps(_plan(item), indent=2) + "\n"
        content[f"{base}.workload.cuh"] = workload_header(item)
        content[f"{base}.launch.cu"] = launch_source(item)
    shared = {_reference(item.workload) for item in ranked} | {*_DRIVER, _BUILD}
    for name in sorted(shared):
        content[name] = (cuda_dir() / "export" / name).read_text(encoding="utf-8")
    if architecture is not None:
        number = architecture.removeprefix("sm_")
        content[_BUILD] = content[_BUILD].replace(_NATIVE, f"{number}) # of the GPU they are for")
    return _write(content, folder)


def require_empty(folder: Path) -> None:
    """Check that ``folder`` is missing or empty.

    Raises:
        InputError: it is neither, or not a folder.
    """
    try:
        if is_there(folder) and any(folder.iterdir()):
            raise InputError(
                f"The folder {folder} is not empty: name a new one, so that kernels of different "
                "exports never mix."
            )
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from None


def workload_header(item: RankedKernel) -> str:
    """The C++ header through which ``driver.cu`` knows what the kernel computes.

    Raises:
        InputError: the driver has no reference for the workload, or cannot provide a tensor.
    """
    workload, spaces = item.workload, item.kernel.workspaces
    reference = _reference(workload)
    parameters = "\n".join(
        f"#define PARAMETER_{name} {value}"
        if isinstance(value, int)
        # The preprocessor cannot compare words.
        else f"#define PARAMETER_{name}_{value}"
        for name, value in workload.parameters.items()
        if isinstance(value, int) or f"_{value}".isidentifier()
    )
    tensors = "\n".join(f"    {_tensor(item, tensor)}," for tensor in workload.tensors)
    return f"""\
// {workload.name} {item.stem}, for driver.cu; {item.stem}.json says the same.
#pragma once

{parameters}
#include "../../{reference}"

constexpr char LABEL[] = "{workload.name} {item.stem}";
constexpr double FLOPS = {float(workload.flops)!r};
{_inputs(workload)}
constexpr Tensor TENSORS[] = {{
{tensors}
}};
constexpr int WORKSPACES = {len(spaces)};
constexpr size_t WORKSPACE_BYTES[] = {{{", ".join(str(one.nbytes) for one in spaces) or "0"}}};
"""


def launch_source(item: RankedKernel) -> str:
    """The CUDA source that contains the kernel and launches it for ``driver.cu``.

    It is compiled on its own, so that the names and macros of kernel and driver do not meet.

    Raises:
        InputError: the kernel takes an argument that the driver cannot provide.
    """
    kernel = item.kernel
    calls = "\n".join(_call(item, launch) for launch in kernel.launches)
    return f"""\
// Launches {item.workload.name} {item.stem}, for driver.cu; {item.stem}.json says the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "{item.stem}.cu"

namespace exported {{

cudaError_t prepare() {{
{_attributes(kernel)}  return cudaSuccess;
}}

void launch(void* const* tensors, void* const* workspaces, cudaStream_t stream) {{
  (void)workspaces;
{calls}
}}

}}  // namespace exported
"""


def _reference(workload: Workload) -> str:
    name = f"references/{workload.kind}.cuh"
    if not is_file(cuda_dir() / "export" / name):
        raise InputError(
            f"{workload.name} is of kind {workload.kind}, for which the exported driver has no "
            "reference: choose kernels of other workloads."
        )
    return name


def _inputs(workload: Workload) -> str:
    drawn, _, share = str(workload.parameters.get("distribution", NORMAL)).partition(":")
    return (
        f"constexpr Inputs INPUTS = Inputs::{drawn.upper()};\n"
        f"constexpr double SHARE_OF_ZEROS = {float(share or 0)!r};"
    )


def _tensor(item: RankedKernel, tensor: Tensor) -> str:
    is_output = tensor.role == "output"
    bound = item.workload.bound_of(tensor)
    bounds = f"{bound.max_relative!r}, {bound.normwise!r}" if is_output else "0, 0"
    _c_type(item, tensor)
    kind = f"Type::{tensor.dtype}"
    return f'{{"{tensor.name}", {kind}, {tensor.size}, {str(is_output).lower()}, {bounds}}}'


def _c_type(item: RankedKernel, tensor: Tensor) -> str:
    if tensor.dtype not in _TYPES:
        raise InputError(
            f"{item.workload.name} {item.stem} has the {tensor.role} {tensor.name} of type "
            f"{tensor.dtype}, but the exported driver only supports {', '.join(_TYPES)}."
        )
    return _TYPES[tensor.dtype]


def _attributes(kernel: Kernel) -> str:
    return "".join(
        f"  if (cudaError_t status = cudaFuncSetAttribute((const void*)::{launch.entry},\n"
        f"          cudaFuncAttributeMaxDynamicSharedMemorySize, {launch.shared_bytes})) "
        "return status;\n"
        for launch in kernel.launches
        if launch.shared_bytes > _DEFAULT_SHARED_BYTES
    )


def _call(item: RankedKernel, launch: Launch) -> str:
    given = {"tensors": item.workload.tensors, "workspaces": item.kernel.workspaces}
    known = {
        tensor.name: f"static_cast<{_c_type(item, tensor)}*>({array}[{index}])"
        for array, buffers in given.items()
        for index, tensor in enumerate(buffers)
    }
    if unknown := [name for name in launch.arguments if name not in known]:
        raise InputError(
            f"{item.workload.name} {item.stem} takes {unknown[0]!r}, which is not a tensor of "
            f"{item.workload.name}: it has {', '.join(known)}."
        )
    grid, block = (", ".join(map(str, sizes)) for sizes in (launch.grid, launch.block))
    arguments = ", ".join(known[name] for name in launch.arguments)
    return (
        f"  ::{launch.entry}<<<dim3({grid}), dim3({block}), {launch.shared_bytes}, stream>>>(\n"
        f"      {arguments});"
    )


def _plan(item: RankedKernel) -> dict[str, object]:
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
    return {**plan_of(item.kernel, f"{item.stem}.cu"), "rank": item.rank, "workload": workload}


def _table(ranked: Sequence[RankedKernel]) -> str:
    rows: list[Sequence[Cell]] = [_COLUMNS]
    for item in ranked:
        recorded: tuple[str | float, ...] = ("",) * len(_RECORDED)
        if item.kernel.recorded:
            figures = item.kernel.recorded[0]
            recorded = (figures.gpu, figures.time_ms, figures.power_w, figures.energy_mj)
        for number, launch in enumerate(item.kernel.launches):
            rows.append(
                (
                    item.workload.name,
                    item.rank,
                    number,
                    f"kernels/{item.workload.name}/{item.stem}.cu",
                    launch.entry,
                    item.kernel.digest,
                    *launch.grid,
                    *launch.block,
                    launch.shared_bytes,
                    " ".join(launch.arguments),
                    item.workload.flops,
                    *recorded,
                )
            )
    return csv_text(rows)


def _write(content: dict[str, str], folder: Path) -> list[Path]:
    require_empty(folder)
    written = []
    try:
        for name, text in content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            written.append(path)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return written
