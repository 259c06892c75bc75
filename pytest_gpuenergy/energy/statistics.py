"""Means and their 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from pytest_gpuenergy.record import Estimate
from pytest_gpuenergy.support import NORMAL, student_t


def estimate(
    values: Sequence[float],
    *,
    extra_variance: float = 0.0,
    known_variance: float = 0.0,
    successive: bool = False,
    before: Sequence[float] = (),
) -> Estimate:
    """Mean of ``values`` with its 95 % interval by Student's t.

    The squares of the half widths from the estimated variances (Student's t) and from
    ``known_variance`` (normal) are added, which is exact if either is 0 and conservative otherwise.

    Args:
        values: two or more.
        extra_variance: variance of the mean from errors common to all values, which their scatter
            does not show, estimated in the same measurement.
        known_variance: the same, but known beforehand.
        successive: whether the values are neighbours in time and depend on each other, see
            `variance_of_mean`; otherwise they are independent.
        before: see `variance_of_mean`.

    Raises:
        ValueError: there are fewer than two values, or one is not finite.
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

    Neighbouring windows share an edge, whose error makes one of them larger and the other smaller,
    and cancels in the sum. A slowly varying power has the opposite effect. The autocovariances c(l)
    reflect both; the variance of the mean of n values is

        (c(0) + 2 sum over l of (1 - l/n) w(l) c(l)) / n

    (T. W. Anderson, "The Statistical Analysis of Time Series", 1971, section 8.3.1), here over lags
    up to a quarter of the values, but at least two. The weights w are 1 at lag 1, where the errors
    of the edges appear, and decrease linearly to zero. Computed about the mean of N values, each c
    is too small by about c(0) / N if the values are independent; this is corrected. The errors of
    the two outermost edges do not cancel, so the result is no less than the variance they would
    cause if all the scatter came from edges.

    Args:
        values: two or more.
        before: values of the same process from just before. They are not part of the mean, but
            help to estimate the autocovariances.
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
