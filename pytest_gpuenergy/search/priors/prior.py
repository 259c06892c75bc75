"""Predicts the gain of a move before it is tried, by the bottlenecks that it relieves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from pytest_gpuenergy.emulator import L2_BYTES_PER_CYCLE
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.moves.move import REGIONS, Application, Move, Region
from pytest_gpuenergy.search.priors.bottlenecks import (
    CardModel,
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
from pytest_gpuenergy.search.validation.result import Result

_NORMAL = NormalDist()
_UNLIKELY = 2.0
"""Standard deviations above the mean beyond which a gain is ruled out."""
_LARGEST_FRACTION, _ROUNDING = 0.99, 1e-9
"""Largest ``min_pred_gain`` that has a finite logarithm, and an allowance for rounding."""

_AT_LIMIT = 0.97
"""Share of the power limit above which the limit counts as slowing the card."""
_SLACK = 0.2
"""Slack of a card that the limit slows although the model expects less power; a guess."""
_LEAST_S = 1e-15
_LARGEST = 3.0
"""Logarithm of the largest speedup that is predicted for any move."""


class BottleneckPrior:
    """Predicts gains of moves on one kernel on one card; see docs/explanation/search-priors.md.

    Args:
        spec: the spec of the kernel.
        card: the model of the card.
        objective: the metric that the search minimizes.
        parameters: the parameters of the search.
        tactics: what moves have gained in other kernels.
    """

    def __init__(
        self,
        spec: KernelSpec,
        card: CardModel,
        objective: Metric,
        parameters: SearchParameters,
        tactics: Iterable[Tactic] = (),
    ) -> None:
        self._spec = spec
        self._card = card
        self._objective = objective
        self._parameters = parameters
        self._tactics = {
            (tactic.move, tactic.bottleneck): tactic
            for tactic in tactics
            if tactic.language == spec.language
        }
        self._contract = workload_of(spec, spec.sizes[0], dict)
        self._costs: dict[str, Costs | None] = {}
        self._used: dict[str, Shares] = {}

    def profiled(self, state: State, used: Shares) -> None:
        """Take a profile of a state into account: the share of time for which units are busy."""
        self._used[state.id] = used

    def situation(self, state: State, result: Result) -> Situation | None:
        """Return what a state's time and energy are spent on.

        None means that the state was not measured, or that its text is not understood.

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
        """Return the costs of a state by the model; None if its text is not understood."""
        if state.id not in self._costs:
            work = work_of(state, self._spec)
            moved = max(0, self._contract.bytes_moved - self._card.profile.l2_bytes)
            self._costs[state.id] = None if work is None else costs_of(work, self._card, moved)
        return self._costs[state.id]

    def gain(
        self, state: State, result: Result, move: Move, application: Application
    ) -> float | None:
        """Return the improvement to expect, as a natural logarithm; None if nothing is known.

        The gain is assumed to be normally distributed, and the search keeps the better of the two
        states (D. Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions",
        Journal of Global Optimization 13, 1998). The result is at least ``min_pred_gain`` unless
        such a gain is unlikely, so that a poor prediction rules nothing out.
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
        """Return what another state saves by the model, as a natural logarithm.

        The result is 0 if the two states cannot be compared, and None if nothing is known about the
        first one.
        """
        before, counted = self.situation(state, result), self.costs(state)
        if before is None or counted is None:
            return None
        after = self.costs(changed_to)
        # The costs are comparable if guesses of how often loops run are the same on both sides.
        if after is None or counted.guessed != after.guessed:
            return 0.0
        if counted.guessed and counted.blocks != after.blocks:
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
        """Return the share of each region's time that the contract does not require."""
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


def improvement(mean: float, spread: float) -> float:
    """Return the mean of the positive part of a normally distributed gain."""
    if spread <= 0:
        return max(0.0, mean)
    place = mean / spread
    return mean * _NORMAL.cdf(place) + spread * _NORMAL.pdf(place)


@dataclass(frozen=True)
class Situation:
    """What the time and energy of a measured state are spent on.

    Attributes:
        time_s: the time of one launch.
        costs: the costs by the model, scaled so that no unit is busy for longer than was measured.
        time_shares: the shares of the time by region, see `shares_of_time`.
        energy_shares: the shares of the dynamic energy by region.
        still: the share of the energy that the idle card would take during the launch.
        limited: whether the power limit slows the card.
        slack: the natural logarithm of the speedup that the launch would have without the limit.
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
        """The region on which most of the time is spent."""
        return dominant(self.time_shares)


def situation_of(
    costs: Costs,
    time_s: float,
    card: CardModel,
    *,
    measured_w: float | None = None,
    used: Shares | None = None,
) -> Situation:
    """Return the situation of a state.

    Args:
        costs: the costs of its work by the model.
        time_s: the measured time of one launch.
        card: the model of the card.
        measured_w: the measured power; None if it was not measured.
        used: the share of the time for which each unit is busy, by a profiler.
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
    """Return the natural logarithm of the gain in the objective that the model predicts.

    Each unit's time, the waiting and the energy change in proportion to the model's. At the power
    limit, the time is the one in which the card may spend the dynamic energy.

    Args:
        before: the situation of the measured state.
        counted: the costs of that state by the model, not scaled.
        after: the costs of the predicted state.
        objective: the metric that the search minimizes.
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
    """Return the share of the objective's logarithm that a move can change.

    Args:
        before: the situation of the measured state.
        regions: the regions that the move relieves.
        reducible: the share of each region's work that the contract does not require.
        objective: the metric that the search minimizes.
    """
    chosen = list(regions)
    of_time = math.fsum(before.time_shares[region] * reducible[region] for region in chosen)
    of_energy = math.fsum(before.energy_shares[region] * reducible[region] for region in chosen)
    if before.limited:
        return _of_objective(objective, of_energy, of_energy)
    cheaper = before.still * of_time + (1 - before.still) * of_energy
    return _of_objective(objective, of_time, cheaper)


def changed(counted: Costs, after: Costs) -> frozenset[Region]:
    """Return the regions whose work differs by more than 1 % of the time, by the model."""
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
    """Scale the measured time of a unit as the counted work changes."""
    return some * after / counted if counted else some + after


def _total(activity_s: Shares) -> float:
    return max(math.fsum(activity_s.values()), _LEAST_S)
