"""Predicts the gain of a move before it is tried, by the bottlenecks that it relieves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist

from pytest_gpuenergy.emulator import L2_BYTES_PER_CYCLE
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.moves.move import REGIONS, Application, Move, Region
from pytest_gpuenergy.search.priors.bottlenecks import (
    CardModel,
    LaunchCosts,
    Shares,
    Situation,
    count_work,
)
from pytest_gpuenergy.search.priors.tactics import Tactic
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.spec.spec_workload import workload_of
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters
from pytest_gpuenergy.search.validation.result import Result

_NORMAL = NormalDist()
_UNLIKELY = 2.0
"""Standard deviations above the mean beyond which a gain is ruled out."""
_MAX_FRACTION, _ROUNDING = 0.99, 1e-9
"""Largest ``min_pred_gain`` that has a finite logarithm, and an allowance for rounding."""


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
        self._costs: dict[str, LaunchCosts | None] = {}
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
        return self._card.situation(
            costs,
            result.time_ms / 1e3,
            measured_w=result.power_w,
            used=self._used.get(state.id),
        )

    def costs(self, state: State) -> LaunchCosts | None:
        """Return the costs of a state by the model; None if its text is not understood."""
        if state.id not in self._costs:
            work = count_work(state, self._spec)
            moved = max(0, self._contract.bytes_moved - self._card.profile.l2_bytes)
            self._costs[state.id] = None if work is None else self._card.costs(work, moved)
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
        attacked = move.relieves | (frozenset() if after is None else counted.changed(after))
        involved = before.involvement(attacked, self._reducible(counted), self._objective)
        spread = self._parameters.pred_gain_spread * involved
        succeeds = 1.0
        tactic = self._tactics.get((application.move, before.bottleneck))
        if tactic is not None:
            weight = self._parameters.tactic_count
            seen = tactic.count / (tactic.count + weight)
            mean = (1 - seen) * mean + seen * tactic.mean
            spread = math.sqrt((1 - seen) * spread**2 + seen * tactic.spread**2)
            succeeds = (tactic.count + weight) / (tactic.count + tactic.failures + weight)
        expected = succeeds * improvement(mean, spread)
        fraction = min(self._parameters.min_pred_gain, _MAX_FRACTION)
        least = -math.log1p(-fraction) * (1 + _ROUNDING)
        return max(expected, least) if mean + _UNLIKELY * spread >= least else expected

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
        return before.predicted_saving(counted, after, self._objective)

    def _reducible(self, counted: LaunchCosts) -> Mapping[Region, float]:
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
