"""Means and their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.support.statistics import NORMAL, student_t


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
