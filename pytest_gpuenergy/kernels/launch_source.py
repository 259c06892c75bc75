"""The CUDA source that launches an exported kernel."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.kernels.tensor_map import TensorMap
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import Tensor, Workload

TENSOR_MAPS = "tensor_maps.cuh"
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
_DEFAULT_SHARED_BYTES = 48 << 10
"""Dynamic shared memory available to a launch by default (CUDA C++ Programming Guide)."""


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


def launch_source(item: RankedKernel) -> str:
    """The CUDA source that contains the kernel and launches it for ``driver.cu``.

    It is compiled on its own, so that the names and macros of kernel and driver do not meet.

    Raises:
        InputError: the kernel takes an argument that the driver cannot provide.
    """
    kernel = item.kernel
    maps = "".join(
        f"  const CUtensorMap {one.name} = {_map(item, one)};\n" for one in kernel.tensor_maps
    )
    calls = maps + "\n".join(_call(item, launch) for launch in kernel.launches)
    include = f'#include "../../{TENSOR_MAPS}"\n' if maps else ""
    return f"""\
// Launches {item.workload.name} {item.stem}, for driver.cu; {item.stem}.json says the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

{include}#include "{item.stem}.cu"

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


def c_type(item: RankedKernel, tensor: Tensor) -> str:
    """The type of a tensor's elements in C++.

    Raises:
        InputError: the driver does not have it.
    """
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


def _pointers(item: RankedKernel) -> dict[str, str]:
    """A pointer to each tensor and workspace, in C++."""
    given = {"tensors": item.workload.tensors, "workspaces": item.kernel.workspaces}
    return {
        tensor.name: f"static_cast<{c_type(item, tensor)}*>({array}[{index}])"
        for array, buffers in given.items()
        for index, tensor in enumerate(buffers)
    }


def _map(item: RankedKernel, one: TensorMap) -> str:
    """A tensor map, in C++."""
    pointers = _pointers(item)
    if one.tensor not in pointers:
        raise InputError(
            f"{item.workload.name} {item.stem} has a tensor map of {one.tensor!r}, which is not a "
            f"tensor of {item.workload.name}: it has {', '.join(pointers)}."
        )
    numbers = (one.dims, one.strides_bytes, one.box)
    lists = ", ".join(f"{{{', '.join(map(str, some))}}}" for some in numbers)
    kind = f"CU_TENSOR_MAP_DATA_TYPE_{one.dtype.upper()}"
    swizzle = f"{one.swizzle_bytes}B" if one.swizzle_bytes else "NONE"
    return (
        f"tensor_map({pointers[one.tensor]}, {kind},\n"
        f"      {lists}, CU_TENSOR_MAP_SWIZZLE_{swizzle})"
    )


def _call(item: RankedKernel, launch: Launch) -> str:
    known = _pointers(item)
    known |= {one.name: one.name for one in item.kernel.tensor_maps}
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
