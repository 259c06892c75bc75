"""Evaluates the observation of one measurement: a `Reading` with intervals and validity flags."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from pytest_gpuenergy.devices import Timeline
from pytest_gpuenergy.energy.clock_states import clock_states, has_clock_step, mean_clock_mhz
from pytest_gpuenergy.energy.energy_source import Edge, EnergySource
from pytest_gpuenergy.energy.sensors import (
    SW_POWER_CAP,
    THROTTLE_REASONS,
    ThrottleState,
    all_reasons,
    condition_flags,
)
from pytest_gpuenergy.energy.steadiness import (
    ONE_SWING,
    MeterSettings,
    Steadiness,
    former_power_effect,
)
from pytest_gpuenergy.energy.thermal import Settling
from pytest_gpuenergy.record import ClockState, Conditions, Estimate, Metric, Window
from pytest_gpuenergy.support import NORMAL, student_t


@dataclass(frozen=True)
class Reading:
    """The time, energy and energy-delay product of one launch, and the conditions they hold under.

    Attributes:
        time_ms: the mean time of a launch.
        energy_mj: the mean energy of a launch on a card that has settled under the kernel.
        edp_mj_ms: the mean product of time and energy.
        power_w: the mean power of the settled card.
        raw_energy_mj: the mean energy of a launch at the temperature of the trials.
        warm_trials: the windows at the end of the heat-up, which count for the scatter only.
        trials: the windows whose means the figures are.
        start: the state of the card before the heat-up.
        begin: the state of the card before the trials.
        end: the state of the card after the trials.
        flags: the validity flags; empty if the reading is clean.
        energy_source: the name of the `EnergySource`.
        heat_wall_s: the host's time until the trials began.
        event_reasons: NVML's clock-event reasons at any edge of the trials.
        temperature_c: the mean temperature over the trials; None if the card does not report it.
        effective_sm_clock_mhz: the mean clock of an SM over the trials; None if it is unknown.
        clock_states: the states of the card during heat-up and trials; empty if unknown.
        settling: the settling of the temperature; None if it is unknown.
        settling_error: the relative standard error of the energy from the temperature's remaining
            change.
    """

    time_ms: Estimate
    energy_mj: Estimate
    edp_mj_ms: Estimate
    power_w: float
    raw_energy_mj: float
    warm_trials: tuple[Window, ...]
    trials: tuple[Window, ...]
    start: Conditions
    begin: Conditions
    end: Conditions
    flags: tuple[str, ...] = ()
    energy_source: str = "counter"
    heat_wall_s: float = 0.0
    event_reasons: int = 0
    temperature_c: float | None = None
    effective_sm_clock_mhz: float | None = None
    clock_states: tuple[ClockState, ...] = ()
    settling: Settling | None = None
    settling_error: float = 0.0

    def estimate(self, metric: Metric) -> Estimate:
        """Return the figure of ``metric`` with its interval."""
        found: Estimate = getattr(self, metric.field)
        return found


@dataclass(frozen=True)
class Observation:
    """The raw observation of one measurement.

    Attributes:
        start_s: the start of the launches on the device's clock.
        before_w: the mean power before the start; None if it is unknown.
        warm: the edges of the heat-up, up to the first of ``edges``.
        edges: the edges between which the trials are.
        timeline: the timeline of the kernel's launches.
        samples_w: the mean power over the trials by the card's power samples; None without samples.
        settling: the settling of the temperature; None if it is unknown.
        meanwhile: the throttle states of the card at the edges of the trials.
        temperatures_c: the temperatures at the ends of the trials.
        start: the state of the card before the heat-up.
        begin: the state of the card before the trials.
        end: the state of the card after the trials.
        heat_wall_s: the host's time until the trials began.
    """

    start_s: float
    before_w: float | None
    warm: Sequence[Edge]
    edges: Sequence[Edge]
    timeline: Timeline
    samples_w: float | None
    settling: Settling | None
    meanwhile: frozenset[ThrottleState]
    temperatures_c: Sequence[int | None]
    start: Conditions
    begin: Conditions
    end: Conditions
    heat_wall_s: float

    @property
    def all_edges(self) -> list[Edge]:
        """The edges of the heat-up and of the trials."""
        return [*self.warm[:-1], *self.edges]

    @property
    def event_reasons(self) -> int:
        """The clock-event reasons at any moment of the trials."""
        return all_reasons(self.begin, self.end, *self.meanwhile)

    @property
    def is_limited(self) -> bool:
        """Whether the power limit has held the card back during the trials."""
        return any(state.by_power_limit for state in self.meanwhile)

    @property
    def power_limits_mw(self) -> set[int | None]:
        """The power limits before, during and after the trials; None if one is not reported."""
        moments: list[Conditions | ThrottleState] = [self.start, self.end, *self.meanwhile]
        return {moment.power_limit_mw for moment in moments}

    def headroom(self, power_w: float) -> float:
        """Return the fraction by which the power can rise; infinite if no limit is reported."""
        moments: list[Conditions | ThrottleState] = [self.begin, self.end, *self.meanwhile]
        if all((moment.event_reasons or 0) & SW_POWER_CAP for moment in moments):
            return 0.0
        limits_w = [limit_mw / 1e3 for limit_mw in self.power_limits_mw if limit_mw is not None]
        return max(0.0, min(limits_w, default=math.inf) / power_w - 1)


def evaluate(seen: Observation, source: EnergySource, settings: MeterSettings) -> Reading:
    """Return the reading that follows from an observation."""
    steadiness = Steadiness(source, settings, seen.start_s)
    window = _window(seen, steadiness)
    gain_of = settling_gains(seen.settling, seen.headroom(window.power_w))
    figures = _figures(seen, window, gain_of, steadiness)
    gain = gain_of[Metric.ENERGY]
    states: tuple[ClockState, ...] = ()
    if not seen.event_reasons & THROTTLE_REASONS:  # otherwise the clock varies all the time
        states = clock_states(seen.timeline.clocks, seen.start_s, window.begin_s, window.end_s)
    temperatures_c = [
        reading_c
        for reading_c in (seen.begin.temperature_c, *seen.temperatures_c)
        if reading_c is not None
    ]
    drifts = (
        steadiness.drifts_over_swings([trial.joules / trial.seconds for trial in window.trials])
        if seen.is_limited
        else steadiness.drifts(seen.all_edges)
    )
    flags = {
        "not_steady": drifts,
        "interval_wide": figures[Metric.ENERGY].relative_half_width
        > math.hypot(2 * settings.relative_half_width, NORMAL * gain.error),
        "not_settled": NORMAL * gain.error > settings.settled_half_width,
        "host_gaps": window.busy < settings.least_busy,
        "sources_disagree": seen.samples_w is not None
        and abs(seen.samples_w / window.power_w - 1) > settings.sources_tolerance,
        "clock_step": has_clock_step(states),
        "power_limit_changed": len(seen.power_limits_mw) > 1,
        **condition_flags(seen.begin, seen.end, seen.meanwhile),
    }
    return Reading(
        time_ms=figures[Metric.TIME],
        energy_mj=figures[Metric.ENERGY],
        edp_mj_ms=figures[Metric.EDP],
        power_w=window.power_w * gain.factor,
        raw_energy_mj=window.energy_mj,
        settling=seen.settling,
        settling_error=gain.error,
        warm_trials=window.warm_trials,
        trials=window.trials,
        start=seen.start,
        begin=seen.begin,
        end=seen.end,
        flags=tuple(name for name, raised in flags.items() if raised),
        energy_source=source.name,
        heat_wall_s=seen.heat_wall_s,
        event_reasons=seen.event_reasons,
        temperature_c=fmean(temperatures_c) if temperatures_c else None,
        effective_sm_clock_mhz=mean_clock_mhz(seen.timeline.clocks, window.begin_s, window.end_s),
        clock_states=states,
    )


@dataclass(frozen=True)
class _Window:
    """The trials of one measurement and the time that they span.

    Attributes:
        warm_trials: the windows at the end of the heat-up.
        trials: the trials.
        begin_s: the start of the first trial.
        end_s: the end of the last trial.
        error_s: the standard error of the time between the two.
    """

    warm_trials: tuple[Window, ...]
    trials: tuple[Window, ...]
    begin_s: float
    end_s: float
    error_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def power_w(self) -> float:
        return sum(trial.joules for trial in self.trials) / self.length_s

    @property
    def energy_mj(self) -> float:
        """The mean energy of a launch."""
        return sum(trial.energy_mj for trial in self.trials) / len(self.trials)

    @property
    def busy(self) -> float:
        """The fraction of the time in which the GPU was busy."""
        return sum(trial.busy_seconds for trial in self.trials) / self.length_s


def _window(seen: Observation, steadiness: Steadiness) -> _Window:
    edges = seen.all_edges
    begin = len(seen.warm) - 1
    edge_times, error_s = steadiness.source.times_s(edges, begin)
    warm = steadiness.like_trials(seen.warm)
    chosen = [*warm, *range(begin, len(edges))]
    times = [edge_times[index] for index in chosen]
    cut = cut_windows(times, [edges[index].energy_mj for index in chosen], seen.timeline)
    count = len(warm)
    return _Window(cut[:count], cut[count:], times[count], times[-1], error_s)


def _figures(
    seen: Observation, window: _Window, gain_of: Mapping[Metric, Gain], steadiness: Steadiness
) -> dict[Metric, Estimate]:
    """Return the means over the trials, with intervals that include errors they do not show."""
    settings, swing = steadiness.settings, steadiness.swing if seen.is_limited else 1
    middle_s = (window.begin_s + window.end_s) / 2
    # The scatter of the trials shows the errors at the window's ends only in part, so they are
    # added in full. The remaining effect of the former power counts as two standard deviations.
    left = former_power_effect(seen.before_w, window.power_w, middle_s - seen.start_s)
    shared = (window.error_s / window.length_s) ** 2 + (left / 2) ** 2
    placed = placement_variance(seen.timeline, window.begin_s, window.end_s)
    unseen = {Metric.TIME: placed, Metric.ENERGY: shared, Metric.EDP: shared + placed}
    figures = {}
    for metric in Metric:
        gain, wander = gain_of[metric], settings.wander[metric]
        before, own = (
            [gain.factor * getattr(trial, metric.field) for trial in trials]
            for trials in (window.warm_trials, window.trials)
        )
        mean = sum(own) / len(own)
        figures[metric] = estimate(
            own,
            extra_variance=unseen[metric] * mean * mean,
            known_variance=(wander**2 + gain.error**2) * mean * mean,
            successive=True,
            before=before,
            swing=swing,
            one_swing=ONE_SWING[metric],
        )
    return figures


SLOWED = 0.3
"""The per cent by which a card at its power limit slows down for a per cent of power: when it gets
warmer, it leaks more and has less power left for its work. The value is 0 for a kernel that waits
for the memory, and up to 0.5 for a kernel that computes and whose power grows with the square of
the clock or more. A kernel that computes showed 0.3 on an H100 (docs/notes/temperature.md)."""


class Gain(NamedTuple):
    """The factor by which a figure changes until the card has settled; ``error`` is relative."""

    factor: float
    error: float


UNCHANGED = Gain(1.0, 0.0)


def settling_gains(settling: Settling | None, headroom: float) -> dict[Metric, Gain]:
    """Return the gain of each metric.

    The power rises as far as the limit allows. How much longer a launch takes beyond that depends
    on the kernel, and counts as an error.

    Args:
        settling: the settling of the temperature; None if it is unknown.
        headroom: the fraction by which the power can rise before it reaches its limit; with 0 it
            stays at the limit, also on a card that cools.
    """
    if settling is None:
        return dict.fromkeys(Metric, UNCHANGED)
    if 0 < headroom > settling.gain:
        free = Gain(1 + settling.gain, settling.gain_error)
        return {Metric.TIME: UNCHANGED, Metric.ENERGY: free, Metric.EDP: free}
    slowed = SLOWED * math.hypot(settling.gain - headroom, settling.gain_error)
    return {
        Metric.TIME: Gain(1.0, slowed),
        Metric.ENERGY: Gain(1 + headroom, slowed),
        Metric.EDP: Gain(1 + headroom, 2 * slowed),
    }


def cut_windows(
    times_s: Sequence[float], energies_mj: Sequence[float], timeline: Timeline
) -> tuple[Window, ...]:
    """Return the windows between successive edges, with the launches and GPU time within them."""
    launches = np.interp(times_s, timeline.time_s, timeline.launches)
    busy_s = np.interp(times_s, timeline.time_s, timeline.busy_s)
    table = zip(
        np.diff(times_s),
        np.diff(energies_mj) / 1e3,
        np.diff(launches),
        np.diff(busy_s),
        strict=True,
    )
    return tuple(Window(*(float(value) for value in row)) for row in table)


def placement_variance(timeline: Timeline, begin_s: float, end_s: float) -> float:
    """Return the relative variance of the mean time that comes from sampling memory placements.

    This is the squared standard error, relative to the mean, of the mean over
    `Timeline.placements`: the variance of their means divided by their number. Only batches that
    ended after ``begin_s`` and no later than ``end_s`` count. The variance is 0 if fewer than two
    placements have such batches.
    """
    inside = (timeline.time_s[1:] > begin_s) & (timeline.time_s[1:] <= end_s)
    turns = np.arange(len(inside)) % timeline.placements
    launches, busy_s = np.diff(timeline.launches), np.diff(timeline.busy_s)
    times_s = [
        busy_s[own].sum() / launches[own].sum()
        for turn in range(timeline.placements)
        if launches[own := inside & (turns == turn)].sum() > 0
    ]
    if len(times_s) < 2:
        return 0.0
    return float(np.var(times_s, ddof=1) / len(times_s) / np.mean(times_s) ** 2)


def estimate(
    values: Sequence[float],
    *,
    extra_variance: float = 0.0,
    known_variance: float = 0.0,
    successive: bool = False,
    before: Sequence[float] = (),
    swing: int = 1,
    one_swing: float = math.inf,
) -> Estimate:
    """Return the mean of ``values`` with its 95 % interval by Student's t.

    The squares of the half widths from the estimated variances (Student's t) and from
    ``known_variance`` (normal) are added, which is exact if either is 0 and conservative otherwise.

    Args:
        values: two or more values.
        extra_variance: the variance of the mean from errors common to all values, which their
            scatter does not show, estimated in the same measurement.
        known_variance: the variance of the mean from such errors that is known beforehand.
        successive: whether the values are neighbours in time and depend on each other, see
            `variance_of_mean`; otherwise they are independent.
        before: see `variance_of_mean`.
        swing: the number of values in a swing, if they swing: see `variance_over_swings`, which is
            used instead from two swings on.
        one_swing: the relative standard deviation of the mean over one swing, which counts instead
            of the scatter of its values if that is wider.

    Raises:
        ValueError: there are fewer than two values, or a value is not finite.
    """
    if len(values) < 2 or not all(map(math.isfinite, [*values, *before])):
        raise ValueError("an interval needs at least two finite values")
    mean, degrees = fmean(values), len(values) - 1
    if swing > 1 and len(values) >= 2 * swing:
        own, degrees = variance_over_swings(values, swing), (len(values) - swing) // 2
    elif successive:
        own = variance_of_mean(values, before)
        degrees += len(before)
        if len(values) == swing and (one_swing * mean) ** 2 < own:
            own, known_variance = 0.0, known_variance + (one_swing * mean) ** 2
    else:
        own = stdev(values) ** 2 / len(values)
    half = math.hypot(
        student_t(degrees) * math.sqrt(own + extra_variance), NORMAL * math.sqrt(known_variance)
    )
    return Estimate(mean, mean - half, mean + half)


def variance_of_mean(values: Sequence[float], before: Sequence[float] = ()) -> float:
    """Return the variance of the mean of ``values``, which follow each other in time.

    Neighbouring windows share an edge, whose error makes one window larger and the other smaller,
    and cancels in the sum. A slowly varying power has the opposite effect. The autocovariances c(l)
    reflect both; the variance of the mean of n values is

        (c(0) + 2 sum over l of (1 - l/n) w(l) c(l)) / n

    (T. W. Anderson, "The Statistical Analysis of Time Series", 1971, section 8.3.1), here over lags
    up to a quarter of the values, but at least two. The weights w are 1 at lag 1, where the errors
    of the edges appear, and decrease linearly to zero. Computed about the mean of N values, each c
    is too small by about c(0) / N if the values are independent; this is corrected. The errors of
    the two outermost edges do not cancel, so the result is no less than the variance they would
    cause if all the scatter came from edges.

    Args:
        values: two or more values.
        before: values of the same process from just before, which are not part of the mean but help
            to estimate the autocovariances.
    """
    series = [*before, *values]
    count, total = len(values), len(series)
    mean = fmean(series)
    gaps = [value - mean for value in series]
    variance = math.fsum(map(operator.mul, gaps, gaps)) / (total - 1)
    lags = min(count - 1, max(2, round(count / 4)))
    longrun = variance
    for lag in range(1, lags + 1):
        products = math.fsum(map(operator.mul, gaps, gaps[lag:]))
        weight = (1 - lag / count) * (1 - (lag - 1) / lags)
        longrun += 2 * weight * (products / (total - 1) + variance / total)
    return max(longrun / count, variance / count**2)


def variance_over_swings(values: Sequence[float], swing: int) -> float:
    """Return the variance of the mean of ``values`` that swing about it with a known period.

    Means over whole swings do not show the swing. The variance follows from all means over as many
    successive values (overlapping batch means: M. S. Meketon, B. Schmeiser, "Overlapping batch
    means: something for nothing?", Winter Simulation Conference 1984). Half as many degrees of
    freedom as there are such means beyond the first are conservative: of 274 measurements at the
    power limit of H100s and H200s, 99 % of the intervals of the first 2 s held the mean over 5 s.

    Args:
        values: at least two swings.
        swing: the number of values in a swing.
    """
    count, mean = len(values), fmean(values)
    means = [fmean(values[start : start + swing]) for start in range(count - swing + 1)]
    squares = math.fsum((mean_value - mean) ** 2 for mean_value in means)
    return swing * squares / ((count - swing) * (count - swing + 1))
