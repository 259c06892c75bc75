"""Derives the verdict on one metric of one kernel from figures and their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_gpuenergy.gate.ratio import Sample, log_excess, log_ratio
from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.record.estimate import WANDER, Estimate
from pytest_gpuenergy.record.identity import Identity
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import Metric

FALSE_ALARM = 0.01
"""Largest fraction of runs without a regression in which a gate raises an alarm."""


class Verdict(StrEnum):
    """The verdict on a metric; it is WORSE or BETTER only when the change exceeds the limit."""

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
        reasons: clauses that make the verdict AMBIGUOUS regardless of the interval; may be empty.
    """

    identity: Identity
    metric: Metric
    verdict: Verdict
    limit: float
    change: Estimate | None
    base: float | None
    new: float | None
    reasons: tuple[str, ...] = ()


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

    WORSE or BETTER when the whole interval lies beyond the limit, SAME when the whole interval lies
    within it, otherwise AMBIGUOUS. A ratio r is beyond the limit when r > 1 + limit (worse) or
    r < 1 / (1 + limit) (better).
    """
    bound = math.log1p(limit)
    if change.low > bound:
        return Verdict.WORSE
    if change.high < -bound:
        return Verdict.BETTER
    if -bound <= change.low and change.high <= bound:
        return Verdict.SAME
    return Verdict.AMBIGUOUS


def judge_budget(
    measurement: Measurement,
    max_mj_ms: float,
    limit: float,
    settings: GateSettings,
    comparisons: int,
) -> Judgement:
    """The verdict on an EDP against the budget ``max_mj_ms``.

    WORSE when the whole interval exceeds ``max_mj_ms`` by more than the fraction ``limit``, SAME
    when none of it does, AMBIGUOUS otherwise or when the measurement is flagged.
    """
    reasons = _flags(measurement, "now")
    found = sample(measurement, Metric.EDP)
    change, verdict = None, Verdict.AMBIGUOUS
    if found is None:
        reasons = (*reasons, "no interval")
    else:
        change = log_excess(
            found,
            max_mj_ms,
            session_sd=max(settings.sd(Metric.EDP), WANDER[Metric.EDP]),
            tail=tail_of(comparisons),
        )
        bound = math.log1p(limit)
        if change.low > bound:
            verdict = Verdict.WORSE
        elif change.high <= bound:
            verdict = Verdict.SAME
    if reasons:
        verdict = Verdict.AMBIGUOUS
    return Judgement(
        measurement.identity,
        Metric.EDP,
        verdict,
        limit,
        change,
        max_mj_ms,
        measurement.edp_mj_ms,
        reasons,
    )


def judge(
    base: Measurement,
    new: Measurement,
    metric: Metric,
    limit: float,
    session_sd: float,
    comparisons: int,
    doubts: tuple[str, ...] = (),
) -> Judgement:
    """The verdict on ``metric`` of two measurements with figures.

    Args:
        base: the earlier measurement.
        new: the later measurement.
        metric: the metric to judge.
        limit: by how much the metric may become worse, as a fraction.
        session_sd: standard deviation between sessions, as a fraction.
        comparisons: total number of verdicts, fixed before any of them is known.
        doubts: further reasons that make the verdict AMBIGUOUS, as clauses.
    """
    reasons = (*doubts, *_reasons(base, new, metric))
    before, now = sample(base, metric), sample(new, metric)
    change, verdict = None, Verdict.AMBIGUOUS
    if before is None or now is None:
        which = "the baseline" if before is None else "the new run"
        reasons = (*reasons, f"no interval in {which}")
    else:
        deviation = max(session_sd, WANDER[metric])
        change = log_ratio(before, now, session_sd=deviation, tail=tail_of(comparisons))
    if change is not None and not reasons:
        verdict = decide(change, limit)
    values = (base.figure(metric), new.figure(metric))
    return Judgement(new.identity, metric, verdict, limit, change, *values, reasons)


def tail_of(comparisons: int) -> float:
    """The probability beyond each end of an interval.

    By Bonferroni's inequality, the chance of any false alarm among all verdicts is then at most
    `FALSE_ALARM`.
    """
    return FALSE_ALARM / comparisons


def sample(measurement: Measurement, metric: Metric) -> Sample | None:
    """The metric with the error from its trials; None without a usable interval."""
    found = measurement.estimate(metric)
    if found is None:
        return None
    try:
        return Sample.of(found, measurement.scatter_count, shared=WANDER[metric])
    except ValueError:
        return None


def _reasons(base: Measurement, new: Measurement, metric: Metric) -> tuple[str, ...]:
    reasons = [*_flags(base, "in the baseline"), *_flags(new, "now")]
    limits = (base.enforced_power_limit_w, new.enforced_power_limit_w)
    if limits[0] != limits[1]:
        shown = ["unknown" if limit is None else f"{limit:g} W" for limit in limits]
        reasons.append(f"the enforced power limit was {shown[0]} and is now {shown[1]}")
    if (base.workload.parameters, base.workload.flops) != (
        new.workload.parameters,
        new.workload.flops,
    ):
        reasons.append("the workload of that name has changed")
    sources = _energy_source(base), _energy_source(new)
    if metric is not Metric.TIME and sources[0] != sources[1]:
        reasons.append(f"the energy source was {sources[0]} and is now {sources[1]}")
    return tuple(reasons)


def _energy_source(measurement: Measurement) -> str:
    # Reports that do not name it date from when the counter was the only source.
    return measurement.energy_source or "counter"


def _flags(measurement: Measurement, when: str) -> tuple[str, ...]:
    flags: Sequence[str] = measurement.validity
    return (f"flagged {when}: {', '.join(flags)}",) if flags else ()
