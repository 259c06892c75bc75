"""When a variant is certainly better than the baseline, by the rounds of a comparison.

A gain is proven if the whole interval of the objective's ratio is below 1. A comparison that cannot
prove one is not begun, or ends early; so does one that has proven a gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Literal

from pytest_gpuenergy.ab import Turns
from pytest_gpuenergy.energy import Reading
from pytest_gpuenergy.gate import Looks, Verdict, bonferroni_tail, decide, widened
from pytest_gpuenergy.record import (
    METRICS,
    SAME_BOARD_SD,
    WANDER,
    Estimate,
    Interval,
    Metric,
    paired_log_ratio,
)
from pytest_gpuenergy.search.validation.result import TurnFigures, VariantGain
from pytest_gpuenergy.support import student_t

ROUNDS = 6
"""Rounds of a comparison, at most; in each, both kernels are measured once."""
LOOKS = Looks((4, ROUNDS), (0.2, 0.8))
"""The rounds after which a comparison may show a gain. The first look spends little of the error,
so that small gains, which take all rounds, are found as often as with a single look."""
_PRECISE = 0.03
"""The half width of the objective's interval with which a proven gain ends the rounds."""
CONFIRMED = 3
"""Number of variants, at most, that are compared with the baseline until one is kept."""
LASTING_SD: Mapping[Metric, float] = {
    metric: math.sqrt(SAME_BOARD_SD[metric] ** 2 - WANDER[metric] ** 2) for metric in METRICS
}
"""Standard deviation, as a fraction, of a kernel's lasting deviation: the part of the deviation
between sessions that neither the loading of the kernel nor the state of the card explains. It stays
the same through a session, so the rounds of one session cannot show it."""
_HEAVY_TAIL_DEGREES = 5
"""Degrees of freedom of Student's t as a heavy-tailed distribution of lasting deviations."""
_HEAVY_ALARM = 0.02
"""Chance that a search accepts a false gain, if lasting deviations have such heavy tails."""
_FUTILE = 0.02
"""Chance of giving up a gain that would just be proven if nothing scattered."""
_MIN_ROUNDS = 3
"""Rounds before a comparison may end early; two say too little about the scatter."""


def round_log_ratios(turns: Turns, metric: Metric) -> list[float]:
    """Return ln(variant / baseline) of each round."""
    return [new - old for old, new in zip(*turns.log_figures(metric), strict=True)]


def judge_rounds(state_id: str, turns: Turns, objective: Metric, candidates: int) -> VariantGain:
    """Return what the rounds say about a variant that is the best of so many candidates."""
    figures = {metric: turns.log_figures(metric) for metric in METRICS}
    changes = {
        metric: proven_change(
            round_log_ratios(turns, metric), LASTING_SD[metric], candidates=candidates
        )
        for metric in METRICS
    }
    in_order: list[TurnFigures] = []
    for number, (base, head) in enumerate(zip(turns.base, turns.head, strict=True), 1):
        pair = [_turn(number, "baseline", base), _turn(number, "variant", head)]
        in_order += pair if number % 2 else pair[::-1]  # the sides take turns in beginning
    doubts = turns.doubts()
    verdict = decide(widened(changes[objective], doubts, objective), 0.0)
    return VariantGain(
        id=state_id,
        accepted=verdict is Verdict.BETTER,
        rounds=len(turns.base),
        ended_early=len(turns.base) < ROUNDS,
        candidates=candidates,
        ratios={metric: math.exp(change.value) for metric, change in changes.items()},
        ratio_intervals={
            metric: Interval(math.exp(change.low), math.exp(change.high))
            for metric, change in changes.items()
        },
        baseline={metric: math.exp(fmean(base)) for metric, (base, _) in figures.items()},
        variant={metric: math.exp(fmean(head)) for metric, (_, head) in figures.items()},
        reasons=tuple(doubt.reason for doubt in doubts),
        turns=tuple(in_order),
    )


def _turn(number: int, side: Literal["baseline", "variant"], reading: Reading) -> TurnFigures:
    return TurnFigures(
        round=number,
        side=side,
        time_ms=reading.time_ms.value,
        energy_mj=reading.energy_mj.value,
        power_w=reading.power_w,
        seconds=sum(trial.seconds for trial in reading.trials),
        temperature_c=reading.temperature_c,
        effective_sm_clock_mhz=reading.effective_sm_clock_mhz,
        memory_clock_mhz=reading.end.memory_clock_mhz,
        event_reasons=reading.event_reasons,
        flags=reading.flags,
    )


def proven_change(
    log_ratios: Sequence[float], lasting_sd: float, *, candidates: int = 1
) -> Estimate:
    """Return ln(variant / baseline) by the rounds, with an interval that proves a gain if below 0.

    At most one search in a hundred accepts a gain that is none. By Bonferroni's inequality, the
    rounds of each of `CONFIRMED` variants, at any of the `LOOKS`, and the lasting deviations of all
    candidates (see `lasting_half_width`) exceed their half widths that seldom. Lasting deviations
    count once for each candidate, because the best one was chosen by figures that contain them: the
    best of many has a larger one. The scatter of the rounds is not in those figures and counts as
    usual. The squares of both half widths are added, as in `energy.estimate`.

    Args:
        log_ratios: ln(variant / baseline) of each round.
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        candidates: the number of variants of which this one was chosen.

    Returns:
        The estimate. Rounds after the latest look do not count; before the first look, where
        nothing is accepted, it is that of a single look.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    interval = paired_log_ratio if len(log_ratios) < LOOKS.rounds[0] else LOOKS.interval
    scatter = interval(log_ratios, tail=bonferroni_tail(CONFIRMED))
    half = math.hypot(scatter.half_width, lasting_half_width(lasting_sd, max(1, candidates)))
    return Estimate(scatter.value, scatter.value - half, scatter.value + half)


def is_proven(
    log_ratios: Sequence[float], lasting_sd: float, *, candidates: int = 1, room: float = 0.0
) -> bool:
    """Return whether the rounds prove a gain at a look, and say precisely enough how large it is.

    Args:
        log_ratios: ln(variant / baseline) of the rounds so far.
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        candidates: the number of variants of which this one was chosen.
        room: the amount by which doubts widen the interval as well.
    """
    if len(log_ratios) not in LOOKS.rounds:
        return False
    change = proven_change(log_ratios, lasting_sd, candidates=candidates)
    return change.high + room < 0 and change.half_width <= _PRECISE


def lasting_half_width(lasting_sd: float, candidates: int) -> float:
    """Return how much better than the baseline lasting deviations may make the best variant seem.

    This is the larger of two bounds, because the distribution of lasting deviations is unknown:

    - If they are normal, so is the difference of two kernels. One search in a hundred exceeds this
      bound.
    - If they have heavy tails (Student's t with `_HEAVY_TAIL_DEGREES` and the same variance), a
      large difference comes from a single kernel: one of the candidates, or the baseline. One
      search in fifty exceeds this bound.

    Args:
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        candidates: the number of variants of which the best was chosen; at least 1.
    """
    normal = -NormalDist().inv_cdf(bonferroni_tail(candidates)) * math.sqrt(2)
    degrees = _HEAVY_TAIL_DEGREES
    heavy = student_t(degrees, 1 - _HEAVY_ALARM / (candidates + 1))
    return max(normal, heavy * math.sqrt((degrees - 2) / degrees)) * lasting_sd


def is_worth_comparing(log_ratio: float, metric: Metric, *, candidates: int) -> bool:
    """Return whether a variant is worth a comparison, by the search's own figures.

    A proven gain takes at least `lasting_half_width`, even if the rounds do not scatter at all. A
    variant that cannot have so much is not worth a comparison. A figure of the search deviates like
    one of another session (`SAME_BOARD_SD`), and so does the baseline's; one variant in fifty
    (`_FUTILE`) has more than this allows for.

    Args:
        log_ratio: ln(variant / baseline) by the figures of the search.
        metric: the metric that the search minimizes.
        candidates: the number of variants of which this one is the best.
    """
    allowance = NormalDist().inv_cdf(1 - _FUTILE) * math.sqrt(2) * SAME_BOARD_SD[metric]
    return log_ratio - allowance < -lasting_half_width(LASTING_SD[metric], max(1, candidates))


def is_out_of_reach(
    log_ratios: Sequence[float],
    lasting_sd: float,
    *,
    rounds: int,
    candidates: int = 1,
    room: float = 0.0,
) -> bool:
    """Return whether a gain can no longer be proven, by the rounds so far.

    A proven gain takes a mean ratio of less than ``-lasting_half_width`` after all rounds, even if
    they do not scatter at all, see `proven_change`. If the first k rounds have the standard
    deviation s, the mean of all n rounds differs from the mean of the first k by ``s sqrt(1/k -
    1/n)`` times a value of Student's t with k - 1 degrees of freedom. The gain is out of reach if
    the mean gets that far with a probability of less than `_FUTILE` (stochastic curtailment: K. K.
    G. Lan, R. Simon and M. Halperin, "Stochastically curtailed tests in long-term clinical trials",
    Sequential Analysis 1, 1982).

    Ending a comparison for this reason never adds an accepted gain.

    Args:
        log_ratios: ln(variant / baseline) of the rounds so far.
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        rounds: the number of planned rounds.
        candidates: the number of variants of which this one was chosen.
        room: the amount by which doubts widen the interval as well.
    """
    count = len(log_ratios)
    if count < _MIN_ROUNDS or count >= rounds:
        return False
    spread = stdev(log_ratios) * math.sqrt(1 / count - 1 / rounds)
    least = fmean(log_ratios) - student_t(count - 1, 1 - _FUTILE) * spread
    return least >= -lasting_half_width(lasting_sd, max(1, candidates)) - room
