"""The verdict on one metric of one kernel, and on what unchanged kernels have in common.

The two ends of an interval have different error rates. The lower end decides WORSE, and gets a
share of the false alarms that the whole run may raise; the upper end decides SAME, and gets the
chance of a miss that each kernel has. Flags and other differences between two measurements put a
verdict in doubt. A doubt of known small size, such as the error of a flagged figure, widens the
interval. If the card may have been in another state, the verdict allows for a large factor beyond
the interval: then a change near the limit is AMBIGUOUS, but one far beyond it is still WORSE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from pytest_gpuenergy.gate.error_rates import FALSE_ALARM, MISS, bonferroni_tail
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

LARGE = 4.0
"""Factor of doubts whose size is unknown: the figure may be that of another state of the card.

A power limit or a slowdown rarely makes a kernel take four times as long: the lowest limits of the
cap tables are about a quarter of the highest. A foreign process that takes turns doubles the time
and the energy. Flags of later versions count as large.
"""

FLAG_ERRORS: Mapping[str, tuple[float, float]] = {
    "interval_wide": (0.0, 0.0),
    "not_settled": (0.0, 0.0),
    "clock_step": (0.001, 0.01),
    "not_steady": (0.001, 0.01),
    "temperature_drift": (0.001, 0.02),
    "sources_disagree": (0.0, 0.04),
    "drift": (0.06, 0.06),
}
"""Standard deviation that a flag adds to time and energy, as fractions, for flags of small effect.

The first two say that the interval is wide, and it holds: 15 such figures deviated from unflagged
ones by half of what their intervals explain. Eight with a step of the clock or of the power
deviated as much as intervals and sessions explain; at most 0.95 % more in energy and nothing in
time are compatible with that (95 % upper bounds, `studies/flag_errors.py`). The others have not
been seen on a card: twice the effect at which the flag is raised (1 %, 2 % and 3 %).
"""

SLIGHT_FLAGS = frozenset(FLAG_ERRORS)
"""The flags of small effect."""


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
        reason: the reason, as a clause for the reader.
        factor: the factor by which time and energy may be off, each in either direction, beyond
            the interval; 1 if the interval has room for the doubt.
        clock_ratio: the SM clock of the new run in units of that of the baseline. The change may
            be due to it, or hidden by it.
        time_error: standard deviation that the doubt adds to the time, as a fraction.
        energy_error: standard deviation that the doubt adds to the energy, as a fraction.
    """

    reason: str
    factor: float = LARGE
    clock_ratio: float = 1.0
    time_error: float = 0.0
    energy_error: float = 0.0

    @property
    def is_large(self) -> bool:
        """Whether its size is unknown, so that no interval has room for it."""
        return self.factor > 1.0

    def error(self, metric: Metric) -> float:
        """Return the standard deviation that the doubt adds to a metric, as a fraction."""
        time = 0.0 if metric is Metric.ENERGY else self.time_error
        energy = 0.0 if metric is Metric.TIME else self.energy_error
        return math.hypot(time, energy)


def widened(
    change: Estimate, doubts: Iterable[Doubt], metric: Metric, tail: float = FALSE_ALARM
) -> Estimate:
    """Return the interval of ln(new / base) with room for ``doubts``.

    Their standard deviations are added to the variance, with a probability of ``tail`` beyond
    either end; their factors multiply.
    """
    found = tuple(doubts)
    error = normal_quantile(tail) * math.hypot(*(doubt.error(metric) for doubt in found))
    low = change.value - math.hypot(change.value - change.low, error)
    high = change.value + math.hypot(change.high - change.value, error)
    for doubt in found:
        room = math.log(doubt.factor) * (2 if metric is Metric.EDP else 1)  # both may be off
        by_clock = [math.log(doubt.clock_ratio) * power for power in CLOCK_EXPONENTS[metric]]
        low -= room + max(0.0, *by_clock)
        high += room - min(0.0, *by_clock)
    return Estimate(change.value, low, high)


def change_interval(
    at: Callable[..., Estimate],
    alarm: float,
    doubts: Iterable[Doubt],
    metric: Metric,
    *,
    least: float = 0.0,
) -> Estimate:
    """Return ln(new / base) with the one interval that decides its verdict and is shown.

    The lower end lies above the true change with a probability of at most ``alarm``, which holds
    for all kernels of a run at once. The upper end lies below it with a probability of at most
    `MISS`, and below zero only where that is as certain as the lower end: an improvement is claimed
    no more readily than a regression.

    Args:
        at: returns the interval with the probability ``tail`` beyond either end.
        alarm: the share of `FALSE_ALARM`.
        doubts: what puts the change in doubt; those that are large are left out.
        metric: the metric.
        least: the least distance from the change at which a regression or an improvement is
            certain, as a logarithm.
    """
    small = [doubt for doubt in doubts if not doubt.is_large]
    certain, single = (widened(at(tail=tail), small, metric, tail) for tail in (alarm, MISS))
    value = certain.value
    low, most = min(certain.low, value - least), max(certain.high, value + least)
    # Looks at successive rounds may contradict each other at the higher risk only.
    high = single.high if single.high >= low else most
    high = min(most, max(high, 0.0))
    return Estimate(min(value, high), low, high)


def decide_in_doubt(
    change: Estimate, doubts: Iterable[Doubt], metric: Metric, limit: float
) -> Verdict:
    """Return the verdict on a change from `change_interval`, with room for large doubts."""
    return decide(widened(change, [doubt for doubt in doubts if doubt.is_large], metric), limit)


def flag_doubts(flags: Iterable[str], when: str = "") -> tuple[Doubt, ...]:
    """Return one doubt for all ``flags`` of a side, with the size of the worst, if any."""
    named = tuple(flags)
    if not named:
        return ()
    reason = f"flagged{when}: {', '.join(named)}"
    if not SLIGHT_FLAGS.issuperset(named):
        return (Doubt(reason),)
    time_error, energy_error = map(max, zip(*(FLAG_ERRORS[flag] for flag in named), strict=True))
    return (Doubt(reason, 1.0, time_error=time_error, energy_error=energy_error),)


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

    WORSE when the whole interval exceeds ``most`` by more than the fraction ``limit``, SAME when
    none of it does, AMBIGUOUS otherwise.
    """
    doubts = flag_doubts(measurement.validity, " now")
    found, figure = session_mean(measurement, metric), measurement.figure(metric)
    change = None
    if found is None:
        doubts = (*doubts, Doubt("no interval"))
    else:
        session_sd = max(settings.sd(metric), WANDER[metric])
        change = change_interval(
            partial(log_excess, found, most, session_sd=session_sd),
            bonferroni_tail(comparisons),
            doubts,
            metric,
        )
    verdict = decide_in_doubt(change or point_ratio(most, figure), doubts, metric, limit)
    if verdict is Verdict.BETTER:
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
    alarm: float,
    session_sd: float,
    doubts: tuple[Doubt, ...] = (),
    shift: CommonShift | None = None,
) -> Judgement:
    """Return the verdict on ``metric`` of two measurements with figures.

    The interval of the change is that by the declared deviation between sessions, or the one
    relative to the shift if that is narrower, or if the declared one does not hold. Where a
    kernel has the same text, another board explains as much as is declared for boards.

    Args:
        base: the earlier measurement.
        new: the later measurement.
        metric: the metric to judge.
        limit: by how much the metric may become worse, as a fraction.
        alarm: the share of the chance of a false alarm.
        session_sd: declared standard deviation between sessions, as a fraction.
        doubts: doubts about everything that is not relative to a shift.
        shift: what unchanged kernels have in common.
    """
    before, now = session_mean(base, metric), session_mean(new, metric)
    values = (base.figure(metric), new.figure(metric))
    same_text = bool(new.kernel.digest) and base.kernel.digest == new.kernel.digest
    change, others = None, pair_doubts(base, new, metric)
    if before is None or now is None:
        shift = None
        which = "the baseline" if before is None else "the new run"
        doubts = (*doubts, *others, Doubt(f"no interval in {which}"))
    else:
        declared = partial(log_ratio, before, now, session_sd=max(session_sd, WANDER[metric]))
        at = declared
        if shift is not None:
            relative = partial(shift.relative, before, now)
            narrower = relative(tail=alarm).half_width < declared(tail=alarm).half_width
            if doubts or shift.contradicts or narrower:
                at, doubts = relative, ()
            else:
                shift = None
        doubts = (*doubts, *others)
        between = 0.0
        if shift is not None and not shift.same_board and same_text:
            # A kernel of another kind than the others is shifted otherwise by another board.
            between = declared(tail=alarm).half_width
        change = change_interval(at, alarm, doubts, metric, least=between)
    return Judgement(
        new.identity,
        metric,
        decide_in_doubt(change or point_ratio(*values), doubts, metric, limit),
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
