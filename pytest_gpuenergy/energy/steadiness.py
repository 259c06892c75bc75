"""Judges whether the power of a card is steady, and holds the settings of the meter."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy.energy_source import Edge, EnergySource
from pytest_gpuenergy.energy.sensors import power_by_samples_w
from pytest_gpuenergy.record import WANDER, Metric

SIGNIFICANT = 2.0
"""The number of standard errors from which a slope counts as significant."""

SETTLING_GAIN = 0.012
SETTLING_S = 5.0
"""The effect of a card's former power, as a fraction of the power at time t after the load began:
``SETTLING_GAIN * |P_before / P - 1| * exp(-t / SETTLING_S)``.

On one H200, a kernel of 129 W after 14 s at 316 W drew 1.2 % too much about 1.8 s after its start;
a kernel of 419 W after idling drew 0.35 % too little at 1.3 s and 0.23 % too little at 2 s. The
curve passes through the first of these points and lies above the others.
"""

SWING_S = 1.0
"""The period with which the power of a card swings that its power limit holds back.

So much lies between neighbouring maxima of the power in 280 measurements on H100s and H200s, by the
autocorrelation of their trials (docs/notes/trials-needed.md).
"""

POWER_SWINGS = 2.0
"""How much wider than the energy's the interval of the power may be where both swing, because the
clock swings with the power: a launch then takes longer at less power."""

ONE_SWING: Mapping[Metric, float] = {
    Metric.TIME: 0.0031,
    Metric.ENERGY: 0.0024,
    Metric.EDP: 0.0045,
}
"""The relative standard deviation of a figure's mean over one swing.

The trials of one swing do not show it. 271 measurements at the power limit of H100s and H200s went
on for 3.8 to 5 s: these are the greater of both root mean squares by which their first second was
off. The energy's error is within twice that in 95 % of them, however wide the swing is
(docs/notes/trials-needed.md).
"""

ONE_SWING_POWER = 0.0027
"""The same of the power."""

PREHEAT_S = 5.0
"""The default time by which measurements may be extended until the temperature has settled."""

_HISTORY_S = 10.0
"""The time over which `PowerHistory` averages, if the counter was noted that long ago."""
_SAMPLES_S = 2.4
"""The time that the card's own buffer of samples covers."""
_SPAN_S = 1.0
"""The time at the end of the heat-up in which the power must be steady."""
_TRANSIENT_S = 0.3
"""The time after the start of a load in which the power is not considered."""


@dataclass(frozen=True)
class Slope:
    """The change of power per second, as a fraction of the power, with its standard error."""

    per_s: float
    error_per_s: float

    def exceeds(self, limit_per_s: float) -> bool:
        """Return whether the power changes by more than ``limit_per_s``, and significantly so."""
        least = max(limit_per_s, SIGNIFICANT * self.error_per_s)
        return abs(self.per_s) > least


def power_slope(times_s: Sequence[float], energies_mj: Sequence[float]) -> Slope:
    """Return the slope of power over a span, from the curvature of the energy.

    A parabola is fitted by least squares to the energy at the edges. Comparing neighbouring powers
    would be less precise: nearly all of their scatter is error in the times of the edges, which a
    fit through all edges averages out.

    Raises:
        ValueError: there are fewer than four edges, or the energy did not increase.
    """
    if len(times_s) < 4 or energies_mj[-1] <= energies_mj[0]:
        raise ValueError("a slope of power needs four edges and energy between them")
    time_s = np.asarray(times_s, dtype=np.float64) - np.mean(times_s)
    energy_mj = np.asarray(energies_mj, dtype=np.float64) - energies_mj[0]
    design = np.vander(time_s, 3)
    coefficients, *_ = np.linalg.lstsq(design, energy_mj, rcond=None)
    residuals = energy_mj - design @ coefficients
    variance = float(residuals @ residuals) / max(1, len(time_s) - 3)
    error = math.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0])
    power_mw = float(coefficients[1])
    return Slope(2 * float(coefficients[0]) / power_mw, 2 * error / power_mw)


class PowerHistory:
    """The mean power over the last seconds, whatever ran then.

    It covers about ten seconds if the energy counter was noted that long ago; otherwise, or without
    a counter, it covers the time of the card's buffer of power samples.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: deque[tuple[float, int]] = deque()

    def note(self) -> None:
        """Remember the counter's present value."""
        if (mark := self._read_energy()) is not None:
            self._marks.append(mark)

    def mean_w(self) -> float | None:
        """Return the mean power until now, in W; None if the card does not report it."""
        now = self._read_energy() if self._marks else None
        if now is not None:
            now_s, energy_mj = now
            while len(self._marks) > 1 and now_s - self._marks[1][0] >= _HISTORY_S:
                self._marks.popleft()
            begin_s, begin_mj = self._marks[0]
            if now_s - begin_s >= _SAMPLES_S and energy_mj >= begin_mj:
                return (energy_mj - begin_mj) / 1e3 / (now_s - begin_s)
        return power_by_samples_w(self._device, _SAMPLES_S)

    def since_last_w(self) -> float | None:
        """Return the mean power since the last `note`; without a note, return `mean_w`."""
        now = self._read_energy() if self._marks else None
        if now is None or now[0] <= self._marks[-1][0] or now[1] < self._marks[-1][1]:
            return self.mean_w()
        begin_s, begin_mj = self._marks[-1]
        return (now[1] - begin_mj) / 1e3 / (now[0] - begin_s)

    def _read_energy(self) -> tuple[float, int] | None:
        nvml = self._device.nvml
        try:
            energy_mj = int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._device.handle))
        except nvml.NVMLError:
            return None
        return self._device.clock.now_s(), energy_mj


def former_power_effect(before_w: float | None, power_w: float, since_s: float) -> float:
    """Return how far the power may still be from its settled value, as a fraction.

    Args:
        before_w: the mean power over the seconds before the load began; if None, the result is 0.
        power_w: the power under the load.
        since_s: the time since the load began.
    """
    step = 0.0 if before_w is None else abs(before_w / power_w - 1)
    return SETTLING_GAIN * step * math.exp(-since_s / SETTLING_S)


@dataclass(frozen=True)
class MeterSettings:
    """The settings of the meter: how long to heat up and to measure, and when to raise flags.

    Attributes:
        warmup_s: the least time under load before the first trial, without the memory of the energy
            source (the second over which the card averages its power), which is added.
        limited_warmup_s: the same where the power limit holds the card back. There, 1 s of trials
            is off by 0.7 % in energy after 0.6 s on H200s, and by 0.24 % after 1 s.
        warmup_max_s: the time after which the trials begin even if the power is not steady.
        steady_slope_per_s: the change of power per second, as a fraction, below which the power is
            steady; infinite if the heat-up need not show that, which takes most of a second.
        settled: the largest effect of the former power, as a fraction, with which the heat-up ends;
            see `former_power_effect`.
        trial_s: the length of one trial, which is rounded to whole updates of the energy source and
            no shorter than its memory.
        min_trials: the least number of trials.
        min_measure_s: the least time of all trials together.
        max_measure_s: the time after which the trials end, once there are ``min_trials``, whatever
            the interval. At the power limit, they end after whole swings only, see `SWING_S`.
        min_launches: the least number of launches in the trials. If there were fewer, the kernel is
            measured again for long enough.
        relative_half_width: the relative half width of the energy's 95 % interval, by the trials'
            scatter, at which the trials end if the power is steady.
        wander: for each metric, the relative standard deviation of an item's figure about the
            kernel's mean over many items, which the trials of one item cannot show.
        sources_tolerance: the largest relative difference between counter and power samples.
        corrected: whether to correct figures to those of a settled card. Two kernels that are
            measured alternately have the same temperature, and the correction would only add noise.
        settled_half_width: the relative half width, from the temperature alone, that raises a flag.
        preheat_s: the total time by which the heat-ups of a meter may be extended until the
            temperature has settled.
        least_busy: the least fraction of the window in which the GPU must have been busy.
    """

    warmup_s: float = 1.0
    limited_warmup_s: float = 1.0
    warmup_max_s: float = 5.0
    steady_slope_per_s: float = 0.01
    settled: float = 0.006
    trial_s: float = 0.1
    min_trials: int = 4
    min_measure_s: float = 0.6
    max_measure_s: float = 5.0
    min_launches: int = 0
    relative_half_width: float = 0.005
    wander: Mapping[Metric, float] = field(default_factory=lambda: dict(WANDER))
    sources_tolerance: float = 0.02
    corrected: bool = True
    settled_half_width: float = 0.05
    preheat_s: float = PREHEAT_S
    least_busy: float = 0.99


@dataclass(frozen=True)
class Steadiness:
    """Judges by its edges whether a run is steady.

    Attributes:
        source: the source of the edges, already probed.
        settings: the settings of the meter.
        start_s: the start of the run on the device's clock.
    """

    source: EnergySource
    settings: MeterSettings
    start_s: float

    @property
    def warmup_s(self) -> float:
        """The least time under load before the first trial."""
        return self.settings.warmup_s + self.source.memory_s

    @property
    def stride(self) -> int:
        """The length of a trial, in updates of the energy source."""
        length_s = max(self.settings.trial_s, self.source.memory_s)
        return max(1, round(length_s / self.source.period_s))

    @property
    def swing(self) -> int:
        """The number of trials in a swing of the power, see `SWING_S`."""
        return max(1, round(SWING_S / (self.stride * self.source.period_s)))

    def settled(self, warm: Sequence[Edge], before_w: float | None) -> bool:
        """Return whether the power is steady over the last second, so that the heat-up can end."""
        begin_s = max(self.start_s + _TRANSIENT_S, warm[-1].time_s - _SPAN_S)
        span = [edge for edge in warm if edge.time_s >= begin_s]
        if (slope := self._slope(span)) is None:
            return False
        power_w = (span[-1].energy_mj - span[0].energy_mj) / 1e3
        power_w /= span[-1].time_s - span[0].time_s
        far = former_power_effect(before_w, power_w, span[-1].time_s - self.start_s)
        return far <= self.settings.settled and not slope.exceeds(self.settings.steady_slope_per_s)

    def drifts(self, edges: Sequence[Edge]) -> bool:
        """Return whether the power changes significantly after the heat-up, or may do so.

        Not if the settings do not ask for that: so few edges may not show it.
        """
        if math.isinf(self.settings.steady_slope_per_s):
            return False
        settled_s = self.start_s + self.warmup_s - _SPAN_S / 2
        slope = self._slope([edge for edge in edges if edge.time_s >= settled_s])
        return slope is None or slope.exceeds(self.settings.steady_slope_per_s)

    def drifts_over_swings(self, powers: Sequence[float]) -> bool:
        """Return whether the mean power of a swing changes from the first to the last.

        A single swing does not show that.

        Args:
            powers: the powers of the trials.
        """
        if len(powers) < 2 * self.swing:
            return False
        first, last = powers[: self.swing], powers[-self.swing :]
        between_s = (len(powers) - self.swing) * self.stride * self.source.period_s
        change = (sum(last) - sum(first)) / self.swing * len(powers) / sum(powers)
        return abs(change) / between_s > self.settings.steady_slope_per_s

    def like_trials(self, warm: Sequence[Edge]) -> list[int]:
        """Return indices of the edges in the heat-up's last second that are a trial's length apart.

        The last edge of ``warm``, a trial's length after the last of these, is left out. The
        windows between these edges show the same scatter as the trials.
        """
        begin_s = max(self.start_s + _TRANSIENT_S + self.source.memory_s, warm[-1].time_s - _SPAN_S)
        chosen = [len(warm) - 1]
        for index in range(len(warm) - 2, -1, -1):
            if warm[index].time_s < begin_s:
                break
            apart_s = warm[chosen[-1]].time_s - warm[index].time_s
            if round(apart_s / self.source.period_s) == self.stride:
                chosen.append(index)
        return chosen[:0:-1]

    def _slope(self, edges: Sequence[Edge]) -> Slope | None:
        """Return the slope of power over ``edges``, or None if there are too few."""
        if len(edges) < 5 or edges[-1].energy_mj <= edges[0].energy_mj:
            return None
        times, _ = self.source.times_s(edges)
        return power_slope(times, [edge.energy_mj for edge in edges])
