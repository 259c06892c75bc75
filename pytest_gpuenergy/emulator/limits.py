"""The limits of a GPU that a kernel must keep to: geometry, shared memory, size of buffers."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator.profiles import GpuProfile
from pytest_gpuenergy.emulator.registers import registers_at_least
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import KernelFault

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_THREADS = 1024
_MAX_REGISTERS = 65536
_MAX_REGISTERS_PER_THREAD = 255
MAX_SHARED_BYTES = 232448
"""Shared memory that a block may have on the largest GPU, of compute capability 9.0."""


def check_limits(kernel: Kernel) -> None:
    """Refuse launches that no GPU of compute capability 9.0 can make.

    Raises:
        KernelFault: ``constraints``.
    """
    for launch in kernel.launches:
        for what, sizes, limits in (
            ("grid", launch.grid, _MAX_GRID),
            ("block", launch.block, _MAX_BLOCK),
        ):
            if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
                raise KernelFault(
                    "constraints", f"The {what} {sizes} of {launch.entry} is larger than {limits}."
                )
        if launch.threads > _MAX_THREADS:
            raise KernelFault(
                "constraints",
                f"{launch.entry} has {launch.threads} threads per block; a block may have at most "
                f"{_MAX_THREADS}.",
            )
        many = launch.threads > _MAX_REGISTERS // _MAX_REGISTERS_PER_THREAD
        registers = registers_at_least(kernel.source, launch.entry) if many else 0
        if registers * launch.threads > _MAX_REGISTERS:
            raise KernelFault(
                "constraints",
                f"{launch.entry} keeps at least {registers} values in registers of each of its "
                f"{launch.threads} threads; a block may have {_MAX_REGISTERS} registers. "
                f"__launch_bounds__({launch.threads}) makes the compiler keep them elsewhere.",
            )
        if launch.shared_bytes > MAX_SHARED_BYTES:
            raise KernelFault(
                "constraints",
                f"{launch.entry} needs {launch.shared_bytes} bytes of shared memory; a block may "
                f"have at most {MAX_SHARED_BYTES}.",
            )


def check_geometry(kernel: Kernel, profile: GpuProfile) -> None:
    """Refuse launches that a real GPU of this model would refuse.

    Raises:
        KernelFault: ``constraints``, when the grid, the block or the dynamic shared memory exceeds
            the GPU's limits.
    """
    check_limits(kernel)
    for launch in kernel.launches:
        if launch.shared_bytes > profile.shared_per_block:
            raise KernelFault(
                "constraints",
                f"{launch.entry} needs {launch.shared_bytes} bytes of dynamic shared memory; a "
                f"block of the {profile.name} may have at most {profile.shared_per_block}.",
            )


def check_memory(kernel: Kernel, arenas: Mapping[str, Arena], profile: GpuProfile) -> None:
    """Refuse buffers that do not fit into the memory of a real GPU of this model.

    Raises:
        KernelFault: ``constraints``, when tensors and workspaces together exceed the GPU's memory.
    """
    tensors = [*(arena.tensor for arena in arenas.values()), *kernel.workspaces]
    needed_mib = sum(tensor.nbytes for tensor in tensors) / 2**20
    if needed_mib > profile.memory_mib:
        raise KernelFault(
            "constraints",
            f"Out of memory: {needed_mib:.0f} MiB of buffers do not fit into the "
            f"{profile.memory_mib} MiB of the {profile.name}.",
        )
