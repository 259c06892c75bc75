"""Records of how boards differ: from themselves earlier in a run, and from others of their model.

An anchor kernel is measured early in a run and again from time to time. The kernel has not changed,
so a different result comes from the card and casts doubt on the measurements in between. Several
boards of one model measure the same kernels, which gives each board's gain and calibrated figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.record.metrics import Estimate, Interval, Metric, Whole

DRIFT = "drift"
"""Flag of measurements that do not lie between two good checks."""

CheckVerdict = Literal["good", "drift", "unsure"]


class AnchorCheck(Struct, frozen=True):
    """An anchor kernel measured again, under the same power cap on the same card.

    ``since`` is when it was first measured, ``first_temperature_c`` the card's temperature then;
    ``time``, ``energy`` and ``edp`` are ratios of the new figure to the first one, with 95 %
    intervals. ``verdict`` is ``drift`` when a ratio differs from 1 by more than 3 % and its
    interval excludes 1, ``unsure`` when there are no figures (``error``) or they are flagged
    (``validity``), and otherwise ``good``. ``items`` are the node ids of the measurements that the
    check covers: those made under this cap since the last check that was not ``unsure``.
    """

    node_id: str
    workload: str
    kernel: str
    cap: str
    verdict: CheckVerdict
    since: str
    started: str
    gpu_uuid: str | None = None
    time: Estimate | None = None
    energy: Estimate | None = None
    edp: Estimate | None = None
    first_temperature_c: Whole | None = None
    temperature_c: Whole | None = None
    validity: tuple[str, ...] = ()
    error: str | None = None
    items: tuple[str, ...] = ()

    @property
    def ratios(self) -> Mapping[Metric, Estimate]:
        """The ratios that could be computed."""
        found = {metric: getattr(self, metric) for metric in Metric}
        return {metric: ratio for metric, ratio in found.items() if ratio is not None}


def distance(ratio: Estimate) -> float:
    """Distance of a ratio from 1: the absolute value of its logarithm."""
    return abs(math.log(ratio.value)) if ratio.value > 0 else math.inf


BOARD_KERNEL_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0020,
    Metric.ENERGY: 0.0066,
    Metric.EDP: 0.0056,
}
"""Standard deviation of a kernel's figure on a board about what the board's gain says of it.

The largest between 21 pairs of reports of seven H200s, 0.28 %, 0.93 % and 0.79 %, divided by the
square root of two because a pair has two boards (`report.USUAL_SCATTER`).
"""


class BoardGain(Struct, frozen=True):
    """The time and energy of a board under one power cap, relative to all boards of its model.

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

    @property
    def setpoint(self) -> str:
        """The power cap, with the cache state unless it is hot."""
        return self.cap if self.cache == "hot" else f"{self.cap}, {self.cache}"

    def of(self, metric: Metric) -> Estimate | None:
        """Return the gain by a metric."""
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
