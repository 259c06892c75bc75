"""Accounts for the energy of a step: the sum of its calls, and what the sum leaves over.

    E(step) = sum over calls of n E(call) + temperature + clocks + neighbours + links
              + P(gaps) t(gaps) + residual
    t(step) = sum over calls of n t(call) + clocks + neighbours + t(gaps)

Each E on the right and the left is measured. The energies of calls are brought to the temperature
that the card had during the step, by each call's own change per kelvin, and those of calls that the
power limit slows down more alone than in the step to the clock of the step, by a measurement with
gaps. A call after others takes more or less than after its like: calls of a layer that follow one
another are also measured as one, a window, in which each takes what those before have computed.

    neighbours = sum over windows of n (E(window) - sum over its calls of E(call))

Where the power limit slows a graph down, a window is a whole layer, since calls that draw little
leave to the others what they do not take; no other term has these clocks then. Where the host
launches, such a window is measured with as large a share of gaps as the step has, and counts
without them.

Links between GPUs, which exchanges wake up, take power until long after them:

    P(links) = (E(exchange and gaps) - E(exchange)) / (t(both) - t(exchange)) - P(gap)

The power in gaps depends on what runs before them. In a graph it is measured within the step, with
an empty kernel after each call; where the host launches, it is the power of empty kernels that it
launches as often as those of the step.

    P(gaps) = (E(step with empty kernels) - E(step)) / (t(step with empty kernels) - t(step))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from pytest_gpuenergy.energy import PER_K_ERROR
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.account.call_figures import (
    GAP,
    CallFigures,
    at_clock,
    at_temperature_mj,
    clock_share,
    figures_of,
    half_width_mj,
    is_held_back,
    profiled_gpu_us,
    spaced_key,
    time_ms_of,
    without_gaps,
)
from pytest_gpuenergy.replay.extract.calls import UniqueCall

GRAPH, EAGER, LAYERS = "graph", "eager", "layers"
GAP_MS = 0.02
"""The approximate duration of a gap, in milliseconds."""

WINDOW_STEP, WINDOW_CALLS, WINDOW_COUNT = "step", "calls", "count"
"""The parameters of a window's workload: its step, the ids of its calls in their order, separated
by spaces, and how often the step makes them so."""
WINDOW_HOST = "host"
"""The parameter of a window of calls that only the host makes in their order, which is 1."""
WINDOW_LAYER = "layer"
"""The parameter of a window that has all calls of a layer, which is 1."""
_SAME_CLOCK = 0.98
"""The least clock of a window, relative to its step's, at which the power limit has not slowed the
window down more than the step: clocks of the same load scatter by about a percent."""

_TWO_SIDED = 1.96
"""The half width of a 95 % interval in standard errors."""
_ELSEWHERE = 0.01
"""The largest share of a window's time that may be of calls that the step makes less often than the
window counts them: some layers of the same form launch another call in their place."""


def step_key(step: int, level: str) -> str:
    """Return the key of a step's measurement at a level, such as ``step0-graph``."""
    return f"step{step}-{level}"


def module_level(name: str) -> str:
    """Return the level at which a module outside of the layers is measured alone."""
    return f"module.{name}"


def calls_at(call: UniqueCall, step: int, level: str, modules: Sequence[str]) -> int:
    """Return how often a step makes a call at a level.

    Args:
        call: The unique call.
        step: The number of the step.
        level: See `Account`.
        modules: The names of the modules outside of the layers, as the profile has them.
    """
    if level == EAGER:
        return call.steps.get(step, 0)
    found = call.in_graph
    if level == GRAPH:
        return found.steps.get(step, 0)
    if level == LAYERS:
        return found.steps_in_layers.get(step, 0)
    number = [module_level(name) for name in modules].index(level)
    return found.steps_in_modules.get(number, {}).get(step, 0)


def links_key(step: int, level: str) -> str:
    """Return the key of an exchange that was measured with gaps as long as those in a step."""
    return f"{step_key(step, level)}-links"


def gaps_key(step: int) -> str:
    """Return the key of a step's graph that has an empty kernel after each call."""
    return f"{step_key(step, GRAPH)}-gaps"


def host_gaps_key(step: int) -> str:
    """Return the key of empty kernels that the host launches as often as those of a step."""
    return f"{step_key(step, EAGER)}-gaps"


def window_key(step: int, number: int, *, is_layer: bool = False, from_host: bool = False) -> str:
    """Return the key of successive calls that are measured together, see `Account`."""
    whose = "host-" if from_host else ""
    return f"step{step}-{whose}{'layer' if is_layer else 'window'}{number}"


def launches_at(calls: Sequence[UniqueCall], step: int, level: str, modules: Sequence[str]) -> int:
    """Return how many kernels the calls of a step launch at a level."""
    return sum(calls_at(call, step, level, modules) * len(call.launches) for call in calls)


def is_layer_window(found: Measurement, step: int) -> bool:
    """Return whether all calls of a layer of a step were measured together."""
    of_window = found.workload.parameters
    return of_window.get(WINDOW_STEP) == step and bool(of_window.get(WINDOW_LAYER))


def restores_key(key: str) -> str:
    """Return the key of what restores the values that a call or window reads, see `RESTORES`."""
    return f"{key}-restores"


class MeasuredPower(NamedTuple):
    """A power in watts, and the half width of its 95 % interval."""

    power_w: float
    half_width_w: float = 0.0


def links_power(
    step: int, level: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> MeasuredPower | None:
    """Return the power of the links to other GPUs while the exchanges of a step keep them awake.

    Args:
        step: The number of the step.
        level: The level of the step, see `Account`. For layers, the distance between exchanges is
            taken from the graph of the whole step.
        measured: The measurements by their keys.
        temperature_c: The temperature that energies are corrected to.

    Returns:
        The power; None if there are no links, or if it was not measured.
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
    in_gap_mj, gap_ms = at_temperature_mj(gap, temperature_c), time_ms_of(gap)
    either_mj = half_width_mj(apart) + half_width_mj(alone)
    return MeasuredPower(
        more_mj / longer_ms - in_gap_mj / gap_ms,
        either_mj / longer_ms + half_width_mj(gap) / gap_ms,
    )


def gap_power(
    step: int, level: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> MeasuredPower | None:
    """Return the power in the gaps between the kernels of a step.

    In a graph, it is what the step takes more with an empty kernel after each of its calls, per
    time that it takes longer: the kernels before the gaps, and so clocks and caches, are those of
    the step. Between launches of the host, it is the power of the card while the host launches
    empty kernels as often.

    Args:
        step: The number of the step.
        level: The level of the step, see `Account`.
        measured: The measurements by their keys.
        temperature_c: The temperature that energies are corrected to.

    Returns:
        The power; None if it was not measured, or if the power limit slows the step, which then
        runs faster with gaps.
    """
    if level == EAGER:
        found = measured.get(host_gaps_key(step))
        if found is None or not found.measured:
            return None
        in_gaps_mj = at_temperature_mj(found, temperature_c)
        return MeasuredPower(
            in_gaps_mj / time_ms_of(found), half_width_mj(found) / time_ms_of(found)
        )
    plain, longer = measured.get(step_key(step, GRAPH)), measured.get(gaps_key(step))
    if plain is None or longer is None:
        return None
    if not (plain.measured and longer.measured) or plain.cap_binding or longer.cap_binding:
        return None
    more_ms = time_ms_of(longer) - time_ms_of(plain)
    if more_ms <= 0:
        return None
    more_mj = at_temperature_mj(longer, temperature_c) - at_temperature_mj(plain, temperature_c)
    return MeasuredPower(
        more_mj / more_ms, (half_width_mj(longer) + half_width_mj(plain)) / more_ms
    )


class CallShare(Struct, frozen=True):
    """The share of one unique call in a step.

    Attributes:
        call: The id of the unique call.
        operator: The operator that is called.
        calls: How often the step makes the call.
        time_ms: The time of all these calls.
        energy_mj: The energy of all these calls, at the temperature of the step.
        energy_mj_half_width: The half width of the energy's 95 % interval.
        clock_mhz: The effective SM clock meanwhile; None if it could not be measured.
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
        cap: The label of the power limit; ``current`` if it was left as it was.
        step: The number of the step; 0 for the prefill.
        level: ``graph`` where the whole step is a CUDA graph, ``eager`` where the host launches
            each kernel, ``layers`` where the layers alone are a CUDA graph, and the name after
            ``module.`` where another module is.
        time_ms: The measured time of the step.
        energy_mj: The measured energy of the step.
        energy_mj_half_width: The half width of the measured energy's 95 % interval.
        tokens: The number of prompt tokens for the prefill, and of generated tokens for a decode
            step; None for a function, which has none.
        joules_per_token: The measured energy per token.
        tokens_per_joule: Its reciprocal.
        edp_mj_ms: The measured energy times the measured time.
        idle_w: The power of the card between launches.
        kernels_ms: The sum of the calls' times, as measured.
        kernels_mj: The sum of the calls' energies, as measured.
        kernels_mj_half_width: The half width of that sum's 95 % interval.
        temperature_mj: The correction of ``kernels_mj`` to the temperature of the step.
        temperature_mj_half_width: The half width of its 95 % interval, since kernels differ in
            their change of energy per kelvin.
        trace_ms: The GPU time of the calls in the model, by its trace; exchanges between ranks are
            left out, because there they include waiting.
        gpu_ms: The GPU time of the same calls alone, by the same profiler; None if it is unknown
            for any of them.
        gaps_ms: The time of the step in which no call runs; negative if the calls took longer
            alone than the step.
        gaps_mj: The energy of the gaps, at ``gaps_w``.
        residual_mj: The measured energy that the prediction does not account for.
        predicted_mj: The sum of calls, temperature, links and gaps.
        energy_error: The error of the prediction, relative to the measured energy.
        time_error: The difference of ``gpu_ms`` and ``neighbours_gpu_ms`` from ``trace_ms``,
            relative to it; None without ``gpu_ms``.
        clock_mhz: The effective SM clock during the step; None if it could not be measured.
        coverage: The part of the step's GPU time, by the trace, whose calls have been measured.
        parts: The unique calls of the step, the most energy first.
        missing: The ids of the calls that have no figures.
        limited: The ids of the calls that the power limit slowed down more alone than in the step:
            alone, they take more time and less power. Calls that lie only in ``windows`` are left
            out.
        spaced: The ids of such calls that were also measured with gaps after them; their figures
            are interpolated to the clock of the step.
        rank: The rank whose part of the model it is, where several ranks share one.
        links_w: The power of the links to other GPUs while the exchanges of a step keep them
            awake; None if there are no links, or if it was not measured.
        links_mj: The energy of the links outside exchanges, at that power.
        links_mj_half_width: The half width of its 95 % interval.
        gaps_w: The power in the gaps, see `gap_power`; ``idle_w`` where that was not measured, or
            where its interval holds ``idle_w``.
        gaps_mj_half_width: The half width of the 95 % interval of ``gaps_mj``.
        clocks_ms: What the times of ``spaced`` calls change by at the clock of the step.
        clocks_mj: What their energies change by.
        clocks_mj_half_width: The half width of the 95 % interval of ``clocks_mj``.
        neighbours_ms: What the calls of ``windows`` take longer together, in the order in which the
            step makes them, than each alone; without the links and gaps between windows.
        neighbours_mj: What they take more energy.
        neighbours_mj_half_width: The half width of the 95 % interval of ``neighbours_mj``.
        neighbours_gpu_ms: What they take more GPU time by the profiler, where the host launches
            also in windows that the power limit slows down; it counts in ``time_error``.
        windows: The keys of the windows that were measured, each of which has calls of a layer.
        predicted_mj_half_width: The half width of the 95 % interval of ``predicted_mj``. The errors
            of all measurements add up in it, each once: those of calls alone count where a call
            lies in no window.
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
    parts: tuple[CallShare, ...]
    missing: tuple[str, ...]
    limited: tuple[str, ...]
    spaced: tuple[str, ...] = ()
    rank: int = 0
    links_w: float | None = None
    links_mj: float = 0.0
    gaps_w: float | None = None
    gaps_mj_half_width: float = 0.0
    clocks_ms: float = 0.0
    clocks_mj: float = 0.0
    clocks_mj_half_width: float = 0.0
    neighbours_ms: float = 0.0
    neighbours_mj: float = 0.0
    neighbours_mj_half_width: float = 0.0
    neighbours_gpu_ms: float = 0.0
    windows: tuple[str, ...] = ()
    predicted_mj_half_width: float | None = None
    temperature_mj_half_width: float = 0.0
    links_mj_half_width: float = 0.0

    @property
    def room_mj(self) -> float:
        """The residual that the intervals of measurement and prediction leave room for."""
        predicted_mj = self.predicted_mj_half_width
        if predicted_mj is None:  # of an older release
            predicted_mj = self.kernels_mj_half_width + self.gaps_mj_half_width
        return self.energy_mj_half_width + predicted_mj

    @property
    def is_within_intervals(self) -> bool:
        """Whether the residual is no larger than the intervals of measurement and prediction."""
        return abs(self.residual_mj) <= self.room_mj


class Neighbours(NamedTuple):
    """What calls take more together than alone in a step; see `Account`.

    Attributes:
        covered: How many of the step's calls the windows have, by id.
        together_mj: The half widths of the windows' own intervals.
    """

    time_ms: float
    energy_mj: float
    half_width_mj: float
    gpu_ms: float
    windows: tuple[str, ...]
    covered: Mapping[str, int]
    together_mj: float


def _at_limit(whole: Measurement, level: str) -> bool:
    """Return whether the power limit slows a step down as much as its layers one after another.

    Between launches of the host are gaps, in which the limit recovers.
    """
    return bool(whole.cap_binding) and level != EAGER


def _has_clock_of(whole: Measurement, window: Measurement) -> bool:
    """Return whether the power limit slows a window down no more than its step.

    A window may be taken for one at the limit by its power alone, without any slowing down.
    """
    clock_mhz, of_step_mhz = window.effective_sm_clock_mhz, whole.effective_sm_clock_mhz
    if clock_mhz is None or of_step_mhz is None:
        return False
    return clock_mhz >= _SAME_CLOCK * of_step_mhz


def neighbours(
    step: int,
    level: str,
    whole: Measurement,
    alone: Mapping[str, CallFigures],
    counts: Mapping[str, int],
    measured: Mapping[str, Measurement],
) -> Neighbours:
    """Return what calls of a step take more with their neighbours than alone.

    A window counts only if the step makes its calls as often, but for a percent of its time, and if
    the power limit did not slow it down more than the step, unless it is a whole layer. A call in a
    window that was not measured alone counts as zero alone, so that the result contains all of it.
    Each call counts in one window, the longest. Where the host launches, those windows count whose
    calls the host makes, too, since the caches hold the same. A window that the limit slows down
    has the figures that it has with gaps of the step; without these, only its GPU time by the
    profiler counts.

    Args:
        step: The number of the step.
        level: The level of the step, see `Account`.
        whole: The measurement of the step.
        alone: The figures of the step's calls alone, by id.
        counts: How often the step makes each of these calls.
        measured: All measurements by their keys.
    """
    more_ms, more_mj, half_width, together_mj, gpu_us = 0.0, 0.0, 0.0, 0.0, 0.0
    covered: Counter[str] = Counter()
    metered: Counter[str] = Counter()
    windows = []
    from_host = level == EAGER
    for key, found in _longest_first(measured) if level in (GRAPH, LAYERS, EAGER) else ():
        of_window = found.workload.parameters
        count = of_window.get(WINDOW_COUNT)
        if of_window.get(WINDOW_STEP) != step or not isinstance(count, int):
            continue
        if WINDOW_HOST in of_window and not from_host:
            continue
        ids = str(of_window.get(WINDOW_CALLS, "")).split()
        spaced = without_gaps(key, measured, whole.temperature_c) if from_host else None
        together = spaced or figures_of(found, measured, whole.temperature_c)
        if together is None or not counts.keys() >= set(ids):
            continue
        more = {
            call: max(0, covered[call] + count * number - counts[call])
            for call, number in Counter(ids).items()
        }
        more_than_made_ms = sum(
            number * alone[call].time_ms for call, number in more.items() if call in alone
        )
        if more_than_made_ms > _ELSEWHERE * count * together.time_ms:
            continue
        of_limit = _at_limit(whole, level) and is_layer_window(found, step)
        is_slower = (
            not of_limit
            and spaced is None
            and (is_held_back(found, whole) and not _has_clock_of(whole, found))
        )
        if is_slower and not from_host:
            continue
        profiled = [profiled_gpu_us(measured[call]) for call in (key, *ids) if call in measured]
        times_us = [time_us for time_us in profiled if time_us is not None]
        if len(times_us) == 1 + len(ids):
            gpu_us += count * (times_us[0] - sum(times_us[1:]))
        for call in ids:
            covered[call] += count
        if is_slower and from_host:
            continue
        for call in ids:
            metered[call] += count
        apart = [alone[call] for call in ids if call in alone]
        more_ms += count * (together.time_ms - sum(call.time_ms for call in apart))
        more_mj += count * (together.energy_mj - sum(call.energy_mj for call in apart))
        together_mj += count * together.half_width_mj
        half_width += count * sum(call.half_width_mj for call in (together, *apart))
        windows.append(key)
    return Neighbours(
        more_ms, more_mj, half_width, gpu_us / 1e3, tuple(windows), metered, together_mj
    )


def _longest_first(measured: Mapping[str, Measurement]) -> list[tuple[str, Measurement]]:
    """Return the measurements with their keys: first windows of the host, the longest, layers."""

    def order(pair: tuple[str, Measurement]) -> tuple[bool, int, bool]:
        of_window = pair[1].workload.parameters
        length = len(str(of_window.get(WINDOW_CALLS, "")).split())
        return WINDOW_HOST not in of_window, -length, WINDOW_LAYER not in of_window

    return sorted(measured.items(), key=order)


def account_for_step(
    step: int,
    level: str,
    whole: Measurement,
    calls: Sequence[UniqueCall],
    measured: Mapping[str, Measurement],
    idle_w: float,
    tokens: int | None,
    modules: Sequence[str] = (),
    idle_half_width_w: float = 0.0,
) -> Account:
    """Return the account of a step.

    Args:
        step: The number of the step.
        level: The way of launching it, see `Account`.
        whole: The measurement of the step.
        calls: The unique calls that may occur in it.
        measured: The measurements by the ids of calls; calls without figures count as missing.
        idle_w: The power of the card between launches.
        tokens: The number of tokens, see `Account`.
        modules: The names of the modules outside of the layers, as the profile has them.
        idle_half_width_w: The half width of the 95 % interval of ``idle_w``.
    """
    parts: list[CallShare] = []
    missing: list[str] = []
    limited: list[str] = []
    spaced: list[str] = []
    alone_us: list[float | None] = []
    shift_mj, covered_us, all_us, compared_us = 0.0, 0.0, 0.0, 0.0
    clocks_ms, clocks_mj, clocks_half_width, alone_half_width = 0.0, 0.0, 0.0, 0.0
    figures: dict[str, CallFigures] = {}
    made = {call.id: calls_at(call, step, level, modules) for call in calls}
    counts = {call: count for call, count in made.items() if count}
    in_layers = _at_limit(whole, level) and any(
        is_layer_window(found, step)
        and found.measured
        and counts.keys() >= {*str(found.workload.parameters[WINDOW_CALLS]).split()}
        for found in measured.values()
    )
    for call in calls:
        count = counts.get(call.id)
        if not count:
            continue
        all_us += count * call.call_us
        found = measured.get(call.id)
        figures_alone = figures_of(found, measured, whole.temperature_c)
        if found is None or figures_alone is None:
            missing.append(call.id)
            continue
        alone = figures_alone
        shift_mj += count * (alone.energy_mj - alone.raw_mj)
        alone_half_width += count * alone.half_width_mj
        if is_held_back(found, whole) and not in_layers:
            pair, apart = measured.get(spaced_key(call.id)), None
            if pair is not None and not pair.cap_binding:  # or gaps have not helped
                apart = without_gaps(call.id, measured, whole.temperature_c)
            (limited if apart is None else spaced).append(call.id)
            if apart is not None:
                share = clock_share(whole, alone, apart)
                slower, alone = alone, at_clock(alone, apart, share)
                clocks_ms += count * (alone.time_ms - slower.time_ms)
                clocks_mj += count * (alone.energy_mj - slower.energy_mj)
                either_mj = slower.half_width_mj + apart.half_width_mj
                clocks_half_width += count * share * either_mj
        figures[call.id] = alone
        covered_us += count * call.call_us
        if not call.is_exchange:
            compared_us += count * call.call_us
            gpu_us = profiled_gpu_us(found)
            alone_us.append(None if gpu_us is None else count * gpu_us)
        parts.append(
            CallShare(
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
    kernels_ms = sum(part.time_ms for part in parts) - clocks_ms
    predicted_kernels_mj = sum(part.energy_mj for part in parts)
    beside = neighbours(step, level, whole, figures, counts, measured)
    trace_ms = compared_us / 1e3
    gpu_ms = None if None in alone_us else sum(us for us in alone_us if us is not None) / 1e3
    gaps_ms = time_ms - kernels_ms - clocks_ms - beside.time_ms
    in_gaps = gap_power(step, level, measured, whole.temperature_c)
    in_gaps = in_gaps or MeasuredPower(idle_w, idle_half_width_w)
    if level != EAGER and abs(in_gaps.power_w - idle_w) <= in_gaps.half_width_w:
        in_gaps = in_gaps._replace(power_w=idle_w)  # that is known better
    gaps_mj = in_gaps.power_w * gaps_ms
    exchanges = {call.id for call in calls if call.is_exchange}
    exchanges_ms = sum(part.time_ms for part in parts if part.call in exchanges)
    awake = links_power(step, level, measured, whole.temperature_c)
    links_w, links_half_width_w = awake or MeasuredPower(0.0)
    links_half_width = links_half_width_w * (time_ms - exchanges_ms)
    links_mj = links_w * (time_ms - exchanges_ms)
    temperature_half_width = _TWO_SIDED * PER_K_ERROR * abs(shift_mj)
    predicted_mj = predicted_kernels_mj + beside.energy_mj + links_mj + gaps_mj
    gaps_half_width = in_gaps.half_width_w * abs(gaps_ms)
    in_windows = {part.call: beside.covered.get(part.call, 0) for part in parts}
    apart_half_width = sum(
        (part.calls - min(part.calls, in_windows[part.call])) * figures[part.call].half_width_mj
        for part in parts
    )
    compared_ms = None if gpu_ms is None else gpu_ms + beside.gpu_ms
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
        kernels_mj=predicted_kernels_mj - shift_mj - clocks_mj,
        kernels_mj_half_width=alone_half_width,
        temperature_mj=shift_mj,
        trace_ms=trace_ms,
        gpu_ms=gpu_ms,
        gaps_ms=gaps_ms,
        gaps_mj=gaps_mj,
        residual_mj=energy_mj - predicted_mj,
        predicted_mj=predicted_mj,
        energy_error=predicted_mj / energy_mj - 1,
        time_error=compared_ms / trace_ms - 1 if compared_ms is not None and trace_ms else None,
        clock_mhz=whole.effective_sm_clock_mhz,
        coverage=covered_us / all_us if all_us else 0.0,
        parts=tuple(sorted(parts, key=lambda part: -part.energy_mj)),
        missing=tuple(missing),
        limited=tuple(key for key in limited if in_windows[key] < counts[key]),
        spaced=tuple(spaced),
        links_w=None if awake is None else links_w,
        links_mj=links_mj,
        gaps_w=in_gaps.power_w,
        gaps_mj_half_width=gaps_half_width,
        clocks_ms=clocks_ms,
        clocks_mj=clocks_mj,
        clocks_mj_half_width=clocks_half_width,
        neighbours_ms=beside.time_ms,
        neighbours_mj=beside.energy_mj,
        neighbours_mj_half_width=beside.half_width_mj,
        neighbours_gpu_ms=beside.gpu_ms,
        windows=beside.windows,
        predicted_mj_half_width=apart_half_width
        + beside.together_mj
        + gaps_half_width
        + links_half_width
        + temperature_half_width,
        temperature_mj_half_width=temperature_half_width,
        links_mj_half_width=links_half_width,
    )


class Saving(Struct, frozen=True):
    """The energy that a call would save under the power limit that suits it best.

    Attributes:
        step: The number of the step; 0 for the prefill.
        call: The id of the unique call.
        operator: The operator that is called.
        calls: How often the step makes the call.
        cap: The power limit with the least energy; the reference limit unless the energy's
            interval lies below that of the reference.
        energy_mj: The energy of all these calls under the reference limit.
        saved_mj: The part of it that ``cap`` saves.
        slowdown: The time under ``cap``, relative to that under the reference limit.
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
    """Return the savings of each call of a step, the most energy first.

    Args:
        step: The number of the step.
        calls: The unique calls that may occur in it.
        measured: By the label of the power limit, the measurements by the ids of calls.
        reference: The label of the limit to compare with.
    """
    found = []
    for call in calls:
        count = call.in_graph.steps.get(step, 0)
        by_cap = {
            cap: figures
            for cap, group in measured.items()
            if (one := group.get(call.id)) is not None
            and (figures := figures_of(one, group, one.settled_temperature_c)) is not None
        }
        if not count or reference not in by_cap:
            continue
        plain = by_cap[reference]
        cap, best = min(by_cap.items(), key=lambda pair: pair[1].energy_mj)
        if best.energy_mj + best.half_width_mj >= plain.energy_mj - plain.half_width_mj:
            cap, best = reference, plain
        found.append(
            Saving(
                step=step,
                call=call.id,
                operator=call.operator,
                calls=count,
                cap=cap,
                energy_mj=count * plain.energy_mj,
                saved_mj=count * (plain.energy_mj - best.energy_mj),
                slowdown=best.time_ms / plain.time_ms,
            )
        )
    return sorted(found, key=lambda saving: -saving.energy_mj)


class Total(Struct, frozen=True):
    """A step on all ranks, which run it at the same time; see `Account` for the other attributes.

    Attributes:
        time_ms: The time of the slowest rank.
        energy_mj: The measured energy of all ranks.
        energy_mj_half_width: The half width of its 95 % interval, if the errors of the ranks are
            fully correlated.
        predicted_mj: The predicted energy of all ranks.
        residual_mj: The measured energy less the predicted energy.
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


def total_over_ranks(accounts: Sequence[Account], ranks: int) -> Iterator[Total]:
    """Add up the accounts of each power limit, step and level that all ranks have measured."""
    groups: dict[tuple[str, int, str], list[Account]] = {}
    for account in accounts:
        groups.setdefault((account.cap, account.step, account.level), []).append(account)
    for (cap, step, level), group in groups.items():
        if len(group) < ranks:
            continue
        time_ms = max(account.time_ms for account in group)
        energy_mj = sum(account.energy_mj for account in group)
        predicted_mj = sum(account.predicted_mj for account in group)
        tokens = group[0].tokens
        yield Total(
            cap=cap,
            step=step,
            level=level,
            time_ms=time_ms,
            energy_mj=energy_mj,
            energy_mj_half_width=sum(account.energy_mj_half_width for account in group),
            predicted_mj=predicted_mj,
            residual_mj=energy_mj - predicted_mj,
            energy_error=predicted_mj / energy_mj - 1,
            tokens=tokens,
            joules_per_token=energy_mj / 1e3 / tokens if tokens else None,
            tokens_per_joule=tokens / (energy_mj / 1e3) if tokens else None,
            edp_mj_ms=energy_mj * time_ms,
        )
