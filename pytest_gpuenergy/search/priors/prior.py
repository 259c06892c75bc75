"""The gain to expect of a move before it is tried, by what bottlenecks it attacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from pytest_gpuenergy.emulator import L2_BYTES_PER_CYCLE
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.moves.move import REGIONS, Application, Move, Region
from pytest_gpuenergy.search.priors.bottlenecks import (
    Card,
    Costs,
    Shares,
    costs_of,
    dominant,
    power_w,
    shares_of_energy,
    shares_of_time,
    work_of,
)
from pytest_gpuenergy.search.priors.tactics import Tactic
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.spec.spec_workload import workload_of
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters
from pytest_gpuenergy.search.trust.result import Result

_NORMAL = NormalDist()
_UNLIKELY = 2.0
"""Standard deviations above the mean up to which a gain is not ruled out."""
_LARGEST_FRACTION, _ROUNDING = 0.99, 1e-9


class BottleneckPrior:
    """Predicts gains of moves on one kernel on one card; see docs/explanation/search-priors.md.

    Args:
        spec: of the kernel.
        card: where it is searched.
        objective: what is minimized.
        parameters: of the search.
        tactics: what moves have brought in other kernels.
    """

    def __init__(
        self,
        spec: KernelSpec,
        card: Card,
        objective: Metric,
        parameters: SearchParameters,
        tactics: Iterable[Tactic] = (),
    ) -> None:
        self._spec = spec
        self._card = card
        self._objective = objective
        self._parameters = parameters
        self._tactics = {
            (one.move, one.bottleneck): one for one in tactics if one.language == spec.language
        }
        self._contract = workload_of(spec, spec.sizes[0], dict)
        self._costs: dict[str, Costs | None] = {}
        self._used: dict[str, Shares] = {}

    def profiled(self, state: State, used: Shares) -> None:
        """Take note of how busy a profiler has found a state to keep units, as shares of time."""
        self._used[state.id] = used

    def situation(self, state: State, result: Result) -> Situation | None:
        """What a state's time and energy are spent on.

        None if it was not measured, or its text is not understood.

        Raises:
            UnavailableError: tree-sitter is needed and not installed.
        """
        costs = self.costs(state)
        if costs is None or result.time_ms is None:
            return None
        return situation_of(
            costs,
            result.time_ms / 1e3,
            self._card,
            measured_w=result.power_w,
            used=self._used.get(state.id),
        )

    def costs(self, state: State) -> Costs | None:
        """What a state takes by the model; None if its text is not understood."""
        if state.id not in self._costs:
            work = work_of(state, self._spec)
            moved = max(0, self._contract.bytes_moved - self._card.profile.l2_bytes)
            self._costs[state.id] = None if work is None else costs_of(work, self._card, moved)
        return self._costs[state.id]

    def gain(
        self, state: State, result: Result, move: Move, application: Application
    ) -> float | None:
        """The improvement to expect, as a natural logarithm; None if nothing is known.

        The gain is taken to be normally distributed, and the search to keep the better of the two
        states (D. Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions",
        Journal of Global Optimization 13, 1998). It is at least ``min_pred_gain`` where so much is
        not unlikely: a poor prediction rules nothing out.
        """
        before, counted = self.situation(state, result), self.costs(state)
        mean = self.counted_gain(state, result, application.state)
        if before is None or counted is None or mean is None:
            return None
        after = self.costs(application.state)
        attacked = move.relieves | (frozenset() if after is None else changed(counted, after))
        involved = involvement(before, attacked, self._reducible(counted), self._objective)
        spread = self._parameters.pred_gain_spread * involved
        tactic = self._tactics.get((application.move, before.bottleneck))
        return self._with_tactic(mean, spread, tactic)

    def counted_gain(self, state: State, result: Result, changed_to: State) -> float | None:
        """What another state saves by the model, as a natural logarithm; 0 if it does not say.

        None if nothing is known of the state itself.
        """
        before, counted = self.situation(state, result), self.costs(state)
        if before is None or counted is None:
            return None
        after = self.costs(changed_to)
        if after is None or not _are_comparable(counted, after):
            return 0.0
        return saved(before, counted, after, self._objective)

    def _with_tactic(self, mean: float, spread: float, tactic: Tactic | None) -> float:
        succeeds = 1.0
        if tactic is not None:
            weight = self._parameters.tactic_count
            seen = tactic.count / (tactic.count + weight)
            mean = (1 - seen) * mean + seen * tactic.mean
            spread = math.sqrt((1 - seen) * spread**2 + seen * tactic.spread**2)
            succeeds = (tactic.count + weight) / (tactic.count + tactic.failures + weight)
        expected = succeeds * improvement(mean, spread)
        fraction = min(self._parameters.min_pred_gain, _LARGEST_FRACTION)
        least = -math.log1p(-fraction) * (1 + _ROUNDING)
        return max(expected, least) if mean + _UNLIKELY * spread >= least else expected

    def _reducible(self, counted: Costs) -> Mapping[Region, float]:
        """The share of each region's time that the contract does not ask for."""
        profile, contract = self._card.profile, self._contract
        l2_rate = profile.sm_count * self._card.cycles_per_s * L2_BYTES_PER_CYCLE
        flops = 0 if contract.allows_tensor_cores else contract.flops
        least = {
            "gmem": contract.bytes_moved / l2_rate,
            "compute": flops / (profile.fp32_tflops * 1e12),
        }
        busy = counted.busy_s
        return {
            region: max(0.0, 1 - least.get(region, 0.0) / busy[region]) if busy.get(region) else 1.0
            for region in REGIONS
        }


def _are_comparable(one: Costs, other: Costs) -> bool:
    """Whether guesses of how often loops are passed are the same on both sides."""
    return one.guessed == other.guessed and (not one.guessed or one.blocks == other.blocks)


def improvement(mean: float, spread: float) -> float:
    """The mean of what is above zero of a normal distribution."""
    if spread <= 0:
        return max(0.0, mean)
    place = mean / spread
    return mean * _NORMAL.cdf(place) + spread * _NORMAL.pdf(place)


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
