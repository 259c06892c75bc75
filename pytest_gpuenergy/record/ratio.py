"""The change of a figure between two runs, with an interval.

A change is the natural logarithm of a ratio, so swapping the two sides only changes its sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import WANDER, Estimate, Metric
from pytest_gpuenergy.support import NORMAL, student_t

_MAX_DEGREES = 1000
"""Largest number of degrees of freedom for which Student's t is computed."""

_MAX_ERROR = 1e60

_MAX_CHANGE = math.log(1e9)
"""Larger changes are clipped to this, so that the ratio stays finite."""


@dataclass(frozen=True)
class SessionMean:
    """A mean figure of one session.

    Attributes:
        mean: above zero, in any unit.
        relative_error: standard error of the mean from the scatter of the session's own trials, as
            a fraction, without the error that all of them share.
        degrees: degrees of freedom of that error; infinite for a figure known exactly.
        shared_error: standard deviation of the error that all trials share, as a fraction, as far
            as it is known.
    """

    mean: float
    relative_error: float
    degrees: float
    shared_error: float = 0.0

    @classmethod
    def of(cls, found: Estimate, trials: int, *, shared: float = 0.0) -> SessionMean:
        """Return the mean of a figure whose 95 % interval is Student's t over ``trials`` trials.

        ``shared`` is the known relative standard deviation that the interval includes in addition
        to the scatter of the trials. It becomes `shared_error`, as far as the interval has room.

        Raises:
            ValueError: there are fewer than two trials, the mean is not above zero, or the error
                is negative or extremely large.
        """
        if trials < 2 or not found.value > 0:
            raise ValueError("a session needs two trials and a mean above zero")
        half = found.half_width / found.value
        if not 0 <= half < _MAX_ERROR:  # its fourth power must be finite
            raise ValueError("the interval is almost infinite, or its ends are swapped")
        shared = min(shared, half / NORMAL)
        own = math.sqrt(max(0.0, half**2 - (NORMAL * shared) ** 2))
        return cls(found.value, own / student_t(trials - 1), trials - 1, shared)

    def session_variance(self, session_sd: float) -> float:
        """Return the variance between sessions, no less than that of the shared error."""
        return max(session_sd, self.shared_error) ** 2


def session_mean(measurement: Measurement, metric: Metric) -> SessionMean | None:
    """Return the metric with the error from its trials; None without a usable interval."""
    found = measurement.estimate(metric)
    if found is None:
        return None
    settling = 0.0 if metric is Metric.TIME else measurement.settling_error or 0.0
    shared = math.hypot(WANDER[metric], settling)
    try:
        return SessionMean.of(found, measurement.scatter_count, shared=shared)
    except ValueError:
        return None


def log_ratio(base: SessionMean, new: SessionMean, *, session_sd: float, tail: float) -> Estimate:
    """ln(new / base) with an interval that excludes a probability of ``tail`` at either end.

    The variance is the sum of both relative variances (to first order, the relative error of a
    figure is the error of its logarithm) and, for each side, of the variance between sessions,
    which the trials of one session cannot show. The degrees of freedom follow Welch and
    Satterthwaite (B. L. Welch, "The generalization of 'Student's' problem when several different
    population variances are involved", Biometrika 34, 1947); the variance between sessions has
    infinitely many.

    Args:
        base: the earlier figure.
        new: the later figure.
        session_sd: standard deviation of a figure between sessions, as a fraction.
        tail: probability of each tail.
    """
    own = [(side.relative_error**2, side.degrees) for side in (base, new)]
    between = sum(side.session_variance(session_sd) for side in (base, new))
    variance = sum(value for value, _ in own) + between
    return t_interval(
        math.log(new.mean) - math.log(base.mean), variance, welch(own, variance), tail
    )


def log_excess(found: SessionMean, allowed: float, *, session_sd: float, tail: float) -> Estimate:
    """ln(found / allowed) as `log_ratio`, for an exact number ``allowed``."""
    own = [(found.relative_error**2, found.degrees)]
    variance = own[0][0] + found.session_variance(session_sd)
    return t_interval(
        math.log(found.mean) - math.log(allowed), variance, welch(own, variance), tail
    )


def paired_log_ratio(log_ratios: Sequence[float], *, tail: float) -> Estimate:
    """Return the mean of ln(new / base) over rounds that measured both sides, with an interval.

    Differences between sessions and boards affect both sides of a round equally and cancel.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    if len(log_ratios) < 2:
        raise ValueError("paired statistics need at least two rounds")
    variance = stdev(log_ratios) ** 2 / len(log_ratios)
    return t_interval(fmean(log_ratios), variance, len(log_ratios) - 1, tail)


def point_ratio(base: float | None, new: float | None) -> Estimate:
    """ln(new / base) of two figures without usable intervals, as an interval of no width.

    It is unbounded when a figure is missing or not above zero.
    """
    if base is None or new is None or not (base > 0 and new > 0):
        return Estimate(0.0, -math.inf, math.inf)
    return Estimate(*[clipped(math.log(new) - math.log(base))] * 3)


def welch(own: Sequence[tuple[float, float]], variance: float) -> float:
    """Return the degrees of freedom of a sum of variances.

    Args:
        own: the estimated variances in it, each with its degrees of freedom.
        variance: the sum, which may include variances that are known.
    """
    spread = sum(value * value / degrees for value, degrees in own)
    return variance * variance / spread if spread else math.inf


def t_interval(mean: float, variance: float, degrees: float, tail: float) -> Estimate:
    """``mean`` with an interval by Student's t, with a probability of ``tail`` beyond each end."""
    if math.isinf(degrees):
        quantile = normal_quantile(tail)
    else:  # rounded down: fewer degrees give a wider interval
        quantile = student_t(max(1, min(_MAX_DEGREES, math.floor(degrees))), 1 - tail)
    half = quantile * math.sqrt(variance)
    return Estimate(*map(clipped, (mean, mean - half, mean + half)))


def normal_quantile(tail: float) -> float:
    """Return how many standard deviations a normal value exceeds with a probability of ``tail``."""
    return NormalDist().inv_cdf(1 - tail)


def clipped(log_ratio: float) -> float:
    """Return the logarithm of a ratio, no further from zero than one whose ratio is finite."""
    return max(-_MAX_CHANGE, min(log_ratio, _MAX_CHANGE))
