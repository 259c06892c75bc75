"""From NVML's readings while a kernel runs back to back: time and joules of one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np

from pytest_gpuenergy.devices.device import Device, Repeater, Timeline
from pytest_gpuenergy.energy.drift import PowerHistory, Slope, power_slope, unsettled
from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.energy.sensors import (
    Restraint,
    all_reasons,
    doubts,
    power_by_samples_w,
    read_conditions,
    read_restraint,
)
from pytest_gpuenergy.energy.source import CounterError, Edge, EnergySource
from pytest_gpuenergy.energy.statistics import estimate
from pytest_gpuenergy.energy.windows import cut_windows, placement_variance
from pytest_gpuenergy.record.conditions import Conditions
from pytest_gpuenergy.record.estimate import WANDER, Estimate
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.window import Window

_SPAN_S = 1.0
_TRANSIENT_S = 0.3


@dataclass(frozen=True)
class MeterSettings:
    """How long to heat up and to measure.

    Attributes:
        warmup_s: least time under load before the first trial: the second over which the card
            averages its power; more by the energy source's memory.
        warmup_max_s: after this the trials begin, steady or not.
        steady_slope_per_s: power that changes by less per second, relatively, is steady.
        settled: the heat-up ends when what the card ran before makes no more than this of the
            power, relatively, see `unsettled`.
        trial_s: length of one trial, rounded to whole updates of the energy source, and no
            shorter than its memory.
        min_trials: least number of trials.
        min_measure_s: least time of all trials.
        max_measure_s: the trials end after this, however wide the interval, once there are
            ``min_trials``.
        relative_half_width: the trials end when their scatter leaves an energy's 95 % interval as
            narrow as this, and the power is steady.
        wander: standard deviation of an item's figure about the kernel's over many items,
            relatively, which the item's trials cannot show, by metric.
        sources_tolerance: the counter and the power samples may differ by this, relatively.
        least_busy: least fraction of the window in which the GPU must have been busy.
    """

    warmup_s: float = 1.0
    warmup_max_s: float = 5.0
    steady_slope_per_s: float = 0.01
    settled: float = 0.006
    trial_s: float = 0.1
    min_trials: int = 4
    min_measure_s: float = 0.6
    max_measure_s: float = 5.0
    relative_half_width: float = 0.005
    wander: Mapping[Metric, float] = field(default_factory=lambda: dict(WANDER))
    sources_tolerance: float = 0.02
    least_busy: float = 0.99


@dataclass(frozen=True)
class Reading:
    """What the meter found: one launch's time, energy and energy-delay product, and conditions.

    ``warm_trials`` are of the end of the heat-up, and tell of the scatter only. ``start`` is the
    state of the card before the heat-up, ``begin`` and ``end`` that around the trials. ``flags``
    names what makes the reading doubtful; it is empty when it is clean. ``energy_source`` is the
    name of the `EnergySource`, ``heat_wall_s`` the host's time until the trials began.
    ``event_reasons`` are NVML's clock-event reasons at any edge of the trials.
    """

    time_ms: Estimate
    energy_mj: Estimate
    edp_mj_ms: Estimate
    power_w: float
    warm_trials: tuple[Window, ...]
    trials: tuple[Window, ...]
    start: Conditions
    begin: Conditions
    end: Conditions
    flags: tuple[str, ...] = field(default=())
    energy_source: str = "counter"
    heat_wall_s: float = 0.0
    event_reasons: int = 0

    def estimate(self, metric: Metric) -> Estimate:
        """The figure with its interval."""
        found: Estimate = getattr(self, metric.field)
        return found


class EnergyMeter:
    """Measures what a `Repeater` runs, on one device.

    Args:
        device: the one.
        settings: how long to heat up and to measure.
        source: where the joules come from, if another meter knows its ways already.
    """

    def __init__(
        self,
        device: Device,
        settings: MeterSettings | None = None,
        source: EnergySource | None = None,
    ) -> None:
        self._device = device
        self._settings = settings or MeterSettings()
        self._history = PowerHistory(device)
        self._source = source

    @property
    def source(self) -> EnergySource:
        """Where the joules come from; found out at first use.

        Raises:
            DeviceError: the card has no source of energy.
        """
        if self._source is None:
            self._source = choose_source(self._device)
        return self._source

    def measure(self, repeater: Repeater) -> Reading:
        """Run ``repeater``, heat up until the power is steady, and measure until it is precise.

        Raises:
            KernelFault: a launch failed or hung.
            CounterError: the energy source stands still or ran backwards.
            DeviceError: NVML does not answer.
        """
        began_s = perf_counter()
        start, source = read_conditions(self._device), self.source
        before_w = self._history.mean_w()
        repeater.start()
        start_s = self._device.clock.now_s()
        stopped = False
        try:
            warm = self._warm_up(source, start_s, before_w)
            begin = read_conditions(self._device)
            heat_wall_s = perf_counter() - began_s
            edges, meanwhile = self._run_trials(source, warm, start_s)
            power_w = power_by_samples_w(self._device, edges[-1].time_s - edges[0].time_s)
            end = read_conditions(self._device)
            stopped = True
            timeline = repeater.stop()
            self._history.note()
        finally:
            if not stopped:
                repeater.stop()
        run = _Run(start_s, before_w, warm, edges, timeline, power_w, meanwhile)
        reading = self._evaluate(run, start, begin, end)
        return replace(reading, heat_wall_s=heat_wall_s)

    def _warm_up(self, source: EnergySource, start_s: float, before_w: float | None) -> list[Edge]:
        settings, clock = self._settings, self._device.clock
        begin_s = clock.now_s()
        edges = [source.probe()]
        stride = max(1, round(0.1 / source.period_s))
        # A source that had to be probed first has kept the card under load for longer.
        longest_s = max(settings.warmup_max_s, clock.now_s() - begin_s + 1.0)
        while clock.now_s() - begin_s < longest_s:
            edges.append(source.next_edge(stride))
            if clock.now_s() - begin_s >= settings.warmup_s + source.memory_s:
                begin_span_s = max(start_s + _TRANSIENT_S, edges[-1].time_s - _SPAN_S)
                span = [edge for edge in edges if edge.time_s >= begin_span_s]
                if self._settled(span, start_s, before_w):
                    break
        return edges

    def _settled(self, span: Sequence[Edge], start_s: float, before_w: float | None) -> bool:
        """Whether the power over ``span`` is steady, and far enough from what it was before."""
        settings = self._settings
        if (slope := self._slope(span)) is None:
            return False
        power_w = (span[-1].energy_mj - span[0].energy_mj) / 1e3
        power_w /= span[-1].time_s - span[0].time_s
        far = unsettled(before_w, power_w, span[-1].time_s - start_s)
        return far <= settings.settled and not slope.exceeds(settings.steady_slope_per_s)

    def _run_trials(
        self, source: EnergySource, warm: Sequence[Edge], start_s: float
    ) -> tuple[list[Edge], frozenset[Restraint]]:
        settings, stride = self._settings, self._stride()
        earlier = [warm[index] for index in self._like_trials(warm, start_s)]
        edges, meanwhile = [warm[-1]], set()
        while (
            len(edges) <= settings.min_trials  # which may be long, where the sensor remembers long
            or edges[-1].time_s - edges[0].time_s < settings.max_measure_s
        ):
            edges.append(source.next_edge(stride))
            meanwhile.add(read_restraint(self._device))
            measured_s = edges[-1].time_s - edges[0].time_s + source.period_s / 2
            if len(edges) > settings.min_trials and measured_s >= settings.min_measure_s:
                both = [*earlier, *edges]
                times, _ = source.times_s(both)
                powers = (np.diff([edge.energy_mj for edge in both]) / np.diff(times)).tolist()
                count = len(earlier)
                scatter = estimate(powers[count:], successive=True, before=powers[:count])
                precise = scatter.relative_half_width <= settings.relative_half_width
                if precise and not self._drifts([*warm[:-1], *edges], start_s):
                    break
        return edges, frozenset(meanwhile)

    def _drifts(self, edges: Sequence[Edge], start_s: float) -> bool:
        """Whether the power changes from the end of the heat-up on, and not by chance."""
        settings, source = self._settings, self.source
        settled_s = start_s + settings.warmup_s + source.memory_s - _SPAN_S / 2
        slope = self._slope([edge for edge in edges if edge.time_s >= settled_s])
        return slope is None or slope.exceeds(settings.steady_slope_per_s)

    def _slope(self, edges: Sequence[Edge]) -> Slope | None:
        """The slope of power over ``edges``; None while it cannot be told."""
        if len(edges) < 5 or edges[-1].energy_mj <= edges[0].energy_mj:
            return None
        times, _ = self.source.times_s(edges)
        return power_slope(times, [edge.energy_mj for edge in edges])

    def _stride(self) -> int:
        """Length of a trial, in updates of the energy source."""
        length_s = max(self._settings.trial_s, self.source.memory_s)
        return max(1, round(length_s / self.source.period_s))

    def _like_trials(self, warm: Sequence[Edge], start_s: float) -> list[int]:
        """Edges of the heat-up's last second, by index, from each to the next as far as in a trial.

        The next of the last one is the last of ``warm``. What lies between them tells of the
        scatter as the trials do.
        """
        stride, memory_s = self._stride(), self.source.memory_s
        begin_s = max(start_s + _TRANSIENT_S + memory_s, warm[-1].time_s - _SPAN_S)
        chosen = [len(warm) - 1]
        for index in range(len(warm) - 2, -1, -1):
            if warm[index].time_s < begin_s:
                break
            apart_s = warm[chosen[-1]].time_s - warm[index].time_s
            if round(apart_s / self.source.period_s) == stride:
                chosen.append(index)
        return chosen[:0:-1]

    def _evaluate(
        self, run: _Run, start: Conditions, begin: Conditions, end: Conditions
    ) -> Reading:
        settings = self._settings
        all_edges = [*run.warm[:-1], *run.edges]
        all_times, time_error_s = self.source.times_s(all_edges, len(run.warm) - 1)
        chosen = self._like_trials(run.warm, run.start_s)
        count = len(chosen)
        chosen += range(len(run.warm) - 1, len(all_edges))
        times = [all_times[index] for index in chosen]
        energies_mj = [all_edges[index].energy_mj for index in chosen]
        cut = cut_windows(times, energies_mj, run.timeline)
        trials, times = cut[count:], times[count:]
        window_s = times[-1] - times[0]
        power_w = sum(trial.joules for trial in trials) / window_s
        middle_s = (times[0] + times[-1]) / 2
        # An error of the window's ends is the same for every trial's neighbour: it shows in the
        # trials' scatter only in part, and is added in full. What is left of the former power is
        # taken for two standard deviations.
        shared = (time_error_s / window_s) ** 2
        shared += (unsettled(run.before_w, power_w, middle_s - run.start_s) / 2) ** 2
        columns = {metric: [getattr(trial, metric.field) for trial in cut] for metric in Metric}
        placed = placement_variance(run.timeline, times[0], times[-1])
        unseen = {Metric.TIME: placed, Metric.ENERGY: shared, Metric.EDP: shared + placed}
        figures = {
            metric: _around(values, count, unseen[metric], settings.wander[metric])
            for metric, values in columns.items()
        }
        energy = figures[Metric.ENERGY]
        busy = sum(trial.busy_seconds for trial in trials) / window_s
        limits_mw = {start.power_limit_mw, end.power_limit_mw}
        limits_mw |= {moment.power_limit_mw for moment in run.meanwhile}
        flags = {
            "not_steady": self._drifts(all_edges, run.start_s),
            "interval_wide": energy.relative_half_width > 2 * settings.relative_half_width,
            "host_gaps": busy < settings.least_busy,
            "sources_disagree": run.samples_w is not None
            and abs(run.samples_w / power_w - 1) > settings.sources_tolerance,
            "power_limit_changed": len(limits_mw) > 1,
            **doubts(begin, end, run.meanwhile),
        }
        return Reading(
            time_ms=figures[Metric.TIME],
            energy_mj=energy,
            edp_mj_ms=figures[Metric.EDP],
            power_w=power_w,
            warm_trials=cut[:count],
            trials=trials,
            start=start,
            begin=begin,
            end=end,
            flags=tuple(name for name, raised in flags.items() if raised),
            energy_source=self.source.name,
            event_reasons=all_reasons(begin, end, *run.meanwhile),
        )


class _Run(NamedTuple):
    """What was noted of one measurement.

    ``before_w`` is the mean power before ``start_s``, ``warm`` holds the edges up to the first of
    ``edges``, between which the trials are, ``samples_w`` is the power by the card's samples, and
    ``meanwhile`` what held the card back at any of the edges.
    """

    start_s: float
    before_w: float | None
    warm: list[Edge]
    edges: list[Edge]
    timeline: Timeline
    samples_w: float | None
    meanwhile: frozenset[Restraint]


def _around(values: Sequence[float], count: int, unseen: float, wander: float) -> Estimate:
    """The mean of all but the first ``count`` values, which tell of the scatter only.

    ``unseen`` is a relative variance, ``wander`` a relative deviation.
    """
    before, own = values[:count], values[count:]
    mean = sum(own) / len(own)
    return estimate(
        own,
        extra_variance=unseen * mean * mean,
        known_variance=(wander * mean) ** 2,
        successive=True,
        before=before,
    )


__all__ = ["CounterError", "EnergyMeter", "MeterSettings", "Reading"]
