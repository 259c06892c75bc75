"""Large tensors repeat their beginning, because drawing millions of numbers takes seconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from pytest_gpuenergy.workloads.number_types import Array

DRAWN_ELEMENTS = 1 << 22
_LEAST_ROWS = 100


def repeated(shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Array]) -> Array:
    """An array of which only the first rows are drawn, if it has more than `DRAWN_ELEMENTS`.

    A row is what the last indices run through, as many of them as make short rows. The rows drawn
    are a prime number, so that no kernel whose indices are off by a tile, by a power of two or by
    any such number finds equal values.

    Args:
        shape: of the array.
        draw: draws an array of a given shape.
    """
    if math.prod(shape) <= DRAWN_ELEMENTS:
        return draw(shape)
    rows = (shape[axis:] for axis in range(1, len(shape) + 1))
    row = next(row for row in rows if math.prod(row) <= DRAWN_ELEMENTS // _LEAST_ROWS)
    count = _largest_prime(DRAWN_ELEMENTS // math.prod(row))
    return np.resize(draw((count, *row)), shape)


def _largest_prime(most: int) -> int:
    """The largest prime number of at most ``most``."""
    return next(
        number
        for number in itertools.count(most, -1)
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
    )
