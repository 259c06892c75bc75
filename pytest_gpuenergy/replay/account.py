"""Whose joules they are: the energy of a step as the sum of its calls, and what is left over.

    E(step) = sum over calls of n E(call) + temperature + P(idle) t(gaps) + residual
    t(step) = sum over calls of n t(call) + t(gaps)

Each E on the right and the left is measured. The energies of calls are brought to the temperature
that the card had during the step, by each call's own change per kelvin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.replay.calls import UniqueCall

GRAPH, EAGER, LAYERS = "graph", "eager", "layers"
GAP = "gap"
"""What the time between spaced calls is called among the measurements."""


def step_key(step: int, level: str) -> str:
    """What a step at a level is called among the measurements."""
    return f"step{step}-{level}"


GPU_US = "gpu_us"
"""What the GPU time of a call alone, by the profiler, is called in the details of its record."""


def gpu_us_of(found: Measurement) -> float | None:
    """GPU time of a call alone by the profiler, in µs; None if it is not known."""
    value = found.kernel.details.get(GPU_US)
    return float(value) if isinstance(value, int | float) else None


def spaced_key(call: str) -> str:
    """What a call that has been spaced by gaps is called among the measurements."""
    return f"{call}-spaced"


class Part(Struct, frozen=True):
    """One call's share of a step.

    Attributes:
        calls: in the step.
        time_ms: of all of them.
        clock_mhz: of the SMs meanwhile; None if it could not be measured.
        energy_mj: of all of them, at the step's temperature.
        energy_mj_half_width: of the 95 % interval.
    """

    call: str
    operator: str
    calls: int
    time_ms: float
    energy_mj: float
    energy_mj_half_width: float
    clock_mhz: float | None = None


class Account(Struct, frozen=True):
    """A measured step against the sum of its calls.

    Attributes:
        cap: label of the power limit, ``current`` if it was left as it was.
        step: 0 for the prefill.
        level: ``graph`` where the whole step is a CUDA graph, ``eager`` where the host launches
            each kernel, ``layers`` where the layers alone are a CUDA graph.
        time_ms, energy_mj: of the step, as measured.
        tokens: of the prompts for the prefill, generated ones for a decode step;
            None where there are none, as for a function.
        joules_per_token, tokens_per_joule: of the measured energy.
        edp_mj_ms: measured energy times time.
        idle_w: power of the card between launches.
        kernels_ms, kernels_mj: sums over its calls.
        temperature_mj: what the sum's energy changed by to be at the step's temperature.
        trace_ms: GPU time of those calls in the model, by its trace; without exchanges between
            ranks, which wait there.
        gpu_ms: GPU time of those calls alone, by the same profiler; None if it is not known of all.
        gaps_ms: what is left of the time, in which no call ran; negative if calls took longer.
        gaps_mj: at the card's idle power.
        residual_mj: what nothing above accounts for.
        predicted_mj: sum, temperature and gaps.
        energy_error: of the prediction, relative to the measured energy.
        time_error: of ``gpu_ms``, relative to ``trace_ms``; None without it.
        clock_mhz: of the SMs during the step; None if it could not be measured.
        coverage: part of the step's GPU time, by the trace, whose calls have been measured.
        missing: ids of the calls that have no figures.
        limited: ids of the calls that the power limit held back alone, but not in the step; they
            take more time and less power than they did in it.
        spaced: ids of the calls that it held back likewise, which have been measured with gaps
            after them, too; their figures are those at the clock of the step, between the two.
        rank: whose part of the model it is, where several ranks share one.
    """

    cap: str
    step: int
    level: str
    time_ms: float
    energy_mj: float
    energy_mj_half_width: float
    tokens: int | None
    joules_per_token: float | None
    tokens_per_joule: float | None
    edp_mj_ms: float
    idle_w: float
    kernels_ms: float
    kernels_mj: float
    kernels_mj_half_width: float
    temperature_mj: float
    trace_ms: float
    gpu_ms: float | None
    gaps_ms: float
    gaps_mj: float
    residual_mj: float
    predicted_mj: float
    energy_error: float
    time_error: float | None
    clock_mhz: float | None
    coverage: float
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    limited: tuple[str, ...]
    spaced: tuple[str, ...] = ()
    rank: int = 0


class _Alone(NamedTuple):
    """One call's figures; energies in mJ, as measured and at the temperature asked for."""

    time_ms: float
    raw_mj: float
    energy_mj: float
    half_width_mj: float
    clock_mhz: float | None


def account(
    step: int,
    level: str,
    whole: Measurement,
    calls: Sequence[UniqueCall],
    measured: Mapping[str, Measurement],
    idle_w: float,
    tokens: int | None,
) -> Account:
    """Close the sum of a step.

    Args:
        step: its number.
        level: see `Account`.
        whole: the measurement of the step.
        calls: all that may occur in it.
        measured: measurements by the ids of calls; those without figures count as missing.
        idle_w: power of the card between launches.
        tokens: see `Account`.
    """
    parts: list[Part] = []
    missing: list[str] = []
    limited: list[str] = []
    spaced: list[str] = []
    alone_us: list[float | None] = []
    shift_mj, covered_us, all_us, compared_us = 0.0, 0.0, 0.0, 0.0
    for call in calls:
        count = (call.steps_in_layers if level == LAYERS else call.steps).get(step, 0)
        if not count:
            continue
        all_us += count * call.call_us
        found = measured.get(call.id)
        if found is None or found.raw_energy_mj is None or found.time_ms is None:
            missing.append(call.id)
            continue
        alone = _as_measured(found, whole.temperature_c)
        if is_held_back(found, whole):
            apart = _without_gaps(call.id, measured, whole.temperature_c)
            (limited if apart is None else spaced).append(call.id)
            alone = alone if apart is None else _at_clock(whole, alone, apart)
        covered_us += count * call.call_us
        if not call.is_exchange:
            compared_us += count * call.call_us
            gpu_us = gpu_us_of(found)
            alone_us.append(None if gpu_us is None else count * gpu_us)
        shift_mj += count * (alone.energy_mj - alone.raw_mj)
        parts.append(
            Part(
                call=call.id,
                operator=call.operator,
                calls=count,
                time_ms=count * alone.time_ms,
                clock_mhz=alone.clock_mhz,
                energy_mj=count * alone.energy_mj,
                energy_mj_half_width=count * alone.half_width_mj,
            )
        )
    time_ms, energy_mj = whole.time_ms or math.nan, whole.raw_energy_mj or math.nan
    kernels_ms = sum(one.time_ms for one in parts)
    predicted_kernels_mj = sum(one.energy_mj for one in parts)
    trace_ms = compared_us / 1e3
    gpu_ms = None if None in alone_us else sum(one for one in alone_us if one is not None) / 1e3
    gaps_ms = time_ms - kernels_ms
    gaps_mj = idle_w * gaps_ms
    predicted_mj = predicted_kernels_mj + gaps_mj
    return Account(
        cap=whole.cap,
        step=step,
        level=level,
        time_ms=time_ms,
        energy_mj=energy_mj,
        energy_mj_half_width=_half_width(whole),
        tokens=tokens,
        joules_per_token=energy_mj / 1e3 / tokens if tokens else None,
        tokens_per_joule=tokens / (energy_mj / 1e3) if tokens else None,
        edp_mj_ms=energy_mj * time_ms,
        idle_w=idle_w,
        kernels_ms=kernels_ms,
        kernels_mj=predicted_kernels_mj - shift_mj,
        kernels_mj_half_width=sum(one.energy_mj_half_width for one in parts),
        temperature_mj=shift_mj,
        trace_ms=trace_ms,
        gpu_ms=gpu_ms,
        gaps_ms=gaps_ms,
        gaps_mj=gaps_mj,
        residual_mj=energy_mj - predicted_mj,
        predicted_mj=predicted_mj,
        energy_error=predicted_mj / energy_mj - 1,
        time_error=gpu_ms / trace_ms - 1 if gpu_ms is not None and trace_ms else None,
        clock_mhz=whole.effective_sm_clock_mhz,
        coverage=covered_us / all_us if all_us else 0.0,
        parts=tuple(sorted(parts, key=lambda one: -one.energy_mj)),
        missing=tuple(missing),
        limited=tuple(limited),
        spaced=tuple(spaced),
    )


def is_held_back(alone: Measurement, whole: Measurement) -> bool:
    """Whether the power limit held a call back alone more than the step that it is part of."""
    if not alone.cap_binding or not whole.cap_binding:
        return bool(alone.cap_binding)
    clocks = alone.effective_sm_clock_mhz, whole.effective_sm_clock_mhz
    return clocks[0] is not None and clocks[1] is not None and clocks[0] < clocks[1]


def _as_measured(found: Measurement, temperature_c: float | None) -> _Alone:
    return _Alone(
        _time_ms(found),
        found.raw_energy_mj or 0.0,
        _at_temperature(found, temperature_c),
        _half_width(found),
        found.effective_sm_clock_mhz,
    )


def _at_clock(whole: Measurement, alone: _Alone, apart: _Alone) -> _Alone:
    """Between a call's figures under the limit and those without it, by the clock of the step."""
    wanted, low, high = whole.effective_sm_clock_mhz, alone.clock_mhz, apart.clock_mhz
    if wanted is None or low is None or high is None or high <= low:
        return apart
    share = min(1.0, max(0.0, (wanted - low) / (high - low)))

    def between(one: float, other: float) -> float:
        return one + share * (other - one)

    return _Alone(
        between(alone.time_ms, apart.time_ms),
        between(alone.raw_mj, apart.raw_mj),
        between(alone.energy_mj, apart.energy_mj),
        between(alone.half_width_mj, apart.half_width_mj),
        between(low, high),
    )


def _without_gaps(
    call: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> _Alone | None:
    """A spaced call without its gaps; None unless both were measured, and ran unlimited."""
    pair, gap = measured.get(spaced_key(call)), measured.get(GAP)
    if pair is None or gap is None or not (pair.measured and gap.measured) or pair.cap_binding:
        return None
    gaps = int(pair.workload.parameters["gaps"])
    one, other = _as_measured(pair, temperature_c), _as_measured(gap, temperature_c)
    return _Alone(
        one.time_ms - gaps * other.time_ms,
        one.raw_mj - gaps * other.raw_mj,
        one.energy_mj - gaps * other.energy_mj,
        one.half_width_mj + gaps * other.half_width_mj,
        one.clock_mhz,
    )


class Saving(Struct, frozen=True):
    """What a call would save under the power limit that suits it best.

    Attributes:
        step: 0 for the prefill.
        call: its id.
        calls: in the step.
        cap: the limit with the least energy; that of the reference, if no other's interval lies
            below the reference's.
        energy_mj: of all its calls under the reference.
        saved_mj: of that.
        slowdown: its time under ``cap`` relative to that under the reference.
    """

    step: int
    call: str
    operator: str
    calls: int
    cap: str
    energy_mj: float
    saved_mj: float
    slowdown: float


def savings(
    step: int,
    calls: Sequence[UniqueCall],
    measured: Mapping[str, Mapping[str, Measurement]],
    reference: str,
) -> list[Saving]:
    """Of each call of a step, the most energy first.

    Args:
        step: its number.
        calls: all that may occur in it.
        measured: by the label of the power limit, measurements by the ids of calls.
        reference: label of the limit to compare with.
    """
    found = []
    for call in calls:
        count = call.steps.get(step, 0)
        by_cap = {
            cap: group[call.id]
            for cap, group in measured.items()
            if call.id in group and group[call.id].measured
        }
        if not count or reference not in by_cap:
            continue
        plain = by_cap[reference]
        best = min(by_cap.values(), key=_energy_mj)
        if _energy_mj(best) + _half_width(best) >= _energy_mj(plain) - _half_width(plain):
            best = plain
        found.append(
            Saving(
                step=step,
                call=call.id,
                operator=call.operator,
                calls=count,
                cap=best.cap,
                energy_mj=count * _energy_mj(plain),
                saved_mj=count * (_energy_mj(plain) - _energy_mj(best)),
                slowdown=_time_ms(best) / _time_ms(plain),
            )
        )
    return sorted(found, key=lambda one: -one.energy_mj)


def _energy_mj(found: Measurement) -> float:
    return found.energy_mj or 0.0


def _time_ms(found: Measurement) -> float:
    return found.time_ms or math.nan


def _at_temperature(found: Measurement, temperature_c: float | None) -> float:
    """The energy as measured, in mJ, brought to ``temperature_c`` where that is known."""
    energy_mj = found.raw_energy_mj or 0.0
    if None in (found.energy_change_per_k, found.temperature_c, temperature_c):
        return energy_mj
    assert found.energy_change_per_k is not None
    assert found.temperature_c is not None
    assert temperature_c is not None
    return energy_mj * (1 + found.energy_change_per_k * (temperature_c - found.temperature_c))


def _half_width(found: Measurement) -> float:
    interval = found.energy_mj_ci95
    return 0.0 if interval is None else (interval.high - interval.low) / 2
