"""What the best locked clock saves over the best power cap without one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.ratio import Sample, log_ratio, point_ratio, sample
from pytest_gpuenergy.record.repeatability import OTHER_BOARD_SD
from pytest_gpuenergy.report.ties import MISSED, Tie, tie


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

    With and without a lock, the best is chosen among kernels and setpoints whose figures are noisy.
    The interval holds although it is: a fourth of the allowed error on either side finds all that
    may be the best there (`tie`), and the other half the interval of the change between two given
    rows; the union of the intervals of all pairs that may be the best contains the change between
    the truly best ones in at least 95 % of cases.
    """
    without = tie([m for m in rows if m.sm_clock_mhz is None], metric, MISSED / 4)
    locked = tie([m for m in rows if m.sm_clock_mhz is not None], metric, MISSED / 4)
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
    sides = [[(row, sample(row, metric)) for row in found.rows] for found in (without, locked)]
    known = [[(row, one) for row, one in side if one is not None] for side in sides]
    if [len(side) for side in known] != [len(side) for side in sides]:
        return None
    changes = [_change(*base, *new, metric) for base in known[0] for new in known[1]]
    value = math.log(known[1][0][1].mean / known[0][0][1].mean)
    return Estimate(value, min(one.low for one in changes), max(one.high for one in changes))


def _change(
    base_row: Measurement, base: Sample, new_row: Measurement, new: Sample, metric: Metric
) -> Estimate:
    same_board = base_row.gpu_uuid == new_row.gpu_uuid
    board_sd = 0.0 if same_board else OTHER_BOARD_SD[metric]
    return log_ratio(base, new, session_sd=board_sd, tail=MISSED / 4)
