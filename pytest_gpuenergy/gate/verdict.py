"""Derives the verdict on one metric of one kernel from figures and their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from pytest_gpuenergy.gate.doubt import Doubt, doubts_of_flags, doubts_of_pair, widened
from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.record import (
    WANDER,
    Estimate,
    Identity,
    Measurement,
    Metric,
    log_excess,
    log_ratio,
    point_ratio,
    sample,
)
from pytest_gpuenergy.report import CommonShift

FALSE_ALARM = 0.01
"""Largest fraction of runs without a regression in which a gate raises an alarm."""


class Verdict(StrEnum):
    """The verdict on a metric.

    WORSE or BETTER when the whole interval of the change lies beyond the limit, AMBIGUOUS when the
    metric may or may not be worse by more than the limit, SAME when it certainly is not.
    """

    SAME = "SAME"
    BETTER = "BETTER"
    WORSE = "WORSE"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one metric of one kernel under one cap.

    Attributes:
        identity: identity of the measurements.
        metric: the metric that was judged.
        verdict: the verdict.
        limit: by how much the metric may become worse, as a fraction.
        change: ln(new / base) with its simultaneous interval; None when it cannot be computed.
        base: the metric in the baseline, in ms, mJ or mJ ms.
        new: the metric now, in the same unit.
        reasons: clauses for which the verdict allows more than the interval; may be empty.
        shift: the common shift to which ``change`` is relative; None when it is not.
        unchanged: whether it is one of the unchanged kernels of ``shift``.
        node_id: the item that was judged.
    """

    identity: Identity
    metric: Metric
    verdict: Verdict
    limit: float
    change: Estimate | None
    base: float | None
    new: float | None
    reasons: tuple[str, ...] = ()
    shift: CommonShift | None = None
    unchanged: bool = False
    node_id: str = ""


def fails(judgement: Judgement, settings: GateSettings) -> bool:
    """Whether the verdict is a failure under ``settings``."""
    if judgement.verdict is Verdict.AMBIGUOUS:
        return settings.strict
    return settings.enforced and judgement.verdict is Verdict.WORSE


def count_comparisons(items: int, settings: GateSettings) -> int:
    """Number of verdicts for ``items`` measurements; at least 1."""
    return max(1, items * len(settings.limits))


def decide(change: Estimate, limit: float) -> Verdict:
    """The verdict on ln(new / base).

    A ratio r is beyond the limit when r > 1 + limit (worse) or r < 1 / (1 + limit) (better). WORSE
    or BETTER when the whole interval lies beyond it; AMBIGUOUS when the interval holds 1 + limit,
    the only end that can fail; otherwise SAME, however far the interval extends to the good side.
    """
    bound = math.log1p(limit)
    if change.low > bound:
        return Verdict.WORSE
    if change.high > bound:
        return Verdict.AMBIGUOUS
    return Verdict.BETTER if change.high < -bound else Verdict.SAME


def judge_budget(
    measurement: Measurement,
    most: float,
    limit: float,
    settings: GateSettings,
    comparisons: int,
    metric: Metric = Metric.EDP,
) -> Judgement:
    """The verdict on a figure against the budget ``most``, in the metric's unit.

    WORSE when the whole interval, widened by flags, exceeds ``most`` by more than the fraction
    ``limit``, SAME when none of it does, AMBIGUOUS otherwise.
    """
    doubts = doubts_of_flags(measurement.validity, " now")
    found, figure = sample(measurement, metric), measurement.figure(metric)
    change = None
    if found is None:
        doubts = (*doubts, Doubt("no interval"))
    else:
        change = log_excess(
            found,
            most,
            session_sd=max(settings.sd(metric), WANDER[metric]),
            tail=tail_of(comparisons),
        )
    possible = widened(change or point_ratio(most, figure), doubts, metric)
    bound = math.log1p(limit)
    verdict = Verdict.AMBIGUOUS
    if possible.low > bound:
        verdict = Verdict.WORSE
    elif possible.high <= bound:
        verdict = Verdict.SAME
    return Judgement(
        measurement.identity,
        metric,
        verdict,
        limit,
        change,
        most,
        figure,
        tuple(doubt.reason for doubt in doubts),
    )


def judge(
    base: Measurement,
    new: Measurement,
    metric: Metric,
    limit: float,
    tail: float,
    session_sd: float,
    doubts: tuple[Doubt, ...] = (),
    shift: CommonShift | None = None,
) -> Judgement:
    """The verdict on ``metric`` of two measurements with figures.

    The interval of the change is that by the declared deviation between sessions, or the one
    relative to the shift if that is narrower, or if the declared one does not hold.

    Args:
        base: the earlier measurement.
        new: the later measurement.
        metric: the metric to judge.
        limit: by how much the metric may become worse, as a fraction.
        tail: the probability beyond each end of the interval.
        session_sd: declared standard deviation between sessions, as a fraction.
        doubts: doubts about everything that is not relative to a shift.
        shift: what unchanged kernels have in common.
    """
    before, now = sample(base, metric), sample(new, metric)
    values = (base.figure(metric), new.figure(metric))
    change, others = None, doubts_of_pair(base, new, metric)
    if before is None or now is None:
        shift = None
        which = "the baseline" if before is None else "the new run"
        others = (*others, Doubt(f"no interval in {which}"))
    else:
        deviation = max(session_sd, WANDER[metric])
        change = log_ratio(before, now, session_sd=deviation, tail=tail)
        if shift is not None:
            relative = shift.relative(before, now, tail)
            if doubts or shift.contradicts or relative.half_width < change.half_width:
                change, doubts = relative, ()
            else:
                shift = None
    doubts = (*doubts, *others)
    possible = widened(change or point_ratio(*values), doubts, metric)
    return Judgement(
        new.identity,
        metric,
        decide(possible, limit),
        limit,
        change,
        *values,
        tuple(doubt.reason for doubt in doubts),
        shift,
        node_id=new.node_id,
    )


def tail_of(comparisons: int) -> float:
    """The probability beyond each end of an interval.

    By Bonferroni's inequality, the chance of any false alarm among all verdicts is then at most
    `FALSE_ALARM`.
    """
    return FALSE_ALARM / comparisons
