"""The gate: two reports, or a baseline and one measurement, and a verdict on each metric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.gate.verdict import Judgement, count_comparisons, fails, judge
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.counterparts import Counterparts
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.tables import ordered
from pytest_gpuenergy.support.errors import InputError


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
        judgements: workloads as they come, the lowest cap and the best rank first.
        missing_in_base: measured now, without a counterpart that has figures.
        missing_in_new: in the baseline, and not in the new report.
        failed: had figures in the baseline, and have none now.
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
    unchanged: tuple[Unmatched, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """What makes every verdict AMBIGUOUS, as clauses."""
        first, *others = [judgement.reasons for judgement in self.judgements] or [()]
        return tuple(reason for reason in first if all(reason in other for other in others))

    @property
    def passed(self) -> bool:
        """Whether nothing fails by the settings.

        A gate that compared nothing fails; kernels that are the same in both count as compared.
        """
        compared = self.judgements or self.unchanged
        if self.settings.enforced and (self.failed or not compared):
            return False
        if self.settings.strict and self.missing_in_base:
            return False
        return not any(fails(judgement, self.settings) for judgement in self.judgements)


class Baseline:
    """A report to compare with.

    Raises:
        InputError: it is of an older tool, whose protocol is unknown.
    """

    def __init__(self, report: Report, settings: GateSettings) -> None:
        _refuse_legacy(report.run)
        self.report = report
        self.run = report.run
        self.settings = settings
        self._counterparts = Counterparts(report.measurements)

    def check(self, run: RunInfo) -> None:
        """See that ``run`` can be compared with this baseline.

        Raises:
            InputError: it cannot: another GPU model, a real and an emulated GPU, or figures of an
                older tool.
        """
        _refuse_legacy(run)
        ours, theirs = _title(run), _title(self.run)
        if ours != theirs:
            differs = "gpu_name" if run.gpu_name != self.run.gpu_name else "emulated"
            raise InputError(
                f"The baseline (run {self.run.run_id}) is of {theirs}, and run {run.run_id} of "
                f"{ours}: they differ in {differs}, so compare with a baseline of the same GPU."
            )

    def counterpart(self, measurement: Measurement) -> Measurement | None:
        """The baseline's measurement of the same identity; of several, that of the same item."""
        return self._counterparts.of(measurement)

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
        self.check(run)
        base = self.counterpart(measurement)
        if base is None:
            several = self._counterparts.several(measurement)
            return Unmatched(
                measurement,
                "the baseline has several of that name" if several else "not in the baseline",
            )
        if not base.measured:
            return Unmatched(measurement, "without figures in the baseline")
        # Of the measurements, since a run of several workers has a board for each.
        boards = (base.gpu_uuid or self.run.gpu_uuid, measurement.gpu_uuid or run.gpu_uuid)
        drivers = (self.run.software.get("driver"), run.software.get("driver"))
        doubts = (*self._difference("board", *boards), *self._difference("driver", *drivers))
        same_board = boards[0] == boards[1]
        return tuple(
            judge(
                base,
                measurement,
                metric,
                limit,
                self.settings.sd(metric, same_board=same_board),
                comparisons,
                doubts,
            )
            for metric, limit in self.settings.limits.items()
        )

    def _difference(self, name: str, before: str | None, now: str | None) -> tuple[str, ...]:
        if before == now or name in self.settings.allow:
            return ()
        return (f"another {name} than the baseline's ({now} instead of {before})",)

    def missing(self, measurements: Iterable[Measurement]) -> tuple[Unmatched, ...]:
        """The baseline's measurements that are nobody's counterpart."""
        unused = self._counterparts.unused(measurements)
        return tuple(Unmatched(measurement, "not in the new run") for measurement in unused)


def compare(base: Report, new: Report, settings: GateSettings) -> Comparison:
    """Judge every measurement of ``new`` by its counterpart in ``base``.

    Raises:
        InputError: the runs cannot be compared at all: another GPU model, a real and an emulated
            GPU, or figures of an older tool.
    """
    baseline = Baseline(base, settings)
    baseline.check(new.run)
    comparisons = count_comparisons(len(new.measurements), settings)
    judgements: list[Judgement] = []
    unknown: list[Unmatched] = []
    failed: list[Unmatched] = []
    for measurement in ordered(new.measurements):
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
    )


def _title(run: RunInfo) -> str:
    return f"{run.gpu_name}{' (emulated)' if run.emulated else ''}"


def _refuse_legacy(run: RunInfo) -> None:
    if run.legacy:
        raise InputError(
            f"Run {run.run_id} is marked legacy, its figures come from an unknown protocol: "
            "measure again, and compare with that."
        )
