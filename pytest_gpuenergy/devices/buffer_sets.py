"""Where in a GPU's memory to place the sets of buffers through which a measurement rotates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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


MAX_PLACEMENTS = 12
_PLACED_BYTES = 256 << 20

PAGE_BYTES = 2 << 20
"""Page size of a GPU's memory."""
_ALIGNMENT = 512  # of the driver's allocations
_WIDEST_BYTES = 3 << 30
_SHARE = 4


def placements(set_bytes: int) -> int:
    """How many sets of buffers to use so that the result does not depend on where one lies.

    The time of a short kernel whose buffers fit in the L2 cache varies by up to several percent
    with their place in memory. Buffers of hundreds of MiB cover so many places that one set is
    enough.

    Args:
        set_bytes: size of all buffers of one launch.
    """
    return max(1, min(MAX_PLACEMENTS, _PLACED_BYTES // max(1, set_bytes)))


def pieces(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """The layout of a set: for each piece of memory, the buffers in it and their byte offsets.

    As in the driver's allocations, each buffer of at least half a page starts on a page of its own,
    and smaller ones follow one another.

    Args:
        sizes: of the buffers, in bytes.
    """
    large = [{name: 0} for name, size in sizes.items() if size >= PAGE_BYTES // 2]
    small: dict[str, int] = {}
    end = 0
    for name, size in sizes.items():
        if size < PAGE_BYTES // 2:
            small[name] = end
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return [*large, *([small] if small else [])]


def pool_bytes(sizes: Sequence[int], free_bytes: int) -> int:
    """Size of the pool in which to scatter pieces: up to 3 GiB more than they need, in whole pages.

    Args:
        sizes: of the pieces, in bytes.
        free_bytes: free memory of the GPU; beyond what the pieces need, at most a quarter is taken.
    """
    if not sizes:
        return 0
    needed = sum(map(_pages, sizes)) * PAGE_BYTES
    more = min(_WIDEST_BYTES, max(0, free_bytes - needed) // _SHARE)
    return needed + more // PAGE_BYTES * PAGE_BYTES


def scattered(sizes: Sequence[int], pool: int, draw: np.random.Generator) -> list[int]:
    """Random byte offsets for pieces in a pool of memory, each on its own pages.

    The driver gives successive processes the same few places, and different ones to a process with
    a different history of allocations. Random places sample all of them.

    Args:
        sizes: of the pieces, in bytes.
        pool: its size in bytes; at least the pages of all pieces.
        draw: source of randomness.
    """
    unused = pool // PAGE_BYTES - sum(map(_pages, sizes))
    before = np.sort(draw.integers(0, unused, len(sizes), endpoint=True))
    places, used = [0] * len(sizes), 0
    for number, skipped in zip(draw.permutation(len(sizes)), before, strict=True):
        places[number] = (int(skipped) + used) * PAGE_BYTES
        used += _pages(sizes[number])
    return places


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES)
