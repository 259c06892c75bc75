"""What the measurements of a replay are called, and the figures in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from pytest_gpuenergy.record import Measurement

GRAPH, EAGER, LAYERS = "graph", "eager", "layers"
GAP = "gap"
"""What the time between spaced calls is called among the measurements."""
GAP_MS = 0.02
"""What it takes, roughly."""
GPU_US = "gpu_us"
"""What the GPU time of a call alone, by the profiler, is called in the details of its record."""


def step_key(step: int, level: str) -> str:
    """What a step at a level is called among the measurements."""
    return f"step{step}-{level}"


def links_key(step: int, level: str) -> str:
    """What an exchange that is spaced as in a step is called among the measurements."""
    return f"{step_key(step, level)}-links"


def spaced_key(call: str) -> str:
    """What a call that has been spaced by gaps is called among the measurements."""
    return f"{call}-spaced"


def gpu_us_of(found: Measurement) -> float | None:
    """GPU time of a call alone by the profiler, in µs; None if it is not known."""
    value = found.kernel.details.get(GPU_US)
    return float(value) if isinstance(value, int | float) else None


class Alone(NamedTuple):
    """One call's figures; energies in mJ, as measured and at the temperature asked for."""

    time_ms: float
    raw_mj: float
    energy_mj: float
    half_width_mj: float
    clock_mhz: float | None


def is_held_back(alone: Measurement, whole: Measurement) -> bool:
    """Whether the power limit held a call back alone more than the step that it is part of."""
    if not alone.cap_binding or not whole.cap_binding:
        return bool(alone.cap_binding)
    clocks = alone.effective_sm_clock_mhz, whole.effective_sm_clock_mhz
    return clocks[0] is not None and clocks[1] is not None and clocks[0] < clocks[1]


def as_measured(found: Measurement, temperature_c: float | None) -> Alone:
    """The figures of a call, its energy at ``temperature_c`` too."""
    return Alone(
        time_ms_of(found),
        found.raw_energy_mj or 0.0,
        at_temperature_mj(found, temperature_c),
        half_width_mj(found),
        found.effective_sm_clock_mhz,
    )


def at_clock(whole: Measurement, alone: Alone, apart: Alone) -> Alone:
    """Between a call's figures under the limit and those without it, by the clock of the step."""
    wanted, low, high = whole.effective_sm_clock_mhz, alone.clock_mhz, apart.clock_mhz
    if wanted is None or low is None or high is None or high <= low:
        return apart
    share = min(1.0, max(0.0, (wanted - low) / (high - low)))

    def between(one: float, other: float) -> float:
        return one + share * (other - one)

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
    """A spaced call without its gaps; None unless both were measured, and ran unlimited."""
    pair, gap = measured.get(spaced_key(call)), measured.get(GAP)
    if pair is None or gap is None or not (pair.measured and gap.measured) or pair.cap_binding:
        return None
    gaps = int(pair.workload.parameters["gaps"])
    one, other = as_measured(pair, temperature_c), as_measured(gap, temperature_c)
    return Alone(
        one.time_ms - gaps * other.time_ms,
        one.raw_mj - gaps * other.raw_mj,
        one.energy_mj - gaps * other.energy_mj,
        one.half_width_mj + gaps * other.half_width_mj,
        one.clock_mhz,
    )


def time_ms_of(found: Measurement) -> float:
    """Its time in ms, which may be missing."""
    return found.time_ms or math.nan


def at_temperature_mj(found: Measurement, temperature_c: float | None) -> float:
    """The energy as measured, in mJ, brought to ``temperature_c`` where that is known."""
    energy_mj = found.raw_energy_mj or 0.0
    if None in (found.energy_change_per_k, found.temperature_c, temperature_c):
        return energy_mj
    assert found.energy_change_per_k is not None
    assert found.temperature_c is not None
    assert temperature_c is not None
    return energy_mj * (1 + found.energy_change_per_k * (temperature_c - found.temperature_c))


def half_width_mj(found: Measurement) -> float:
    """Of the 95 % interval of its energy; 0 if there is none."""
    interval = found.energy_mj_ci95
    return 0.0 if interval is None else (interval.high - interval.low) / 2


def links_w(
    step: int, level: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> float | None:
    """Power that links take beside what runs; None if there are none, or it was not measured.

    Args:
        step: its number.
        level: the level of the step, see `Account`; layers have their exchanges at the
            distance of the whole step's graph.
        measured: measurements by their keys.
        temperature_c: of the card, to bring the energies to.
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
