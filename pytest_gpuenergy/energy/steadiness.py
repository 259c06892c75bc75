"""Whether the power is steady during one run, judged by the edges of the energy source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_gpuenergy.energy.drift import Slope, power_slope, unsettled
from pytest_gpuenergy.energy.source import Edge, EnergySource
from pytest_gpuenergy.record import WANDER, Metric

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
