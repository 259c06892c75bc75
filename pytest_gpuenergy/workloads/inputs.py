"""Draws inputs: distributions of floating-point values, and the repetition of large ones.

The distribution decides about tens of percent of a kernel's power, because bits that do not change
cost little energy: a matrix product of zeros takes a fraction of the power of one of random
numbers. Large tensors repeat their beginning, because drawing millions of numbers takes seconds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import numpy as np

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.number_types import Array, rounded_to

NORMAL = "normal"
LARGEST_INTEGER = 4
"""The largest value of ``integers``: their products, and sums of many, are exact in every type."""
_SPARSE = re.compile(r"sparse:([01]|[01]?\.[0-9]{1,9})", re.ASCII)
NAMES = (NORMAL, "uniform", "integers", "ones", "zeros", "sorted")


def check_distribution(text: object) -> None:
    """Check the name of a distribution.

    Raises:
        InputError: it is not one that `draw_from` knows.
    """
    if isinstance(text, str) and (text in NAMES or _share(text) is not None):
        return
    raise InputError(
        f"Inputs cannot be drawn as {shown(text)}: choose one of {', '.join(NAMES)} or a share of "
        "zeros such as sparse:0.5."
    )


def draw_from(
    text: str, generator: np.random.Generator, dtype: str, shape: tuple[int, ...]
) -> Array:
    """Return floating-point values of a distribution.

    Args:
        text: ``normal`` (standard), ``uniform`` (from -1 to 1), ``integers`` (from
            -`LARGEST_INTEGER` to `LARGEST_INTEGER`), ``ones``, ``zeros``, ``sorted`` (standard
            normal, ascending), or ``sparse:P`` (standard normal, each zero with probability P).
        generator: the source of random numbers.
        dtype: the type of the result.
        shape: the shape of the result.
    """
    if text == "uniform":
        values = generator.uniform(-1, 1, shape)
    elif text == "integers":
        whole = generator.integers(-LARGEST_INTEGER, LARGEST_INTEGER, shape, endpoint=True)
        values = whole.astype(np.float64)
    elif text in ("ones", "zeros"):
        values = np.full(shape, float(text == "ones"))
    else:
        values = generator.standard_normal(shape)
        if text == "sorted":
            values = np.sort(values, axis=None).reshape(shape)
        elif share := _share(text):
            values = np.where(generator.random(shape) < share, 0.0, values)
    return rounded_to(values, dtype)


def _share(text: str) -> float | None:
    """P of ``sparse:P``; None if it is no probability in plain digits, as names of items need."""
    match = _SPARSE.fullmatch(text)
    return float(match[1]) if match and float(match[1]) <= 1 else None


DRAWN_ELEMENTS = 1 << 20
"""The most elements that are drawn; larger tensors repeat them."""
_MIN_ROWS = 100
_TELLING = 64
"""The number of leading elements that decide where repetitions begin."""


def beginning(shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Array]) -> Array:
    """Draw an array, or its first rows if it has more than `DRAWN_ELEMENTS`.

    A row is what the last indices run through, as many of them as make short rows. The rows drawn
    are a prime number, so that no kernel whose indices are off by a tile, by a power of two or by
    any such number finds equal values.

    Args:
        shape: the shape of the array.
        draw: a function that draws an array of a given shape.
    """
    if math.prod(shape) <= DRAWN_ELEMENTS:
        return np.asarray(draw(shape))  # without dimensions, some of NumPy's draws are no arrays
    rows = (shape[axis:] for axis in range(1, len(shape) + 1))
    row = next(row for row in rows if math.prod(row) <= DRAWN_ELEMENTS // _MIN_ROWS)
    prime = next(
        number
        for number in itertools.count(DRAWN_ELEMENTS // math.prod(row), -1)
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
    )
    return draw((prime, *row))


def repeated(first: Array, shape: tuple[int, ...]) -> Array:
    """Return the array of a `beginning`: its rows again and again, each time in another order.

    Raises:
        ValueError: no array of this shape begins with ``first``.
    """
    if first.shape == shape:
        return first
    whole = np.empty_like(first, shape=shape)
    write_repeated(first, whole)
    return whole


def write_repeated(first: Array, whole: Array) -> None:
    """Make ``whole`` the array of a `beginning`, as `repeated` does; it is contiguous.

    What there is so far is appended to itself over and over, each time beginning with another of
    its rows. Which one follows from the values that were drawn, so that no period follows from the
    shape.

    Raises:
        ValueError: no array of this shape begins with ``first``.
    """
    if first.shape == whole.shape:
        whole[...] = first
        return
    row = first.shape[1:]
    if whole.shape[whole.ndim - len(row) :] != row or not 0 < first.size <= whole.size:
        raise ValueError(f"{first.shape} is not the beginning of {whole.shape}")
    rows, written = whole.reshape(-1, *row), first.shape[0]
    rows[:written] = first
    starts = np.random.default_rng(list(first.reshape(-1)[:_TELLING].tobytes()))
    while written < rows.shape[0]:  # twice as many each time, since a beginning may be two numbers
        piece = rows[written : 2 * written]
        start = int(starts.integers(1, written)) if written > 1 else 0
        head = rows[start : start + min(piece.shape[0], written - start)]
        split = head.shape[0]
        piece[:split] = head
        piece[split:] = rows[: piece.shape[0] - split]
        written *= 2
