"""By how much flags and other differences between two measurements put a verdict in doubt.

A doubt widens the interval of a change by a factor at either end: the most by which the figure may
be off in a way that the interval does not show. It decides nothing by itself, so that a change far
beyond the limit is WORSE whatever the flags are, and one near the limit is AMBIGUOUS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.report.shift import energy_source

SLIGHT = 1.1
"""Factor of flags for an effect of a few per cent, which has its size in their definition.

They are raised at a width of 1 %, at a drift of 3 % between anchors or 1 % of power per second over
5 s, at sources that differ by 2 %, at 8 K, which is about 1 % of power, and at a step of the clock,
with which the power has been seen to step by up to 4 %. What exceeds its threshold threefold stays
within the factor.
"""

LARGE = 4.0
"""Factor of all other doubts: the figure may be that of another state of the card.

A power limit or a slowdown rarely makes a kernel take four times as long: the lowest limits of the
cap tables are about a quarter of the highest. A foreign process that takes turns doubles the time
and the energy. Flags of later versions count as large.
"""

_SLIGHT_FLAGS = frozenset(
    {
        "interval_wide",
        "not_settled",
        "not_steady",
        "clock_step",
        "sources_disagree",
        "temperature_drift",
        "drift",
    }
)


@dataclass(frozen=True)
class Doubt:
    """Why a change may be off, as a clause, and by which factor in time and in energy."""

    reason: str
    factor: float = LARGE


def widened(change: Estimate, doubts: Iterable[Doubt], metric: Metric) -> Estimate:
    """The interval of ln(new / base) with room for ``doubts``; several of them multiply."""
    room = sum(math.log(doubt.factor) for doubt in doubts)
    if metric is Metric.EDP:  # time and energy may both be off
        room *= 2
    return Estimate(change.value, change.low - room, change.high + room)


def doubts_of_flags(flags: Iterable[str], when: str = "") -> tuple[Doubt, ...]:
    """One doubt for all ``flags`` of a side, with the factor of the worst; none without flags."""
    named = tuple(flags)
    if not named:
        return ()
    factor = SLIGHT if _SLIGHT_FLAGS.issuperset(named) else LARGE
    return (Doubt(f"flagged{when}: {', '.join(named)}", factor),)


def doubts_of_pair(base: Measurement, new: Measurement, metric: Metric) -> tuple[Doubt, ...]:
    """What makes two measurements hard to compare."""
    found = [
        *doubts_of_flags(base.validity, " in the baseline"),
        *doubts_of_flags(new.validity, " now"),
    ]
    limits = (base.enforced_power_limit_w, new.enforced_power_limit_w)
    if limits[0] != limits[1]:
        shown = ["unknown" if limit is None else f"{limit:g} W" for limit in limits]
        found.append(Doubt(f"the enforced power limit was {shown[0]} and is now {shown[1]}"))
    clocks = (base.locked_sm_clock_max_mhz, new.locked_sm_clock_max_mhz)
    if clocks[0] != clocks[1]:
        shown = ["not locked" if mhz is None else f"locked to {mhz:g} MHz" for mhz in clocks]
        found.append(Doubt(f"the SM clocks were {shown[0]} and are now {shown[1]}"))
    work = [(side.workload.parameters, side.workload.flops) for side in (base, new)]
    if work[0] != work[1]:  # any change may be due to that
        found.append(Doubt("the workload of that name has changed", math.inf))
    sources = [energy_source(side) for side in (base, new)]
    if metric is not Metric.TIME and sources[0] != sources[1]:
        found.append(Doubt(f"the energy source was {sources[0]} and is now {sources[1]}"))
    return tuple(found)
