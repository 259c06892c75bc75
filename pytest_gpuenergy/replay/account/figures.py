"""Names the measurements of a replay, and reads their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from pytest_gpuenergy.record import Measurement

GRAPH, EAGER, LAYERS = "graph", "eager", "layers"
GAP = "gap"
"""The key of the gap that is put between calls, as a measurement of its own."""
GAP_MS = 0.02
"""The approximate duration of a gap, in milliseconds."""
GPU_US = "gpu_us"
"""The detail of a record with the GPU time of a call alone, by the profiler, in microseconds."""


def step_key(step: int, level: str) -> str:
    """Return the key of a step's measurement at a level, such as ``step0-graph``."""
    return f"step{step}-{level}"


def links_key(step: int, level: str) -> str:
    """Return the key of an exchange that was measured with gaps as long as those in a step."""
    return f"{step_key(step, level)}-links"


def spaced_key(call: str) -> str:
    """Return the key of a call that was measured with gaps after it."""
    return f"{call}-spaced"


def gpu_us_of(found: Measurement) -> float | None:
    """Return the GPU time of a call alone, by the profiler, in microseconds; None if unknown."""
    value = found.kernel.details.get(GPU_US)
    return float(value) if isinstance(value, int | float) else None


class Alone(NamedTuple):
    """The figures of one call, with its energy as measured and at a given temperature."""

    time_ms: float
    raw_mj: float
    energy_mj: float
    half_width_mj: float
    clock_mhz: float | None


def is_held_back(alone: Measurement, whole: Measurement) -> bool:
    """Return whether the power limit slowed a call down more alone than within its step."""
    if not alone.cap_binding or not whole.cap_binding:
        return bool(alone.cap_binding)
    clocks = alone.effective_sm_clock_mhz, whole.effective_sm_clock_mhz
    return clocks[0] is not None and clocks[1] is not None and clocks[0] < clocks[1]


def as_measured(found: Measurement, temperature_c: float | None) -> Alone:
    """Return the figures of a call, with its energy at ``temperature_c``."""
    return Alone(
        time_ms_of(found),
        found.raw_energy_mj or 0.0,
        at_temperature_mj(found, temperature_c),
        half_width_mj(found),
        found.effective_sm_clock_mhz,
    )


def at_clock(whole: Measurement, alone: Alone, apart: Alone) -> Alone:
    """Interpolate a call's figures to the clock of its step.

    Args:
        whole: The measurement of the step.
        alone: The figures of the call when launched back to back, which the power limit slows.
        apart: Its figures when launched with gaps, which the limit does not slow.
    """
    wanted, low, high = whole.effective_sm_clock_mhz, alone.clock_mhz, apart.clock_mhz
    if wanted is None or low is None or high is None or high <= low:
        return apart
    share = min(1.0, max(0.0, (wanted - low) / (high - low)))

    def between(limited: float, unlimited: float) -> float:
        return limited + share * (unlimited - limited)

    return Alone(
        between(alone.time_ms, apart.time_ms),
        between(alone.raw_mj, apart.raw_mj),
        between(alone.energy_mj, apart.energy_mj),
        between(alone.half_width_mj, apart.half_width_mj),
        between(low, high),
    )


def without_gaps(
    call: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> Alone | None:
    """Return the figures of a spaced call less those of its gaps.

    Returns None unless both were measured, and the power limit did not slow the call.
    """
    pair, gap = measured.get(spaced_key(call)), measured.get(GAP)
    if pair is None or gap is None or not (pair.measured and gap.measured) or pair.cap_binding:
        return None
    gaps = int(pair.workload.parameters["gaps"])
    both, each_gap = as_measured(pair, temperature_c), as_measured(gap, temperature_c)
    return Alone(
        both.time_ms - gaps * each_gap.time_ms,
        both.raw_mj - gaps * each_gap.raw_mj,
        both.energy_mj - gaps * each_gap.energy_mj,
        both.half_width_mj + gaps * each_gap.half_width_mj,
        both.clock_mhz,
    )


def time_ms_of(found: Measurement) -> float:
    """Return the time in milliseconds; NaN if it is missing."""
    return found.time_ms or math.nan


def at_temperature_mj(found: Measurement, temperature_c: float | None) -> float:
    """Return the measured energy in mJ, corrected to ``temperature_c`` where that is possible."""
    energy_mj = found.raw_energy_mj or 0.0
    if None in (found.energy_change_per_k, found.temperature_c, temperature_c):
        return energy_mj
    assert found.energy_change_per_k is not None
    assert found.temperature_c is not None
    assert temperature_c is not None
    return energy_mj * (1 + found.energy_change_per_k * (temperature_c - found.temperature_c))


def half_width_mj(found: Measurement) -> float:
    """Return the half width of the 95 % interval of the energy; 0 without an interval."""
    interval = found.energy_mj_ci95
    return 0.0 if interval is None else (interval.high - interval.low) / 2


def links_w(
    step: int, level: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> float | None:
    """Return the power of the links to other GPUs while the exchanges of a step keep them awake.

    Args:
        step: The number of the step.
        level: The level of the step, see `Account`. For layers, the distance between exchanges is
            taken from the graph of the whole step.
        measured: The measurements by their keys.
        temperature_c: The temperature that energies are corrected to.

    Returns:
        The power in watts; None if there are no links, or if it was not measured.
    """
    apart = measured.get(links_key(step, EAGER if level == EAGER else GRAPH))
    if apart is None or not apart.measured:
        return None
    alone, gap = measured.get(str(apart.workload.parameters["exchange"])), measured.get(GAP)
    if alone is None or gap is None or not (alone.measured and gap.measured):
        return None
    longer_ms = time_ms_of(apart) - time_ms_of(alone)
    if longer_ms <= 0:
        return None
    more_mj = at_temperature_mj(apart, temperature_c) - at_temperature_mj(alone, temperature_c)
    return more_mj / longer_ms - at_temperature_mj(gap, temperature_c) / time_ms_of(gap)
