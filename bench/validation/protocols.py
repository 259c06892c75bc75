"""Ways to measure the time and energy of a launch: the long reference, and what others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np
from record import OURS, Attempt, Part, Reference, Span

from pytest_gpuenergy.devices import Device, Repeater
from pytest_gpuenergy.energy import (
    EnergyMeter,
    EnergySource,
    MeterSettings,
    Reading,
    average_power_mw,
    instant_power_mw,
    read_conditions,
)
from pytest_gpuenergy.record import METRICS, Measurement
from pytest_gpuenergy.support import DeviceError

CLASSIC, COLD, SINGLE = "classic", "cold window", "single launches"
PARTS, PART_S = 6, 2.0
"""Number of the reference's parts, between which the repeats are measured, and their length."""

ROUNDS, LAUNCHES = 3, 100_000
CLASSIC_MAX_S = 10.0
IDLE_S, WINDOW_S = 2.5, 1.0
SINGLE_LAUNCHES = 7
_POLL_S = 0.02


def steady(device: Device, repeater: Repeater, source: EnergySource, *, warmup_s: float) -> Reading:
    """Measure `PART_S` of running after at least ``warmup_s``, without early stopping."""
    settings = MeterSettings(
        warmup_s=warmup_s,
        warmup_max_s=warmup_s,
        trial_s=0.5,
        min_measure_s=PART_S,
        max_measure_s=PART_S,
        relative_half_width=0.0,
    )
    return EnergyMeter(device, settings, source).measure(repeater)


def reference_of(parts: Sequence[Reading]) -> Reference:
    """Combine the parts of a reference, weighted by their lengths."""
    before, after = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    lengths_s = [sum(trial.seconds for trial in part.trials) for part in parts]
    trials = [trial for part in parts for trial in part.trials]
    joules, launches = sum(t.joules for t in trials), sum(t.launches for t in trials)
    return Reference(
        energy_mj=1e3 * joules / launches,
        time_ms=1e3 * sum(t.busy_seconds for t in trials) / launches,
        power_w=joules / sum(lengths_s),
        seconds=sum(lengths_s),
        change=_mean_energy_mj(after) / _mean_energy_mj(before) - 1,
        temperatures_c=tuple(part.end.temperature_c for part in parts),
        parts=tuple(Part(part.energy_mj.value, part.time_ms.value) for part in parts),
    )


def _mean_energy_mj(parts: Sequence[Reading]) -> float:
    return fmean(part.energy_mj.value for part in parts)


def ours(measurement: Measurement, seconds: float) -> Attempt:
    """An attempt from a measurement of the harness that took ``seconds`` on the device's clock.

    Raises:
        DeviceError: it has no figures.
    """
    m = measurement
    if m.energy_mj is None or m.time_ms is None or not m.trials:
        raise DeviceError(f"{m.workload.name}-{m.kernel.label} was not measured: {m.error}")
    return Attempt(
        OURS,
        m.energy_mj,
        m.time_ms,
        seconds,
        {
            metric: Span(interval.low, interval.high)
            for metric in METRICS
            if (interval := m.interval(metric)) is not None
        },
        dict(m.phases_s),
        sum(t.busy_seconds for t in m.trials) / sum(t.seconds for t in m.trials),
        m.begin.temperature_c if m.begin else None,
        m.validity,
        {metric: _scatter([getattr(t, metric.field) for t in m.trials]) for metric in METRICS},
    )


def _scatter(values: Sequence[float]) -> float:
    return stdev(values) / fmean(values)


@dataclass(frozen=True)
class Protocols:
    """Other tools' protocols, applied to a loaded kernel."""

    device: Device
    repeater: Repeater

    def cold_window(self) -> Attempt:
        """After 2.5 s idle, read the counter before and after one second of running."""
        self.device.clock.sleep_s(IDLE_S)
        return self._window(COLD)

    def classic(self, launch_ms: float) -> Attempt | None:
        """Read the counter before and after 100,000 launches from the host, in three rounds.

        None if, with ``launch_ms`` per launch, that would take longer than `CLASSIC_MAX_S`.
        """
        if ROUNDS * LAUNCHES * launch_ms / 1e3 > CLASSIC_MAX_S:
            return None
        begin_s = self._now_s()
        temperature_c = self._temperature_c()
        energies, times = [], []
        for _ in range(ROUNDS):
            before_mj = self._counter_mj()
            launches = self.repeater.launch(LAUNCHES)
            energies.append((self._counter_mj() - before_mj) / LAUNCHES)
            times.append(1e3 * (launches.end_s - launches.begin_s) / LAUNCHES)
        return Attempt(
            CLASSIC,
            fmean(energies),
            fmean(times),
            self._now_s() - begin_s,
            temperature_c=temperature_c,
        )

    def single_launches(self) -> Attempt:
        """Mean time of seven individually timed launches, times the median power over a second.

        This is what Kernel Tuner does with its NVML observer.

        Raises:
            DeviceError: the card does not report its power.
        """
        begin_s, temperature_c = self._now_s(), self._temperature_c()
        times_ms = [1e3 * self.repeater.launch(1).gpu_s for _ in range(SINGLE_LAUNCHES)]
        power_w = self._median_power_w()
        time_ms = fmean(times_ms)
        return Attempt(
            SINGLE,
            power_w * time_ms,
            time_ms,
            self._now_s() - begin_s,
            temperature_c=temperature_c,
        )

    def _window(self, name: str) -> Attempt:
        begin_s, temperature_c = self._now_s(), self._temperature_c()
        self.repeater.start()
        before_mj, from_s = self._counter_mj(), self._now_s()
        self.device.clock.sleep_s(max(0.0, begin_s + WINDOW_S - self._now_s()))
        after_mj, to_s = self._counter_mj(), self._now_s()
        timeline = self.repeater.stop()
        ends_s = [from_s, to_s]
        launches = float(np.diff(np.interp(ends_s, timeline.time_s, timeline.launches))[0])
        busy_s = float(np.diff(np.interp(ends_s, timeline.time_s, timeline.busy_s))[0])
        return Attempt(
            name,
            (after_mj - before_mj) / launches,
            1e3 * busy_s / launches,
            self._now_s() - begin_s,
            busy=busy_s / (to_s - from_s),
            temperature_c=temperature_c,
        )

    def _median_power_w(self) -> float:
        device = self.device
        self.repeater.start()
        begin_s, readings = self._now_s(), []
        while self._now_s() < begin_s + WINDOW_S:
            device.clock.sleep_s(_POLL_S)
            reading_mw = instant_power_mw(device)
            readings.append(average_power_mw(device) if reading_mw is None else reading_mw)
        self.repeater.stop()
        known = [reading for reading in readings if reading is not None]
        if not known:
            raise DeviceError(f"{device.name} does not report its power.")
        return median(known) / 1e3

    def _counter_mj(self) -> int:
        nvml = self.device.nvml
        return int(nvml.nvmlDeviceGetTotalEnergyConsumption(self.device.handle))

    def _now_s(self) -> float:
        return self.device.clock.now_s()

    def _temperature_c(self) -> int | None:
        return read_conditions(self.device).temperature_c
