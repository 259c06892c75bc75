"""What a state's time and energy are spent on, and what another state would save by the model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.move import Region
from pytest_gpuenergy.search.priors.bottlenecks import (
    Costs,
    Shares,
    dominant,
    power_w,
    shares_of_energy,
    shares_of_time,
)
from pytest_gpuenergy.search.priors.card import Card

_AT_LIMIT = 0.97
"""Share of its power limit from which on a card counts as held back by it."""
_SLACK = 0.2
"""Of a card that is held back although the model expects less power; a guess."""
_LEAST_S = 1e-15
_LARGEST = 3.0
"""Logarithm of a speedup; more is not believed of any move."""


@dataclass(frozen=True)
class Situation:
    """A state that was measured.

    Attributes:
        time_s: of one launch.
        costs: by the model, scaled so that no unit is busy for longer than was measured.
        time_shares: what the time is spent on, see `shares_of_time`.
        energy_shares: what the dynamic energy is spent on.
        still: share of the energy that the card takes anyway, while the launch lasts.
        limited: whether the power limit holds the card back.
        slack: the natural logarithm of how much faster the launch would be without the limit.
    """

    time_s: float
    costs: Costs
    time_shares: Shares
    energy_shares: Shares
    still: float
    limited: bool
    slack: float

    @property
    def bottleneck(self) -> Region:
        """What most of the time is spent on."""
        return dominant(self.time_shares)


def situation_of(
    costs: Costs,
    time_s: float,
    card: Card,
    *,
    measured_w: float | None = None,
    used: Shares | None = None,
) -> Situation:
    """The situation of a state.

    Args:
        costs: of its work by the model.
        time_s: of one launch, as measured.
        card: where.
        measured_w: its power; None if it was not measured.
        used: share of the time for which units are busy, as a profiler says.
    """
    busy_s = costs.busy_s
    if used:
        busy_s = {**busy_s, **{region: share * time_s for region, share in used.items()}}
    busiest = max(busy_s.values())
    scale = min(1.0, time_s / busiest) if busiest else 1.0
    busy_s = {region: some * scale for region, some in busy_s.items()}
    wanted_w = power_w(math.fsum(costs.activity_s.values()) / costs.time_s, card)
    drawn_w = wanted_w if measured_w is None else measured_w
    limit_w = math.inf if card.limit_w is None else card.limit_w
    idle_w = card.profile.idle_w
    return Situation(
        time_s=time_s,
        costs=replace(costs, busy_s=busy_s),
        time_shares=shares_of_time(busy_s, time_s),
        energy_shares=shares_of_energy(costs),
        still=min(1.0, idle_w / max(min(drawn_w, limit_w), 1.0)),
        limited=drawn_w >= _AT_LIMIT * limit_w,
        slack=max(_SLACK, _log(wanted_w - idle_w) - _log(limit_w - idle_w)),
    )


def saved(before: Situation, counted: Costs, after: Costs, objective: Metric) -> float:
    """The natural logarithm of the gain in the objective that the model predicts.

    Each unit's time, the waiting and the energy change as the model's do. At the power limit the
    time is that in which the card may spend the dynamic energy.

    Args:
        before: the state that was measured.
        counted: its costs by the model, not scaled.
        after: those of the state that is predicted.
        objective: what is minimized.
    """
    busy = max(
        _changed(some, counted.busy_s[region], after.busy_s[region])
        for region, some in before.costs.busy_s.items()
    )
    waited = before.time_s - max(before.costs.busy_s.values())
    time_s = max(_LEAST_S, busy + waited * after.wait_s / counted.wait_s)
    faster = math.log(before.time_s / time_s)
    leaner = math.log(_total(counted.activity_s) / _total(after.activity_s))
    if before.limited:
        faster = min(leaner, faster + before.slack)
        cheaper = faster  # the power stays that of the limit
    else:
        rest = before.still * math.exp(-faster) + (1 - before.still) * math.exp(-leaner)
        cheaper = -math.log(rest)
    gain = _of_objective(objective, faster, cheaper)
    return max(-_LARGEST, min(_LARGEST, gain))


def involvement(
    before: Situation, regions: Iterable[Region], reducible: Shares, objective: Metric
) -> float:
    """The share of the objective's logarithm that moves can change which relieve some regions.

    Args:
        before: the state that was measured.
        regions: those that a move relieves.
        reducible: the share of each region's work that the contract does not ask for.
        objective: what is minimized.
    """
    chosen = list(regions)
    of_time = math.fsum(before.time_shares[one] * reducible[one] for one in chosen)
    of_energy = math.fsum(before.energy_shares[one] * reducible[one] for one in chosen)
    if before.limited:
        return _of_objective(objective, of_energy, of_energy)
    cheaper = before.still * of_time + (1 - before.still) * of_energy
    return _of_objective(objective, of_time, cheaper)


def changed(counted: Costs, after: Costs) -> frozenset[Region]:
    """The regions whose work is not the same by the model, by more than 1 % of the time."""
    least_s = 0.01 * counted.time_s
    found = {
        region
        for region, some in counted.busy_s.items()
        if abs(after.busy_s[region] - some) > least_s
    }
    if abs(after.wait_s - counted.wait_s) > least_s:
        found.add("overlap")
    return frozenset(found)


def _log(dynamic_w: float) -> float:
    return math.log(max(dynamic_w, 1.0))


def _of_objective(objective: Metric, faster: float, cheaper: float) -> float:
    return {Metric.TIME: faster, Metric.ENERGY: cheaper, Metric.EDP: faster + cheaper}[objective]


def _changed(some: float, counted: float, after: float) -> float:
    """What was measured of a unit, if its work changes as it is counted."""
    return some * after / counted if counted else some + after


def _total(activity_s: Shares) -> float:
    return max(math.fsum(activity_s.values()), _LEAST_S)
