"""Whether the power is steady during one run, judged by the edges of the energy source."""

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
"""A slope of more than this many standard errors counts as real."""

SETTLING_GAIN = 0.012
SETTLING_S = 5.0
"""How the effect of a card's former power decays: with t since the load began, it is
``SETTLING_GAIN * |P_before / P - 1| * exp(-t / SETTLING_S)`` of the power.

On one H200, a kernel of 129 W after 14 s at 316 W drew 1.2 % too much about 1.8 s after its start;
one of 419 W after idling drew 0.35 % too little at 1.3 s and 0.23 % too little at 2 s. The curve
passes through the first of these and lies above the others.
"""


_HISTORY_S = 10.0
_SAMPLES_S = 2.4  # what the card's own buffer of samples holds


@dataclass(frozen=True)
class Slope:
    """Change of power per second, as a fraction of the power, with its standard error."""

    per_s: float
    error_per_s: float

    def exceeds(self, limit_per_s: float) -> bool:
        """Whether the power changes by more than ``limit_per_s``, and significantly so."""
        least = max(limit_per_s, SIGNIFICANT * self.error_per_s)
        return abs(self.per_s) > least


def power_slope(times_s: Sequence[float], energies_mj: Sequence[float]) -> Slope:
    """The slope of power over a span, from the curvature of the energy.

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
    a counter, the time span of the card's buffer of power samples.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: deque[tuple[float, int]] = deque()

    def note(self) -> None:
        """Remember the counter's present value."""
        if (mark := self._read()) is not None:
            self._marks.append(mark)

    def mean_w(self) -> float | None:
        """The mean power until now, in W; None if the card does not report it."""
        now = self._read() if self._marks else None
        if now is not None:
            now_s, energy_mj = now
            while len(self._marks) > 1 and now_s - self._marks[1][0] >= _HISTORY_S:
                self._marks.popleft()
            begin_s, begin_mj = self._marks[0]
            if now_s - begin_s >= _SAMPLES_S and energy_mj >= begin_mj:
                return (energy_mj - begin_mj) / 1e3 / (now_s - begin_s)
        return power_by_samples_w(self._device, _SAMPLES_S)

    def since_last_w(self) -> float | None:
        """The mean power since the last `note`; without one, as `mean_w`."""
        now = self._read() if self._marks else None
        if now is None or now[0] <= self._marks[-1][0] or now[1] < self._marks[-1][1]:
            return self.mean_w()
        begin_s, begin_mj = self._marks[-1]
        return (now[1] - begin_mj) / 1e3 / (now[0] - begin_s)

    def _read(self) -> tuple[float, int] | None:
        nvml = self._device.nvml
        try:
            energy_mj = int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._device.handle))
        except nvml.NVMLError:
            return None
        return self._device.clock.now_s(), energy_mj


def unsettled(before_w: float | None, power_w: float, since_s: float) -> float:
    """How far the power may still be, as a fraction, from the value it settles at.

    Args:
        before_w: mean power over the seconds before the load began; None if unknown, for which the
            result is 0.
        power_w: under the load.
        since_s: time since the load began.
    """
    step = 0.0 if before_w is None else abs(before_w / power_w - 1)
    return SETTLING_GAIN * step * math.exp(-since_s / SETTLING_S)


PREHEAT_S = 5.0
"""By how much a measurement by itself may be longer until the temperature has settled."""


@dataclass(frozen=True)
class MeterSettings:
    """How long to heat up and to measure.

    Attributes:
        warmup_s: least time under load before the first trial, to which the memory of the energy
            source is added: the second over which the card averages its power.
        warmup_max_s: the trials begin after this time even if the power is not steady.
        restrained_warmup_s: least time under load before the first trial if the power limit holds
            the card back, whose power and clock then swing for a while. If the power is not steady
            by then, the heat-up goes on for a second more.
        steady_slope_per_s: power that changes by less than this fraction per second is steady.
        settled: the heat-up ends when what the card ran before accounts for no more than this
            fraction of the power, see `unsettled`.
        trial_s: length of one trial, rounded to whole updates of the energy source, and no
            shorter than its memory.
        min_trials: least number of trials.
        min_measure_s: least time of all trials together.
        max_measure_s: after this time and ``min_trials`` the trials end, however wide the interval.
        min_launches: least number of launches in the trials of the result. Where there were fewer,
            all is measured again for long enough.
        relative_half_width: the trials end when their scatter leaves the energy's 95 % interval as
            narrow as this, and the power is steady.
        wander: by metric, the relative standard deviation of an item's figure about the kernel's
            mean over many items, which the trials of one item cannot show.
        sources_tolerance: relative difference allowed between counter and power samples.
        corrected: whether figures are those of a settled card. Where two kernels are measured
            alternately, their temperatures are alike, and the correction would only add noise.
        settled_half_width: a relative half width of this from the temperature alone raises a flag.
        preheat_s: for so long in all, the heat-ups of a meter may go on until the temperature has
            settled.
        least_busy: least fraction of the window in which the GPU must have been busy.
    """

    warmup_s: float = 1.0
    warmup_max_s: float = 5.0
    restrained_warmup_s: float = 0.0
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


_SPAN_S = 1.0
_TRANSIENT_S = 0.3


@dataclass(frozen=True)
class Steadiness:
    """Judges a run by its edges.

    Attributes:
        source: where the edges come from; already probed.
        settings: which slopes and remainders are small enough.
        start_s: when the run began, by the device's clock.
        restrained: whether the power limit has held the card back in the heat-up.
    """

    source: EnergySource
    settings: MeterSettings
    start_s: float
    restrained: bool = False

    @property
    def warmup_s(self) -> float:
        """Least time under load before the first trial."""
        least_s = self.settings.warmup_s + self.source.memory_s
        return max(least_s, self.settings.restrained_warmup_s) if self.restrained else least_s

    @property
    def stride(self) -> int:
        """Length of a trial, in updates of the energy source."""
        length_s = max(self.settings.trial_s, self.source.memory_s)
        return max(1, round(length_s / self.source.period_s))

    def settled(self, warm: Sequence[Edge], before_w: float | None) -> bool:
        """Whether the heat-up can end: the power is steady over its last second.

        Of ``before_w``, the mean power before the run, so little may be left as the settings say.
        """
        begin_s = max(self.start_s + _TRANSIENT_S, warm[-1].time_s - _SPAN_S)
        span = [edge for edge in warm if edge.time_s >= begin_s]
        if (slope := self._slope(span)) is None:
            return False
        power_w = (span[-1].energy_mj - span[0].energy_mj) / 1e3
        power_w /= span[-1].time_s - span[0].time_s
        far = unsettled(before_w, power_w, span[-1].time_s - self.start_s)
        return far <= self.settings.settled and not slope.exceeds(self.settings.steady_slope_per_s)

    def drifts(self, edges: Sequence[Edge]) -> bool:
        """Whether the power changes significantly after the heat-up; also if that is unknown."""
        settled_s = self.start_s + self.warmup_s - _SPAN_S / 2
        slope = self._slope([edge for edge in edges if edge.time_s >= settled_s])
        return slope is None or slope.exceeds(self.settings.steady_slope_per_s)

    def like_trials(self, warm: Sequence[Edge]) -> list[int]:
        """Indices of the edges in the heat-up's last second that are a trial's length apart.

        The last edge of ``warm``, which is a trial's length after the last of these, is left out.
        The windows between them show the scatter as the trials do.
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
        """The slope of power over ``edges``; None while there are too few of them."""
        if len(edges) < 5 or edges[-1].energy_mj <= edges[0].energy_mj:
            return None
        times, _ = self.source.times_s(edges)
        return power_slope(times, [edge.energy_mj for edge in edges])
