"""The gain to expect of a move before it is tried, by what bottlenecks it attacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist

from pytest_gpuenergy.emulator import L2_BYTES_PER_CYCLE
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.move import REGIONS, Application, Move, Region
from pytest_gpuenergy.search.parameters import SearchParameters
from pytest_gpuenergy.search.priors.bottlenecks import Costs, Shares, costs_of
from pytest_gpuenergy.search.priors.card import Card
from pytest_gpuenergy.search.priors.estimate import (
    Situation,
    changed,
    involvement,
    saved,
    situation_of,
)
from pytest_gpuenergy.search.priors.tactics import Tactic
from pytest_gpuenergy.search.priors.work import work_of
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.kernel_spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.spec_workload import workload_of
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
