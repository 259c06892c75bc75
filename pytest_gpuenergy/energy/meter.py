"""From NVML's readings while a kernel runs back to back: time and joules of one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from pytest_gpuenergy.devices.device import Device, Repeater, Timeline
from pytest_gpuenergy.energy.counter import regular_times_s
from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.energy.sensors import Conditions, power_by_samples_w, read_conditions
from pytest_gpuenergy.energy.source import CounterError, Edge, EnergySource
from pytest_gpuenergy.energy.statistics import Estimate, estimate


@dataclass(frozen=True)
class MeterSettings:
    """How long to heat up and to measure.

    Attributes:
        warmup_s: least time under load before the first trial: the second over which the card
            averages its power; more by the energy source's memory.
        warmup_max_s: after this the trials begin, steady or not.
        steady_change: two successive powers that differ by less, relatively, are steady.
        trial_s: length of one trial, rounded to whole updates of the energy source, and no
            shorter than its memory.
        min_trials: least number of trials.
        max_measure_s: the trials end after this, however wide the interval.
        relative_half_width: the trials end when the energy's 95 % interval is this narrow.
        sources_tolerance: the counter and the power samples may differ by this, relatively.
        least_busy: least fraction of the window in which the GPU must have been busy.
    """

    warmup_s: float = 1.0
    warmup_max_s: float = 3.0
    steady_change: float = 0.005
    trial_s: float = 0.3
    min_trials: int = 4
    max_measure_s: float = 5.0
    relative_half_width: float = 0.005
    sources_tolerance: float = 0.02
    least_busy: float = 0.99


@dataclass(frozen=True)
class Trial:
    """One window between two edges of the energy source."""

    seconds: float
    joules: float
    launches: float
    busy_seconds: float

    @property
    def time_ms(self) -> float:
        """GPU time of one launch."""
        return 1e3 * self.busy_seconds / self.launches

    @property
    def energy_mj(self) -> float:
        """Energy of one launch."""
        return 1e3 * self.joules / self.launches


@dataclass(frozen=True)
class Reading:
    """What the meter found: one launch's time, energy and energy-delay product, and conditions.

    ``start`` is the state of the card before the heat-up, ``begin`` and ``end`` that around the
    trials. ``flags`` names what makes the reading doubtful; it is empty when it is clean.
    ``energy_source`` is the name of the `EnergySource`, ``heat_wall_s`` the host's time until the
    trials began.
    """

    time_ms: Estimate
    energy_mj: Estimate
    edp_mj_ms: Estimate
    power_w: float
    trials: tuple[Trial, ...]
    start: Conditions
    begin: Conditions
    end: Conditions
    flags: tuple[str, ...] = field(default=())
    energy_source: str = "counter"
    heat_wall_s: float = 0.0


class EnergyMeter:
    """Measures what a `Repeater` runs, on one device."""

    def __init__(self, device: Device, settings: MeterSettings | None = None) -> None:
        self._device = device
        self._settings = settings or MeterSettings()
        self._source: EnergySource | None = None

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
        repeater.start()
        stopped = False
        try:
            warm, steady = self._warm_up(source)
            begin = read_conditions(self._device)
            heat_wall_s = perf_counter() - began_s
            edges = self._run_trials(source, warm[-1])
            power_w = power_by_samples_w(self._device, edges[-1].time_s - edges[0].time_s)
            end = read_conditions(self._device)
            stopped = True
            timeline = repeater.stop()
        finally:
            if not stopped:
                repeater.stop()
        conditions = (start, begin, end)
        reading = self._evaluate(warm, edges, timeline, power_w, conditions, steady)
        return replace(reading, heat_wall_s=heat_wall_s)

    def _warm_up(self, source: EnergySource) -> tuple[list[Edge], bool]:
        settings, clock = self._settings, self._device.clock
        begin_s = clock.now_s()
        edges = [source.probe()]
        stride = max(1, round(0.1 / source.period_s))
        # A source that had to be probed first has kept the card under load for longer.
        longest_s = max(settings.warmup_max_s, clock.now_s() - begin_s + 1.0)
        steady = False
        while not steady and clock.now_s() - begin_s < longest_s:
            edges.append(source.next_edge(stride))
            if clock.now_s() - begin_s >= settings.warmup_s + source.memory_s:
                steady = _is_steady(edges, settings.steady_change)
        return edges, steady

    def _run_trials(self, source: EnergySource, first: Edge) -> list[Edge]:
        settings = self._settings
        stride = max(1, round(max(settings.trial_s, source.memory_s) / source.period_s))
        edges = [first]
        while edges[-1].time_s - first.time_s < settings.max_measure_s:
            edges.append(source.next_edge(stride))
            if len(edges) > settings.min_trials:
                times, _ = regular_times_s(edges, source.period_s)
                powers = np.diff([edge.energy_mj for edge in edges]) / np.diff(times)
                if estimate(powers.tolist()).relative_half_width <= settings.relative_half_width:
                    break
        return edges

    def _evaluate(
        self,
        warm: Sequence[Edge],
        edges: Sequence[Edge],
        timeline: Timeline,
        samples_w: float | None,
        conditions: tuple[Conditions, Conditions, Conditions],
        steady: bool,
    ) -> Reading:
        settings = self._settings
        start, begin, end = conditions
        period_s = self.source.period_s
        all_times, time_error_s = regular_times_s([*warm[:-1], *edges], period_s)
        times = all_times[len(warm) - 1 :]
        trials = cut_trials(times, [edge.energy_mj for edge in edges], timeline)
        window_s = times[-1] - times[0]
        joules = sum(trial.joules for trial in trials)
        power_w = joules / window_s
        # An error of the window's ends is the same for every trial's neighbour: it shows in the
        # trials' scatter only in part, and is added in full.
        shared = (math.sqrt(2) * time_error_s / window_s) ** 2
        energies = [trial.energy_mj for trial in trials]
        durations = [trial.time_ms for trial in trials]
        products = [e * t for e, t in zip(energies, durations, strict=True)]
        energy = _around(energies, shared)
        busy = sum(trial.busy_seconds for trial in trials) / window_s
        flags = {
            "not_steady": not steady,
            "interval_wide": energy.relative_half_width > 2 * settings.relative_half_width,
            "host_gaps": busy < settings.least_busy,
            "sources_disagree": samples_w is not None
            and abs(samples_w / power_w - 1) > settings.sources_tolerance,
            "power_limit_changed": start.power_limit_mw != end.power_limit_mw,
            **begin.judge(end),
        }
        return Reading(
            time_ms=_around(durations, 0.0),
            energy_mj=energy,
            edp_mj_ms=_around(products, shared),
            power_w=power_w,
            trials=trials,
            start=start,
            begin=begin,
            end=end,
            flags=tuple(name for name, raised in flags.items() if raised),
            energy_source=self.source.name,
        )


def cut_trials(
    times_s: Sequence[float], energies_mj: Sequence[float], timeline: Timeline
) -> tuple[Trial, ...]:
    """The windows between successive edges, with the launches and GPU time that fell into them."""
    launches = np.interp(times_s, timeline.time_s, timeline.launches)
    busy_s = np.interp(times_s, timeline.time_s, timeline.busy_s)
    table = zip(
        np.diff(times_s),
        np.diff(energies_mj) / 1e3,
        np.diff(launches),
        np.diff(busy_s),
        strict=True,
    )
    return tuple(Trial(*(float(value) for value in row)) for row in table)


def _is_steady(edges: Sequence[Edge], change: float) -> bool:
    """Whether the last two spans of three edges took the same power, to within ``change``."""
    if len(edges) < 7:
        return False
    powers = [
        (later.energy_mj - earlier.energy_mj) / (later.time_s - earlier.time_s)
        for earlier, later in ((edges[-7], edges[-4]), (edges[-4], edges[-1]))
    ]
    return bool(powers[0] > 0 and abs(powers[1] / powers[0] - 1) <= change)


def _around(values: Sequence[float], relative_variance: float) -> Estimate:
    mean = sum(values) / len(values)
    return estimate(values, extra_variance=relative_variance * mean * mean)


__all__ = ["CounterError", "EnergyMeter", "MeterSettings", "Reading", "Trial", "cut_trials"]
