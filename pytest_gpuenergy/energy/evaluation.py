"""From what was observed of one measurement to a `Reading`: trials, intervals and flags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.devices import Timeline
from pytest_gpuenergy.energy.clock_states import clock_states, mean_clock_mhz, stepped
from pytest_gpuenergy.energy.drift import unsettled
from pytest_gpuenergy.energy.gain import Gain, gains
from pytest_gpuenergy.energy.reading import Reading
from pytest_gpuenergy.energy.sensors import (
    RESTRAINING_REASONS,
    SW_POWER_CAP,
    Restraint,
    all_reasons,
    doubts,
)
from pytest_gpuenergy.energy.settings import MeterSettings
from pytest_gpuenergy.energy.source import Edge, EnergySource
from pytest_gpuenergy.energy.statistics import estimate
from pytest_gpuenergy.energy.steadiness import Steadiness
from pytest_gpuenergy.energy.thermal import Settling
from pytest_gpuenergy.energy.windows import cut_windows, placement_variance
from pytest_gpuenergy.record import ClockState, Conditions, Estimate, Metric, Window
from pytest_gpuenergy.support import NORMAL


@dataclass(frozen=True)
class Observation:
    """What was observed of one measurement.

    Attributes:
        start_s: when the kernel began to repeat, by the device's clock.
        before_w: mean power before that; None when it is unknown.
        restrained: see `Steadiness`.
        warm: edges of the heat-up, up to the first of ``edges``.
        edges: the edges between which the trials are.
        timeline: of the kernel's launches.
        samples_w: mean power over the trials by the card's power samples; None without samples.
        settling: of the temperature; None if it is not known.
        meanwhile: what restrained the card at the edges of the trials.
        temperatures_c: readings at the ends of the trials.
        start: state of the card before the heat-up.
        begin: state of the card before the trials.
        end: state of the card after the trials.
        heat_wall_s: the host's time until the trials began.
    """

    start_s: float
    before_w: float | None
    restrained: bool
    warm: Sequence[Edge]
    edges: Sequence[Edge]
    timeline: Timeline
    samples_w: float | None
    settling: Settling | None
    meanwhile: frozenset[Restraint]
    temperatures_c: Sequence[int | None]
    start: Conditions
    begin: Conditions
    end: Conditions
    heat_wall_s: float


def evaluate(seen: Observation, source: EnergySource, settings: MeterSettings) -> Reading:
    """The reading that follows from an observation.

    Args:
        seen: what was observed.
        source: which its edges come from.
        settings: which intervals and differences are small enough.
    """
    steadiness = Steadiness(source, settings, seen.start_s, seen.restrained)
    window = _window(seen, steadiness)
    gain_of = gains(seen.settling, _headroom(seen, window.power_w))
    figures = _figures(seen, window, gain_of, settings)
    gain = gain_of[Metric.ENERGY]
    states = _clock_states(seen, window)
    flags = {
        "not_steady": steadiness.drifts([*seen.warm[:-1], *seen.edges]),
        "interval_wide": figures[Metric.ENERGY].relative_half_width
        > math.hypot(2 * settings.relative_half_width, NORMAL * gain.error),
        "not_settled": NORMAL * gain.error > settings.settled_half_width,
        "host_gaps": window.busy < settings.least_busy,
        "sources_disagree": seen.samples_w is not None
        and abs(seen.samples_w / window.power_w - 1) > settings.sources_tolerance,
        "clock_step": stepped(states),
        "power_limit_changed": len(set(_limits_mw(seen))) > 1,
        **doubts(seen.begin, seen.end, seen.meanwhile),
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
        event_reasons=_reasons(seen),
        temperature_c=_mean_temperature_c(seen),
        effective_sm_clock_mhz=mean_clock_mhz(seen.timeline.clocks, window.begin_s, window.end_s),
        clock_states=states,
    )


@dataclass(frozen=True)
class _Window:
    """The trials of one measurement and the time that they span.

    ``error_s`` is the standard error of the length of that time.
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
        """Mean energy of a launch."""
        return sum(trial.energy_mj for trial in self.trials) / len(self.trials)

    @property
    def busy(self) -> float:
        """Fraction of the time in which the GPU was busy."""
        return sum(trial.busy_seconds for trial in self.trials) / self.length_s


def _window(seen: Observation, steadiness: Steadiness) -> _Window:
    edges = [*seen.warm[:-1], *seen.edges]
    begin = len(seen.warm) - 1
    edge_times, error_s = steadiness.source.times_s(edges, begin)
    warm = steadiness.like_trials(seen.warm)
    chosen = [*warm, *range(begin, len(edges))]
    times = [edge_times[index] for index in chosen]
    cut = cut_windows(times, [edges[index].energy_mj for index in chosen], seen.timeline)
    count = len(warm)
    return _Window(cut[:count], cut[count:], times[count], times[-1], error_s)


def _headroom(seen: Observation, power_w: float) -> float:
    """By which fraction the power can rise; infinite where there is no limit to see."""
    moments: list[Conditions | Restraint] = [seen.begin, seen.end, *seen.meanwhile]
    if all((moment.event_reasons or 0) & SW_POWER_CAP for moment in moments):
        return 0.0
    limits_w = [limit_mw / 1e3 for limit_mw in _limits_mw(seen) if limit_mw is not None]
    return max(0.0, min(limits_w, default=math.inf) / power_w - 1)


def _figures(
    seen: Observation, window: _Window, gain_of: Mapping[Metric, Gain], settings: MeterSettings
) -> dict[Metric, Estimate]:
    middle_s = (window.begin_s + window.end_s) / 2
    # The trials' scatter shows the errors at the window's ends only in part, so they are added in
    # full. What is left of the former power counts as two standard deviations.
    left = unsettled(seen.before_w, window.power_w, middle_s - seen.start_s)
    shared = (window.error_s / window.length_s) ** 2 + (left / 2) ** 2
    placed = placement_variance(seen.timeline, window.begin_s, window.end_s)
    unseen = {Metric.TIME: placed, Metric.ENERGY: shared, Metric.EDP: shared + placed}
    return {
        metric: _figure(
            window,
            metric,
            gain_of[metric],
            unseen[metric],
            settings.wander[metric],
        )
        for metric in Metric
    }


def _figure(window: _Window, metric: Metric, gain: Gain, unseen: float, wander: float) -> Estimate:
    """The mean over the trials, whose interval also counts what they do not show.

    Args:
        window: with the trials.
        metric: which figure.
        gain: from the trials' figures to those of the settled card.
        unseen: relative variance from errors that the trials share.
        wander: relative standard deviation of the item about the kernel's mean.
    """
    before, own = (
        [gain.factor * getattr(trial, metric.field) for trial in trials]
        for trials in (window.warm_trials, window.trials)
    )
    mean = sum(own) / len(own)
    return estimate(
        own,
        extra_variance=unseen * mean * mean,
        known_variance=(wander**2 + gain.error**2) * mean * mean,
        successive=True,
        before=before,
    )


def _clock_states(seen: Observation, window: _Window) -> tuple[ClockState, ...]:
    """None where something holds the clock back, because it then moves anyway."""
    if _reasons(seen) & RESTRAINING_REASONS:
        return ()
    return clock_states(seen.timeline.clocks, seen.start_s, window.begin_s, window.end_s)


def _mean_temperature_c(seen: Observation) -> float | None:
    """Over the trials; None if the card has not reported it."""
    readings = [seen.begin.temperature_c, *seen.temperatures_c]
    known = [reading for reading in readings if reading is not None]
    return sum(known) / len(known) if known else None


def _reasons(seen: Observation) -> int:
    return all_reasons(seen.begin, seen.end, *seen.meanwhile)


def _limits_mw(seen: Observation) -> Iterator[int | None]:
    yield from (seen.start.power_limit_mw, seen.end.power_limit_mw)
    yield from (moment.power_limit_mw for moment in seen.meanwhile)
