"""The best kernels and setpoints of each workload, with all that may be as good within noise.

What two measurements of one run on one board have in common, such as the board's gain, is equal on
both sides and cancels. What is left is what their intervals contain: the scatter of their trials
and the state of the card during each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from pytest_gpuenergy.record import (
    METRICS,
    OTHER_BOARD_SD,
    UNLOCKED,
    Measurement,
    Metric,
    SessionMean,
    clipped,
    clock_label,
    clocks,
    limit_label,
    limits,
    log_ratio,
    point_ratio,
    session_mean,
    setpoints,
)
from pytest_gpuenergy.report.analysis.subjects import Subjects
from pytest_gpuenergy.support import expected_largest

MAX_MISSED = 0.05
"""Largest fraction of cases in which the truly best is not among those said to be as good."""

KERNELS_NAMED = SETPOINTS_NAMED = 3
"""The most kernels or setpoints of a tie that are named; the others are counted."""


@dataclass(frozen=True)
class Tie:
    """All measurements that may be the best of their group by a metric.

    Attributes:
        metric: the metric.
        rows: the measurements: the least figure first, then all that are within noise of it.
    """

    metric: Metric
    rows: tuple[Measurement, ...]

    @property
    def best(self) -> Measurement:
        """The one with the least figure."""
        return self.rows[0]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The labels of the kernels, the best first."""
        return tuple(dict.fromkeys(row.kernel.label for row in self.rows))

    @property
    def caps(self) -> tuple[str, ...]:
        """The labels of the setpoints, in their order."""
        return setpoints(self.rows)


def tie(rows: Sequence[Measurement], metric: Metric) -> Tie | None:
    """Return the best of ``rows`` by ``metric``, and all that may be as good; None without figures.

    A row is left out when another one is certainly better: when the whole interval of the change
    between them lies on one side. Each of the k - 1 comparisons of a row with the others has an
    error of at most `MAX_MISSED` / (k - 1), so by Bonferroni's inequality the truly best row is
    among those returned in at least 95 % of cases, whatever the others are (subset selection: S. S.
    Gupta, "On Some Multiple Decision (Selection and Ranking) Rules", Technometrics 7(2), 1965; the
    same as a comparison with the best: J. C. Hsu, "Simultaneous Confidence Intervals for all
    Distances from the 'Best'", Annals of Statistics 9(5), 1981). A row without an interval is taken
    as exact.
    """
    known = _MeasuredRow.of(rows, (metric,))
    ranked = sorted(known, key=lambda candidate: candidate.row.figure(metric) or 0.0)
    if not ranked:
        return None
    tail = _tail(len(ranked))
    kept = [
        candidate
        for place, candidate in enumerate(ranked)
        if not any(candidate.certainly_worse(other, metric, tail) for other in ranked[:place])
    ]
    return Tie(metric, tuple(figure.row for figure in kept))


def near_front(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return the rows that may be on the Pareto front of time and energy, in their order.

    A row is left out when another one is certainly better in both, with the error of each
    comparison as in `tie`: a row that is truly on the front is among those returned in at least
    95 % of cases.
    """
    known = _MeasuredRow.of(rows, (Metric.TIME, Metric.ENERGY))
    tail = _tail(len(known))
    by_time = sorted(known, key=lambda candidate: candidate.row.time_ms or 0.0)
    return [
        candidate.row
        for candidate in known
        if not any(
            candidate.certainly_worse(other, Metric.ENERGY, tail)
            and candidate.certainly_worse(other, Metric.TIME, tail)
            for other in by_time
        )
    ]


def kernel_words(found: Tie) -> str:
    """``k01``, or ``k01, k03 within noise``; of many, the first few and how many more."""
    first, *others = found.kernels
    if not others:
        return first
    named = ", ".join([first, *others][:KERNELS_NAMED])
    more = len(others) + 1 - KERNELS_NAMED
    return f"{named} and {more} more within noise" if more > 0 else f"{named} within noise"


def cap_words(found: Tie, rows: Sequence[Measurement]) -> str:
    """``450W``, ``any cap from 300 W``, ``any cap up to 300 W``, ``any cap``, or a list.

    Where clocks were locked: ``450W-1500MHz``, ``any cap, any clock up to 1500 MHz``, or a list.
    """
    if clocks(rows) == (UNLOCKED,):
        return _range(found.caps, setpoints(rows), "cap")
    if len(found.caps) == 1:
        return found.caps[0]
    if found.caps == setpoints(rows):
        return "any setpoint"
    # A rectangle in the plane of limits and clocks is described by its sides.
    tied_limits, tied_clocks = limits(found.rows), clocks(found.rows)
    inside = {
        m.cap for m in rows if limit_label(m) in tied_limits and clock_label(m) in tied_clocks
    }
    if inside != set(found.caps):
        more = len(found.caps) - SETPOINTS_NAMED
        if more <= 1:
            return ", ".join(found.caps)
        return f"{', '.join(found.caps[:SETPOINTS_NAMED])} and {more} more"
    sides = ((tied_limits, limits(rows), "cap"), (tied_clocks, clocks(rows), "clock"))
    return ", ".join(_range(*side) for side in sides if len(side[1]) > 1)


@dataclass(frozen=True)
class _MeasuredRow:
    """A row with the means of its figures: exact without an interval, None if not above zero."""

    row: Measurement
    means: Mapping[Metric, SessionMean | None]

    @classmethod
    def of(cls, rows: Sequence[Measurement], metrics: Sequence[Metric]) -> list[_MeasuredRow]:
        def mean(row: Measurement, metric: Metric) -> SessionMean | None:
            figure = row.figure(metric) or 0.0
            exact = SessionMean(figure, 0.0, math.inf) if figure > 0 else None
            return session_mean(row, metric) or exact

        measured = (row for row in rows if row.measured)
        return [cls(row, {metric: mean(row, metric) for metric in metrics}) for row in measured]

    def certainly_worse(self, other: _MeasuredRow, metric: Metric, tail: float) -> bool:
        """Return whether this row's figure is larger than that of ``other`` beyond noise."""
        if (self.row.figure(metric) or 0.0) <= (other.row.figure(metric) or 0.0):
            return False
        mine, theirs = self.means[metric], other.means[metric]
        if mine is None or theirs is None:
            return True
        same_board = self.row.gpu_uuid == other.row.gpu_uuid
        board_sd = 0.0 if same_board else OTHER_BOARD_SD[metric]
        return log_ratio(theirs, mine, session_sd=board_sd, tail=tail).low > 0


def _tail(count: int) -> float:
    return MAX_MISSED / max(1, count - 1)


def _range(tied: Sequence[str], measured: Sequence[str], noun: str) -> str:
    """Return labels of one setting, as a range if they are one among those ``measured``."""
    if len(tied) == 1:
        return tied[0]
    if tied == measured:
        return f"any {noun}"
    if tied == measured[-len(tied) :]:
        return f"any {noun} from {_spaced_units(tied[0])}"
    if tied == measured[: len(tied)]:
        return f"any {noun} up to {_spaced_units(tied[-1])}"
    return ", ".join(tied)


def _spaced_units(label: str) -> str:
    """``300 W`` for ``300W``, ``1500 MHz`` for ``1500MHz``; other labels as they are."""
    match = re.fullmatch(r"([0-9.]+)(W|MHz)", label)
    return f"{match[1]} {match[2]}" if match else label


class ClockSaving(Struct, frozen=True):
    """The least figure with a locked clock, relative to the least one without.

    ``change`` is relative: -0.1 is a saving of 10 %. ``low`` and ``high`` are the ends of its 95 %
    interval (None: the figures have no intervals). The items, kernels and caps are those of the
    two least figures; ``flagged`` says that one of them has a flag.
    """

    metric: Metric
    change: float
    low: float | None
    high: float | None
    clock_item: str
    clock_kernel: str
    clock_cap: str
    cap_item: str
    cap_kernel: str
    cap_cap: str
    flagged: bool


def clock_saving(rows: Sequence[Measurement], metric: Metric) -> ClockSaving | None:
    """Return the saving among ``rows``, of one workload; None unless both were measured.

    With and without a lock, the best is chosen among kernels and setpoints whose figures are noisy,
    so both figures are expected to be too low. The interval of the change is wider by the most that
    this makes out on either side, as if all that are tied were equal (`expected_largest`).
    """
    without = tie([m for m in rows if m.sm_clock_mhz is None], metric)
    locked = tie([m for m in rows if m.sm_clock_mhz is not None], metric)
    if without is None or locked is None:
        return None
    change = point_ratio(without.best.figure(metric), locked.best.figure(metric))
    if not math.isfinite(change.low):
        return None
    low = high = None
    base, new = session_mean(without.best, metric), session_mean(locked.best, metric)
    if base is not None and new is not None:
        same_board = without.best.gpu_uuid == locked.best.gpu_uuid
        board_sd = 0.0 if same_board else OTHER_BOARD_SD[metric]
        noisy = log_ratio(base, new, session_sd=board_sd, tail=MAX_MISSED / 2)
        low = math.expm1(clipped(noisy.low - _optimism(without, base)))
        high = math.expm1(clipped(noisy.high + _optimism(locked, new)))
    return ClockSaving(
        metric,
        math.expm1(change.value),
        low,
        high,
        *(locked.best.node_id, locked.best.kernel.label, locked.best.cap),
        *(without.best.node_id, without.best.kernel.label, without.best.cap),
        flagged=bool(without.best.validity or locked.best.validity),
    )


def _optimism(found: Tie, best: SessionMean) -> float:
    """Return the most that the logarithm of the least figure is expected to be too low."""
    error = math.sqrt(best.relative_error**2 + best.session_variance(0.0))
    return expected_largest(len(found.rows)) * error


def pareto(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return the rows on the Pareto front of time and energy, from fast to frugal.

    A row is on the front when no other is at least as good in both and better in one.
    """
    front: list[Measurement] = []
    least_mj = float("inf")
    for row in sorted(
        (row for row in rows if row.measured), key=lambda row: (row.time_ms, row.energy_mj)
    ):
        assert row.energy_mj is not None
        equal = bool(front) and (row.time_ms, row.energy_mj) == (front[-1].time_ms, least_mj)
        if row.energy_mj < least_mj or equal:
            front.append(row)
            least_mj = row.energy_mj
    return front


@dataclass(frozen=True)
class Best:
    """The best of one workload in one cache state, over all kernels and setpoints.

    Attributes:
        workload: the name of the workload with its cache state, see `Subjects.of`.
        name: the name without the cache state.
        rows: all its measurements with figures.
        ties: the least figure by each metric, with all that are within noise of it.
        front: the `pareto` front of the rows.
        near: all rows that may be on the front, within noise.
        savings: the savings by each metric of the best locked clock over the best cap without
            one; empty unless both were measured.
    """

    workload: str
    name: str
    rows: list[Measurement]
    ties: Mapping[Metric, Tie]
    front: list[Measurement]
    near: list[Measurement]
    savings: Mapping[Metric, ClockSaving]

    @property
    def caps(self) -> str:
        """The setpoints at which the EDP is least, within noise, in words."""
        return cap_words(self.ties[Metric.EDP], self.rows)

    @property
    def size_of_front(self) -> str:
        """``2``, or ``2 to 5`` when more may be on the front, within noise."""
        sizes = dict.fromkeys((len(self.front), len(self.near)))
        return " to ".join(map(str, sizes))

    def where(self, metric: Metric) -> str:
        """Return the kernels and setpoints that have the least figure within noise, in words."""
        found = self.ties[metric]
        return f"{kernel_words(found)} at {cap_words(found, self.rows)}"


class Marks:
    """Which measurements are on a Pareto front, within noise of it, or best by a metric.

    All are by `id`, because measurements may be equal.
    """

    def __init__(self, best: Sequence[Best]) -> None:
        self.front = {id(m) for entry in best for m in entry.front}
        self.near = {id(m) for entry in best for m in entry.near}
        self._tied = {
            metric: {id(m) for entry in best for m in entry.ties[metric].rows} for metric in METRICS
        }

    def best_of(self, m: Measurement) -> list[str]:
        """Return the metrics by which a measurement may be the best of its workload."""
        return [str(metric) for metric, tied in self._tied.items() if id(m) in tied]


def best_of_each(
    measurements: Iterable[Measurement], subjects: Subjects | None = None
) -> list[Best]:
    """Return the best of each workload and cache state that has figures, in order of appearance.

    Args:
        measurements: measurements on one GPU model.
        subjects: the subjects of all that is shown beside them; None: of these alone.
    """
    listed = list(measurements)
    subjects = Subjects(listed) if subjects is None else subjects
    groups: dict[str, list[Measurement]] = {}
    for measurement in listed:
        if measurement.measured:
            groups.setdefault(subjects.of(measurement), []).append(measurement)
    return [
        Best(
            name,
            subjects.name(rows[0]),
            rows,
            {metric: found for metric in METRICS if (found := tie(rows, metric)) is not None},
            pareto(rows),
            near_front(rows),
            {
                metric: saving
                for metric in METRICS
                if (saving := clock_saving(rows, metric)) is not None
            },
        )
        for name, rows in groups.items()
    ]
