"""Means and their 95 % intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from pytest_gpuenergy.record.metrics import Metric

WANDER: Mapping[Metric, float] = {"time": 0.0012, "energy": 0.0033, "edp": 0.0043}
"""What an item's trials have in common, so that they cannot show it: the state that the card is in.
Its real clock and its power change in steps, by up to 1.5 % of the power, every now and then.

On two H200s 160 items of four kernels were off by 0.11 % in time, 0.26 % in energy and 0.27 % in
EDP, root mean square, from 12 s of running among them. Of the time the places of the buffers, which
an interval takes from the item itself, explain all; of the energy the trials 0.21 %. One kernel on
one card was off by 0.46 % in energy, of which they explain 0.13 %. The values lie between the mean
and the worst kernel. docs/notes/common-error.md has the data.
"""

NORMAL = NormalDist().inv_cdf(0.975)
"""Half width of a 95 % interval in standard deviations that are known beforehand."""

_NEWTON_STEPS = 50
_PRECISION = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A mean and its two-sided 95 % confidence interval, in the unit of what was measured."""

    mean: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width as a fraction of the mean."""
        return (self.high - self.low) / (2 * abs(self.mean)) if self.mean else math.inf


def estimate(
    values: Sequence[float],
    *,
    extra_variance: float = 0.0,
    known_variance: float = 0.0,
    successive: bool = False,
    before: Sequence[float] = (),
) -> Estimate:
    """Mean of ``values`` with Student's t interval.

    ``extra_variance`` is the variance of the mean from errors that all values share, so that
    their scatter does not show it, estimated on the same occasion; ``known_variance`` likewise,
    known beforehand. The squares of the half widths are added, which is exact where either is 0,
    and on the safe side between. ``successive`` values are neighbours in time and depend on each
    other, see `variance_of_mean`, which says what ``before`` is; others are independent.

    Raises:
        ValueError: fewer than two values, or one that is not finite.
    """
    if len(values) < 2 or not all(map(math.isfinite, [*values, *before])):
        raise ValueError("an interval needs at least two finite values")
    mean, degrees = fmean(values), len(values) - 1
    if successive:
        own = variance_of_mean(values, before)
        degrees += len(before)
    else:
        own = stdev(values) ** 2 / len(values)
    half = math.hypot(
        student_t(degrees) * math.sqrt(own + extra_variance), NORMAL * math.sqrt(known_variance)
    )
    return Estimate(mean, mean - half, mean + half)


def variance_of_mean(values: Sequence[float], before: Sequence[float] = ()) -> float:
    """Variance of the mean of ``values``, which follow each other in time.

    Two windows share the edge between them: its error makes one larger and the other smaller, and
    drops out of the sum. A power that wanders does the opposite. Both are in the autocovariances
    c(l), of which the variance of a mean of n values is

        (c(0) + 2 sum over l of (1 - l/n) w(l) c(l)) / n

    (T. W. Anderson, "The Statistical Analysis of Time Series", 1971, section 8.3.1), here over the
    lags up to a quarter of the values, at least two. The weights w are 1 at lag 1, where the edges'
    errors are, and fall off evenly to nothing. Taken about the mean of N values each c is too
    small, by about c(0) / N if the values are independent, which is put back. The two edges at the
    ends remain: the result is no less than what they give when all the scatter is theirs.

    Args:
        values: two or more.
        before: values of the same process that came just before. They are no part of the mean, and
            help to tell the autocovariances.
    """
    series = [*before, *values]
    count, total = len(values), len(series)
    mean = fmean(series)
    gaps = [value - mean for value in series]
    variance = math.fsum(gap * gap for gap in gaps) / (total - 1)
    lags = min(count - 1, max(2, round(count / 4)))
    longrun = variance
    for lag in range(1, lags + 1):
        products = math.fsum(a * b for a, b in zip(gaps, gaps[lag:], strict=False))
        weight = (1 - lag / count) * (1 - (lag - 1) / lags)
        longrun += 2 * weight * (products / (total - 1) + variance / total)
    return max(longrun / count, variance / count**2)


@functools.cache
def student_t(degrees: int, probability: float = 0.975) -> float:
    """Quantile of Student's t distribution.

    For one and two degrees in closed form, otherwise the Cornish-Fisher expansion (Abramowitz
    and Stegun, "Handbook of Mathematical Functions", 26.7.5), refined by Newton steps on the
    exact distribution function (26.7.3, 26.7.4): many, far out in the tail of few degrees.
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
    for _ in range(_NEWTON_STEPS):
        step = (_cumulative(quantile, n) - probability) / _density(quantile, n)
        quantile -= step
        if abs(step) <= _PRECISION * abs(quantile):
            break
    return quantile


def _density(t: float, degrees: int) -> float:
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    log_tail = -(degrees + 1) / 2 * math.log1p(t * t / degrees)
    return math.exp(log_scale + log_tail) / math.sqrt(degrees * math.pi)


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
