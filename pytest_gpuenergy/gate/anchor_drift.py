"""Judges whether an anchor kernel has drifted, and finds measurements that no check covers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_gpuenergy.record import (
    METRICS,
    WANDER,
    AnchorCheck,
    CheckVerdict,
    Estimate,
    Measurement,
    Metric,
    distance,
    log_ratio,
    session_mean,
)

MAX_DRIFT = 0.03
"""The largest change of a figure, as a fraction, that does not count as drift.

An H200 that had been idle took 2.1 % more energy for the same kernel once it was warm, so a change
of that size occurs in every run.
"""

_TAIL = 0.025
"""The probability beyond each end of a ratio's interval."""


def judge_check(first: Measurement, again: Measurement, items: Sequence[str]) -> AnchorCheck:
    """Compare an anchor's later measurement with its first one.

    Args:
        first: its first measurement, with figures and without flags.
        again: the later measurement, which may have failed.
        items: node ids of the measurements made since the last check.
    """
    ratios = {metric: _ratio(first, again, metric) for metric in METRICS}
    verdict: CheckVerdict = "good"
    found = [ratio for ratio in ratios.values() if ratio is not None]
    if any(
        not ratio.low <= 1 <= ratio.high and distance(ratio) > math.log1p(MAX_DRIFT)
        for ratio in found
    ):
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


def _ratio(first: Measurement, again: Measurement, metric: Metric) -> Estimate | None:
    """Return a metric of ``again`` divided by that of ``first``; None if one has no interval."""
    before, now = session_mean(first, metric), session_mean(again, metric)
    if before is None or now is None:
        return None
    change = log_ratio(before, now, session_sd=WANDER[metric], tail=_TAIL)
    return Estimate(math.exp(change.value), math.exp(change.low), math.exp(change.high))


def unchecked(
    measurements: Sequence[Measurement], checks: Sequence[AnchorCheck], first: Measurement
) -> list[Measurement]:
    """Return the measurements without flags that no good check of an anchor covers.

    Only those are returned that the anchor stands for, because they were made under the same
    conditions as ``first``, its own first measurement.
    """
    covered = {
        node_id: check.started
        for check in checks
        if check.verdict == "good"
        for node_id in check.items
    }
    conditions = _conditions(first)
    return [
        m
        for m in measurements
        if m.measured
        and not m.validity
        and _conditions(m) == conditions
        and m.node_id != first.node_id
        and covered.get(m.node_id, "") < m.started
    ]


def _conditions(m: Measurement) -> tuple[str, float | None, int | None, str | None]:
    """Return the setpoint, limits and card, which an anchor shares with what it stands for."""
    return (m.cap, m.enforced_power_limit_w, m.locked_sm_clock_max_mhz, m.gpu_uuid)


def _temperature_c(m: Measurement) -> int | None:
    return None if m.end is None else m.end.temperature_c
