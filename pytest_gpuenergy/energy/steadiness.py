"""Whether the power is steady during one run, judged by the edges of the energy source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.energy.drift import Slope, power_slope, unsettled
from pytest_gpuenergy.energy.settings import MeterSettings
from pytest_gpuenergy.energy.source import Edge, EnergySource

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
