"""Changes between two runs: figures side by side, and the shift that unchanged kernels share.

Between two sessions, or two boards, the figures of all kernels move together. Kernels of which
nothing has changed show by how much, and how far single kernels lie from that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

from pytest_gpuenergy.record import (
    METRICS,
    SAME_BOARD_SD,
    WANDER,
    Estimate,
    Interval,
    Measurement,
    Metric,
    SessionMean,
    normal_quantile,
    session_mean,
    t_interval,
    welch,
)
from pytest_gpuenergy.report.analysis.gpu_models import Counterparts, Models
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support import ReportInputError

_MIN_UNCHANGED = 2
"""The least number of unchanged kernels from which a shift is estimated: one has no scatter."""

_MIN_CREDIBLE = 5
"""The least number of unchanged kernels that is believed against the declared deviation.

The median of fewer may be that of two that have truly become slower.
"""

_PRIOR_DEGREES = 3.0
"""Degrees of freedom that the declared deviation is worth in the estimate of the scatter.

As if three more kernels had lain just as far apart as it says (empirical Bayes; G. K. Smyth,
"Linear models and empirical Bayes methods for assessing differential expression", Statistical
Applications in Genetics and Molecular Biology 3(1), 2004).
"""

_APART = 6.0
"""A kernel further from the median than this many robust standard deviations is left out."""

_EXPECTED = 3.0
"""A kernel no further off than this many declared standard deviations is not left out."""

_MAD_TO_SD = 1.4826
_SMALL = dict(enumerate((1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107), start=2))
"""Factors that make the median absolute deviation unbiased in small samples.

C. Croux and P. J. Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale",
Computational Statistics 1, 1992.
"""

_MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median of normal values, in units of that of their mean."""

_TAIL = 0.025

_UNUSUAL_SHIFT, _UNUSUAL_SCATTER = 0.005, 0.05
"""Probabilities of a shift (at either end) and of a scatter that contradict what is declared."""

_CAPS_WEIGHT = 12.0
"""Most degrees of freedom that all caps together are worth at one, as caps differ in scatter."""

USUAL_SCATTER: Mapping[Metric, float] = {
    metric: 2 * math.sqrt(2) * sd for metric, sd in SAME_BOARD_SD.items()
}
"""A larger scatter between unchanged kernels is not due to sessions and boards.

Twice that of two sessions on one board: 0.48 % in time, 1.2 % in energy and 1.5 % in EDP. Between
21 pairs of reports of seven H200s the part that lasts was at most 0.28 %, 0.93 % and 0.79 %.
"""


class ShiftPlace(NamedTuple):
    """Where two measurements that are compared were made: those of one place shift together."""

    before: str | None
    now: str | None
    cap: str


@dataclass(frozen=True)
class Pair:
    """A measurement with its counterpart in an earlier run."""

    before: Measurement
    now: Measurement
    place: ShiftPlace

    @property
    def unchanged(self) -> bool:
        """Whether kernel, workload and setpoint are the same, and both figures without doubt."""
        before, now = self.before, self.now
        return (
            bool(before.kernel.digest)  # callables have none
            and before.kernel.digest == now.kernel.digest
            and (before.workload.parameters, before.workload.flops)
            == (now.workload.parameters, now.workload.flops)
            and before.enforced_power_limit_w == now.enforced_power_limit_w
            and before.locked_sm_clock_max_mhz == now.locked_sm_clock_max_mhz
            and energy_source(before) == energy_source(now)
            and not before.validity
            and not now.validity
            and all(session_mean(side, metric) for side in (before, now) for metric in METRICS)
        )


@dataclass(frozen=True)
class CommonShift:
    """The shift of a metric of one place's unchanged kernels between two runs.

    Attributes:
        metric: the metric.
        place: the boards and the cap.
        kernels: number of unchanged kernels.
        apart: number of these that lie too far out to be part of the scatter.
        change: the median of their ln(now / before), with its 95 % interval.
        scatter: standard deviation of the kernels about it, as a fraction.
        lasting: the part of the scatter that the kernels' own intervals do not explain.
        session_sd: the declared standard deviation of a figure between sessions, as a fraction.
        scale: the variance between sessions, as a multiple of the declared one, estimated from the
            scatter at all caps of the two boards and from the declared one itself.
        degrees: degrees of freedom of that estimate.
        typical: the variance of a change as that of these kernels, by that estimate.
        contradicts: whether scatter or shift of at least `_MIN_CREDIBLE` kernels certainly exceed
            the declared deviation.
    """

    metric: Metric
    place: ShiftPlace
    kernels: int
    apart: int
    change: Estimate
    scatter: float
    lasting: float
    session_sd: float
    scale: float
    degrees: float
    typical: float
    contradicts: bool

    @property
    def same_board(self) -> bool:
        """Whether both runs were made on one board."""
        return self.place.before == self.place.now

    @property
    def error(self) -> float:
        """The standard error of the shift."""
        return math.sqrt(self.typical * _MEDIAN_VARIANCE / self.kernels)

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
        between = 2 * self.session_sd**2
        most = USUAL_SCATTER[self.metric] ** 2 / between if between else 1.0
        if self.scale <= most:
            return self
        typical = self.typical - (self.scale - most) * between
        return replace(self, scale=most, typical=typical, degrees=math.inf)

    def relative(self, before: SessionMean, now: SessionMean, tail: float) -> Estimate:
        """ln(now / before) of a kernel relative to the shift, with an interval.

        The variance is that of both figures' own trials, of what differs between the two runs from
        kernel to kernel, and of the shift. ``tail`` is the probability beyond either end.
        """
        own = [(side.relative_error**2, side.degrees) for side in (before, now)]
        between = self.scale * sum(side.session_variance(self.session_sd) for side in (before, now))
        others = between + self.error**2
        variance = sum(value for value, _ in own) + others
        change = math.log(now.mean) - math.log(before.mean) - self.change.value
        # The sum is about the scatter's square, and known no better.
        degrees = min(self.degrees, welch([*own, (others, self.degrees)], variance))
        return t_interval(change, variance, degrees, tail)


Shifts = Mapping[ShiftPlace, Mapping[Metric, CommonShift]]


def energy_source(measurement: Measurement) -> str:
    """Return the source of a measurement's joules."""
    # Reports that do not name it date from when the counter was the only source.
    return measurement.energy_source or "counter"


def pair(before: Measurement, now: Measurement, boards: tuple[str, str]) -> Pair:
    """Pair two measurements; ``boards`` are those of their runs, for records that name none."""
    place = ShiftPlace(before.gpu_uuid or boards[0], now.gpu_uuid or boards[1], now.cap)
    return Pair(before, now, place)


def _match(report: Report, baseline: Report) -> Iterator[Pair]:
    """Yield the measurements of ``report`` with their counterparts on the same GPU model."""
    models = Models(report)
    earlier = Counterparts(baseline.measurements, Models(baseline))
    boards = (baseline.run.gpu_uuid, report.run.gpu_uuid)
    for now in report.measurements:
        if (before := earlier.of(now, models.of(now))) is not None:
            yield pair(before, now, boards)


def pairs(report: Report, baseline: Report) -> list[Pair]:
    """Pair the measurements with figures with their counterparts on the same GPU model."""
    matched = _match(report, baseline)
    return [pair for pair in matched if pair.now.measured and pair.before.measured]


def common_shifts(
    found: Iterable[Pair], session_sd: Mapping[Metric, float] = SAME_BOARD_SD
) -> Shifts:
    """Return the shifts of each place with at least `_MIN_UNCHANGED` unchanged kernels, by metric.

    A place has none if its kernels are fewer than `_MIN_CREDIBLE` and lie too far apart.
    ``session_sd`` is the declared standard deviation between sessions on one board. How far the
    kernels scatter is estimated from all caps of two boards together, since few kernels at each say
    little.
    """
    places: dict[ShiftPlace, list[Pair]] = defaultdict(list)
    for pair in found:
        if pair.unchanged:
            places[pair.place].append(pair)
    shifts: dict[ShiftPlace, dict[Metric, CommonShift]] = defaultdict(dict)
    boards: dict[tuple[str | None, str | None], dict[ShiftPlace, list[Pair]]] = defaultdict(dict)
    for place, unchanged in places.items():
        if len(unchanged) >= _MIN_UNCHANGED:
            boards[place.before, place.now][place] = unchanged
    for metric in METRICS:
        sd = max(session_sd[metric], WANDER[metric])
        for at_caps in boards.values():
            spreads = [_Spread.of(place, at_caps[place], metric, sd) for place in at_caps]
            pooled = _Pooled.of(spreads)
            for spread in spreads:
                if pooled.scattered and spread.kernels < _MIN_CREDIBLE:
                    continue
                scale, degrees = pooled.at(spread)
                shifts[spread.place][metric] = spread.shift(
                    metric, sd, scale, degrees, pooled.scattered
                )
    return shifts


@dataclass(frozen=True)
class _Spread:
    """The scatter of the changes of a place's unchanged kernels about their common shift.

    Attributes:
        place: the place.
        kernels: the number of kernels.
        kept: the number of those that are part of the scatter.
        middle: the median of their ln(now / before).
        variance: the variance of those that are part of the scatter.
        own: the mean variance that their own trials explain.
        between: the mean variance that the declared deviation between sessions explains.
    """

    place: ShiftPlace
    kernels: int
    kept: int
    middle: float
    variance: float
    own: float
    between: float

    @classmethod
    def of(
        cls, place: ShiftPlace, unchanged: Sequence[Pair], metric: Metric, session_sd: float
    ) -> _Spread:
        sides = [
            (session_mean(pair.before, metric), session_mean(pair.now, metric))
            for pair in unchanged
        ]
        known = [(a, b) for a, b in sides if a is not None and b is not None]
        ratios = [math.log(b.mean) - math.log(a.mean) for a, b in known]
        middle = median(ratios)
        gaps = [abs(ratio - middle) for ratio in ratios]
        count = len(ratios)
        robust_sd = _MAD_TO_SD * _SMALL.get(count, count / (count - 0.8)) * median(gaps)
        own = [a.relative_error**2 + b.relative_error**2 for a, b in known]
        between = [
            a.session_variance(session_sd) + b.session_variance(session_sd) for a, b in known
        ]
        # A kernel whose own interval is wide is expected to lie far off.
        kept = [
            index
            for index, gap in enumerate(gaps)
            if gap <= _APART * math.hypot(robust_sd, math.sqrt(own[index]))
            or gap <= _EXPECTED * math.sqrt(own[index] + between[index])
        ]
        centre = fmean(ratios[index] for index in kept)
        squares = math.fsum((ratios[index] - centre) ** 2 for index in kept)
        return cls(
            place,
            count,
            len(kept),
            middle,
            squares / max(1, len(kept) - 1),
            fmean(own[index] for index in kept),
            fmean(between[index] for index in kept),
        )

    @property
    def degrees(self) -> int:
        return self.kept - 1

    @property
    def excess(self) -> float:
        """The squares that the trials do not explain, in units of the declared variance."""
        return self.degrees * (self.variance - self.own) / self.between

    def relative_variance(self, scale: float) -> float:
        """Return the variance relative to the one expected if sessions vary by ``scale``."""
        return self.variance / (self.own + scale * self.between)

    def shift(
        self, metric: Metric, session_sd: float, scale: float, degrees: float, scattered: bool
    ) -> CommonShift:
        typical = self.own + scale * self.between
        error = typical * _MEDIAN_VARIANCE / self.kernels
        usual = normal_quantile(_UNUSUAL_SHIFT) * math.sqrt(self.between + error)
        return CommonShift(
            metric,
            self.place,
            self.kernels,
            self.kernels - self.kept,
            t_interval(self.middle, error, degrees, _TAIL),
            math.sqrt(self.variance),
            math.sqrt(max(0.0, self.variance - self.own)),
            session_sd,
            scale,
            degrees,
            typical,
            self.kernels >= _MIN_CREDIBLE
            and (
                scattered
                or abs(self.middle) > usual
                or _is_unusual(self.degrees * self.relative_variance(1.0), self.degrees)
            ),
        )


@dataclass(frozen=True)
class _Pooled:
    """The variance between sessions, from the kernels at all caps of two boards.

    Attributes:
        scale: the variance, as a multiple of the declared one.
        degrees: degrees of freedom of this estimate.
        scattered: whether the scatter certainly exceeds what is declared.
        weight: the degrees of freedom that the estimate is worth at a single cap, fewer when the
            caps differ in their scatter by more than chance.
    """

    scale: float
    degrees: float
    scattered: bool
    weight: float

    @classmethod
    def of(cls, spreads: Sequence[_Spread]) -> _Pooled:
        degrees = sum(spread.degrees for spread in spreads)
        scale = (_PRIOR_DEGREES + max(0.0, math.fsum(spread.excess for spread in spreads))) / (
            _PRIOR_DEGREES + degrees
        )
        if not degrees:
            return cls(scale, _PRIOR_DEGREES, False, _CAPS_WEIGHT)
        squares = math.fsum(spread.degrees * spread.relative_variance(1.0) for spread in spreads)
        # How much the variances of the caps differ beyond chance, by the method of moments.
        parts = [(spread.degrees, spread.relative_variance(scale)) for spread in spreads]
        mean = math.fsum(count * part for count, part in parts) / degrees
        chance = 2 * (len(parts) - 1)
        differ = math.fsum(count * (part / mean - 1) ** 2 for count, part in parts) if mean else 0.0
        weight = 2 * degrees / (differ - chance) if differ > chance else math.inf
        return cls(
            scale,
            _PRIOR_DEGREES + degrees,
            _is_unusual(squares, degrees),
            min(weight, _CAPS_WEIGHT),
        )

    def at(self, spread: _Spread) -> tuple[float, float]:
        """Return the scale at a cap, shrunk towards that of all, and its degrees of freedom."""
        if self.weight + spread.degrees >= self.degrees:
            return self.scale, self.degrees
        degrees = self.weight + spread.degrees
        return (self.weight * self.scale + max(0.0, spread.excess)) / degrees, degrees


def _is_unusual(squares: float, degrees: int) -> bool:
    """Return whether a sum of squares is larger than chi-squared usually is.

    By E. B. Wilson and M. M. Hilferty, "The distribution of chi-square", PNAS 17, 1931.
    """
    spread = 2 / (9 * max(1, degrees))
    deviation = (squares / max(1, degrees)) ** (1 / 3) - 1 + spread
    return bool(deviation > normal_quantile(_UNUSUAL_SCATTER) * math.sqrt(spread))


@dataclass(frozen=True)
class Difference:
    """One metric of one kernel under one cap, in both reports.

    Attributes:
        metric: the metric.
        before: the measurement in the earlier report.
        now: the measurement in the later report.
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


def differences(report: Report, baseline: Report) -> Iterator[Difference]:
    """Yield the figures present in both reports, metric by metric, in the order of ``report``.

    Measurements are matched as by the gate: by workload, kernel label, cap and cache state, on the
    same GPU model.

    Raises:
        ReportInputError: one is from an emulated GPU and the other from a real one.
    """
    if report.run.emulated != baseline.run.emulated:
        this, other = "an emulated GPU", "a real one"
        if baseline.run.emulated:
            this, other = "a real GPU", "an emulated one"
        raise ReportInputError(
            f"Run {report.run.run_id} is from {this}, but the baseline {baseline.run.run_id} is "
            f"from {other}: compare runs of the same kind."
        )
    shifts = common_shifts(pairs(report, baseline))
    for matched in _match(report, baseline):
        shift = shifts.get(matched.place, {})
        for metric in Metric:
            then, now = matched.before.figure(metric), matched.now.figure(metric)
            if then is not None and now is not None:
                values = (then, now)
                yield Difference(metric, matched.before, matched.now, values, shift.get(metric))
