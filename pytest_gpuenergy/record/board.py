"""How the boards of a run differ, and figures calibrated by it: made from the measurements."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pytest_gpuenergy.record.estimate import Estimate, Interval
from pytest_gpuenergy.record.metrics import Metric

BOARD_KERNEL_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0020,
    Metric.ENERGY: 0.0066,
    Metric.EDP: 0.0056,
}
"""Standard deviation of a kernel's figure on a board about what the board's gain says of it.

The largest between 21 pairs of reports of seven H200s, 0.28 %, 0.93 % and 0.79 %, divided by the
square root of two because a pair has two boards (`report.shift.USUAL_SCATTER`).
"""


class BoardGain(Struct, frozen=True):
    """What a board takes under one power cap, relative to all boards of its model.

    ``time``, ``energy`` and ``edp`` are ratios to the geometric mean over the ``boards`` boards of
    the model that were compared, common to all kernels that they measured, with 95 % intervals.
    They are missing where the board could not be compared, ``left_out`` says why. ``kernel_sd`` is
    by metric the relative standard deviation of a single kernel about the gain.
    """

    gpu_uuid: str
    gpu_name: str
    host: str
    cap: str
    enforced_power_limit_w: float | None
    sm_clock_mhz: float | None
    cache: str
    boards: int
    time: Estimate | None = None
    energy: Estimate | None = None
    edp: Estimate | None = None
    kernel_sd: dict[Metric, float] = {}
    left_out: str | None = None

    def of(self, metric: Metric) -> Estimate | None:
        """The gain by a metric."""
        found: Estimate | None = getattr(self, metric)
        return found


class Calibrated(Struct, frozen=True):
    """Figures divided by the gain of their board: what the mean board of the model would take.

    In ms, mJ and mJ ms, with 95 % intervals, which include the gain's and how far single kernels
    lie from it. All are None where the board has no gain.
    """

    time_calibrated_ms: float | None = None
    time_calibrated_ms_ci95: Interval | None = None
    energy_calibrated_mj: float | None = None
    energy_calibrated_mj_ci95: Interval | None = None
    edp_calibrated_mj_ms: float | None = None
    edp_calibrated_mj_ms_ci95: Interval | None = None


class CalibratedItem(Calibrated, frozen=True, kw_only=True):
    """The calibrated figures of the measurement with this ``node_id``."""

    node_id: str
