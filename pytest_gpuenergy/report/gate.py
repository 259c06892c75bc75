"""The gate: two reports, or a baseline and one measurement, and a verdict on each metric."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_gpuenergy.energy.statistics import Estimate
from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.report.gate_settings import GateSettings, Metric
from pytest_gpuenergy.report.measurement import Interval, Measurement, RunInfo
from pytest_gpuenergy.report.ratio import Sample, log_excess, log_ratio
from pytest_gpuenergy.report.store import Report

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
        identity: workload, kernel label, cap, cache state.
        metric: ``time``, ``energy`` or ``edp``.
        verdict: of it.
        limit: as a fraction.
        change: ln(new / base) with its simultaneous interval; None when it cannot be computed.
        base: the metric in the baseline, in ms, mJ or mJ ms.
        new: the metric now.
        reasons: why the verdict is AMBIGUOUS whatever the interval says; may be empty.
    """

    identity: tuple[str, str, str, str]
    metric: Metric
    verdict: Verdict
    limit: float
    change: Estimate | None
    base: float | None
    new: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unmatched:
    """A measurement that could not be compared, and why, as a clause."""

    measurement: Measurement
    why: str


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two reports.

    Attributes:
        base: the earlier run.
        new: the later one.
        settings: by which it was judged.
        comparisons: for how many verdicts the intervals are widened.
        judgements: in the order of the new report.
        missing_in_base: measured now, without a counterpart that has figures.
        missing_in_new: in the baseline, and not in the new report.
        failed: had figures in the baseline, and have none now.
        doubts: what makes every verdict AMBIGUOUS.
        unchanged: the same kernel in both, which was therefore not measured.
    """

    base: RunInfo
    new: RunInfo
    settings: GateSettings
    comparisons: int
    judgements: tuple[Judgement, ...]
    missing_in_base: tuple[Unmatched, ...]
    missing_in_new: tuple[Unmatched, ...]
    failed: tuple[Unmatched, ...]
    doubts: tuple[str, ...] = ()
    unchanged: tuple[Unmatched, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing fails by the settings."""
        if self.settings.enforced and self.failed:
            return False
        if self.settings.strict and self.missing_in_base:
            return False
        return not any(fails(judgement, self.settings) for judgement in self.judgements)


def fails(judgement: Judgement, settings: GateSettings) -> bool:
    """Whether this verdict fails by the settings."""
    if judgement.verdict is Verdict.AMBIGUOUS:
        return settings.strict
    return settings.enforced and judgement.verdict is Verdict.WORSE


class Baseline:
    """A report to compare with.

    Raises:
        InputError: it is of an older tool, whose protocol is unknown.
    """

    def __init__(self, report: Report, settings: GateSettings) -> None:
        _refuse_legacy(report.run)
        self.run = report.run
        self.settings = settings
        self._known: dict[tuple[str, str, str, str], list[Measurement]] = defaultdict(list)
        for measurement in report.measurements:
            self._known[measurement.identity].append(measurement)

    def doubts(self, run: RunInfo) -> tuple[str, ...]:
        """What makes every verdict on ``run`` AMBIGUOUS, as clauses; see the settings' ``allow``.

        Raises:
            InputError: the runs cannot be compared at all.
        """
        _refuse_legacy(run)
        ours, theirs = _title(run), _title(self.run)
        if ours != theirs:
            differs = "gpu_name" if run.gpu_name != self.run.gpu_name else "emulated"
            raise InputError(
                f"The baseline (run {self.run.run_id}) is of {theirs}, and run {run.run_id} of "
                f"{ours}: they differ in {differs}, so compare with a baseline of the same GPU."
            )
        differences = {
            "board": (self.run.gpu_uuid, run.gpu_uuid),
            "driver": (self.run.software.get("driver"), run.software.get("driver")),
        }
        return tuple(
            f"another {name} than the baseline's ({now} instead of {before})"
            for name, (before, now) in differences.items()
            if before != now and name not in self.settings.allow
        )

    def counterpart(self, measurement: Measurement) -> Measurement | None:
        """The baseline's measurement of the same identity; of several, that of the same item."""
        known = self._known.get(measurement.identity, [])
        same_item = [item for item in known if item.node_id == measurement.node_id]
        if same_item:
            return same_item[-1]
        return known[0] if len(known) == 1 else None

    def judge(
        self, measurement: Measurement, run: RunInfo, comparisons: int
    ) -> tuple[Judgement, ...] | Unmatched:
        """A judgement for each metric of the settings, or why there is none.

        Args:
            measurement: with figures.
            run: that it belongs to.
            comparisons: how many verdicts the whole run makes, fixed before it measures.

        Raises:
            InputError: the runs cannot be compared at all.
        """
        doubts = self.doubts(run)
        base = self.counterpart(measurement)
        if base is None:
            several = len(self._known.get(measurement.identity, [])) > 1
            return Unmatched(
                measurement,
                "the baseline has several of that name" if several else "not in the baseline",
            )
        if not base.measured:
            return Unmatched(measurement, "without figures in the baseline")
        reasons = (*doubts, *_reasons(base, measurement))
        same_board = run.gpu_uuid == self.run.gpu_uuid
        return tuple(
            _judge(
                base,
                measurement,
                metric,
                limit,
                self.settings.sd(metric, same_board=same_board),
                comparisons,
                reasons,
            )
            for metric, limit in self.settings.limits.items()
        )

    def missing(self, measurements: Iterable[Measurement]) -> tuple[Unmatched, ...]:
        """The baseline's measurements that are nobody's counterpart."""
        used = {id(self.counterpart(measurement)) for measurement in measurements}
        return tuple(
            Unmatched(item, "not in the new run")
            for known in self._known.values()
            for item in known
            if id(item) not in used
        )


def compare(base: Report, new: Report, settings: GateSettings) -> Comparison:
    """Judge every measurement of ``new`` by its counterpart in ``base``.

    Raises:
        InputError: the runs cannot be compared at all: another GPU model, a real and an emulated
            GPU, or figures of an older tool.
    """
    baseline = Baseline(base, settings)
    doubts = baseline.doubts(new.run)
    comparisons = count_comparisons(len(new.measurements), settings)
    judgements: list[Judgement] = []
    unknown: list[Unmatched] = []
    failed: list[Unmatched] = []
    for measurement in new.measurements:
        if not measurement.measured:
            before = baseline.counterpart(measurement)
            if before is not None and before.measured:
                failed.append(Unmatched(measurement, measurement.error or measurement.outcome))
            continue
        result = baseline.judge(measurement, new.run, comparisons)
        if isinstance(result, Unmatched):
            unknown.append(result)
        else:
            judgements += result
    return Comparison(
        base.run,
        new.run,
        settings,
        comparisons,
        tuple(judgements),
        tuple(unknown),
        baseline.missing(new.measurements),
        tuple(failed),
        doubts,
    )


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
    sample = _sample(measurement, "edp")
    change, verdict = None, Verdict.AMBIGUOUS
    if sample is None:
        reasons = (*reasons, "no interval")
    else:
        change = log_excess(
            sample, max_mj_ms, session_sd=settings.sd("edp"), tail=tail_of(comparisons)
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
        "edp",
        verdict,
        limit,
        change,
        max_mj_ms,
        measurement.edp_mj_ms,
        reasons,
    )


def _judge(
    base: Measurement,
    new: Measurement,
    metric: Metric,
    limit: float,
    session_sd: float,
    comparisons: int,
    reasons: tuple[str, ...],
) -> Judgement:
    before, now = _sample(base, metric), _sample(new, metric)
    change, verdict = None, Verdict.AMBIGUOUS
    if before is None or now is None:
        which = "the baseline" if before is None else "the new run"
        reasons = (*reasons, f"no interval in {which}")
    else:
        change = log_ratio(before, now, session_sd=session_sd, tail=tail_of(comparisons))
    if change is not None and not reasons:
        verdict = decide(change, limit)
    values = (_figure(base, metric), _figure(new, metric))
    return Judgement(new.identity, metric, verdict, limit, change, *values, reasons)


def tail_of(comparisons: int) -> float:
    """The chance beyond each end of an interval.

    By Bonferroni's inequality, alarms of all verdicts together stay below `FALSE_ALARM`.
    """
    return FALSE_ALARM / comparisons


def _figure(measurement: Measurement, metric: Metric) -> float | None:
    figures: Mapping[Metric, float | None] = {
        "time": measurement.time_ms,
        "energy": measurement.energy_mj,
        "edp": measurement.edp_mj_ms,
    }
    return figures[metric]


def _sample(measurement: Measurement, metric: Metric) -> Sample | None:
    intervals: Mapping[Metric, Interval | None] = {
        "time": measurement.time_ms_ci95,
        "energy": measurement.energy_mj_ci95,
        "edp": measurement.edp_mj_ms_ci95,
    }
    mean, interval = _figure(measurement, metric), intervals[metric]
    if mean is None or interval is None:
        return None
    try:
        return Sample.of(mean, interval, len(measurement.trials))
    except ValueError:
        return None


def _reasons(base: Measurement, new: Measurement) -> tuple[str, ...]:
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
    return tuple(reasons)


def _flags(measurement: Measurement, when: str) -> tuple[str, ...]:
    flags: Sequence[str] = measurement.validity
    return (f"flagged {when}: {', '.join(flags)}",) if flags else ()


def _title(run: RunInfo) -> str:
    return f"{run.gpu_name}{' (emulated)' if run.emulated else ''}"


def _refuse_legacy(run: RunInfo) -> None:
    if run.legacy:
        raise InputError(
            f"Run {run.run_id} is marked legacy, its figures come from an unknown protocol: "
            "measure again, and compare with that."
        )
