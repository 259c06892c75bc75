"""How many sets of buffers to rotate through so that launches find the L2 cache cold."""

from __future__ import annotations

from pytest_gpuenergy.support import KernelFault

MAX_SETS = 8192
"""Each set of buffers is a node of the replayed CUDA graph."""

# The other sets fill the L2 twice before a set is used again: replacement is not exactly LRU.
_FILLS = 2


def sets_needed(set_bytes: int, l2_bytes: int) -> int:
    """How many sets of buffers to rotate through so that none is in the L2 when it is used again.

    Args:
        set_bytes: size of all buffers of one launch.
        l2_bytes: size of the L2 cache.

    Raises:
        KernelFault: the buffers are so small that more than `MAX_SETS` would be needed.
    """
    sets = -(-_FILLS * l2_bytes // max(1, set_bytes)) + 1
    if sets > MAX_SETS:
        raise KernelFault(
            "constraints",
            f"Its buffers of {set_bytes} bytes cannot be kept out of an L2 cache of "
            f"{l2_bytes >> 20} MiB, which would take {sets} sets of them: use --gpuenergy-cache "
            "hot, or a larger workload.",
        )
    return sets
