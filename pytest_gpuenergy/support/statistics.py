"""Computes quantiles of the normal distribution and of Student's t."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

NORMAL = NormalDist().inv_cdf(0.975)
"""The half width of a 95 % interval in standard deviations, if those need not be estimated."""

_NEWTON_STEPS = 50
_PRECISION = 1e-9


@functools.cache
def student_t(degrees: int, probability: float = 0.975) -> float:
    """Return a quantile of Student's t distribution.

    One and two degrees of freedom have a closed form. Otherwise this is the Cornish-Fisher
    expansion (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5), refined by
    Newton steps on the exact distribution function (26.7.3, 26.7.4); the far tail with few degrees
    of freedom needs many steps.

    Raises:
        ValueError: ``degrees`` is less than 1.
    """
    if degrees < 1:
        raise ValueError("Student's t needs at least one degree of freedom")
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        centred = 2 * probability - 1
        return centred * math.sqrt(2 / (1 - centred * centred))
    x, n = NormalDist().inv_cdf(probability), degrees
    quantile: float = (
        x
        + (x**3 + x) / (4 * n)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * n**4)
    )
    log_scale = math.lgamma((n + 1) / 2) - math.lgamma(n / 2)
    for _ in range(_NEWTON_STEPS):
        log_tail = -(n + 1) / 2 * math.log1p(quantile * quantile / n)
        density = math.exp(log_scale + log_tail) / math.sqrt(n * math.pi)
        step = (_cumulative(quantile, n) - probability) / density
        quantile -= step
        if abs(step) <= _PRECISION * abs(quantile):
            break
    return quantile


def expected_largest(count: int) -> float:
    """Return the expected largest of ``count`` standard normal values, by Blom's approximation.

    G. Blom, "Statistical Estimates and Transformed Beta-Variables", 1958; within 5 % for two values
    and closer for more, from above.
    """
    return 0.0 if count < 2 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _cumulative(t: float, degrees: int) -> float:
    theta = math.atan(t / math.sqrt(degrees))
    cos, sin = math.cos(theta), math.sin(theta)
    if degrees % 2:
        term, total = cos, cos if degrees > 1 else 0.0
        for k in range(3, degrees - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        return 0.5 + (theta + sin * total) / math.pi
    term = total = 1.0
    for k in range(2, degrees - 1, 2):
        term *= cos * cos * (k - 1) / k
        total += term
    return 0.5 + sin * total / 2
