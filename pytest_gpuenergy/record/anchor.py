"""The record of an anchor kernel measured again: how far time, energy and EDP have drifted.

A kernel measured early in a run is measured again now and then. What has changed since is not the
kernel: it is the card, and the measurements in between share the doubt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.record.metrics import Metric

DRIFT = "drift"
"""The flag of measurements that are not between two good checks."""

CheckVerdict = Literal["good", "drift", "unsure"]


class AnchorCheck(Struct, frozen=True):
    """An anchor kernel measured again, under the same power cap on the same card.

    ``since`` is when it was first measured, ``first_temperature_c`` how warm the card was then; the
    ratios are the figures now over those of then, with 95 % intervals. ``verdict`` is ``drift``
    when one of them is off by more than 3 % and its interval does not hold 1, ``unsure`` when there
    are no figures (``error``) or they are flagged themselves (``validity``), otherwise ``good``.
    ``items`` are the node ids of what was measured under this cap since the last check that was not
    ``unsure``: this one speaks for them.
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
    first_temperature_c: int | None = None
    temperature_c: int | None = None
    validity: tuple[str, ...] = ()
    error: str | None = None
    items: tuple[str, ...] = ()

    @property
    def ratios(self) -> Mapping[Metric, Estimate]:
        """Those that there are."""
        found = {metric: getattr(self, metric) for metric in Metric}
        return {metric: ratio for metric, ratio in found.items() if ratio is not None}


def distance(ratio: Estimate) -> float:
    """How far a ratio is from 1: its logarithm, without the sign."""
    return abs(math.log(ratio.value)) if ratio.value > 0 else math.inf
