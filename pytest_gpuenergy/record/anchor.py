"""The record of an anchor kernel measured again: how far time, energy and EDP have drifted.

A kernel measured early in a run is measured again from time to time. The kernel has not changed, so
a different result comes from the card, and casts doubt on the measurements in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.record.amounts import Whole
from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.record.metrics import Metric

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
