"""How much a figure changed from one run to another, and how sure that is.

Changes are natural logarithms of a ratio: +5 % and its reverse then have the same size, so that
swapping the two sides swaps the verdict and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.support.statistics import NORMAL, student_t

_MANY = 1000
"""From this many degrees of freedom on, Student's t is taken as for this many."""

_LARGEST_ERROR = 1e60

_LARGEST_CHANGE = math.log(1e9)
"""A change by a larger factor is given as this: its ratio must be a number."""


@dataclass(frozen=True)
class Sample:
    """A mean figure of one session.

    Attributes:
        mean: above zero, in any unit.
        relative_error: standard error of the mean by the session's own trials, as a fraction;
            without what all of them share.
        degrees: of freedom of that error; infinite for a figure known exactly.
    """

    mean: float
    relative_error: float
    degrees: float

    @classmethod
    def of(cls, found: Estimate, trials: int, *, shared: float = 0.0) -> Sample:
        """From a figure with its 95 % interval, Student's t over ``trials`` trials.

        ``shared`` is the deviation, as a fraction and known beforehand, that the interval holds
        beside that of the trials, see `estimate`. It is left out.

        Raises:
            ValueError: there are fewer than two trials, the mean is not above zero, or the error
                is negative or out of all proportion to it.
        """
        if trials < 2 or not found.value > 0:
            raise ValueError("a sample needs two trials and a mean above zero")
        half = found.half_width / found.value
        if not 0 <= half < _LARGEST_ERROR:  # its fourth power must be a number
            raise ValueError("the interval is as good as infinite, or upside down")
        own = math.sqrt(max(0.0, half**2 - (NORMAL * shared) ** 2))
        return cls(found.value, own / student_t(trials - 1), trials - 1)


def log_ratio(base: Sample, new: Sample, *, session_sd: float, tail: float) -> Estimate:
    """ln(new / base) with an interval beyond each end of which the truth is with chance ``tail``.

    Its variance is the sum of both relative variances (first-order error propagation: the
    relative error is the error of the logarithm) and, twice, of the variance between sessions,
    which no session's own trials can show; the degrees of freedom are by Welch and Satterthwaite
    (B. L. Welch, "The generalization of 'Student's' problem when several different population
    variances are involved", Biometrika 34, 1947), the declared variance having infinitely many.

    Args:
        base: the earlier figure.
        new: the later one.
        session_sd: standard deviation between sessions of the same figure, as a fraction.
        tail: probability, of each tail.
    """
    own = [(side.relative_error**2, side.degrees) for side in (base, new)]
    variance = sum(value for value, _ in own) + 2 * session_sd**2
    return _around(math.log(new.mean) - math.log(base.mean), variance, _welch(own, variance), tail)


def log_excess(found: Sample, allowed: float, *, session_sd: float, tail: float) -> Estimate:
    """ln(found / allowed) likewise, for a number ``allowed`` that is known exactly."""
    own = [(found.relative_error**2, found.degrees)]
    variance = own[0][0] + session_sd**2
    return _around(math.log(found.mean) - math.log(allowed), variance, _welch(own, variance), tail)


def paired_log_ratio(log_ratios: Sequence[float], *, tail: float) -> Estimate:
    """The mean of ln(new / base) over rounds that measured both sides, Student's t over rounds.

    What differs from one session or board to another is the same for both sides of a round, and
    drops out.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    if len(log_ratios) < 2:
        raise ValueError("paired statistics need at least two rounds")
    variance = stdev(log_ratios) ** 2 / len(log_ratios)
    return _around(fmean(log_ratios), variance, len(log_ratios) - 1, tail)


def _welch(own: Sequence[tuple[float, float]], variance: float) -> float:
    spread = sum(value * value / degrees for value, degrees in own)
    return variance * variance / spread if spread else math.inf


def _around(mean: float, variance: float, degrees: float, tail: float) -> Estimate:
    half = _quantile(degrees, tail) * math.sqrt(variance)
    return Estimate(*map(_limited, (mean, mean - half, mean + half)))


def _limited(log_ratio: float) -> float:
    return max(-_LARGEST_CHANGE, min(log_ratio, _LARGEST_CHANGE))


def _quantile(degrees: float, tail: float) -> float:
    if math.isinf(degrees):
        return NormalDist().inv_cdf(1 - tail)
    # Rounded down: fewer degrees give a wider interval.
    return student_t(max(1, min(_MANY, math.floor(degrees))), 1 - tail)
