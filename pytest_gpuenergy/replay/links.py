"""What the links between GPUs take for as long as the exchanges of a step keep them awake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.calls import UniqueCall
from pytest_gpuenergy.replay.figures import (
    EAGER,
    GAP,
    GAP_MS,
    GRAPH,
    at_temperature_mj,
    links_key,
    step_key,
    time_ms_of,
)
from pytest_gpuenergy.replay.ranks import Ranks

if TYPE_CHECKING:
    from pytest_gpuenergy.engine import Replayable
    from pytest_gpuenergy.replay.plan import Plan


def spaced_exchanges(
    plan: Plan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
    ranks: Ranks,
) -> Iterator[Replayable]:
    """What to measure for `links_w`: the commonest exchange of each step, and gaps.

    Args:
        plan: of the replay.
        calls: of the model.
        steps: that are replayed.
        measured: steps and calls, by their keys; it may grow meanwhile.
        ranks: that share the model, and take the same number of gaps.
    """
    for step in steps:
        exchanges = [one for one in calls if one.is_exchange and one.steps.get(step)]
        if not exchanges or plan.gap is None:
            continue
        commonest = max(exchanges, key=lambda one: one.steps[step])
        for level in (GRAPH, EAGER):
            whole = measured.get(step_key(step, level))
            gaps = ranks.gathered(_gaps_between(exchanges, step, measured, whole))
            spaced = None
            if all(gaps):
                spaced = plan.spaced(commonest.id, max(gaps), links_key(step, level))
            if spaced is not None:
                yield from (plan.gap, spaced)


def _gaps_between(
    exchanges: Sequence[UniqueCall],
    step: int,
    measured: Mapping[str, Measurement],
    whole: Measurement | None,
) -> int:
    """How many gaps take the mean time between two exchanges of a step; 0 if it is not known."""
    alone = [measured.get(one.id) for one in exchanges]
    times_ms = [one.time_ms for one in alone if one is not None and one.time_ms is not None]
    if whole is None or whole.time_ms is None or len(times_ms) < len(exchanges):
        return 0
    counts = [one.steps[step] for one in exchanges]
    taken_ms = sum(count * time_ms for count, time_ms in zip(counts, times_ms, strict=True))
    return max(1, round((whole.time_ms - taken_ms) / sum(counts) / GAP_MS))


def links_w(
    step: int, level: str, measured: Mapping[str, Measurement], temperature_c: float | None
) -> float | None:
    """Power that links take beside what runs; None if there are none, or it was not measured.

    Args:
        step: its number.
        level: see `pytest_gpuenergy.replay.account.Account`; layers have their exchanges at the
            distance of the whole step's graph.
        measured: measurements by their keys.
        temperature_c: of the card, to bring the energies to.
    """
    apart = measured.get(links_key(step, EAGER if level == EAGER else GRAPH))
    if apart is None or not apart.measured:
        return None
    alone, gap = measured.get(str(apart.workload.parameters["exchange"])), measured.get(GAP)
    if alone is None or gap is None or not (alone.measured and gap.measured):
        return None
    longer_ms = time_ms_of(apart) - time_ms_of(alone)
    if longer_ms <= 0:
        return None
    more_mj = at_temperature_mj(apart, temperature_c) - at_temperature_mj(alone, temperature_c)
    return more_mj / longer_ms - at_temperature_mj(gap, temperature_c) / time_ms_of(gap)
