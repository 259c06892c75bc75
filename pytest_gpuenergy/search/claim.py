"""The change that is claimed of a variant which was measured alternately with its baseline.

And when that need not be measured, or not any longer, because nothing could be claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev

from pytest_gpuenergy.gate import tail_of
from pytest_gpuenergy.record import (
    METRICS,
    SAME_BOARD_SD,
    WANDER,
    Estimate,
    Metric,
    paired_log_ratio,
)
from pytest_gpuenergy.support import student_t

CONFIRMED = 3
"""The best variants, at most, that are measured alternately with the baseline until one is kept."""

LASTING_SD: Mapping[Metric, float] = {
    metric: math.sqrt(SAME_BOARD_SD[metric] ** 2 - WANDER[metric] ** 2) for metric in METRICS
}
"""Standard deviation of what a kernel may keep through a session, and has otherwise in another: the
part of the deviation between sessions that is not of a loading or of the state of the card, as a
fraction. Rounds of one session cannot show it."""

HEAVY_TAIL_DEGREES = 5
"""Of Student's t, for what lasts: large values are far more frequent than normal ones."""

_HEAVY_ALARM = 0.02
"""Chance of a search with a false claim, if what lasts is distributed like that."""

FUTILE = 0.02
"""Chance that a gain which could just be claimed, if nothing scattered, is given up."""

LEAST_ROUNDS = 3
"""Before a comparison may end early: with two, Student's t says nothing of the scatter."""


def claimed_change(
    log_ratios: Sequence[float], lasting_sd: float, *, candidates: int = 1
) -> Estimate:
    """ln(variant / baseline) by the rounds, with an interval for a claim of a gain.

    At most one search in a hundred claims a gain that is none: the rounds of each of `CONFIRMED`
    variants, and what lasts of each of the candidates (see `lasting_half_width`), are off by more
    than their half widths that seldom (Bonferroni's inequality). What lasts counts once for each
    candidate, because it is in the figures by which the best one was chosen: the best of many has
    more of it. The scatter of the rounds is not, and counts as usual. The squares of both half
    widths are added, as in `energy.statistics.estimate`.

    Args:
        log_ratios: of each round.
        lasting_sd: see `LASTING_SD`.
        candidates: among which the variant was chosen.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    scatter = paired_log_ratio(log_ratios, tail=tail_of(CONFIRMED))
    half = math.hypot(scatter.half_width, lasting_half_width(lasting_sd, max(1, candidates)))
    return Estimate(scatter.value, scatter.value - half, scatter.value + half)


def lasting_half_width(lasting_sd: float, candidates: int) -> float:
    """How far what lasts may make the best of so many candidates seem better than the baseline.

    The larger of two bounds, because nobody knows how what lasts is distributed:

    - If it is normal, the difference of two kernels is, too. One search in a hundred exceeds this.
    - If it has heavy tails, Student's t with `HEAVY_TAIL_DEGREES` of the same variance, a large
      difference comes from one kernel that is far off: one of the candidates, or the baseline. One
      search in fifty exceeds this.

    Args:
        lasting_sd: see `LASTING_SD`.
        candidates: among which the best was chosen; at least 1.
    """
    normal = -NormalDist().inv_cdf(tail_of(candidates)) * math.sqrt(2)
    degrees = HEAVY_TAIL_DEGREES
    heavy = student_t(degrees, 1 - _HEAVY_ALARM / (candidates + 1))
    return max(normal, heavy * math.sqrt((degrees - 2) / degrees)) * lasting_sd


def may_be_claimed(log_ratio: float, metric: Metric, *, candidates: int) -> bool:
    """Whether a variant is worth a comparison with the baseline, by the search's own figures.

    It is not if a claim takes more than it can have: the claim of a gain takes at least
    `lasting_half_width`, even if the rounds do not scatter at all. A figure of the search deviates
    as one of another session does (`SAME_BOARD_SD`), the baseline's likewise; one variant in
    fifty (`FUTILE`) has more than this allows for.

    Args:
        log_ratio: ln(variant / baseline) by the figures of the search.
        metric: what the search minimizes.
        candidates: among which the variant is the best.
    """
    allowance = NormalDist().inv_cdf(1 - FUTILE) * math.sqrt(2) * SAME_BOARD_SD[metric]
    return log_ratio - allowance < -lasting_half_width(LASTING_SD[metric], max(1, candidates))


def is_out_of_reach(
    log_ratios: Sequence[float],
    lasting_sd: float,
    *,
    rounds: int,
    candidates: int = 1,
    room: float = 0.0,
) -> bool:
    """Whether the first of some rounds leave no hope for the claim of a gain after all of them.

    A claim takes a mean ratio of less than ``-lasting_half_width`` after all rounds, even if they
    do not scatter at all, see `claimed_change`. The mean of all n rounds deviates from that of the
    first k, whose standard deviation is s, by ``s sqrt(1/k - 1/n)``, in terms of Student's t with
    k - 1 degrees of freedom. If it gets that far with a probability of less than `FUTILE`, there is
    no hope (stochastic curtailment: K. K. G. Lan, R. Simon and M. Halperin, "Stochastically
    curtailed tests in long-term clinical trials", Sequential Analysis 1, 1982).

    To end a comparison for this reason never adds a claim.

    Args:
        log_ratios: of the rounds so far.
        lasting_sd: see `LASTING_SD`.
        rounds: that were planned.
        candidates: among which the variant was chosen.
        room: by which doubts widen the interval besides.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS or count >= rounds:
        return False
    spread = stdev(log_ratios) * math.sqrt(1 / count - 1 / rounds)
    least = fmean(log_ratios) - student_t(count - 1, 1 - FUTILE) * spread
    return least >= -lasting_half_width(lasting_sd, max(1, candidates)) - room
