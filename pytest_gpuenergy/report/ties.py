"""Which kernels and setpoints may be the best of a run, given the intervals of their figures.

What two measurements of one run on one board have in common, such as the board's gain, is equal on
both sides and cancels. What is left is what their intervals contain: the scatter of their trials
and the state of the card during each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.record import (
    OTHER_BOARD_SD,
    UNLOCKED,
    Measurement,
    Metric,
    Sample,
    clock_label,
    clocks,
    limit_label,
    limits,
    log_ratio,
    sample,
    setpoints,
)

MISSED = 0.05
"""Largest fraction of cases in which the truly best is not among those said to be as good."""

KERNELS_NAMED = SETPOINTS_NAMED = 3


@dataclass(frozen=True)
class Tie:
    """All measurements that may be the best of their group by a metric.

    Attributes:
        metric: the metric.
        rows: at least one: the least figure first, then all that are within noise of it.
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
    """The best of ``rows`` by ``metric``, and all that may be as good; None without figures.

    A row is left out when another one is certainly better: when the whole interval of the change
    between them lies on one side. Each of the k - 1 comparisons of a row with the others has an
    error of at most `MISSED` / (k - 1), so by Bonferroni's inequality the truly best row is among
    those returned in at least 95 % of cases, whatever the others are (subset selection: S. S.
    Gupta, "On Some Multiple Decision (Selection and Ranking) Rules", Technometrics 7(2), 1965; the
    same as a comparison with the best: J. C. Hsu, "Simultaneous Confidence Intervals for all
    Distances from the 'Best'", Annals of Statistics 9(5), 1981). A row without an interval is
    taken as exact.
    """
    known = _Known.of(rows, (metric,))
    ranked = sorted(known, key=lambda one: one.row.figure(metric) or 0.0)
    if not ranked:
        return None
    tail = _tail(len(ranked))
    kept = [
        one
        for place, one in enumerate(ranked)
        if not any(one.certainly_worse(other, metric, tail) for other in ranked[:place])
    ]
    return Tie(metric, tuple(one.row for one in kept))


def near_front(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows that may be on the Pareto front of time and energy, in their order.

    A row is left out when another one is certainly better in both, with the error of each
    comparison as in `tie`: a row that is truly on the front is among those returned in at least
    95 % of cases.
    """
    known = _Known.of(rows, (Metric.TIME, Metric.ENERGY))
    tail = _tail(len(known))
    by_time = sorted(known, key=lambda one: one.row.time_ms or 0.0)
    return [
        one.row
        for one in known
        if not any(
            one.certainly_worse(other, Metric.ENERGY, tail)
            and one.certainly_worse(other, Metric.TIME, tail)
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

    Args:
        found: the tie.
        rows: the measurements among which it was found.
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
        return _listed(found.caps)
    sides = ((tied_limits, limits(rows), "cap"), (tied_clocks, clocks(rows), "clock"))
    return ", ".join(_range(*side) for side in sides if len(side[1]) > 1)


@dataclass(frozen=True)
class _Known:
    """A row with its figures as samples, None where it has no interval."""

    row: Measurement
    samples: Mapping[Metric, Sample | None]

    @classmethod
    def of(cls, rows: Sequence[Measurement], metrics: Sequence[Metric]) -> list[_Known]:
        measured = (row for row in rows if row.measured)
        return [cls(row, {metric: sample(row, metric) for metric in metrics}) for row in measured]

    def certainly_worse(self, other: _Known, metric: Metric, tail: float) -> bool:
        """Whether this row's figure is larger than that of ``other`` beyond noise."""
        mine, theirs = self.row.figure(metric) or 0.0, other.row.figure(metric) or 0.0
        if mine <= theirs:
            return False
        one, two = self.samples[metric] or _exact(mine), other.samples[metric] or _exact(theirs)
        if one is None or two is None:
            return True
        same_board = self.row.gpu_uuid == other.row.gpu_uuid
        board_sd = 0.0 if same_board else OTHER_BOARD_SD[metric]
        return log_ratio(two, one, session_sd=board_sd, tail=tail).low > 0


def _exact(figure: float) -> Sample | None:
    return Sample(figure, 0.0, math.inf) if figure > 0 else None


def _tail(count: int) -> float:
    return MISSED / max(1, count - 1)


def _range(tied: Sequence[str], measured: Sequence[str], noun: str) -> str:
    """Labels of one setting, as a range if they are one among those ``measured``."""
    if len(tied) == 1:
        return tied[0]
    if tied == measured:
        return f"any {noun}"
    if tied == measured[-len(tied) :]:
        return f"any {noun} from {_spaced(tied[0])}"
    if tied == measured[: len(tied)]:
        return f"any {noun} up to {_spaced(tied[-1])}"
    return ", ".join(tied)


def _listed(labels: Sequence[str]) -> str:
    if len(labels) <= SETPOINTS_NAMED + 1:
        return ", ".join(labels)
    named = ", ".join(labels[:SETPOINTS_NAMED])
    return f"{named} and {len(labels) - SETPOINTS_NAMED} more"


def _spaced(label: str) -> str:
    """``300 W`` for ``300W``, ``1500 MHz`` for ``1500MHz``; other labels as they are."""
    match = re.fullmatch(r"([0-9.]+)(W|MHz)", label)
    return f"{match[1]} {match[2]}" if match else label
