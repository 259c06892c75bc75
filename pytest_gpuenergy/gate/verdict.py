"""The verdict on one metric of one kernel, and on what unchanged kernels have in common.

Flags and other differences between two measurements put a verdict in doubt. A doubt widens the
interval of a change by a factor at either end: the most by which the figure may be off in a way
that the interval does not show. It decides nothing by itself, so that a change far beyond the limit
is WORSE whatever the flags are, and one near the limit is AMBIGUOUS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pytest_gpuenergy.gate.error_rates import bonferroni_tail
from pytest_gpuenergy.gate.gate_settings import GateSettings
from pytest_gpuenergy.record import (
    WANDER,
    Estimate,
    Identity,
    Measurement,
    Metric,
    log_excess,
    log_ratio,
    normal_quantile,
    point_ratio,
    session_mean,
)
from pytest_gpuenergy.report import CommonShift, energy_source

SLIGHT = 1.1
"""Factor of the flags whose definition limits their effect to a few per cent.

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
    """Return the interval of ln(new / base) with room for ``doubts``; several of them multiply."""
    low, high = change.low, change.high
    for doubt in doubts:
        room = math.log(doubt.factor) * (2 if metric is Metric.EDP else 1)  # both may be off
        by_clock = [math.log(doubt.clock_ratio) * power for power in CLOCK_EXPONENTS[metric]]
        low -= room + max(0.0, *by_clock)
        high += room - min(0.0, *by_clock)
    return Estimate(change.value, low, high)


def flag_doubts(flags: Iterable[str], when: str = "") -> tuple[Doubt, ...]:
    """Return one doubt for all ``flags`` of a side, with the factor of the worst, if any."""
    named = tuple(flags)
    if not named:
        return ()
    factor = SLIGHT if SLIGHT_FLAGS.issuperset(named) else LARGE
    return (Doubt(f"flagged{when}: {', '.join(named)}", factor),)


def pair_doubts(base: Measurement, new: Measurement, metric: Metric) -> tuple[Doubt, ...]:
    """Return what makes two measurements hard to compare."""
    found = [
        *flag_doubts(base.validity, " in the baseline"),
        *flag_doubts(new.validity, " now"),
    ]
    limits = (base.enforced_power_limit_w, new.enforced_power_limit_w)
    if limits[0] != limits[1]:
        shown = ["unknown" if limit is None else f"{limit:g} W" for limit in limits]
        found.append(Doubt(f"the enforced power limit was {shown[0]} and is now {shown[1]}"))
    clocks = (base.locked_sm_clock_max_mhz, new.locked_sm_clock_max_mhz)
    if clocks[0] != clocks[1]:
        shown = ["not locked" if mhz is None else f"locked to {mhz:g} MHz" for mhz in clocks]
        found.append(Doubt(f"the SM clocks were {shown[0]} and are now {shown[1]}"))
    elif not base.cap_binding and not new.cap_binding:
        # The SMs ran at another clock, although no power limit moved it.
        before, now = base.effective_sm_clock_mhz, new.effective_sm_clock_mhz
        if before and now and abs(now / before - 1) >= _SAME_CLOCK:
            reason = f"the SMs ran at {before:.0f} MHz and run at {now:.0f} MHz now"
            found.append(Doubt(reason, 1.0, now / before))
    work = [(side.workload.parameters, side.workload.flops) for side in (base, new)]
    if work[0] != work[1]:  # any change may be due to that
        found.append(Doubt("the workload of that name has changed", math.inf))
    sources = [energy_source(side) for side in (base, new)]
    if metric is not Metric.TIME and sources[0] != sources[1]:
        found.append(Doubt(f"the energy source was {sources[0]} and is now {sources[1]}"))
    return tuple(found)


class Verdict(StrEnum):
    """The verdict on a metric.

    WORSE or BETTER when the whole interval of the change lies beyond the limit, AMBIGUOUS when the
    metric may or may not be worse by more than the limit, SAME when it certainly is not.
    """

    SAME = "SAME"
    BETTER = "BETTER"
    WORSE = "WORSE"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one metric of one kernel under one cap.

    Attributes:
        identity: identity of the measurements.
        metric: the metric that was judged.
        verdict: the verdict.
        limit: by how much the metric may become worse, as a fraction.
        change: ln(new / base) with its simultaneous interval; None when it cannot be computed.
        base: the metric in the baseline, in ms, mJ or mJ ms.
        new: the metric now, in the same unit.
        reasons: clauses for which the verdict allows more than the interval; may be empty.
        shift: the common shift to which ``change`` is relative; None when it is not.
        unchanged: whether it is one of the unchanged kernels of ``shift``.
        node_id: the item that was judged.
    """

    identity: Identity
    metric: Metric
    verdict: Verdict
    limit: float
    change: Estimate | None
    base: float | None
    new: float | None
    reasons: tuple[str, ...] = ()
    shift: CommonShift | None = None
    unchanged: bool = False
    node_id: str = ""


def fails(judgement: Judgement, settings: GateSettings) -> bool:
    """Return whether the verdict is a failure under ``settings``."""
    if judgement.verdict is Verdict.AMBIGUOUS:
        return settings.strict
    return settings.enforced and judgement.verdict is Verdict.WORSE


def decide(change: Estimate, limit: float) -> Verdict:
    """Return the verdict on ln(new / base).

    A ratio r is beyond the limit when r > 1 + limit (worse) or r < 1 / (1 + limit) (better). WORSE
    or BETTER when the whole interval lies beyond it; AMBIGUOUS when the interval holds 1 + limit,
    the only end that can fail; otherwise SAME, however far the interval extends to the good side.
    """
    bound = math.log1p(limit)
    if change.low > bound:
        return Verdict.WORSE
    if change.high > bound:
        return Verdict.AMBIGUOUS
    return Verdict.BETTER if change.high < -bound else Verdict.SAME


def judge_budget(
    measurement: Measurement,
    most: float,
    limit: float,
    settings: GateSettings,
    comparisons: int,
    metric: Metric = Metric.EDP,
) -> Judgement:
    """Return the verdict on a figure against the budget ``most``, in the metric's unit.

    WORSE when the whole interval, widened by flags, exceeds ``most`` by more than the fraction
    ``limit``, SAME when none of it does, AMBIGUOUS otherwise.
    """
    doubts = flag_doubts(measurement.validity, " now")
    found, figure = session_mean(measurement, metric), measurement.figure(metric)
    change = None
    if found is None:
        doubts = (*doubts, Doubt("no interval"))
    else:
        change = log_excess(
            found,
            most,
            session_sd=max(settings.sd(metric), WANDER[metric]),
            tail=bonferroni_tail(comparisons),
        )
    possible = widened(change or point_ratio(most, figure), doubts, metric)
    bound = math.log1p(limit)
    verdict = Verdict.AMBIGUOUS
    if possible.low > bound:
        verdict = Verdict.WORSE
    elif possible.high <= bound:
        verdict = Verdict.SAME
    return Judgement(
        measurement.identity,
        metric,
        verdict,
        limit,
        change,
        most,
        figure,
        tuple(doubt.reason for doubt in doubts),
    )


def judge(
    base: Measurement,
    new: Measurement,
    metric: Metric,
    limit: float,
    tail: float,
    session_sd: float,
    doubts: tuple[Doubt, ...] = (),
    shift: CommonShift | None = None,
) -> Judgement:
    """Return the verdict on ``metric`` of two measurements with figures.

    The interval of the change is that by the declared deviation between sessions, or the one
    relative to the shift if that is narrower, or if the declared one does not hold.

    Args:
        base: the earlier measurement.
        new: the later measurement.
        metric: the metric to judge.
        limit: by how much the metric may become worse, as a fraction.
        tail: the probability beyond each end of the interval.
        session_sd: declared standard deviation between sessions, as a fraction.
        doubts: doubts about everything that is not relative to a shift.
        shift: what unchanged kernels have in common.
    """
    before, now = session_mean(base, metric), session_mean(new, metric)
    values = (base.figure(metric), new.figure(metric))
    change, others = None, pair_doubts(base, new, metric)
    if before is None or now is None:
        shift = None
        which = "the baseline" if before is None else "the new run"
        others = (*others, Doubt(f"no interval in {which}"))
    else:
        deviation = max(session_sd, WANDER[metric])
        change = log_ratio(before, now, session_sd=deviation, tail=tail)
        if shift is not None:
            relative = shift.relative(before, now, tail)
            if doubts or shift.contradicts or relative.half_width < change.half_width:
                change, doubts = relative, ()
            else:
                shift = None
    doubts = (*doubts, *others)
    possible = widened(change or point_ratio(*values), doubts, metric)
    return Judgement(
        new.identity,
        metric,
        decide(possible, limit),
        limit,
        change,
        *values,
        tuple(doubt.reason for doubt in doubts),
        shift,
        node_id=new.node_id,
    )


UNUSUAL = 0.005
"""Probability, at either end, of a shift between sessions that is called unusual."""


@dataclass(frozen=True)
class JudgedShift:
    """The verdict on a common shift.

    Attributes:
        shift: the shift of one metric at one place.
        limit: by how much the metric may become worse, as a fraction.
        verdict: WORSE or BETTER when the shift exceeds the limit by more than sessions and boards
            explain, SAME otherwise.
        usual: the largest shift, as a logarithm, that is usual between sessions or boards.
    """

    shift: CommonShift
    limit: float
    verdict: Verdict
    usual: float

    @property
    def unusual(self) -> bool:
        """Whether the shift certainly exceeds what sessions and boards do."""
        change = self.shift.change
        return change.low > self.usual or change.high < -self.usual


def judge_shift(
    shift: CommonShift, limit: float, settings: GateSettings, tail: float
) -> JudgedShift:
    """Return the verdict on a shift, which comes on top of the kernels' own.

    All unchanged kernels become slower when the driver, the compiler or the harness has changed for
    the worse. What is common to them is therefore judged as well, by the deviation between sessions
    or boards that the settings declare.
    """
    session_sd = settings.sd(shift.metric, same_board=shift.same_board)
    between = math.sqrt(2) * session_sd
    room = normal_quantile(tail) * math.hypot(between, shift.error)
    middle = shift.change.value
    found = decide(Estimate(middle, middle - room, middle + room), limit)
    verdict = Verdict.SAME if found is Verdict.AMBIGUOUS else found
    return JudgedShift(shift, limit, verdict, normal_quantile(UNUSUAL) * between)
