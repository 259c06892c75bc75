"""By how much flags and other differences between two measurements put a verdict in doubt.

A doubt widens the interval of a change by a factor at either end: the most by which the figure may
be off in a way that the interval does not show. It decides nothing by itself, so that a change far
beyond the limit is WORSE whatever the flags are, and one near the limit is AMBIGUOUS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuenergy.record import Estimate, Measurement, Metric
from pytest_gpuenergy.report import energy_source

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

SLIGHT_FLAGS = frozenset(
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
"""The flags for an effect of a few per cent."""


CLOCK_EXPONENTS = {Metric.TIME: (-1.0, 0.0), Metric.ENERGY: (0.0, 3.0), Metric.EDP: (-1.0, 3.0)}
"""Least and greatest exponent of the SM clock in a metric, where no power limit binds.

A kernel takes time inversely to the clock at most, and not at all less if memory or launches limit
it. The energy grows with the square of the voltage, which rises with the clock: with clocks 0.6 to
0.9 % apart, three convolutions on an H100 differed in energy by 2.3 to 3.3 times as much.
"""

_SAME_CLOCK = 0.004
"""Clocks that differ by less than this fraction are not mentioned."""


@dataclass(frozen=True)
class Doubt:
    """Why a change may be off.

    Attributes:
        reason: a clause.
        factor: by which factor time and energy may be off, each in either direction.
        clock_ratio: the SM clock of the new run in units of that of the baseline. The change may
            be due to it, or hidden by it.
    """

    reason: str
    factor: float = LARGE
    clock_ratio: float = 1.0


def widened(change: Estimate, doubts: Iterable[Doubt], metric: Metric) -> Estimate:
    """The interval of ln(new / base) with room for ``doubts``; several of them multiply."""
    low, high = change.low, change.high
    for doubt in doubts:
        room = math.log(doubt.factor) * (2 if metric is Metric.EDP else 1)  # both may be off
        by_clock = [math.log(doubt.clock_ratio) * power for power in CLOCK_EXPONENTS[metric]]
        low -= room + max(0.0, *by_clock)
        high += room - min(0.0, *by_clock)
    return Estimate(change.value, low, high)


def doubts_of_flags(flags: Iterable[str], when: str = "") -> tuple[Doubt, ...]:
    """One doubt for all ``flags`` of a side, with the factor of the worst; none without flags."""
    named = tuple(flags)
    if not named:
        return ()
    factor = SLIGHT if SLIGHT_FLAGS.issuperset(named) else LARGE
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
    if clocks[0] == clocks[1]:
        found += _doubts_of_free_clocks(base, new)
    work = [(side.workload.parameters, side.workload.flops) for side in (base, new)]
    if work[0] != work[1]:  # any change may be due to that
        found.append(Doubt("the workload of that name has changed", math.inf))
    sources = [energy_source(side) for side in (base, new)]
    if metric is not Metric.TIME and sources[0] != sources[1]:
        found.append(Doubt(f"the energy source was {sources[0]} and is now {sources[1]}"))
    return tuple(found)


def _doubts_of_free_clocks(base: Measurement, new: Measurement) -> list[Doubt]:
    """Return the doubt that the SMs ran at another clock, although no power limit moved it."""
    clocks = base.effective_sm_clock_mhz, new.effective_sm_clock_mhz
    if not all(clocks) or base.cap_binding or new.cap_binding:
        return []
    before, now = (mhz or 0.0 for mhz in clocks)
    if abs(now / before - 1) < _SAME_CLOCK:
        return []
    reason = f"the SMs ran at {before:.0f} MHz and run at {now:.0f} MHz now"
    return [Doubt(reason, 1.0, now / before)]
