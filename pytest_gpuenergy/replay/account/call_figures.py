"""Figures of a call or window alone: without gaps, at the clock and temperature of its step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from pytest_gpuenergy.record import Measurement

GAP = "gap"
"""The key of the gap that is put between calls, as a measurement of its own."""
RESTORES = "restores"
"""The parameter of the workload of a call or window that changes what it reads: the key of what
restores these values before each time, which its measurement includes."""
GPU_US = "gpu_us"
"""The detail of a record with the GPU time of a call alone, by the profiler, in microseconds."""


def spaced_key(key: str) -> str:
    """Return the key of a call or window that was measured with gaps after it."""
    return f"{key}-spaced"


def profiled_gpu_us(measurement: Measurement) -> float | None:
    """Return the GPU time of a call alone, by the profiler, in microseconds; None if unknown."""
    value = measurement.kernel.details.get(GPU_US)
    return float(value) if isinstance(value, int | float) else None


class CallFigures(NamedTuple):
    """The figures of one call, with its energy as measured and at a given temperature."""

    time_ms: float
    raw_mj: float
    energy_mj: float
    half_width_mj: float
    clock_mhz: float | None

    def less(self, other: CallFigures, times: int = 1) -> CallFigures:
        """Return these figures without another that was measured as a part of them."""
        return CallFigures(
            self.time_ms - times * other.time_ms,
            self.raw_mj - times * other.raw_mj,
            self.energy_mj - times * other.energy_mj,
            self.half_width_mj + times * other.half_width_mj,
            self.clock_mhz,
        )


def is_held_back(alone: Measurement, whole: Measurement) -> bool:
    """Return whether the power limit slowed a call down more alone than within its step."""
    if not alone.cap_binding or not whole.cap_binding:
        return bool(alone.cap_binding)
    clocks = alone.effective_sm_clock_mhz, whole.effective_sm_clock_mhz
    return clocks[0] is not None and clocks[1] is not None and clocks[0] < clocks[1]


def as_measured(measurement: Measurement, temperature_c: float | None) -> CallFigures:
    """Return the figures of a call, with its energy at ``temperature_c``."""
    return CallFigures(
        time_ms_of(measurement),
        measurement.raw_energy_mj or 0.0,
        at_temperature_mj(measurement, temperature_c),
        half_width_mj(measurement),
        measurement.effective_sm_clock_mhz,
    )


def figures_of(
    found: Measurement | None, measured: Mapping[str, Measurement], temperature_c: float | None
) -> CallFigures | None:
    """Return the figures of a call or window without what `RESTORES` the values that it reads.

    Returns None unless both were measured.
    """
    if found is None or not found.measured:
        return None
    figures, key = as_measured(found, temperature_c), found.workload.parameters.get(RESTORES)
    if key is None:
        return figures
    restores = measured.get(str(key))
    if restores is None or not restores.measured:
        return None
    return figures.less(as_measured(restores, temperature_c))


def clock_share(whole: Measurement, alone: CallFigures, apart: CallFigures) -> float:
    """Return where the clock of a step lies between those of a call alone, 0, and with gaps, 1."""
    wanted, low, high = whole.effective_sm_clock_mhz, alone.clock_mhz, apart.clock_mhz
    if wanted is None or low is None or high is None or high <= low:
        return 1.0
    return min(1.0, max(0.0, (wanted - low) / (high - low)))


def at_clock(alone: CallFigures, apart: CallFigures, share: float) -> CallFigures:
    """Interpolate a call's figures to the clock of its step.

    Args:
        alone: The figures of the call when launched back to back, which the power limit slows.
        apart: Its figures when launched with gaps, which the limit does not slow.
        share: See `clock_share`.
    """
    if share == 1.0:
        return apart

    def between(limited: float, unlimited: float) -> float:
        return limited + share * (unlimited - limited)

    return CallFigures(
        between(alone.time_ms, apart.time_ms),
        between(alone.raw_mj, apart.raw_mj),
        between(alone.energy_mj, apart.energy_mj),
        between(alone.half_width_mj, apart.half_width_mj),
        between(alone.clock_mhz or math.nan, apart.clock_mhz or math.nan),
    )


def without_gaps(
    key: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> CallFigures | None:
    """Return the figures of a spaced call or window less those of its gaps.

    Returns None unless both were measured.
    """
    pair, gap = measured.get(spaced_key(key)), measured.get(GAP)
    both = figures_of(pair, measured, temperature_c)
    if pair is None or both is None or gap is None or not gap.measured:
        return None
    return both.less(as_measured(gap, temperature_c), int(pair.workload.parameters["gaps"]))


def time_ms_of(measurement: Measurement) -> float:
    """Return the time in milliseconds; NaN if it is missing."""
    return measurement.time_ms or math.nan


def at_temperature_mj(measurement: Measurement, temperature_c: float | None) -> float:
    """Return the measured energy in mJ, corrected to ``temperature_c`` where that is possible."""
    energy_mj = measurement.raw_energy_mj or 0.0
    per_k, measured_c = measurement.energy_change_per_k, measurement.temperature_c
    if per_k is None or measured_c is None or temperature_c is None:
        return energy_mj
    return energy_mj * (1 + per_k * (temperature_c - measured_c))


def half_width_mj(measurement: Measurement) -> float:
    """Return the half width of the 95 % interval of the energy; 0 without an interval."""
    interval = measurement.energy_mj_ci95
    return 0.0 if interval is None else (interval.high - interval.low) / 2
