"""Sets of a kernel's buffers that take turns, so that none is in the L2 cache when it is used."""

from __future__ import annotations

from pytest_gpuenergy.support.errors import KernelFault

MAX_SETS = 8192
"""Each set of buffers is a node of the CUDA graph that is replayed."""

# By the time a set is used again, the others have filled the L2 twice: replacement is not exactly
# by age.
_FILLS = 2


def sets_needed(set_bytes: int, l2_bytes: int) -> int:
    """How many sets of buffers to rotate through so that none is in the L2 when its turn comes.

    Args:
        set_bytes: size of all buffers of one launch.
        l2_bytes: size of the L2 cache.

    Raises:
        KernelFault: the buffers are so small that it takes more sets than there may be.
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
