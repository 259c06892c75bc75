"""Pairs the items of two revisions, measures them alternately and judges the difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_gpuenergy.ab.exhibit import Exhibit
from pytest_gpuenergy.ab.rounds import TURN, Turns, take_turns
from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.energy import EnergyMeter
from pytest_gpuenergy.engine import Station
from pytest_gpuenergy.gate import (
    Comparison,
    GateSettings,
    Judgement,
    Looks,
    Unmatched,
    count_comparisons,
)
from pytest_gpuenergy.record import RunInfo
from pytest_gpuenergy.report import Counterparts

Revision = tuple[RunInfo, Sequence[Exhibit]]


def compare_pairs(
    station: Station,
    base: Revision,
    head: Revision,
    settings: GateSettings,
    *,
    rounds: int,
    timeout_s: float,
    tell: Callable[[str], None],
    precision: float = math.inf,
) -> Comparison:
    """Measure each pair alternately under its power cap, which is restored afterwards.

    The rounds of a pair end when each metric has a verdict, see `Turns.are_enough`. An interrupt
    ends the measurements, and the comparison has what was judged before.

    Args:
        station: The claimed GPU.
        base: The earlier revision.
        head: The later revision.
        settings: The limits to judge by; its deviation between sessions is not used.
        rounds: The largest number of measurements of each version.
        timeout_s: The time limit for one run of a kernel.
        tell: Called with a line for each pair before and after it is measured.
        precision: The largest half width of an interval with which the rounds end, as a fraction.

    Raises:
        DeviceError: The power cap cannot be set or restored.
    """
    found = _pair_up(base[1], head[1])
    comparisons = count_comparisons(len(found.pairs), settings)
    judgements: list[Judgement] = []
    looks = Looks.up_to(rounds)
    meter = EnergyMeter(station.device, TURN)  # one for all, because it learns about the card

    def ends(turns: Turns) -> bool:
        return turns.are_enough(settings, comparisons, looks, precision)

    interrupted = False
    try:
        for older, later in [*found.pairs]:
            name = later.draft.identity.label
            tell(f"{name}: up to {rounds} rounds")
            setpoint = Setpoint.asked_for(later.draft)
            with station.under(setpoint):
                turns = take_turns(
                    *(station.device, older, later),
                    rounds=rounds,
                    timeout_s=timeout_s,
                    meter=meter,
                    ends=ends,
                )
                flags = (*station.judge_setpoint(), *turns.lock_flags(setpoint.sm_clock_mhz))
            found.pairs.pop(0)
            if turns.base_fault:
                why = f"wrong in the baseline: {turns.base_fault}"
                found.unknown.append(Unmatched(later.draft, why))
            elif turns.problem:
                found.failed.append(Unmatched(later.draft, turns.problem))
            else:
                verdicts = turns.judge(later, settings, comparisons, looks, flags)
                judgements += verdicts
                words = ", ".join(
                    f"{verdict.metric.label} {verdict.verdict}" for verdict in verdicts
                )
                again = f", {turns.repeated} more of which were disturbed" if turns.repeated else ""
                tell(f"{name}: {words} after {len(turns.base)} rounds{again}")
    except KeyboardInterrupt:
        interrupted = True
        why = "not measured: interrupted"
        found.failed += [Unmatched(later.draft, why) for _, later in found.pairs]
    return Comparison(
        base[0],
        head[0],
        settings,
        comparisons,
        tuple(judgements),
        tuple(found.unknown),
        found.gone,
        tuple(found.failed),
        unchanged=tuple(found.unchanged),
        interrupted=interrupted,
    )


@dataclass
class _Found:
    """The items of two revisions by what becomes of them; of a pair, the earlier one is first."""

    pairs: list[tuple[Exhibit, Exhibit]] = field(default_factory=list)
    unknown: list[Unmatched] = field(default_factory=list)
    failed: list[Unmatched] = field(default_factory=list)
    unchanged: list[Unmatched] = field(default_factory=list)
    gone: tuple[Unmatched, ...] = ()


def _pair_up(base: Sequence[Exhibit], head: Sequence[Exhibit]) -> _Found:
    by_item = {exhibit.draft.node_id: exhibit for exhibit in base}
    earlier = Counterparts(exhibit.draft for exhibit in base)
    found = _Found()
    for exhibit in head:
        draft = exhibit.draft
        before = earlier.of(draft)
        if before is None:
            found.unknown.append(Unmatched(draft, "not in the baseline"))
        elif before.error is not None:
            found.unknown.append(Unmatched(draft, f"wrong in the baseline: {before.error}"))
        elif draft.error is not None:
            found.failed.append(Unmatched(draft, draft.error))
        elif (before.kernel.digest, before.workload) == (draft.kernel.digest, draft.workload):
            found.unchanged.append(Unmatched(draft, "the same kernel in both"))
        elif before.workload != draft.workload:
            found.unknown.append(Unmatched(draft, "the workload of that name has changed"))
        else:
            found.pairs.append((by_item[before.node_id], exhibit))
    unused = earlier.unused(exhibit.draft for exhibit in head)
    found.gone = tuple(Unmatched(draft, "not in the new run") for draft in unused)
    return found
