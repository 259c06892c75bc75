"""Compares two reports, or one measurement with a baseline, metric by metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_gpuenergy.gate.error_rates import Tails, count_comparisons
from pytest_gpuenergy.gate.gate_settings import GateSettings
from pytest_gpuenergy.gate.verdict import (
    Doubt,
    JudgedShift,
    Judgement,
    Verdict,
    fails,
    judge,
    judge_shift,
)
from pytest_gpuenergy.record import Identity, Measurement, Metric, RunInfo
from pytest_gpuenergy.report import (
    Counterparts,
    Models,
    Pair,
    Report,
    Shifts,
    by_model,
    common_shifts,
    ordered,
    pair,
)
from pytest_gpuenergy.support import InputError, emulated_mark


@dataclass(frozen=True)
class Unmatched:
    """A measurement that could not be compared, and a clause that says why."""

    measurement: Measurement
    why: str


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two reports.

    Attributes:
        base: the earlier run.
        new: the later run.
        settings: the settings that were used.
        comparisons: number of verdicts for which the intervals are widened.
        judgements: the judgements, in the order of `report.ordered`.
        missing_in_base: measured now, without a counterpart that has figures.
        missing_in_new: has figures in the baseline, and was lost on the way to the new report.
        deselected: has figures in the baseline, and was not selected for the new run.
        failed: had figures in the baseline but have none now.
        interrupted: whether the user ended it, so that not all was compared.
        unchanged: not measured, because the kernel is the same in both.
        shifts: what unchanged kernels have in common, to which the changes are relative.
    """

    base: RunInfo
    new: RunInfo
    settings: GateSettings
    comparisons: int
    judgements: tuple[Judgement, ...]
    missing_in_base: tuple[Unmatched, ...]
    missing_in_new: tuple[Unmatched, ...]
    failed: tuple[Unmatched, ...]
    unchanged: tuple[Unmatched, ...] = ()
    shifts: tuple[JudgedShift, ...] = ()
    deselected: tuple[Unmatched, ...] = ()
    interrupted: bool = False

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reasons that put every verdict in doubt, as clauses."""
        first, *others = [judgement.reasons for judgement in self.judgements] or [()]
        return tuple(reason for reason in first if all(reason in other for other in others))

    @property
    def passed(self) -> bool:
        """Whether nothing fails under the settings.

        A gate that compared nothing fails; unchanged kernels count as compared. A strict one fails
        too if something was on one side only.
        """
        compared = self.judgements or self.unchanged
        if self.settings.enforced and (self.failed or not compared):
            return False
        if self.settings.strict and (self.missing_in_base or self.missing_in_new):
            return False
        if self.failing_shifts:
            return False
        return not any(fails(judgement, self.settings) for judgement in self.judgements)

    @property
    def failing_shifts(self) -> tuple[JudgedShift, ...]:
        """The shifts that are failures under the settings."""
        worse = (shift for shift in self.shifts if shift.verdict is Verdict.WORSE)
        return tuple(worse) if self.settings.enforced else ()


class Baseline:
    """A report to compare with.

    Args:
        report: the report of the earlier run.
        settings: the limits, and which differences between runs are allowed.

    Raises:
        InputError: the report is marked legacy.
    """

    def __init__(self, report: Report, settings: GateSettings) -> None:
        _refuse_legacy(report.run)
        self.report = report
        self.run = report.run
        self.settings = settings
        self._counterparts = Counterparts(report.measurements)
        self._models = Models(report)
        self._of_same_model = Counterparts(report.measurements, self._models)

    def check(self, run: RunInfo) -> None:
        """Check that ``run`` can be compared with this baseline.

        Raises:
            InputError: the GPU models differ, one GPU is emulated and the other real, or the run is
                marked legacy.
        """
        _refuse_legacy(run)
        if run.emulated == self.run.emulated and run.gpu_name in self._models.names:
            return
        ours, theirs = _title(run), _title(self.run)
        if ours != theirs:
            differs = "gpu_name" if run.gpu_name != self.run.gpu_name else "emulated"
            raise InputError(
                f"The baseline (run {self.run.run_id}) is from {theirs}, but run {run.run_id} is "
                f"from {ours}: they differ in {differs}. Compare with a baseline from the same GPU."
            )

    def counterpart(self, measurement: Measurement) -> Measurement | None:
        """Return the baseline's measurement that matches ``measurement``; see `Counterparts.of`."""
        return self._counterparts.of(measurement)

    def pair(
        self, measurement: Measurement, run: RunInfo, model: str | None = None
    ) -> Pair | Unmatched:
        """Return a measurement with its counterpart, or the reason why it cannot be compared.

        Args:
            measurement: a measurement with figures.
            run: the run it belongs to.
            model: the GPU model it was made on, if that is not the run's.

        Raises:
            InputError: the runs cannot be compared; see `check`.
        """
        self.check(run)
        model = model or run.gpu_name
        base = self._of_same_model.of(measurement, model) or self.counterpart(measurement)
        if base is None:
            several = self._counterparts.several(measurement)
            return Unmatched(
                measurement,
                "several in the baseline" if several else "not in the baseline",
            )
        if not base.measured:
            return Unmatched(measurement, "without figures in the baseline")
        if (theirs := self._models.of(base)) != model:
            return Unmatched(measurement, f"measured on {theirs} in the baseline, not on {model}")
        return pair(base, measurement, (self.run.gpu_uuid, run.gpu_uuid))

    def judge(
        self, found: Pair, run: RunInfo, shifts: Shifts, tails: Tails
    ) -> tuple[Judgement, ...]:
        """Return a judgement for each metric of the settings.

        Where unchanged kernels show what the two runs have in common, the change may be relative to
        that, and then neither another board nor another driver puts it in doubt.

        Args:
            found: the pair of measurements, from `pair`.
            run: the run of the measurement.
            shifts: the common shifts that are known.
            tails: probabilities beyond the ends of the intervals.
        """
        place, unchanged = found.place, found.unchanged
        relative = shifts.get(place)
        # Per measurement, since each worker of a run may have a board of its own.
        drivers = (self.run.software.get("driver"), run.software.get("driver"))
        doubts = (
            *self._difference("board", place.before, place.now),
            *self._difference("driver", *drivers),
        )

        # At the power limit, what another board takes in energy shows in the time.
        same_board = place.before == place.now
        capped = not same_board and bool(found.before.cap_binding or found.now.cap_binding)

        def judged(metric: Metric, limit: float) -> Judgement:
            shift = None if relative is None else relative.get(metric)
            varies_as = Metric.ENERGY if capped and metric is Metric.TIME else metric
            verdict = judge(
                found.before,
                found.now,
                metric,
                limit,
                tails.unchanged if unchanged else tails.changed,
                self.settings.sd(varies_as, same_board=same_board),
                doubts,
                shift.at_most_usual if shift is not None and unchanged else shift,
            )
            return replace(verdict, unchanged=unchanged)

        return tuple(judged(metric, limit) for metric, limit in self.settings.limits.items())

    def _difference(self, name: str, before: str | None, now: str | None) -> tuple[Doubt, ...]:
        if before == now or name in self.settings.allow:
            return ()
        return (Doubt(f"the {name} is not the baseline's ({now} instead of {before})"),)

    def missing(self, report: Report) -> list[Measurement]:
        """Return the baseline's measurements with figures that match none of ``report``.

        Those of GPU models that did not take part in the run are not among them.
        """
        models = Models(report)
        matched: set[tuple[str, Identity, str]] = set()
        for new in report.measurements:
            for base in (self._of_same_model.of(new, models.of(new)), self.counterpart(new)):
                if base is not None:
                    matched.add(self._key(base))
        return [
            base
            for base in self.report.measurements
            if base.measured
            and self._models.of(base) in models.names
            and self._key(base) not in matched
        ]

    def _key(self, base: Measurement) -> tuple[str, Identity, str]:
        return (self._models.of(base), base.identity, base.node_id)


def compare(
    base: Report,
    new: Report,
    settings: GateSettings,
    is_deselected: Callable[[Measurement], bool] = lambda _: False,
) -> Comparison:
    """Compare every measurement of ``new`` with its counterpart in ``base``.

    ``is_deselected`` reports whether the user left a measurement of ``base`` out of ``new``.

    Raises:
        InputError: the runs cannot be compared; see `Baseline.check`.
    """
    baseline, models = Baseline(base, settings), Models(new)
    run = new.run
    if run.gpu_name not in (known := Models(base).names):  # of several models, one may be known
        run = next((part.run for part in by_model(new) if part.run.gpu_name in known), run)
    baseline.check(run)
    if new.measurements and all(m.verified_only for m in new.measurements):
        raise InputError(
            f"Run {new.run.run_id} has verified its kernels and measured none: run it without "
            "--gpuenergy-verify-only to compare it."
        )
    failed: list[Unmatched] = []
    missing_in_base: list[Unmatched] = []
    pairs: list[Pair] = []
    for measurement in ordered(new.measurements):
        if not measurement.measured:
            before = baseline.counterpart(measurement)
            if before is not None and before.measured:
                failed.append(
                    Unmatched(measurement, measurement.error or measurement.why_no_figures)
                )
            continue
        result = baseline.pair(measurement, run, models.of(measurement))
        if isinstance(result, Unmatched):
            missing_in_base.append(result)
        else:
            pairs.append(result)
    shifts = common_shifts(pairs, settings.same_board_sd)
    tails = Tails.of(pairs, shifts, len(settings.limits))
    judged = [baseline.judge(pair, new.run, shifts, tails) for pair in pairs]
    missing, deselected = [], []
    for measurement in baseline.missing(new):
        if is_deselected(measurement):
            deselected.append(Unmatched(measurement, "not selected"))
        else:
            missing.append(Unmatched(measurement, "not in the new run"))
    return Comparison(
        base.run,
        new.run,
        settings,
        count_comparisons(len(pairs), settings),
        tuple(judgement for judgements in judged for judgement in judgements),
        tuple(missing_in_base),
        tuple(missing),
        tuple(failed),
        shifts=tuple(
            judge_shift(shift[metric], limit, settings, tails.shift)
            for shift in shifts.values()
            for metric, limit in settings.limits.items()
            if metric in shift
        ),
        deselected=tuple(deselected),
    )


def _title(run: RunInfo) -> str:
    return f"{run.gpu_name}{emulated_mark(run.emulated)}"


def _refuse_legacy(run: RunInfo) -> None:
    if run.legacy:
        raise InputError(
            f"Run {run.run_id} is marked legacy, because how it was measured is unknown: "
            "measure again and compare with the new run."
        )
