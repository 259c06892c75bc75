"""From figures and their intervals to a verdict on one metric of one kernel."""

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
"""A gate without any regression raises an alarm in at most this fraction of runs."""


class Verdict(StrEnum):
    """What can be said of a metric, being worse or better counting from the limit on."""

    SAME = "SAME"
    BETTER = "BETTER"
    WORSE = "WORSE"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one metric of one kernel under one cap.

    Attributes:
        identity: of the measurements.
        metric: that was judged.
        verdict: of it.
        limit: as a fraction.
        change: ln(new / base) with its simultaneous interval; None when it cannot be computed.
        base: the metric in the baseline, in ms, mJ or mJ ms.
        new: the metric now.
        reasons: why the verdict is AMBIGUOUS whatever the interval says; may be empty.
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
    """Whether this verdict fails by the settings."""
    if judgement.verdict is Verdict.AMBIGUOUS:
        return settings.strict
    return settings.enforced and judgement.verdict is Verdict.WORSE


def count_comparisons(items: int, settings: GateSettings) -> int:
    """How many verdicts ``items`` kernels under their caps make."""
    return max(1, items * len(settings.limits))


def decide(change: Estimate, limit: float) -> Verdict:
    """The verdict on ln(new / base).

    WORSE and BETTER when the whole interval lies beyond the limit, SAME when all of it lies within;
    AMBIGUOUS otherwise. A ratio r counts as worse than the limit when r > 1 + limit, and as better
    when r < 1 / (1 + limit).
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
    """The verdict on an EDP and the most it may be, ``max_mj_ms``; SAME when it is in the budget.

    WORSE when the whole interval is above ``max_mj_ms`` by more than ``limit``, SAME when none of
    it is, AMBIGUOUS otherwise or when the measurement is flagged.
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
        new: the later one.
        metric: to judge.
        limit: as a fraction.
        session_sd: standard deviation between sessions, as a fraction.
        comparisons: how many verdicts there will be in all, fixed before they are known.
        doubts: what else makes the verdict AMBIGUOUS, as clauses.
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
    """The chance beyond each end of an interval.

    By Bonferroni's inequality, alarms of all verdicts together stay below `FALSE_ALARM`.
    """
    return FALSE_ALARM / comparisons


def sample(measurement: Measurement, metric: Metric) -> Sample | None:
    """The metric with its trials' error; None for a measurement without an interval."""
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
        reasons.append(f"the enforced power limit was {shown[0]} and is {shown[1]}")
    if (base.workload.parameters, base.workload.flops) != (
        new.workload.parameters,
        new.workload.flops,
    ):
        reasons.append("the workload has changed under its name")
    sources = _energy_source(base), _energy_source(new)
    if metric is not Metric.TIME and sources[0] != sources[1]:
        reasons.append(f"the energy came from the {sources[0]} and comes from the {sources[1]}")
    return tuple(reasons)


def _energy_source(measurement: Measurement) -> str:
    # Reports that do not name it are from when the counter was the only one.
    return measurement.energy_source or "counter"


def _flags(measurement: Measurement, when: str) -> tuple[str, ...]:
    flags: Sequence[str] = measurement.validity
    return (f"flagged {when}: {', '.join(flags)}",) if flags else ()
