"""What the kernels that have not changed between two runs have in common: a board, a session.

Between two sessions, or two boards, the figures of all kernels move together. Kernels of which
nothing has changed show by how much, and how far single kernels lie from that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

from pytest_gpuenergy.record.estimate import WANDER, Estimate
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.record.ratio import Sample, around, sample, welch
from pytest_gpuenergy.record.repeatability import SAME_BOARD_SD
from pytest_gpuenergy.report.models import AlikeCounterparts
from pytest_gpuenergy.report.store import Report

LEAST = 5
"""Least number of unchanged kernels of which a common shift is estimated."""

_APART = 6.0
"""A kernel further from the median than so many robust standard deviations is left out."""

_MAD_TO_SD = 1.4826
_SMALL = {5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""Factors that make the median absolute deviation unbiased in small samples.

C. Croux and P. J. Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale",
Computational Statistics 1, 1992.
"""

_MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median of normal values, in units of that of their mean."""

_TAIL = 0.025

USUAL_SCATTER: Mapping[Metric, float] = {
    metric: 2 * math.sqrt(2) * sd for metric, sd in SAME_BOARD_SD.items()
}
"""A larger scatter between unchanged kernels is not due to sessions and boards.

Twice that of two sessions on one board: 0.48 % in time, 1.2 % in energy and 1.5 % in EDP. Between
21 pairs of reports of seven H200s the part that lasts was at most 0.28 %, 0.93 % and 0.79 %.
"""


class Place(NamedTuple):
    """Where two measurements that are compared were made: those of one place shift together."""

    before: str | None
    now: str | None
    cap: str


@dataclass(frozen=True)
class Pair:
    """A measurement with its counterpart in an earlier run, both with figures."""

    before: Measurement
    now: Measurement
    place: Place

    @property
    def unchanged(self) -> bool:
        """Whether kernel, workload and setpoint are the same, and both figures without doubt."""
        one, other = self.before, self.now
        return (
            bool(one.kernel.digest)  # callables have none
            and one.kernel.digest == other.kernel.digest
            and (one.workload.parameters, one.workload.flops)
            == (other.workload.parameters, other.workload.flops)
            and one.enforced_power_limit_w == other.enforced_power_limit_w
            and one.locked_sm_clock_max_mhz == other.locked_sm_clock_max_mhz
            and energy_source(one) == energy_source(other)
            and not one.validity
            and not other.validity
            and all(sample(side, metric) for side in (one, other) for metric in METRICS)
        )


@dataclass(frozen=True)
class CommonShift:
    """How far a metric of the unchanged kernels of one place has moved between two runs.

    Attributes:
        metric: the metric.
        place: the boards and the cap.
        kernels: number of unchanged kernels.
        apart: number of these that lie too far out to be part of the scatter.
        change: the median of their ln(now / before), with its 95 % interval.
        scatter: standard deviation of the kernels about it, as a fraction.
        lasting: the part of the scatter that the kernels' own intervals do not explain.
        degrees: degrees of freedom of the scatter; infinite when it is not an estimate.
    """

    metric: Metric
    place: Place
    kernels: int
    apart: int
    change: Estimate
    scatter: float
    lasting: float
    degrees: float

    @property
    def same_board(self) -> bool:
        """Whether both runs were made on one board."""
        return self.place.before == self.place.now

    @property
    def error(self) -> float:
        """The standard error of the shift."""
        return self.scatter * math.sqrt(_MEDIAN_VARIANCE / self.kernels)

    @property
    def scattered(self) -> bool:
        """Whether the kernels lie further apart than sessions and boards explain."""
        return self.lasting > USUAL_SCATTER[self.metric]

    @property
    def at_most_usual(self) -> CommonShift:
        """The shift with a scatter that sessions and boards explain.

        Unchanged kernels are judged by it: if some of them have truly become slower, they shall
        not hide behind the scatter that they cause.
        """
        most = USUAL_SCATTER[self.metric]
        if self.lasting <= most:
            return self
        return replace(self, lasting=most, scatter=most, degrees=math.inf)

    def relative(self, before: Sample, now: Sample, tail: float) -> Estimate:
        """ln(now / before) of a kernel relative to the shift, with an interval.

        The variance is that of both figures' own errors, of what differs between the two runs from
        kernel to kernel, and of the shift. ``tail`` is the probability beyond either end.
        """
        own = [(own_variance(side, self.metric), side.degrees) for side in (before, now)]
        others = self.lasting**2 + self.error**2
        variance = sum(value for value, _ in own) + others
        change = math.log(now.mean) - math.log(before.mean) - self.change.value
        # The sum is about the scatter's square, and known no better.
        degrees = min(self.degrees, welch([*own, (others, self.degrees)], variance))
        return around(change, variance, degrees, tail)


Shifts = Mapping[Place, Mapping[Metric, CommonShift]]


def energy_source(measurement: Measurement) -> str:
    """The source of a measurement's joules."""
    # Reports that do not name it date from when the counter was the only source.
    return measurement.energy_source or "counter"


def own_variance(found: Sample, metric: Metric) -> float:
    """The variance of a figure's known errors, without those that every item has in common.

    The latter are part of the scatter between kernels.
    """
    extra = max(0.0, found.shared_error**2 - WANDER[metric] ** 2)
    return found.relative_error**2 + extra


def pair(before: Measurement, now: Measurement, boards: tuple[str, str]) -> Pair:
    """Pair two measurements with figures.

    ``boards`` are those of their runs, for records that do not name their own.
    """
    place = Place(before.gpu_uuid or boards[0], now.gpu_uuid or boards[1], now.cap)
    return Pair(before, now, place)


def pairs(report: Report, baseline: Report) -> list[Pair]:
    """The measurements of ``report`` with figures whose counterparts in ``baseline`` have some.

    Both are on one GPU model.
    """
    earlier = AlikeCounterparts(report, baseline)
    boards = (baseline.run.gpu_uuid, report.run.gpu_uuid)
    return [
        pair(before, now, boards)
        for now in report.measurements
        if now.measured and (before := earlier.of(now)) is not None and before.measured
    ]


def common_shifts(found: Iterable[Pair]) -> Shifts:
    """The shifts of each place with at least `LEAST` unchanged kernels, by metric."""
    places: dict[Place, list[Pair]] = defaultdict(list)
    for one in found:
        if one.unchanged:
            places[one.place].append(one)
    return {
        place: {metric: _estimate(place, metric, unchanged) for metric in METRICS}
        for place, unchanged in places.items()
        if len(unchanged) >= LEAST
    }


def _estimate(place: Place, metric: Metric, unchanged: Sequence[Pair]) -> CommonShift:
    sides = [(sample(one.before, metric), sample(one.now, metric)) for one in unchanged]
    known = [(a, b) for a, b in sides if a is not None and b is not None]
    ratios = [math.log(b.mean) - math.log(a.mean) for a, b in known]
    middle = median(ratios)
    gaps = [abs(ratio - middle) for ratio in ratios]
    count = len(ratios)
    robust_sd = _MAD_TO_SD * _SMALL.get(count, count / (count - 0.8)) * median(gaps)
    own = [own_variance(a, metric) + own_variance(b, metric) for a, b in known]
    # A kernel whose own interval is wide is expected to lie far off.
    kept = [
        index
        for index, gap in enumerate(gaps)
        if gap <= _APART * math.hypot(robust_sd, math.sqrt(own[index]))
    ]
    degrees = max(1, len(kept) - 1)
    variance = math.fsum(gaps[index] ** 2 for index in kept) / degrees
    lasting = math.sqrt(max(0.0, variance - fmean(own[index] for index in kept)))
    error = variance * _MEDIAN_VARIANCE / count
    change = around(middle, error, degrees, _TAIL)
    return CommonShift(
        metric, place, count, count - len(kept), change, math.sqrt(variance), lasting, degrees
    )
