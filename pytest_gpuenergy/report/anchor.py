"""The record of an anchor kernel measured again: how far time, energy and EDP have drifted.

A kernel measured early in a run is measured again now and then. What has changed since is not the
kernel: it is the card, and the measurements in between share the doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.energy.statistics import WANDER
from pytest_gpuenergy.gate.ratio import log_ratio
from pytest_gpuenergy.gate.verdict import sample
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import METRICS, Metric

DRIFT = "drift"
"""The flag of measurements that are not between two good checks."""

BOUND = 0.03
"""A larger change of a figure, as a fraction, is drift.

An H200 that had been idle took 2.1 % more energy for the same kernel once it was warm: so much is
the way of every run.
"""

_TAIL = 0.025

CheckVerdict = Literal["good", "drift", "unsure"]


@dataclass(frozen=True)
class Ratio:
    """A figure now over the same figure before, with the ends of a 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AnchorCheck:
    """An anchor kernel measured again, under the same power cap on the same card.

    ``since`` is when it was first measured, ``first_temperature_c`` how warm the card was then; the
    ratios are the figures now over those of then. ``verdict`` is ``drift`` when one of them is off
    by more than 3 % and its interval does not hold 1, ``unsure`` when there are no figures
    (``error``) or they are flagged themselves (``validity``), otherwise ``good``. ``items`` are the
    node ids of what was measured under this cap since the last check that was not ``unsure``: this
    one speaks for them.
    """

    node_id: str
    workload: str
    kernel: str
    cap: str
    verdict: CheckVerdict
    since: str
    started: str
    gpu_uuid: str | None = None
    time: Ratio | None = None
    energy: Ratio | None = None
    edp: Ratio | None = None
    first_temperature_c: int | None = None
    temperature_c: int | None = None
    validity: tuple[str, ...] = ()
    error: str | None = None
    items: tuple[str, ...] = ()

    @property
    def ratios(self) -> Mapping[Metric, Ratio]:
        """Those that there are."""
        found = {"time": self.time, "energy": self.energy, "edp": self.edp}
        return {name: ratio for name in METRICS if (ratio := found[name]) is not None}


def judge_check(first: Measurement, again: Measurement, items: Sequence[str]) -> AnchorCheck:
    """What has become of an anchor.

    Args:
        first: its first measurement, with figures and without flags.
        again: the later one, which may have failed.
        items: node ids of what was measured since the last check.
    """
    ratios = {metric: ratio_of(first, again, metric) for metric in METRICS}
    verdict: CheckVerdict = "good"
    if any(ratio is not None and _is_drift(ratio) for ratio in ratios.values()):
        verdict = "drift"
    elif again.validity or None in ratios.values():
        verdict = "unsure"
    return AnchorCheck(
        node_id=first.node_id,
        workload=first.workload.name,
        kernel=first.kernel.label,
        cap=first.cap,
        verdict=verdict,
        since=first.started,
        started=again.started,
        gpu_uuid=first.gpu_uuid,
        first_temperature_c=_temperature_c(first),
        temperature_c=_temperature_c(again),
        validity=again.validity,
        error=again.error,
        items=tuple(items),
        **ratios,
    )


def ratio_of(first: Measurement, again: Measurement, metric: Metric) -> Ratio | None:
    """The metric of ``again`` over that of ``first``; None where one has no interval."""
    before, now = sample(first, metric), sample(again, metric)
    if before is None or now is None:
        return None
    change = log_ratio(before, now, session_sd=WANDER[metric], tail=_TAIL)
    return Ratio(math.exp(change.mean), math.exp(change.low), math.exp(change.high))


def unchecked(
    measurements: Sequence[Measurement], checks: Sequence[AnchorCheck], first: Measurement
) -> list[Measurement]:
    """The clean measurements beside the anchor's ``first`` that no good check speaks for."""
    spoken_for = {
        node_id: check.started
        for check in checks
        if check.verdict == "good"
        for node_id in check.items
    }
    place = anchor_place(first)
    return [
        m
        for m in measurements
        if m.measured
        and not m.validity
        and anchor_place(m) == place
        and m.node_id != first.node_id
        and spoken_for.get(m.node_id, "") < m.started
    ]


def anchor_place(m: Measurement) -> tuple[str, float | None, str | None]:
    """What an anchor and the measurements it speaks for have in common: cap, limit and card."""
    return (m.cap, m.enforced_power_limit_w, m.gpu_uuid)


def anchor_lines(
    measurements: Sequence[Measurement], checks: Sequence[AnchorCheck], *, emulated: bool
) -> Iterator[str]:
    """What a summary says of the checks of a run; nothing without any."""
    if not checks:
        return
    drifted = [check for check in checks if check.verdict == "drift"]
    unsure = [check for check in checks if check.verdict == "unsure"]
    times = "once" if len(checks) == 1 else f"{len(checks)} times"
    widest = max(
        ((ratio, metric, check) for check in checks for metric, ratio in check.ratios.items()),
        key=lambda found: _size(found[0]),
        default=None,
    )
    most = "" if widest is None else f", largest change: {_words(*widest)}"
    label = " (emulated)" if emulated else ""
    yield f"anchor kernels{label} were measured again {times}{most}"
    if drifted:
        flagged = sum(DRIFT in m.validity for m in measurements)
        yield f"drift at {len(drifted)} of these checks: {flagged} measurements are flagged {DRIFT}"
    if unsure:
        why = unsure[0].error or ", ".join(unsure[0].validity)
        yield f"{len(unsure)} of these checks could not be judged: {why}"


def _words(ratio: Ratio, metric: Metric, check: AnchorCheck) -> str:
    percent, low, high = (100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
    name = "EDP" if metric == "edp" else metric
    return (
        f"{name} {percent:+.1f} % [{low:+.1f}, {high:+.1f}] "
        f"({check.kernel} of {check.workload} at {check.cap})"
    )


def _is_drift(ratio: Ratio) -> bool:
    sure = not ratio.low <= 1 <= ratio.high
    return sure and _size(ratio) > math.log1p(BOUND)


def _size(ratio: Ratio) -> float:
    return abs(math.log(ratio.value)) if ratio.value > 0 else math.inf


def _temperature_c(m: Measurement) -> int | None:
    return None if m.end is None else m.end.temperature_c
