"""What a search makes small: time, energy or their product, and whose power is worth measuring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.tvm.trials import Trial

KEEP_ONE_OF = 4
"""A step of successive halving keeps this fraction: the time of every trial is measured, the power
of this fraction of them, and both precisely of those that are kept (compare Jamieson and Talwalkar,
"Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016)."""


def equivalent_ms(objective: Metric, trial: Trial, typical_w: float | None) -> float:
    """The time of a kernel that draws ``typical_w`` and costs what this trial costs, in ms.

    t for the objective time; t P / P_typical for energy, P t; t sqrt(P / P_typical) for the
    energy-delay product, P t^2. A search that knows only of times makes the objective small when
    it is told these. A trial whose power is unknown counts as drawing ``typical_w``, a failed one
    as infinite.
    """
    if not trial.good or trial.time_ms is None:
        return math.inf
    if objective == "time" or trial.power_w is None or typical_w is None:
        return trial.time_ms
    ratio = trial.power_w / typical_w
    return trial.time_ms * (ratio if objective == "energy" else math.sqrt(ratio))


def typical_power_w(trials: Sequence[Trial]) -> float | None:
    """The median power of the trials whose power is known; None when there is none."""
    powers = [trial.power_w for trial in trials if trial.good and trial.power_w]
    return median(powers) if powers else None


def promising(objective: Metric, batch: Sequence[Trial], known: Sequence[Trial]) -> list[Trial]:
    """The trials of ``batch`` whose power should be measured, the fastest first; none for time.

    A quarter of those that ran, without those that would not become the best even if they drew as
    little as the least that is known.

    Args:
        objective: what is made small.
        batch: trials of which only the time is known.
        known: all trials of the search.
    """
    if objective == "time":
        return []
    good = sorted((t for t in batch if t.good), key=lambda t: t.time_ms or math.inf)
    wanted = good[: -(-len(good) // KEEP_ONE_OF)]
    measured = [trial for trial in known if trial.good and trial.power_w]
    typical_w = typical_power_w(measured)
    if typical_w is None:
        return wanted
    best_ms = min(equivalent_ms(objective, trial, typical_w) for trial in measured)
    least_w = min(trial.power_w or math.inf for trial in measured)
    return [
        trial
        for trial in wanted
        if equivalent_ms(objective, replace(trial, power_w=least_w), typical_w) <= best_ms
    ]
