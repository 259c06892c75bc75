"""Whose joules they are: the energy of a step as the sum of its calls, and what is left over.

    E(step) = sum over calls of n E(call) + temperature + links + P(idle) t(gaps) + residual
    t(step) = sum over calls of n t(call) + t(gaps)

Each E on the right and the left is measured. The energies of calls are brought to the temperature
that the card had during the step, by each call's own change per kelvin. Links between GPUs, which
exchanges wake up, take power until long after them:

    P(links) = (E(exchange and gaps) - E(exchange)) / (t(both) - t(exchange)) - P(gap)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.account.figures import (
    LAYERS,
    as_measured,
    at_clock,
    gpu_us_of,
    half_width_mj,
    is_held_back,
    links_w,
    time_ms_of,
    without_gaps,
)
from pytest_gpuenergy.replay.extract.calls import UniqueCall


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
        links_w: power of the links to other GPUs for as long as a step's exchanges keep them awake;
            None if there are none, or if it was not measured.
        links_mj: at that power, in the time in which there is no exchange.
        gaps_ms: what is left of the time, in which no call ran; negative if calls took longer.
        gaps_mj: at the card's idle power.
        residual_mj: what nothing above accounts for.
        predicted_mj: sum, temperature, links and gaps.
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
    links_w: float | None = None
    links_mj: float = 0.0


def account_for_step(
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
        alone = as_measured(found, whole.temperature_c)
        if is_held_back(found, whole):
            apart = without_gaps(call.id, measured, whole.temperature_c)
            (limited if apart is None else spaced).append(call.id)
            alone = alone if apart is None else at_clock(whole, alone, apart)
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
    exchanges = {call.id for call in calls if call.is_exchange}
    exchanges_ms = sum(one.time_ms for one in parts if one.call in exchanges)
    awake_w = links_w(step, level, measured, whole.temperature_c)
    links_mj = (awake_w or 0.0) * (time_ms - exchanges_ms)
    predicted_mj = predicted_kernels_mj + links_mj + gaps_mj
    return Account(
        cap=whole.cap,
        step=step,
        level=level,
        time_ms=time_ms,
        energy_mj=energy_mj,
        energy_mj_half_width=half_width_mj(whole),
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
        links_w=awake_w,
        links_mj=links_mj,
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
        if _energy_mj(best) + half_width_mj(best) >= _energy_mj(plain) - half_width_mj(plain):
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
                slowdown=time_ms_of(best) / time_ms_of(plain),
            )
        )
    return sorted(found, key=lambda one: -one.energy_mj)


def _energy_mj(found: Measurement) -> float:
    return found.energy_mj or 0.0


class Total(Struct, frozen=True):
    """A step on all ranks together, which they make at the same time.

    Attributes:
        cap, step, level, tokens: see `Account`.
        time_ms: of the rank that takes longest.
        energy_mj, predicted_mj, residual_mj: sums over the ranks.
        energy_mj_half_width: of the 95 % interval, as if the ranks' errors were all alike.
        energy_error: of the prediction, relative to the measured energy.
        joules_per_token, tokens_per_joule, edp_mj_ms: of the measured energy.
    """

    cap: str
    step: int
    level: str
    time_ms: float
    energy_mj: float
    energy_mj_half_width: float
    predicted_mj: float
    residual_mj: float
    energy_error: float
    tokens: int | None
    joules_per_token: float | None
    tokens_per_joule: float | None
    edp_mj_ms: float


def totals_of(accounts: Sequence[Account], ranks: int) -> Iterator[Total]:
    """Of each power limit, step and level of which all ranks have an account."""
    groups: dict[tuple[str, int, str], list[Account]] = {}
    for one in accounts:
        groups.setdefault((one.cap, one.step, one.level), []).append(one)
    for (cap, step, level), group in groups.items():
        if len(group) < ranks:
            continue
        time_ms = max(one.time_ms for one in group)
        energy_mj = sum(one.energy_mj for one in group)
        predicted_mj = sum(one.predicted_mj for one in group)
        tokens = group[0].tokens
        yield Total(
            cap=cap,
            step=step,
            level=level,
            time_ms=time_ms,
            energy_mj=energy_mj,
            energy_mj_half_width=sum(one.energy_mj_half_width for one in group),
            predicted_mj=predicted_mj,
            residual_mj=energy_mj - predicted_mj,
            energy_error=predicted_mj / energy_mj - 1,
            tokens=tokens,
            joules_per_token=energy_mj / 1e3 / tokens if tokens else None,
            tokens_per_joule=tokens / (energy_mj / 1e3) if tokens else None,
            edp_mj_ms=energy_mj * time_ms,
        )
