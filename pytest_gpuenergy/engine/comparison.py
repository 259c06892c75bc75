"""Compares outputs with their float64 reference, and describes what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support.errors import InputError, KernelFault
from pytest_gpuenergy.workloads.workload import Array, ErrorBound

_PIECE = 8192  # elements
Reference = Mapping[str, npt.NDArray[np.float64]]


def compare(
    outputs: Mapping[str, Array], reference: Reference, bounds: Mapping[str, ErrorBound], seed: int
) -> ErrorBound:
    """Return the errors of ``outputs``, as fractions of the reference's largest value and norm.

    Raises:
        InputError: the reference is not finite.
        KernelFault: an element was not written, is not finite or is off by more than its bound, or
            the norm of all errors exceeds its bound. The message gives the number of wrong elements
            and the position and error of the worst.
    """
    worst = ErrorBound(0.0, 0.0)
    for name, expected in reference.items():
        bound = bounds[name]
        largest, norm, scale, expected_norm = _distance(outputs[name], expected)
        if not math.isfinite(scale):
            first = np.argwhere(~np.isfinite(expected))[0].tolist()
            raise InputError(
                f"The reference is NaN or infinite, first at {name}{first} with seed {seed}, so "
                "nothing can be compared with it: give inputs for which it is finite, for example "
                "with init={'x': (0.1, 1.0)} of a Contract."
            )
        largest, norm = largest / scale, norm / expected_norm
        if not largest <= bound.max_relative:
            raise KernelFault(
                "correctness", _describe(name, outputs[name], expected, scale, bound, seed)
            )
        if not norm <= bound.normwise:
            raise KernelFault(
                "correctness",
                f"{name} is off by {norm:.2e} of its norm (bound {bound.normwise:.1e}, "
                f"seed {seed}).",
            )
        worst = ErrorBound(max(worst.max_relative, largest), max(worst.normwise, norm))
    return worst


def _distance(
    output: Array, expected: npt.NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """The largest absolute value and the norm of the error, then those of ``expected``.

    Those of the error are NaN if any element is; those of ``expected`` are 1 instead of 0. These
    are the largest arrays of all and are processed piece by piece: a piece fits into the CPU's
    cache and is too short for BLAS to start threads.
    """
    values, references = output.reshape(-1), expected.reshape(-1)
    starts = range(0, values.size, _PIECE)
    extremes, squares = np.zeros((len(starts), 4)), np.zeros((len(starts), 2))
    with np.errstate(invalid="ignore", over="ignore"):
        for row, start in enumerate(starts):
            error = values[start : start + _PIECE].astype(np.float64)
            right = references[start : start + _PIECE]
            error -= right
            extremes[row] = error.max(), -error.min(), right.max(), -right.min()
            squares[row] = error @ error, right @ right
        peaks = extremes.max(axis=0, initial=0.0).reshape(2, 2).max(axis=1)
        norms = np.sqrt(squares.sum(axis=0))
    return float(peaks[0]), float(norms[0]), float(peaks[1]) or 1.0, float(norms[1]) or 1.0


def _describe(
    name: str,
    output: Array,
    expected: npt.NDArray[np.float64],
    scale: float,
    bound: ErrorBound,
    seed: int,
) -> str:
    values = output.astype(np.float64)
    unset = np.isnan(values)
    if unset.any():
        return f"{places(name, unset)} never written or NaN."
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(values - expected) / scale
    place = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    found, right = float(output[place]), float(expected[place])
    digits = 6 if f"{found:.6g}" != f"{right:.6g}" else 17
    return (
        f"{places(name, error > bound.max_relative)} wrong (seed {seed}); the worst is "
        f"{name}{list(place)} = {found:.{digits}g} instead of {right:.{digits}g}, off "
        f"by {float(error[place]):.2e} of the largest value (bound {bound.max_relative:.1e})."
    )


def places(name: str, mask: npt.NDArray[np.bool_]) -> str:
    """``3 of 100 elements of output (first output[0, 1]) are``."""
    first = [int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape)]
    count = int(mask.sum())
    verb = "is" if count == 1 else "are"
    return f"{count} of {mask.size} elements of {name} (first {name}{first}) {verb}"
