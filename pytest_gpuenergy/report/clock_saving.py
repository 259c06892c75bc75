"""What the best locked clock saves over the best power cap without one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from pytest_gpuenergy.record import (
    OTHER_BOARD_SD,
    Estimate,
    Measurement,
    Metric,
    Sample,
    limited,
    log_ratio,
    point_ratio,
    sample,
)
from pytest_gpuenergy.report.ties import MISSED, Tie, tie
from pytest_gpuenergy.support import largest_of


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

    @property
    def certain(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def clock_saving(rows: Sequence[Measurement], metric: Metric) -> ClockSaving | None:
    """The saving among ``rows``, of one workload; None unless both were measured.

    With and without a lock, the best is chosen among kernels and setpoints whose figures are noisy,
    so both figures are expected to be too low. The interval of the change is wider by the most that
    this makes out on either side, as if all that are tied were equal (`largest_of`).
    """
    without = tie([m for m in rows if m.sm_clock_mhz is None], metric)
    locked = tie([m for m in rows if m.sm_clock_mhz is not None], metric)
    if without is None or locked is None:
        return None
    change = point_ratio(without.best.figure(metric), locked.best.figure(metric))
    if not math.isfinite(change.low):
        return None
    interval = _interval(without, locked, metric)
    return ClockSaving(
        metric,
        math.expm1(change.value),
        None if interval is None else math.expm1(interval.low),
        None if interval is None else math.expm1(interval.high),
        *(locked.best.node_id, locked.best.kernel.label, locked.best.cap),
        *(without.best.node_id, without.best.kernel.label, without.best.cap),
        flagged=bool(without.best.validity or locked.best.validity),
    )


def _interval(without: Tie, locked: Tie, metric: Metric) -> Estimate | None:
    """Of ln(least locked / least without); None where a figure has no interval."""
    base, new = sample(without.best, metric), sample(locked.best, metric)
    if base is None or new is None:
        return None
    same_board = without.best.gpu_uuid == locked.best.gpu_uuid
    board_sd = 0.0 if same_board else OTHER_BOARD_SD[metric]
    change = log_ratio(base, new, session_sd=board_sd, tail=MISSED / 2)
    return Estimate(
        change.value,
        limited(change.low - _optimism(without, base)),
        limited(change.high + _optimism(locked, new)),
    )


def _optimism(found: Tie, best: Sample) -> float:
    """The most that the logarithm of the least figure is expected to be too low."""
    error = math.sqrt(best.relative_error**2 + best.session_variance(0.0))
    return largest_of(len(found.rows)) * error
