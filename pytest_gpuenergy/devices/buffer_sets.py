"""Chooses the number of buffer sets that a measurement rotates through, and their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pytest_gpuenergy.support import KernelFault

MAX_SETS = 8192
"""The largest number of sets, each of which adds a node to the replayed CUDA graph."""

_FILLS = 2
"""The number of times that other sets fill the L2 before a set is used again; it is not LRU."""

MAX_PLACEMENTS = 12
"""The largest number of places in memory over which the time of a kernel is averaged."""
_PLACED_BYTES = 1 << 30
"""The total size of the sets beyond which more places make little difference. On an H200, a kernel
with a single set of 128 MiB takes 0.8 to 1.1 % more or less time from one loading to the next."""

PAGE_BYTES = 2 << 20
"""The page size of a GPU's memory."""
_ALIGNMENT = 512
"""The alignment of the driver's allocations."""
_WIDEST_BYTES = 3 << 30
"""The largest size of the memory in which sets are scattered, beyond what they occupy."""
_SHARE = 4
"""At most one part in this many of the free memory is taken for that."""


def sets_needed(set_bytes: int, l2_bytes: int) -> int:
    """Return how many sets of buffers keep each set out of the L2 cache until its next use.

    Args:
        set_bytes: the size of all buffers of one launch.
        l2_bytes: the size of the L2 cache.

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


def placements(set_bytes: int) -> int:
    """Return how many sets of buffers make the result independent of their place in memory.

    The time of a kernel varies by up to several percent with their place in memory. Buffers of
    a GiB cover so many places that one set is enough.

    Args:
        set_bytes: the size of all buffers of one launch.
    """
    return max(1, min(MAX_PLACEMENTS, _PLACED_BYTES // max(1, set_bytes)))


def set_layout(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the layout of a set: the byte offset of each buffer, by piece of memory.

    As in the driver's allocations, each buffer of at least half a page starts on a page of its own,
    and smaller buffers follow one another.

    Args:
        sizes: the sizes of the buffers in bytes.
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
    """Return the size of the memory pool in which to scatter pieces, in whole pages.

    It is up to 3 GiB larger than the pieces.

    Args:
        sizes: the sizes of the pieces in bytes.
        free_bytes: the GPU's free memory, of which at most a quarter is added to the pieces' size.
    """
    if not sizes:
        return 0
    needed = sum(map(_pages, sizes)) * PAGE_BYTES
    more = min(_WIDEST_BYTES, max(0, free_bytes - needed) // _SHARE)
    return needed + more // PAGE_BYTES * PAGE_BYTES


def scattered_offsets(sizes: Sequence[int], pool: int, draw: np.random.Generator) -> list[int]:
    """Return random byte offsets for pieces in a pool of memory, each on its own pages.

    The driver gives successive processes the same few places, and different ones to a process with
    a different history of allocations. Random places sample all of them.

    Args:
        sizes: the sizes of the pieces in bytes.
        pool: the size of the pool in bytes, at least that of the pages of all pieces.
        draw: the source of randomness.
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
