"""Sets of a kernel's buffers that take turns: for an L2 cache without them, or for other places."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pytest_gpuenergy.errors import KernelFault

CacheState = Literal["hot", "cold"]
"""``hot``: launch after launch takes the same buffers, so that what fits in the L2 is there.
``cold``: each launch takes other buffers, so that nothing of them is in the L2."""

STATES: tuple[CacheState, ...] = ("hot", "cold")
MAX_SETS = 8192
"""Each set of buffers is a node of the CUDA graph that is replayed."""

# By the time a set is used again, the others have filled the L2 twice: replacement is not exactly
# by age.
_FILLS = 2

MAX_PLACEMENTS = 12
_PLACED_BYTES = 256 << 20

PAGE_BYTES = 2 << 20
"""What a GPU's memory is handed out in."""
_WIDEST_GAP_BYTES = 256 << 20
_FREE_FOR_GAPS = 4  # a fourth of it


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


def placements(set_bytes: int) -> int:
    """How many sets of buffers show what a kernel takes wherever its buffers lie in memory.

    A short kernel whose buffers the L2 cache holds is up to several percent faster or slower from
    one place to the next. Buffers of hundreds of MiB lie in so many places that one set will do.

    Args:
        set_bytes: size of all buffers of one launch.
    """
    return max(1, min(MAX_PLACEMENTS, _PLACED_BYTES // max(1, set_bytes)))


def gaps(sets: int, free_bytes: int, draw: np.random.Generator) -> list[int]:
    """How much memory to leave unused before each of so many sets of buffers, in bytes.

    A driver gives one process after another the same few places, in an order that depends on what
    the process had before. So that the sets are a sample of all places, they lie far apart, by
    distances that differ from process to process: whole pages, 128 MiB on average, together no
    more than a fourth of the memory that is free.

    Args:
        sets: of buffers.
        free_bytes: memory of the GPU that nobody uses.
        draw: where the distances come from.
    """
    widest = min(_WIDEST_GAP_BYTES, free_bytes // _FREE_FOR_GAPS // sets) // PAGE_BYTES
    return [PAGE_BYTES * int(pages) for pages in draw.integers(0, widest, sets, endpoint=True)]
