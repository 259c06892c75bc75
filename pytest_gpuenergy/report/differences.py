"""A report beside an earlier one: the same figures, with both intervals and no verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.report.counterparts import Counterparts
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support.errors import ReportInputError


@dataclass(frozen=True)
class Difference:
    """One metric of one kernel under one cap, then and now, with both ``values``."""

    metric: Metric
    before: Measurement
    now: Measurement
    values: tuple[float, float]

    @property
    def intervals(self) -> tuple[Interval | None, Interval | None]:
        """Before and now, 95 %."""
        return self.before.interval(self.metric), self.now.interval(self.metric)

    @property
    def change(self) -> float | None:
        """Relative: 0.05 is 5 % more; None where it is not a number."""
        before, now = self.values
        change = now / before - 1 if before else math.nan
        return change if math.isfinite(change) else None

    @property
    def same_kernel(self) -> bool:
        """Whether both are of a kernel of the same content."""
        return self.before.kernel.digest == self.now.kernel.digest


def check_comparable(report: Report, baseline: Report) -> None:
    """See that the two can be shown side by side.

    Raises:
        ReportInputError: one is of an emulated GPU and the other of a real one.
    """
    if report.run.emulated != baseline.run.emulated:
        one, other = ("emulated", "real") if report.run.emulated else ("real", "emulated")
        raise ReportInputError(
            f"Run {report.run.run_id} is of a GPU that is {one}, and the baseline "
            f"{baseline.run.run_id} of one that is {other}: compare like with like."
        )


def differences(report: Report, baseline: Report) -> Iterator[Difference]:
    """What both have measured, metric by metric, in the order of ``report``.

    Measurements belong together as they do for the gate: by workload, kernel label, cap and cache
    state.

    Raises:
        ReportInputError: one is of an emulated GPU and the other of a real one.
    """
    check_comparable(report, baseline)
    earlier = Counterparts(baseline.measurements)
    for measurement in report.measurements:
        if (before := earlier.of(measurement)) is None:
            continue
        for metric in Metric:
            then, now = before.figure(metric), measurement.figure(metric)
            if then is not None and now is not None:
                yield Difference(metric, before, measurement, (then, now))
