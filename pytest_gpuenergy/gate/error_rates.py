"""The errors that verdicts may make, and how they are divided among verdicts and looks.

A false alarm fails a whole run, a miss concerns one kernel. So the lower end of an interval, which
decides WORSE, has a share of `FALSE_ALARM`, and the upper end, which decides SAME, has `MISS`.

The chance of a false alarm is divided among verdicts in advance (weighted Bonferroni inequality:
C. R. Genovese, K. Roeder and L. Wasserman, "False discovery control with p-value weighting",
Biometrika 93, 2006). Most of it goes to the kernels that have changed, because a kernel that has
not changed rarely becomes worse, and then by much.

Two kernels that are measured alternately until the verdict is clear need intervals that are valid
whenever the rounds end. An interval of fixed size is not: whoever looks after each round, and stops
as soon as the interval suits, errs several times as often as it says. Here the looks are planned.
The probability of an error is divided among them (alpha spending: K. K. G. Lan and D. L. DeMets,
"Discrete sequential boundaries for clinical trials", Biometrika 70, 1983; repeated confidence
intervals: C. Jennison and B. W. Turnbull, "Interim analyses: the repeated confidence interval
approach", JRSS B 51, 1989), and each look has Student's t interval for its share. By Bonferroni's
inequality all of them hold at once, with any stopping rule and whatever the variance is. So does
their intersection, which never widens.

Confidence sequences that may be looked at after any round (T. L. Lai, "On confidence sequences",
Annals of Statistics 4, 1976; H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences
for Gaussian means with unknown variance", 2023) pay for looks that nobody takes: at the errors that
a gate allows, theirs are wider at each look here, by at least 29 % at the first two and 8 % later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_gpuenergy.gate.gate_settings import GateSettings
from pytest_gpuenergy.record import Estimate, paired_log_ratio, point_ratio
from pytest_gpuenergy.report import Pair, Shifts

FALSE_ALARM = 0.01
"""Largest fraction of runs without a regression in which a gate raises an alarm.

It is divided among all verdicts of a run, because any of them fails the run.
"""

MISS = 0.05
"""Largest chance that a kernel which is worse by exactly the limit is called SAME.

SAME states non-inferiority of one kernel, with the error that is usual for such statements: 5 % at
one end. It is not divided among kernels, because a miss says nothing about the others.
"""

CHANGED, UNCHANGED, SHIFT = 0.7, 0.2, 0.05
"""Shares of `FALSE_ALARM` for the kernels that may have changed, for those that have not, and for
the shifts. They do not depend on whether there are unchanged kernels, so that one more of these
widens no other kernel's interval. The rest allows for tails that are heavier than normal."""

_GRID = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
"""Rounds after which to look: even ones, because a linear drift cancels in two of them (ABBA). With
fewer than four, the quantiles of Student's t are too large for any verdict."""

_WEIGHTS = (3.0, 3.0, 2.0)
"""Weights of the first looks; all later ones have weight 1. With few degrees of freedom, the
quantile grows much faster as the share becomes smaller."""


def count_comparisons(items: int, settings: GateSettings) -> int:
    """Return the number of verdicts for ``items`` measurements; at least 1."""
    return max(1, items * len(settings.limits))


def bonferroni_tail(comparisons: int) -> float:
    """Return the probability beyond each end of an interval.

    By Bonferroni's inequality, the chance of any false alarm among all verdicts is then at most
    `FALSE_ALARM`.
    """
    return FALSE_ALARM / comparisons


@dataclass(frozen=True)
class Tails:
    """The probability beyond each end of an interval, by what is judged.

    Attributes:
        changed: the probability for kernels that have changed or may have.
        unchanged: the probability for kernels that have not changed.
        shift: the probability for common shifts.
    """

    changed: float
    unchanged: float
    shift: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], shifts: Shifts, metrics: int) -> Tails:
        """Divide the chance of a false alarm.

        Args:
            pairs: the measurements that are compared.
            shifts: the common shifts.
            metrics: number of metrics that are judged.
        """
        same = sum(pair.unchanged for pair in pairs)
        others = len(pairs) - same
        shares = (CHANGED, UNCHANGED) if others else (0.0, CHANGED + UNCHANGED)
        counts = (others, same, len(shifts))
        tails = (
            FALSE_ALARM * share / max(1, count * metrics)
            for share, count in zip((*shares, SHIFT), counts, strict=True)
        )
        return cls(*tails)

    @classmethod
    def while_running(cls, comparisons: int) -> Tails:
        """Equal parts for ``comparisons`` verdicts, when nobody knows yet what has changed."""
        tail = FALSE_ALARM / comparisons
        return cls(CHANGED * tail, UNCHANGED * tail, SHIFT * tail)


@dataclass(frozen=True)
class Looks:
    """The rounds after which to look, and the share of the error that each look may spend.

    Attributes:
        rounds: ascending; the last is the largest number of rounds.
        shares: the share of the probability of an error that each look spends; their sum is 1.
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
