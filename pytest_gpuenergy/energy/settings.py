"""How long the meter heats up and measures, and what it flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
