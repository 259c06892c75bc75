"""The activations that follow a product: their values in float64, and what they do to errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.number_types import unit_roundoff

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
"""The name of the function that is applied to each sum x.

``none``: x; ``relu``: max(x, 0); ``gelu``: x Phi(x), where Phi(x) = (1 + erf(x / sqrt(2))) / 2 is
the normal distribution; ``gelu_tanh``: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, which
PyTorch calls ``approximate="tanh"`` (Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)",
arXiv:1606.08415, section 2); ``silu``: x / (1 + exp(-x)), also called swish.
"""
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
EXACT_ACTIVATIONS: tuple[Activation, ...] = ("none", "relu")
"""The activations whose results for integers are integers, so that they add no errors."""

_STEEPEST: Mapping[Activation, float] = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
"""Upper limits of the slopes of activations; those of the others are at most 1.

The slope of ``gelu`` is Phi(x) + x phi(x), whose derivative (2 - x^2) phi(x) is zero at sqrt(2),
where it is 1.1289; that of ``gelu_tanh`` is at most 1.1290 (near 1.42), and that of ``silu`` 1.0998
(near 2.40).
"""
_OWN_ROUNDINGS = 8
"""A limit of the errors of an activation itself, in units in the last place of its largest value.

``erff`` and ``expf`` are off by up to 2 of these (CUDA C++ Programming Guide, "Mathematical
Functions"), and two to four multiplications, additions or divisions follow.
"""
_CUBIC, _TANH_SCALE = 0.044715, math.sqrt(2 / math.pi)
_FURTHEST = 26.0
"""The largest x for which erfc is computed: 5e-296 is nearly the least number of float64."""
_LEAST_T = 2.0 / (2.0 + _FURTHEST)
"""The value of t = 2 / (2 + x) there; the series for erfc is in t."""
_TERMS = 26
"""The number of terms of that series; the last terms are smaller than rounding errors."""
_AT_ONCE = 1 << 15
"""The number of elements whose erfc is computed at a time, so that they stay in the cache."""


def activated(x: npt.NDArray[np.float64], activation: Activation) -> npt.NDArray[np.float64]:
    """Return an activation of each element, in float64.

    Args:
        x: the elements; an array of another library with NumPy's functions is accepted.
        activation: the activation.
    """
    if activation == "none":
        return x
    if activation == "relu":
        return np.maximum(x, 0.0)
    if activation == "gelu":
        result = np.empty_like(x, order="C")
        flat, to = x.reshape(-1), result.reshape(-1)
        for first in range(0, flat.size, _AT_ONCE):
            part = flat[first : first + _AT_ONCE]
            to[first : first + _AT_ONCE] = 0.5 * part * _erfc(-math.sqrt(0.5) * part)
        return result
    inner = 2 * _TANH_SCALE * (x + _CUBIC * x * x * x) if activation == "gelu_tanh" else x
    with np.errstate(over="ignore"):  # what divides is then infinite
        return x / (1.0 + np.exp(-inner))


def activated_bound(bound: ErrorBound, activation: Activation) -> ErrorBound:
    """Return the bound of sums with a given bound after an activation.

    An error e before a function of slope at most L is at most L e after it (mean value theorem).
    The function adds roundings of its own in float32, of which the largest value is a few units in
    the last place. Rounding the result to a coarser type happens once, after that.

    Args:
        bound: the bound of the sums, whose ``rounding`` is that of the result to its type.
        activation: the activation.
    """
    if activation in EXACT_ACTIVATIONS:
        return bound
    steepest, own = _STEEPEST[activation], _OWN_ROUNDINGS * unit_roundoff("float32")

    def after(error: float) -> float:
        return steepest * (error - bound.rounding) + own + bound.rounding

    return ErrorBound(after(bound.max_relative), after(bound.normwise), bound.rounding)


def _erfc(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the complementary error function of each element.

    NumPy has none, and Python's takes one number at a time. For x >= 0, exp(x^2) erfc(x) / t is a
    smooth function of t = 2 / (2 + x). Its Chebyshev series is computed from Python's erfc at the
    nodes. The relative error is below 1e-12 up to x = 26; further on, the result is below 1e-295.
    """
    size = np.minimum(np.abs(x), _FURTHEST)
    t = 2.0 / (2.0 + size)
    y = (2.0 * t - 1.0 - _LEAST_T) / (1.0 - _LEAST_T)
    latest, earlier = np.zeros_like(y), np.zeros_like(y)
    first, *rest = _series()
    twice = 2.0 * y
    for coefficient in reversed(rest):  # Clenshaw's recurrence
        earlier -= twice * latest
        earlier -= coefficient
        latest, earlier = -earlier, latest
    tail = t * np.exp(-size * size) * (y * latest - earlier + first)
    result: npt.NDArray[np.float64] = np.where(x < 0.0, 2.0 - tail, tail)
    return result


@functools.cache
def _series() -> tuple[float, ...]:
    """Return the coefficients of the Chebyshev series of `_erfc`."""
    angles = [math.pi * (k + 0.5) / _TERMS for k in range(_TERMS)]
    values = []
    for angle in angles:
        t = _LEAST_T + (1.0 - _LEAST_T) * (math.cos(angle) + 1.0) / 2.0
        x = 2.0 / t - 2.0
        values.append(math.erfc(x) * math.exp(x * x) / t)
    return tuple(
        (2.0 if j else 1.0)
        / _TERMS
        * math.fsum(
            value * math.cos(j * angle) for value, angle in zip(values, angles, strict=True)
        )
        for j in range(_TERMS)
    )
