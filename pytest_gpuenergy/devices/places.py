"""Where in a GPU's memory the sets of buffers lie that a measurement takes by turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

MAX_PLACEMENTS = 12
_PLACED_BYTES = 256 << 20

PAGE_BYTES = 2 << 20
"""What a GPU's memory is mapped in."""
_ALIGNMENT = 512  # of what a driver gives
_WIDEST_BYTES = 3 << 30
_SHARE = 4


def placements(set_bytes: int) -> int:
    """How many sets of buffers show what a kernel takes wherever its buffers lie in memory.

    A short kernel whose buffers the L2 cache holds is up to several percent faster or slower from
    one place to the next. Buffers of hundreds of MiB lie in so many places that one set will do.

    Args:
        set_bytes: size of all buffers of one launch.
    """
    return max(1, min(MAX_PLACEMENTS, _PLACED_BYTES // max(1, set_bytes)))


def pieces(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """How to lay out a set: what lies in one piece of memory, and where in it, in bytes.

    As a driver does, buffers of half a page and more begin a page each, and the smaller ones follow
    one another.

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
    """How much memory to scatter pieces in: up to 3 GiB more than they take, in whole pages.

    Args:
        sizes: of the pieces, in bytes.
        free_bytes: memory of the GPU that nobody uses, of the rest of which no more than a fourth
            is taken.
    """
    if not sizes:
        return 0
    needed = sum(map(_pages, sizes)) * PAGE_BYTES
    more = min(_WIDEST_BYTES, max(0, free_bytes - needed) // _SHARE)
    return needed + more // PAGE_BYTES * PAGE_BYTES


def scattered(sizes: Sequence[int], pool: int, draw: np.random.Generator) -> list[int]:
    """Random places for pieces in a pool of memory, each on pages of its own, in bytes.

    A driver gives one process after another the same few places, and others to a process that had
    something else before. Pieces that lie anywhere are a sample of all places.

    Args:
        sizes: of the pieces, in bytes.
        pool: its size in bytes, at least the pieces' own pages.
        draw: where the places come from.
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
