"""Compares outputs with their float64 reference, and describes what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.arrays import DeviceArrays
from pytest_gpuenergy.support.errors import InputError, KernelFault
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.number_types import Array
from pytest_gpuenergy.workloads.sensitivity import Condition, Values

_PIECE = 8192  # elements
_DEVICE_PIECE = 1 << 24


class Reference(Mapping[str, Values]):
    """The correct outputs in float64, by name, and what their errors are measured against.

    Args:
        values: the outputs.
        conditions: of those that have one, see `Condition`.
        arrays: the device whose arrays both are; None if they are the host's.
    """

    def __init__(
        self,
        values: Mapping[str, Values],
        conditions: Mapping[str, Condition] | None = None,
        arrays: DeviceArrays | None = None,
    ) -> None:
        self._values = dict(values)
        self.conditions = dict(conditions or {})
        self.arrays = arrays

    def __getitem__(self, name: str) -> Values:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def compare(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Values],
    bounds: Mapping[str, ErrorBound],
    seed: int,
) -> ErrorBound:
    """Return the errors of ``outputs``, as fractions of the reference's largest value and norm.

    Raises:
        InputError: the reference is not finite.
        KernelFault: an element was not written, is not finite or is off by more than its bound, or
            the norm of all errors exceeds its bound. The message gives the number of wrong elements
            and the position and error of the worst.
    """
    arrays = reference.arrays if isinstance(reference, Reference) else None
    if arrays is None:
        return _compared(outputs, reference, bounds, seed)
    with arrays.used():
        there = {name: arrays.put(outputs[name]) for name in reference}
        return _compared(there, reference, bounds, seed)


def _compared(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Values],
    bounds: Mapping[str, ErrorBound],
    seed: int,
) -> ErrorBound:
    """As `compare`, with all arrays in one place."""
    conditions = reference.conditions if isinstance(reference, Reference) else {}
    worst = ErrorBound(0.0, 0.0)
    for name, expected in reference.items():
        bound, condition = bounds[name], conditions.get(name, Condition(0.0))
        largest, norm, scale, expected_norm = _distance(outputs[name], expected)
        if not math.isfinite(scale):
            first = np.argwhere(~np.isfinite(expected))[0].tolist()
            raise InputError(
                f"The reference is NaN or infinite, first at {name}{first} with seed {seed}, so "
                "nothing can be compared with it: give inputs for which it is finite, for example "
                "with init={'x': (0.1, 1.0)} of a Contract, or the init uniform in a kernel spec."
            )
        if (limit := _out_of_range(outputs[name].dtype, expected, scale)) is not None:
            raise InputError(
                f"The reference of {name} goes up to {limit:.6g} with seed {seed}, which no "
                f"{outputs[name].dtype} is: give inputs for which it fits, for example with "
                "init={'x': (0, 100)} of a Contract, or let the reference overflow as the kernel "
                "does."
            )
        scale = max(scale, condition.scale)
        expected_norm = max(expected_norm, condition.scale)
        judge = _Judge(bound, scale, condition, _smallest(outputs[name].dtype))
        largest, norm = largest / scale, norm / expected_norm
        if not largest <= bound.max_relative or judge.finds_more(outputs[name], expected):
            raise KernelFault("correctness", _describe(name, outputs[name], expected, judge, seed))
        if not norm <= bound.normwise:
            raise KernelFault(
                "correctness",
                f"{name} is off by {norm:.2e} of its norm (bound {bound.normwise:.1e}, "
                f"seed {seed}).",
            )
        worst = ErrorBound(max(worst.max_relative, largest), max(worst.normwise, norm))
    return worst


@dataclass(frozen=True)
class _Judge:
    """The largest error allowed for each element of an output.

    Attributes:
        bound: relative to the following.
        scale: of the output as a whole.
        condition: of the output.
        smallest: absolute error that underflow can cause.
    """

    bound: ErrorBound
    scale: float
    condition: Condition
    smallest: float

    def allowed(self, expected: Values, own: Values | None) -> Values:
        """The largest error of each of some elements, given their ``expected`` and ``own``."""
        size = np.abs(expected)
        sums = self.bound.max_relative - self.bound.rounding
        terms = np.full_like(size, self.scale)
        if own is not None:
            terms = np.where(size > 0, np.minimum(size + own, self.scale), terms)
        return sums * terms + self.bound.rounding * size + self.smallest

    def finds_more(self, output: Array, expected: Values) -> bool:
        """Whether an element is wrong although its error is small relative to the scale."""
        own = self.condition.own
        if own is None and not self.bound.rounding:
            return False
        values, references = output.reshape(-1), expected.reshape(-1)
        owns = None if own is None else own.reshape(-1)
        right = 0
        for piece in _pieces(values):
            error = np.abs(values[piece].astype(np.float64) - references[piece])
            allowed = self.allowed(references[piece], None if owns is None else owns[piece])
            right += int((error <= allowed).sum())
        return right < values.size - self.condition.exempt * values.size


def _out_of_range(dtype: np.dtype[Any], expected: Values, scale: float) -> float | None:
    """The first of the reference's largest values that a type cannot represent.

    Args:
        dtype: of the output.
        expected: the reference.
        scale: its largest absolute value.
    """
    if dtype.kind == "f":  # what is little too large is rounded to the largest number
        with np.errstate(over="ignore"):
            return None if np.isfinite(dtype.type(scale)) else scale
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    extremes = float(expected.min()), float(expected.max())
    return next((one for one in extremes if not limits.min <= one <= limits.max), None)


def _smallest(dtype: np.dtype[Any]) -> float:
    """What a number that is too small may be off by: GPUs may flush such numbers to zero.

    Half precision has so few exponents that they are always kept, and rounded.
    """
    if dtype.kind != "f":
        return 0.0
    limits = np.finfo(dtype)
    return float(limits.smallest_subnormal if dtype.itemsize == 2 else limits.tiny)


def _distance(output: Array, expected: Values) -> tuple[float, float, float, float]:
    """The largest absolute value and the norm of the error, then those of ``expected``.

    Those of the error are NaN if any element is; those of ``expected`` are 1 instead of 0.
    """
    values, references = output.reshape(-1), expected.reshape(-1)
    pieces = _pieces(values)
    extremes, squares = np.zeros((len(pieces), 4)), np.zeros((len(pieces), 2))
    with np.errstate(invalid="ignore", over="ignore"):
        for row, piece in enumerate(pieces):
            error = values[piece].astype(np.float64)
            right = references[piece]
            error -= right
            peaks = error.max(), -error.min(), right.max(), -right.min()
            extremes[row] = [float(peak) for peak in peaks]
            squares[row] = float(error @ error), float(right @ right)
        peaks = extremes.max(axis=0, initial=0.0).reshape(2, 2).max(axis=1)
        norms = np.sqrt(squares.sum(axis=0))
    return float(peaks[0]), float(norms[0]), float(peaks[1]) or 1.0, float(norms[1]) or 1.0


def _pieces(values: Array) -> list[slice]:
    """Of the largest arrays of all: on the host a piece fits into the CPU's cache.

    It is then also too short for BLAS to start threads.
    """
    length = _PIECE if isinstance(values, np.ndarray) else _DEVICE_PIECE
    return [slice(start, start + length) for start in range(0, values.size, length)]


def _describe(name: str, output: Array, expected: Values, judge: _Judge, seed: int) -> str:
    values = output.astype(np.float64)
    unset = np.isnan(values)
    if unset.any():
        return f"{places(name, unset)} never written or NaN."
    most = judge.bound.max_relative * judge.scale
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(values - expected)
        allowed = judge.allowed(expected, judge.condition.own)
        by_own = judge.condition.own is not None and bool((error <= most).all())
        sizes = np.abs(expected) if by_own else np.full_like(error, judge.scale)
        wrong = ~(error <= np.minimum(allowed, most))
        relative = np.where(wrong, error / sizes, 0.0)
    place = tuple(int(i) for i in np.unravel_index(int(relative.argmax()), error.shape))
    found, right = float(output[place]), float(expected[place])
    digits = 6 if f"{found:.6g}" != f"{right:.6g}" else 17
    whose = "its own value" if by_own else "the largest value"
    limit = float(min(allowed[place], most) / sizes[place])
    return (
        f"{places(name, wrong)} wrong (seed {seed}); the worst is "
        f"{name}{list(place)} = {found:.{digits}g} instead of {right:.{digits}g}, off "
        f"by {float(relative[place]):.2e} of {whose} (bound {limit:.1e})."
    )


def places(name: str, mask: npt.NDArray[np.bool_]) -> str:
    """``3 of 100 elements of output (first output[0, 1]) are``."""
    first = [int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape)]
    count = int(mask.sum())
    verb = "is" if count == 1 else "are"
    return f"{count} of {mask.size} elements of {name} (first {name}{first}) {verb}"
