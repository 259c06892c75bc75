"""What guard bands hold: bytes that differ from poison, and from place to place."""

from __future__ import annotations

import functools
import zlib

import numpy as np
import numpy.typing as npt

GUARD_BYTES = 65536
"""Length of the guard band on either side of a buffer; a multiple of every alignment needed."""

Bytes = npt.NDArray[np.uint8]


def guard(name: str, start: int, count: int) -> Bytes:
    """Bytes ``start`` to ``start + count`` of the guard bands of the buffer ``name``.

    Each two bytes are 0x7FF1 to 0x7FFE: NaN as a floating-point number of any size, and never equal
    to the 0xFF of unwritten memory and of -1. They are drawn from the name, so that what a kernel
    copies past the end of one buffer from past the end of another is seen.
    """
    return np.resize(np.roll(_pattern(name), -start), count)


def written(name: str, before: Bytes, after: Bytes, nbytes: int) -> npt.NDArray[np.intp]:
    """Positions at which guard bands have changed, counted from the start of the first.

    Args:
        name: of the buffer.
        before: the first guard band.
        after: the second, with up to 255 bytes of padding in front.
        nbytes: of the buffer, which lies between them.
    """
    end = GUARD_BYTES + nbytes
    first = np.flatnonzero(before != guard(name, 0, GUARD_BYTES))
    second = np.flatnonzero(after != guard(name, end, len(after)))
    return np.concatenate([first, second + end])


@functools.lru_cache(maxsize=64)
def _pattern(name: str) -> Bytes:
    draw = np.random.default_rng(zlib.crc32(name.encode(errors="surrogatepass")))
    pattern = np.full(GUARD_BYTES, 0x7F, np.uint8)
    pattern[::2] = draw.integers(0xF1, 0xFF, GUARD_BYTES // 2, np.uint8)
    pattern.flags.writeable = False
    return pattern
