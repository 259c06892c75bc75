"""Writes kernels as plain CUDA sources that build and run without this package.

For each kernel the folder holds its source, its launch plan (JSON, which `load_kernel` reads) and
the same plan for the driver: a header, and a source that launches. All kernels share a host driver,
a reference for each kind of workload, a CMakeLists.txt and a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_gpuenergy.kernels.exported_folder import write_export
from pytest_gpuenergy.kernels.launch_source import TENSOR_MAPS, RankedKernel, c_type, launch_source
from pytest_gpuenergy.kernels.source import plan_of
from pytest_gpuenergy.support import Cell, InputError, csv_text, cuda_dir, is_file
from pytest_gpuenergy.workloads import NORMAL, Tensor, Workload, is_plain_name

_DRIVER = ("driver.cu", "energy.cuh", "replays.cuh")
_BUILD, _NATIVE = "CMakeLists.txt", "native) # this machine's GPUs; to build elsewhere, set 90, say"
HOPPER = "sm_90a"
"""Whose instructions take tensor maps, and are not in what CMake calls native."""
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
        kernels: what to write.
        folder: where to.
        architecture: such as ``sm_90``, for which they are built unless the builder names another;
            None stands for that of the machine where they are built. Kernels with tensor maps are
            built for `HOPPER`.

    Returns:
        The files written, the table first.

    Raises:
        InputError: the folder contains something else or cannot be written, or a kernel cannot be
            exported.
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
    if any(item.kernel.tensor_maps for item in ranked):
        shared.add(TENSOR_MAPS)
        architecture = HOPPER
    for name in sorted(shared):
        content[name] = (cuda_dir() / "export" / name).read_text(encoding="utf-8")
    if architecture is not None:
        number = architecture.removeprefix("sm_")
        content[_BUILD] = content[_BUILD].replace(_NATIVE, f"{number}) # of the GPU they are for")
    return write_export(content, folder)


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
    is_output = tensor.is_written
    bound = item.workload.bound_of(tensor)
    bounds = f"{bound.max_relative!r}, {bound.normwise!r}" if is_output else "0, 0"
    c_type(item, tensor)
    kind = f"Type::{tensor.dtype}"
    return f'{{"{tensor.name}", {kind}, {tensor.size}, {str(is_output).lower()}, {bounds}}}'


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
