"""Intervals for the change between two kernels that are valid whenever the rounds end.

Two kernels are measured alternately until the verdict is clear. An interval of fixed size is not
valid then: whoever looks after each round, and stops as soon as the interval suits, errs several
times as often as it says. Here the looks are planned. The probability of an error is divided among
them (alpha spending: K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical
trials", Biometrika 70, 1983; repeated confidence intervals: C. Jennison and B. W. Turnbull,
"Interim analyses: the repeated confidence interval approach", JRSS B 51, 1989), and each look has
Student's t interval for its share. By Bonferroni's inequality all of them hold at once, with any
stopping rule and whatever the variance is. So does their intersection, which never widens.

Confidence sequences that may be looked at after any round (T. L. Lai, "On confidence sequences",
Annals of Statistics 4, 1976; H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences
for Gaussian means with unknown variance", 2023) pay for looks that nobody takes: at the errors that
a gate allows, theirs are wider at each look here, by at least 29 % at the first two and 8 % later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_gpuenergy.record import Estimate, paired_log_ratio, point_ratio

_GRID = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
"""Rounds after which to look: even ones, because a linear drift cancels in two of them (ABBA). With
fewer than four, the quantiles of Student's t are too large for any verdict."""

_WEIGHTS = (3.0, 3.0, 2.0)
"""Of the first looks; 1 for all later ones. With few degrees of freedom, the quantile grows much
faster as the share becomes smaller."""


@dataclass(frozen=True)
class Looks:
    """The rounds after which to look, and the share of the error that each look may spend.

    Attributes:
        rounds: ascending; the last is the largest number of rounds.
        shares: of the probability of an error; their sum is 1.
    """

    rounds: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def up_to(cls, most: int) -> Looks:
        """Plan the looks at no more than ``most`` rounds, of which there must be at least two."""
        if most < 2:
            raise ValueError("paired statistics need at least two rounds")
        rounds = (*(number for number in _GRID if number < most), most)
        weights = [*_WEIGHTS, *[1.0] * len(rounds)][: len(rounds)]
        return cls(rounds, tuple(weight / sum(weights) for weight in weights))

    def interval(self, log_ratios: Sequence[float], *, tail: float) -> Estimate:
        """ln(new / base) by the looks so far, with an interval; unbounded before the first one.

        Rounds after the latest look do not count, because they have no share of the error. If the
        intervals of the looks have nothing in common, the latest one is returned.

        Args:
            log_ratios: ln(new / base) of each round, in the order in which they were made.
            tail: the probability that the true value is ever beyond one end, at any look.
        """
        low, high, latest = float("-inf"), float("inf"), None
        for number, share in zip(self.rounds, self.shares, strict=True):
            if number > len(log_ratios):
                break
            latest = paired_log_ratio(log_ratios[:number], tail=tail * share)
            low, high = max(low, latest.low), min(high, latest.high)
        if latest is None:
            unbounded = point_ratio(None, None)
            return Estimate(fmean(log_ratios or [0.0]), unbounded.low, unbounded.high)
        if low > high:
            return latest
        return Estimate(min(max(latest.value, low), high), low, high)
