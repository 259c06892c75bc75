"""Measures both versions of a kernel alternately."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from pytest_gpuenergy.ab.exhibit import Exhibit
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import EnergyMeter, MeterSettings, Reading
from pytest_gpuenergy.engine import check_again, lock_flags
from pytest_gpuenergy.gate import (
    SLIGHT_FLAGS,
    Doubt,
    GateSettings,
    Judgement,
    Looks,
    Verdict,
    bonferroni_tail,
    change_interval,
    decide_in_doubt,
    flag_doubts,
)
from pytest_gpuenergy.record import Estimate, Metric
from pytest_gpuenergy.support import DeviceError, KernelFault

TURN = MeterSettings(
    warmup_s=0.3,
    warmup_max_s=0.3,
    steady_slope_per_s=math.inf,
    min_trials=3,
    min_measure_s=0.4,
    relative_half_width=math.inf,
    corrected=False,
    preheat_s=0.0,
)
"""Settings of a turn: few trials suffice, because the precision is taken from the rounds.

What a shorter heat-up leaves is nearly the same for both: on an H200, 0.3 s after 0.3 s of heat
show 0.2 % less energy than 2 s do, with a standard deviation of 0.12 % (docs/notes/placements.md).
"""

FIRST_HEAT = replace(TURN, warmup_s=2.0, warmup_max_s=2.0)
"""Settings of a measurement before the first turn, which heats up the card and does not count.

The card need not be as warm as it will get: what it warms by cancels between rounds. But a turn
after a longer heat-up than the others took 1 % more energy on an H200, and would stand alone.
"""

SPARE_ROUNDS = 4
"""The number of rounds of a pair that are measured again because of a slight flag.

The clock of a card steps every few minutes. Without another try, a pair that takes as long would
stay undecided.
"""


@dataclass(frozen=True)
class Turns:
    """The readings of both versions, one each per round, or what went wrong with either.

    Attributes:
        base: The readings of the earlier version.
        head: The readings of the later version.
        base_fault: The fault of the earlier version; empty if there was none.
        problem: What else ended the rounds; empty if nothing did.
        repeated: The number of rounds that were measured again because a reading was flagged.
    """

    base: tuple[Reading, ...] = ()
    head: tuple[Reading, ...] = ()
    base_fault: str = ""
    problem: str = ""
    repeated: int = 0

    def lock_flags(self, locked_mhz: int | None) -> tuple[str, ...]:
        """Return the flags of readings that did not keep to the clock of the SMs' lock."""
        readings = (*self.base, *self.head)
        return tuple(
            {flag: None for reading in readings for flag in lock_flags(reading, locked_mhz)}
        )

    def judge(
        self,
        exhibit: Exhibit,
        settings: GateSettings,
        comparisons: int,
        looks: Looks,
        flags: Sequence[str] = (),
    ) -> list[Judgement]:
        """Judge each metric of the settings, by paired statistics over the rounds.

        Flags of a reading, and those in ``flags``, put the verdicts in doubt.
        """
        doubts = self.doubts(flags)
        judgements = []
        for metric, limit in settings.limits.items():
            base, head = self.log_figures(metric)
            change = self._change(metric, doubts, comparisons, looks)
            judgement = Judgement(
                exhibit.draft.identity,
                metric,
                decide_in_doubt(change, doubts, metric, limit),
                limit,
                change,
                math.exp(fmean(base)),
                math.exp(fmean(head)),
                tuple(doubt.reason for doubt in doubts),
            )
            judgements.append(judgement)
        return judgements

    def are_enough(
        self, settings: GateSettings, comparisons: int, looks: Looks, precision: float = math.inf
    ) -> bool:
        """Return whether further rounds could change no verdict that was asked for.

        That is so after a look at which every metric of the settings has a verdict other than
        AMBIGUOUS and an interval of no more than ``precision`` (half of it, as a fraction) to
        either side, or at which doubts are so large that no interval could give a verdict.
        """
        if len(self.base) != len(self.head) or len(self.base) not in looks.rounds:
            return False
        doubts = self.doubts()
        for metric, limit in settings.limits.items():
            change = self._change(metric, doubts, comparisons, looks)
            point = Estimate(change.value, change.value, change.value)
            if decide_in_doubt(point, doubts, metric, limit) is Verdict.AMBIGUOUS:
                continue
            if decide_in_doubt(change, doubts, metric, limit) is Verdict.AMBIGUOUS:
                return False
            if max(change.value - change.low, change.high - change.value) > precision:
                return False
        return True

    def doubts(self, flags: Sequence[str] = ()) -> tuple[Doubt, ...]:
        """Return the doubts for the flags of all readings, and for ``flags``.

        The error of a flagged reading counts with its share of the rounds.
        """
        readings = (*self.base, *self.head)
        found = flag_doubts(
            sorted({*flags, *(flag for reading in readings for flag in reading.flags)})
        )
        share = sum(bool(reading.flags) for reading in readings) / max(1, len(self.head))
        return tuple(
            replace(
                doubt,
                time_error=share * doubt.time_error,
                energy_error=share * doubt.energy_error,
            )
            for doubt in found
        )

    def log_figures(self, metric: Metric) -> tuple[list[float], list[float]]:
        """Return the logarithms of the figures of both versions, one for each round."""
        base, head = (
            [math.log(r.estimate(metric).value) for r in side] for side in (self.base, self.head)
        )
        return base, head

    def _change(
        self, metric: Metric, doubts: Sequence[Doubt], comparisons: int, looks: Looks
    ) -> Estimate:
        at = partial(looks.interval, self._log_ratios(metric))
        return change_interval(at, bonferroni_tail(comparisons), doubts, metric)

    def _log_ratios(self, metric: Metric) -> list[float]:
        return [later - earlier for earlier, later in zip(*self.log_figures(metric), strict=True)]


def take_turns(
    device: Device,
    earlier: Exhibit,
    later: Exhibit,
    *,
    rounds: int,
    timeout_s: float,
    meter: EnergyMeter | None = None,
    ends: Callable[[Turns], bool] = lambda _: False,
    spare_rounds: int = SPARE_ROUNDS,
) -> Turns:
    """Measure both versions up to ``rounds`` times, in the order A B B A A B B A.

    The kernel is verified again after each measurement. The caller has set the card's power cap.
    Before each turn ``ends`` is asked with the turns so far, of which one side may have one more;
    if it returns true, there are no further ones, and half a round does not count. A round with a
    slight flag is measured again, whatever its figures are, up to ``spare_rounds`` times. ``meter``
    has learned about the card from other pairs or kernels.
    """
    readings: tuple[list[Reading], list[Reading]] = ([], [])
    repeated = 0
    with contextlib.ExitStack() as stack:
        opened = []
        for stored in (earlier.stored, later.stored):
            assert stored is not None
            arenas, check = stack.enter_context(stored.opened(device.arrays))
            opened.append((replace(stored.job, timeout_s=timeout_s, apart=True), arenas, check))
        try:
            meter = meter or EnergyMeter(device, TURN)
            while (number := min(map(len, readings))) < rounds:
                if ends(Turns(tuple(readings[0]), tuple(readings[1]))):
                    base, head = (tuple(side[:number]) for side in readings)
                    return Turns(base, head, repeated=repeated)
                first = len(readings[0]) == len(readings[1])
                # A drift that is linear in time cancels between two successive rounds.
                index = number % 2 if first else 1 - number % 2
                job, arenas, check = opened[index]
                check.poison()
                if not any(readings) and not repeated:
                    with device.repeat(job, arenas) as repeater:
                        meter.measure(repeater, FIRST_HEAT)
                with device.repeat(job, arenas) as repeater:
                    reading = meter.measure(repeater, TURN)
                    check_again(repeater, check)
                readings[index].append(reading)
                if first:
                    continue
                flags = {flag for side in readings for flag in side[-1].flags}
                if flags and SLIGHT_FLAGS.issuperset(flags) and repeated < spare_rounds:
                    repeated += 1
                    readings[0].pop()
                    readings[1].pop()
        except KernelFault as fault:
            return Turns(problem=str(fault)) if index else Turns(base_fault=str(fault))
        except DeviceError as error:
            return Turns(problem=str(error))
    return Turns(tuple(readings[0]), tuple(readings[1]), repeated=repeated)
