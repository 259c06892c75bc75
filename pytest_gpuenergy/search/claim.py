"""The change that is claimed of a variant which was measured alternately with its baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from pytest_gpuenergy.gate.verdict import tail_of
from pytest_gpuenergy.record.estimate import WANDER, Estimate
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.record.ratio import paired_log_ratio
from pytest_gpuenergy.record.repeatability import SAME_BOARD_SD

CONFIRMED = 3
"""The best variants, at most, that are measured alternately with the baseline until one is kept."""

LASTING_SD: Mapping[Metric, float] = {
    metric: math.sqrt(SAME_BOARD_SD[metric] ** 2 - WANDER[metric] ** 2) for metric in METRICS
}
"""Standard deviation of what a kernel may keep through a session, and has otherwise in another: the
part of the deviation between sessions that is not of a loading or of the state of the card, as a
fraction. Rounds of one session cannot show it."""


def claimed_change(
    log_ratios: Sequence[float], lasting_sd: float, *, candidates: int = 1
) -> Estimate:
    """ln(variant / baseline) by the rounds, with an interval for a claim of a gain.

    At most one search in a hundred claims a gain that is none: the rounds of each of `CONFIRMED`
    variants, and what lasts of each of the candidates, are off by more than their half widths that
    seldom (Bonferroni's inequality). What lasts counts once for each candidate, because it is in
    the figures by which the best one was chosen: the best of many has more of it. The scatter of
    the rounds is not, and counts as usual. The squares of both half widths are added, as in
    `energy.statistics.estimate`.

    Args:
        log_ratios: of each round.
        lasting_sd: see `LASTING_SD`.
        candidates: among which the variant was chosen.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    scatter = paired_log_ratio(log_ratios, tail=tail_of(CONFIRMED))
    lasting = -NormalDist().inv_cdf(tail_of(max(1, candidates))) * math.sqrt(2) * lasting_sd
    half = math.hypot(scatter.half_width, lasting)
    return Estimate(scatter.value, scatter.value - half, scatter.value + half)
