"""How many blocks that wait for one another the emulated GPU holds at once."""

from __future__ import annotations

from pytest_gpuenergy.emulator.profiles import GpuProfile
from pytest_gpuenergy.emulator.spin_loops import may_wait
from pytest_gpuenergy.emulator.tokens import CLUSTER_DIMS
from pytest_gpuenergy.kernels import Kernel, Launch

STACK_BYTES = 10 * 65536
"""Address space of a thread that waits, as in stacks.cpp."""

_WARP = 32
_BLOCK_THREADS = 1024
_MOST_THREADS = 1 << 17  # half an H200's: a stack takes 8 KiB of memory or more


def resident_blocks(kernel: Kernel, launch: Launch, profile: GpuProfile) -> int:
    """Blocks that the GPU holds at once, as far as their threads go; 1 if none waits for another.

    Shared memory may leave room for fewer; the runtime counts the static part, too.
    """
    waits = may_wait(kernel.source) or kernel.has_grid_barrier or CLUSTER_DIMS in kernel.source
    if not waits:
        return 1
    threads = -(-launch.threads // _WARP) * _WARP
    each = min(profile.blocks_per_sm, profile.threads_per_sm // threads)
    return max(1, min(profile.sm_count * each, _MOST_THREADS // threads, launch.blocks))


def resident_threads(kernel: Kernel, profile: GpuProfile) -> int:
    """Threads of all blocks that may be on the GPU at once, and at least those of one block."""
    needed = (resident_blocks(kernel, one, profile) * one.threads for one in kernel.launches)
    return max(_BLOCK_THREADS, *needed)
