"""Plans of kernels, and the uncertainty of the change between two that noisy figures chose."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuenergy.advice.solve import Cost
from pytest_gpuenergy.record import (
    OTHER_BOARD_SD,
    Estimate,
    Measurement,
    Metric,
    SessionMean,
    clipped,
    session_mean,
    t_interval,
    welch,
)
from pytest_gpuenergy.report import MAX_MISSED
from pytest_gpuenergy.support import expected_largest

TAIL = 0.025


@dataclass(frozen=True)
class PlanOption:
    """A kernel of a workload at a setpoint.

    Attributes:
        row: the measurement of the kernel, with figures.
        weight: how often the workload runs.
    """

    row: Measurement
    weight: float = 1.0

    @property
    def cost(self) -> Cost:
        """Its time in ms and energy in mJ."""
        return Cost(
            self.weight * (self.row.time_ms or 0.0), self.weight * (self.row.energy_mj or 0.0)
        )

    @cached_property
    def errors(self) -> Errors | None:
        """The errors of its time and energy; None without usable intervals."""
        return Errors.of(self.row)


Plan = Sequence[PlanOption]
"""An option for each workload."""


def plan_cost(plan: Plan) -> Cost:
    """Return the sums over a plan."""
    costs = [option.cost for option in plan]
    return Cost(sum(cost.time for cost in costs), sum(cost.energy for cost in costs))


def cost_figure(cost: Cost, metric: Metric) -> float:
    """Return the metric of a sum, in ms, mJ or mJ ms."""
    if metric is Metric.EDP:
        return cost.product
    return cost.time if metric is Metric.TIME else cost.energy


@dataclass(frozen=True)
class Moments:
    """Relative variances of a time and an energy, and their covariance."""

    time: float
    energy: float
    both: float

    @classmethod
    def of(cls, time: float, energy: float, product: float) -> Moments:
        """Compute the moments from the variances of a time, an energy and their product.

        To first order the relative error of a product is the sum of its factors' errors.
        """
        most = math.sqrt(time * energy)
        return cls(time, energy, max(-most, min((product - time - energy) / 2, most)))

    def combined(self, weights: Cost) -> float:
        """Return the variance of the weighted sum of both errors."""
        a, b = weights
        return max(0.0, a * a * self.time + b * b * self.energy + 2 * a * b * self.both)


@dataclass(frozen=True)
class Errors:
    """The errors of a measurement: of its trials, with degrees of freedom, and those they share."""

    own: Moments
    degrees: float
    shared: Moments

    @classmethod
    def of(cls, row: Measurement) -> Errors | None:
        """Return the errors of a measurement; None unless all metrics have usable intervals."""
        known: list[SessionMean] = []
        for metric in (Metric.TIME, Metric.ENERGY, Metric.EDP):
            if (mean := session_mean(row, metric)) is None:
                return None
            known.append(mean)
        own = Moments.of(*(mean.relative_error**2 for mean in known))
        shared = Moments.of(*(mean.session_variance(0.0) for mean in known))
        return cls(own, min(mean.degrees for mean in known), shared)

    def variance(self, weights: Cost) -> float:
        """Return the variance of the weighted sum of the errors of time and energy."""
        return self.own.combined(weights) + self.shared.combined(weights)


Weights = Callable[[PlanOption], Cost]
"""By how much the logarithm of a figure changes with the errors of an option."""


def gradient(plan: Plan, metric: Metric) -> Weights:
    """Return a function that gives each option's shares of time and energy in a plan's sums."""
    whole = plan_cost(plan)

    def weights(option: PlanOption) -> Cost:
        time, energy = option.cost
        return Cost(
            0.0 if metric is Metric.ENERGY else time / whole.time,
            0.0 if metric is Metric.TIME else energy / whole.energy,
        )

    return weights


@dataclass(frozen=True)
class ChosenPlan:
    """A plan that was chosen, and by how much its figures may be too low because it was.

    Attributes:
        plan: the plan.
        rivals: for each of its options, those that may be as good within noise, itself included.
        chosen_from: number of plans of other setpoints from which it was chosen likewise.
    """

    plan: Plan
    rivals: Sequence[Sequence[PlanOption]]
    chosen_from: int = 1

    def optimism(self, metric: Metric) -> float:
        """Return the most that the logarithm of the metric is expected to be too low.

        The least of n equal figures with independent errors is expected to be too low by that many
        standard deviations as the largest of n normal values; those that are certainly worse are
        not chosen. Layers add up, because each is chosen for being low.
        """
        weights = gradient(self.plan, metric)
        deviations = [
            0.0 if option.errors is None else math.sqrt(option.errors.variance(weights(option)))
            for option in self.plan
        ]
        by_kernels = sum(
            expected_largest(len(rivals)) * sd
            for rivals, sd in zip(self.rivals, deviations, strict=True)
        )
        return by_kernels + expected_largest(self.chosen_from) * math.hypot(*deviations)


def plan_sum(candidate: ChosenPlan, metric: Metric) -> Estimate | None:
    """Return a sum with its 95 % interval; None where a figure has no usable interval.

    The errors are those of `log_change`; the upper end allows for the choice (`optimism`).
    """
    value = cost_figure(plan_cost(candidate.plan), metric)
    weights = gradient(candidate.plan, metric)
    inner = _around(0.0, [(option, weights(option)) for option in candidate.plan], TAIL)
    if inner is None:
        return None
    high = clipped(inner.high + candidate.optimism(metric))
    return Estimate(value, value * math.exp(inner.low), value * math.exp(high))


def log_change(
    base: ChosenPlan, new: ChosenPlan, metric: Metric, tail: float = TAIL
) -> Estimate | None:
    """ln(new / base) of the sums, with an interval; None where a figure has no usable one.

    The variance is that of all measurements, each weighted with its share of its sum: what is in
    both plans cancels. Boards add what differs between them, where their shares of the two plans
    differ. The interval is wider by the `optimism` of either side, since both were chosen by their
    figures.
    """
    value = math.log(
        cost_figure(plan_cost(new.plan), metric) / cost_figure(plan_cost(base.plan), metric)
    )
    if {option.row.node_id for option in base.plan} == {option.row.node_id for option in new.plan}:
        return Estimate(value, value, value)
    net: dict[int, tuple[PlanOption, Cost]] = {}
    for side, sign in ((new.plan, 1.0), (base.plan, -1.0)):
        weights = gradient(side, metric)
        for option in side:
            _, known = net.get(id(option.row), (option, Cost(0.0, 0.0)))
            more = weights(option)
            net[id(option.row)] = (
                option,
                Cost(known.time + sign * more.time, known.energy + sign * more.energy),
            )
    inner = _around(value, net.values(), tail)
    if inner is None:
        return None
    low, high = inner.low - base.optimism(metric), inner.high + new.optimism(metric)
    return Estimate(value, clipped(low), clipped(high))


def _around(value: float, net: Collection[tuple[PlanOption, Cost]], tail: float) -> Estimate | None:
    """``value`` with the errors of options, each with its net weight; None if one has none."""
    own: list[tuple[float, float]] = []
    shared = _board_variance(net)
    for option, weight in net:
        errors = option.errors
        if errors is None:
            return None
        own.append((errors.own.combined(weight), errors.degrees))
        shared += errors.shared.combined(weight)
    variance = sum(part for part, _ in own) + shared
    return t_interval(value, variance, welch(own, variance), tail)


def rivals(
    chosen: PlanOption, options: Iterable[PlanOption], prices: Sequence[Cost]
) -> list[PlanOption]:
    """Return the options of a layer that may be as good as the one chosen, which is first.

    Args:
        chosen: the option.
        options: all options of its layer, at the same setpoint.
        prices: the prices of time and energy by which options are judged. An option that is
            certainly worse by any of them is no rival.
    """
    others = [option for option in options if option is not chosen]
    tail = MAX_MISSED / max(1, len(others))
    return [
        chosen,
        *(
            other
            for other in others
            if not any(_certainly_worse(other, chosen, price, tail) for price in prices)
        ),
    ]


def _certainly_worse(other: PlanOption, chosen: PlanOption, price: Cost, tail: float) -> bool:
    here, there = _priced(chosen, price), _priced(other, price)
    if there[0] <= here[0]:
        return False
    mine, theirs = chosen.errors, other.errors
    if mine is None or theirs is None:
        return True
    sides = ((mine, here[1]), (theirs, there[1]))
    own = [(errors.own.combined(weights), errors.degrees) for errors, weights in sides]
    shared = sum(errors.shared.combined(weights) for errors, weights in sides)
    if chosen.row.gpu_uuid != other.row.gpu_uuid:
        shared += _board_variance(
            [(chosen, here[1]), (other, Cost(-there[1].time, -there[1].energy))]
        )
    variance = sum(part for part, _ in own) + shared
    change = t_interval(math.log(there[0] / here[0]), variance, welch(own, variance), tail)
    return change.low > 0


def _priced(option: PlanOption, price: Cost) -> tuple[float, Cost]:
    """Return what an option costs, and the shares of time and energy in it."""
    time, energy = option.cost.time * price.time, option.cost.energy * price.energy
    whole = time + energy
    return whole, Cost(time / whole, energy / whole)


def _board_variance(net: Iterable[tuple[PlanOption, Cost]]) -> float:
    """Return the variance between boards of one model, with the net weight of each board."""
    boards: Mapping[str | None, list[Cost]] = defaultdict(list)
    for option, weight in net:
        boards[option.row.gpu_uuid].append(weight)
    if len(boards) < 2:
        return 0.0
    return sum(
        (sum(cost.time for cost in found) * OTHER_BOARD_SD[Metric.TIME]) ** 2
        + (sum(cost.energy for cost in found) * OTHER_BOARD_SD[Metric.ENERGY]) ** 2
        for found in boards.values()
    )
