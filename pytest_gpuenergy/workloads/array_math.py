"""Arithmetic over whole arrays, which makes references and compares outputs with them.

A GPU computes the same with kernels of its own, see `CupyArrays`: CuPy compiles each of the
functions that these methods call, when a machine first needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads.number_types import Array, numbers

A = TypeVar("A", bound=Array)
Values = npt.NDArray[np.float64]
BytePair = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

_PIECE = 8192
"""Elements that are compared at a time, which fit into the CPU's cache.

They are also too few for BLAS to start threads.
"""

_DEVICE_PIECE = 1 << 24
"""Elements that are compared at a time on a device."""

_SLICE, _PIECES = 16, 64
"""The fewest elements of a slice, and the most pieces of a vector: by chance all elements of a
smaller one may be close to zero."""

_CLOSE = 0.01
"""Reactions that differ by less than this fraction are the same."""


class Extremes(NamedTuple):
    """The least and the largest finite element of an array, and its largest absolute value.

    Without a finite element the former are 0. The latter is NaN if any element is.
    """

    low: float
    high: float
    peak: float

    @property
    def all_finite(self) -> bool:
        """Whether all elements are finite."""
        return math.isfinite(self.peak)

    @property
    def largest(self) -> float:
        """The largest absolute value of a finite element."""
        return max(self.high, -self.low)


class Distance(NamedTuple):
    """The largest absolute value and the norm of an error, then those of what is expected.

    The former are NaN if any error is; the latter are 1 instead of 0.
    """

    largest: float
    norm: float
    scale: float
    expected_norm: float


@dataclass(frozen=True)
class Allowance:
    """The largest error allowed for each element of an output.

    Attributes:
        sums: the error of sums, relative to the size of their terms.
        rounding: the error of rounding, relative to the element.
        least: the error that is always allowed.
        scale: the size of the terms, unless ``own`` says otherwise.
        own: the size of each element's own terms, if known; see `Condition`.
        terms: the least size of each element's terms, if known; see `estimate_terms`.
    """

    sums: float
    rounding: float
    least: float
    scale: float
    own: Values | None = None
    terms: Values | None = None

    def of(self, expected: Values, piece: slice | EllipsisType = ...) -> Values:
        """Return the allowed errors of a piece of the expected output."""
        size = np.abs(expected)
        terms = np.full_like(size, self.scale)
        if self.own is not None:
            own = self._piece(self.own, piece)
            terms = np.where(size > 0, np.minimum(size + own, self.scale), terms)
        if self.terms is not None:
            terms = np.maximum(terms, self._piece(self.terms, piece))
        return self.sums * terms + self.rounding * size + self.least

    @staticmethod
    def _piece(values: Values, piece: slice | EllipsisType) -> Values:
        return values if piece is ... else values.reshape(-1)[piece]


class ArrayMath:
    """Computes with NumPy's functions, wherever the arrays are."""

    def numbers(self, values: Array, dtype: str) -> Array:
        """Return the numbers in an array of type ``dtype``, see `numbers`."""
        return numbers(values, dtype)

    def copy(self, values: A) -> A:
        """Return a copy of an array, as it lies in memory."""
        copied = np.empty_like(values)
        copied[...] = values  # CuPy's `copy` compiles a kernel even where memory can be copied
        return copied

    def widened(self, values: Array, dtype: str) -> Values:
        """Return a copy in float64 of the numbers in an array of a floating-point type."""
        return numbers(values, dtype).astype(np.float64)

    def extremes(self, values: Array, dtype: str | None = None) -> Extremes:
        """Return the extremes of an array, which is of type ``dtype`` if NumPy lacks that."""
        if dtype is not None:
            values = numbers(values, dtype)
        low, high = float(values.min()), float(values.max())
        if math.isfinite(low) and math.isfinite(high):
            return Extremes(low, high, max(high, -low))
        peak, finite = max(high, -low), np.isfinite(values)
        if not finite.any():
            return Extremes(0.0, 0.0, peak)
        low = float(np.where(finite, values, np.inf).min())
        high = float(np.where(finite, values, -np.inf).max())
        return Extremes(low, high, peak)

    def root_mean_square(self, values: Values) -> float:
        """Return the root of the mean of the squares."""
        return float(np.sqrt(np.mean(values * values)))

    def sample(self, values: Array, step: int) -> Array:
        """Return every ``step``-th element, in any memory."""
        return values.reshape(-1)[::step]

    def has_small_slice(self, values: Values, limit: float) -> bool:
        """Return whether all elements of a slice are below ``limit`` and not all are 0.

        See `largest_of_slices`.
        """
        slices = largest_of_slices(np.abs(values))
        return bool(((slices > 0) & (slices < limit)).any())

    def changed(
        self, values: Values, floor: float, fraction: float, bits: npt.NDArray[np.uint8]
    ) -> Values:
        """Return values changed by ``fraction`` of themselves, or of ``floor`` if that is larger.

        A zero that stays one keeps its sign: -0.0 + 0.0 is 0.0.

        Args:
            values: the values.
            floor: the least size of a value.
            fraction: the relative change.
            bits: a bit for each element, on the host: 1 where the change is positive.
        """
        signs = np.unpackbits(np.asarray(bits, like=values))[: values.size]
        directions = signs.reshape(values.shape).astype(np.float64) * 2 - 1
        steps = fraction * np.maximum(np.abs(values), floor)
        return np.where(steps > 0, values + steps * directions, values)

    def larger_reaction(
        self, result: Values, right: Values, fraction: float, before: Values | None
    ) -> tuple[Values, bool]:
        """Return how strongly each element reacts to a change of the inputs by ``fraction``.

        Args:
            result: the output for changed inputs.
            right: the output for the inputs.
            fraction: the relative change.
            before: the largest reaction to earlier changes; None at the first change.

        Returns:
            The larger of this reaction and ``before``, infinite where a result is not finite, and
            whether this one is about the same as ``before`` everywhere.
        """
        now = np.abs(result - right) / fraction
        # Of tensors without dimensions, NumPy's arithmetic makes numbers that are no arrays.
        now = np.where(np.isfinite(now), now, np.inf)
        if before is None:
            return now, False
        return np.maximum(now, before), bool(np.allclose(now, before, rtol=_CLOSE))

    def added(self, one: Values, other: Values) -> Values:
        """Return the sums of two arrays of the same shape."""
        return one + other

    def distance(
        self,
        output: Array,
        expected: Values,
        steps: int = 0,
        size: tuple[float, float] | None = None,
    ) -> Distance:
        """Return the distance of an output.

        Args:
            output: the output.
            expected: what is expected.
            steps: the part of each error that does not count.
            size: the last two figures of an earlier distance from ``expected``, if there is one.
        """
        return self.begin_distance(output, expected, steps, size)()

    def begin_distance(
        self,
        output: Array,
        expected: Values,
        steps: int = 0,
        size: tuple[float, float] | None = None,
    ) -> Callable[[], Distance]:
        """Begin with `distance` where the arrays are; return a function that waits for it."""
        return partial(_distance, output, expected, steps, size)

    def count_within(self, output: Array, expected: Values, allowance: Allowance) -> int:
        """Return how many elements are off by no more than is allowed."""
        values, references = output.reshape(-1), expected.reshape(-1)
        within = 0
        for piece in _pieces(values):
            error = np.abs(values[piece].astype(references.dtype) - references[piece])
            within += int((error <= allowance.of(references[piece], piece)).sum())
        return within

    def begin_differing(self, pairs: Sequence[BytePair]) -> Callable[[], list[int]]:
        """Begin with `differing` where the images are; return a function that waits for it."""
        return partial(self.differing, pairs)

    def differing(self, pairs: Sequence[BytePair]) -> list[int]:
        """Return the positions of the pairs of images, or of their ends, that are not the same.

        They start at multiples of 8 bytes if their lengths are such multiples.
        """
        return [place for place, pair in enumerate(pairs) if _differ(*pair)]

    def fill_bytes(self, image: npt.NDArray[np.uint8], value: int) -> None:
        """Make every byte ``value``."""
        image[:] = value

    def take(self, values: Array, places: npt.NDArray[np.int64]) -> Array:
        """Return the elements at flat places, which are on the host, in any memory."""
        taken: Array = values.reshape(-1)[np.asarray(places, like=values)]
        return taken

    def put_at(self, values: Array, places: npt.NDArray[np.int64], new: Array) -> None:
        """Replace elements at flat places of a contiguous array; all else is on the host."""
        values.reshape(-1)[np.asarray(places, like=values)] = np.asarray(new, like=values)


NUMPY = ArrayMath()
"""Computes on the host."""


def _differ(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> bool:
    if one.size % 8 == 0:  # words are compared faster than bytes
        one, other = one.view(np.uint64), other.view(np.uint64)
    return bool((one != other).any())


def largest_of_slices(sizes: Values) -> Values:
    """Return, for each element, the largest value in the slice through it where that is least.

    Slices are perpendicular to an axis, such as rows and columns; those of a vector are pieces.
    """
    largest = np.full_like(sizes, float(sizes.max()))
    if sizes.ndim == 1:
        length = max(_SLICE, sizes.size // _PIECES)
        pieces = sizes[: sizes.size // length * length].reshape(-1, length)
        largest[: pieces.size] = np.repeat(pieces.max(axis=1), length)
        return largest
    for axis in sliced_axes(sizes.shape):
        others = tuple(other for other in range(sizes.ndim) if other != axis)
        largest = np.minimum(largest, sizes.max(axis=others, keepdims=True))
    return largest


def sliced_axes(shape: tuple[int, ...]) -> list[int]:
    """Return the axes of an array of several that have slices of enough elements."""
    size = math.prod(shape)
    return [axis for axis, count in enumerate(shape) if size // count >= _SLICE]


def _pieces(values: Array) -> list[slice]:
    """Divide a flat array into pieces, so that temporary arrays stay small."""
    length = _PIECE if isinstance(values, np.ndarray) else _DEVICE_PIECE
    return [slice(start, start + length) for start in range(0, values.size, length)]


def _distance(
    output: Array, expected: Values, steps: int, size: tuple[float, float] | None
) -> Distance:
    """Return what `ArrayMath.distance` does, by the operations of the arrays."""
    values, references = output.reshape(-1), expected.reshape(-1)
    pieces = _pieces(values)
    extremes, squares = np.zeros((len(pieces), 4)), np.zeros((len(pieces), 2))
    with np.errstate(invalid="ignore", over="ignore"):
        for row, piece in enumerate(pieces):
            error = values[piece].astype(references.dtype)
            right = references[piece]
            error -= right
            if steps:
                error = np.maximum(np.abs(error) - steps, 0.0)
            extremes[row, :2] = float(error.max()), -float(error.min())
            squares[row, 0] = float(error @ error)
            if size is None:
                extremes[row, 2:] = float(right.max()), -float(right.min())
                squares[row, 1] = float(right @ right)
        peaks = extremes.max(axis=0, initial=0.0).reshape(2, 2).max(axis=1)
        norms = np.sqrt(squares.sum(axis=0))
    scale, norm = size or (float(peaks[1]) or 1.0, float(norms[1]) or 1.0)
    return Distance(float(peaks[0]), float(norms[0]), scale, norm)
