"""The figures of two reports side by side, with both intervals and no verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpuenergy.record import Interval, Measurement, Metric
from pytest_gpuenergy.report.models import AlikeCounterparts
from pytest_gpuenergy.report.shift import CommonShift, common_shifts, pair, pairs
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support import ReportInputError


@dataclass(frozen=True)
class Difference:
    """One metric of one kernel under one cap, in both reports.

    Attributes:
        metric: the metric.
        before: the measurement in the earlier report.
        now: that in the later one.
        values: the figures before and now.
        shift: what the unchanged kernels have in common; None when too few are unchanged.
    """

    metric: Metric
    before: Measurement
    now: Measurement
    values: tuple[float, float]
    shift: CommonShift | None = None

    @property
    def intervals(self) -> tuple[Interval | None, Interval | None]:
        """The 95 % intervals before and now."""
        return self.before.interval(self.metric), self.now.interval(self.metric)

    @property
    def change(self) -> float | None:
        """The relative change, 0.05 for +5 %; None when it is not finite."""
        before, now = self.values
        change = now / before - 1 if before else math.nan
        return change if math.isfinite(change) else None

    @property
    def relative_change(self) -> float | None:
        """The change relative to `shift`; None without one or when it is not finite."""
        if self.shift is None or self.change is None:
            return None
        return (1 + self.change) / math.exp(self.shift.change.value) - 1

    @property
    def same_kernel(self) -> bool:
        """Whether the kernel has the same content in both reports."""
        return self.before.kernel.digest == self.now.kernel.digest


def check_comparable(report: Report, baseline: Report) -> None:
    """Check that the two reports can be shown side by side.

    Raises:
        ReportInputError: one is from an emulated GPU and the other from a real one.
    """
    if report.run.emulated != baseline.run.emulated:
        one, other = "an emulated GPU", "a real one"
        if baseline.run.emulated:
            one, other = "a real GPU", "an emulated one"
        raise ReportInputError(
            f"Run {report.run.run_id} is from {one}, but the baseline {baseline.run.run_id} is "
            f"from {other}: compare runs of the same kind."
        )


def differences(report: Report, baseline: Report) -> Iterator[Difference]:
    """The figures present in both reports, metric by metric, in the order of ``report``.

    Measurements are matched as by the gate: by workload, kernel label, cap and cache state, on the
    same GPU model.

    Raises:
        ReportInputError: one is from an emulated GPU and the other from a real one.
    """
    check_comparable(report, baseline)
    earlier = AlikeCounterparts(report, baseline)
    shifts = common_shifts(pairs(report, baseline))
    boards = (baseline.run.gpu_uuid, report.run.gpu_uuid)
    for measurement in report.measurements:
        if (before := earlier.of(measurement)) is None:
            continue
        shift = shifts.get(pair(before, measurement, boards).place, {})
        for metric in Metric:
            then, now = before.figure(metric), measurement.figure(metric)
            if then is not None and now is not None:
                yield Difference(metric, before, measurement, (then, now), shift.get(metric))
