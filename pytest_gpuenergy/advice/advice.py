"""The advice: the best setpoint and kernels, for all workloads together and for each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from pytest_gpuenergy.advice.field import Field, listed
from pytest_gpuenergy.advice.plans import (
    ChosenPlan,
    Plan,
    PlanOption,
    cost_figure,
    log_change,
    plan_cost,
    rivals,
)
from pytest_gpuenergy.advice.solve import (
    Cost,
    Solution,
    fastest,
    least_energy,
    least_product,
    total,
)
from pytest_gpuenergy.record import METRICS, Estimate, Metric, RunInfo, clocks, limits
from pytest_gpuenergy.report import MAX_MISSED, Report


@dataclass(frozen=True)
class Goal:
    """The goal: what shall be least.

    Attributes:
        metric: the metric of the sums over all workloads that shall be least.
        slower_by: the fraction by which the baseline's least time may be exceeded; None: any.
    """

    metric: Metric = Metric.EDP
    slower_by: float | None = None

    def solve(self, layers: Sequence[Sequence[Cost]], base: Cost | None) -> Solution | None:
        """Return the best choice; None if none is as fast as ``base``, slowed down, demands."""
        if self.metric is Metric.EDP:
            return least_product(layers)
        if self.metric is Metric.TIME:
            return fastest(layers)
        if self.slower_by is None or base is None:
            return least_energy(layers)
        return least_energy(layers, base.time * (1 + self.slower_by))

    def at_baseline(self, layers: Sequence[Sequence[Cost]]) -> Solution:
        """Return the best kernels at the baseline; the fastest where a slowdown is limited."""
        solution = fastest(layers) if self.slower_by is not None else self.solve(layers, None)
        assert solution is not None
        return solution

    def prices(self, cost: Cost) -> Sequence[Cost]:
        """Return what a kernel is judged by against the one chosen, at the sums of the plan."""
        if self.metric is Metric.EDP:
            return (Cost(1 / cost.time, 1 / cost.energy),)
        if self.metric is Metric.TIME:
            return (Cost(1.0, 0.0),)
        energy = Cost(0.0, 1.0)
        return (energy,) if self.slower_by is None else (energy, Cost(1.0, 0.0))


@dataclass(frozen=True)
class Setting:
    """The best plan at a setpoint.

    Attributes:
        setpoint: the label of the setpoint.
        candidate: the plan, with the kernels that may be as good.
        solution: the solution from which the plan was made.
    """

    setpoint: str
    candidate: ChosenPlan
    solution: Solution

    @property
    def plan(self) -> Plan:
        """An option for each workload."""
        return self.candidate.plan

    @property
    def cost(self) -> Cost:
        """The sums of time in ms and energy in mJ."""
        return plan_cost(self.plan)


@dataclass(frozen=True)
class PlanChange:
    """ln(new / baseline) of a metric; ``interval`` is None where figures have none."""

    value: float
    interval: Estimate | None


@dataclass(frozen=True)
class Advice:
    """The best choices for some workloads that run at one setpoint.

    Attributes:
        workloads: the names of the workloads.
        goal: the goal that the best setpoint meets.
        best: the best setpoint.
        baseline: the setpoint to which the changes are relative.
        tied: the setpoints that may be as good within noise, the best included, in order.
        changes: the changes of time, energy and EDP.
        settings: all setpoints that can be chosen, in order.
        too_slow: the setpoints at which no choice of kernels is fast enough.
        edges: remarks on a best setpoint that is the lowest of those measured.
    """

    workloads: tuple[str, ...]
    goal: Goal
    best: Setting
    baseline: Setting
    tied: tuple[str, ...]
    changes: Mapping[Metric, PlanChange]
    settings: tuple[Setting, ...]
    too_slow: tuple[str, ...]
    edges: tuple[str, ...]

    @property
    def may_be_too_slow(self) -> bool:
        """Whether the time's interval reaches beyond the slowdown that is allowed."""
        time = self.changes[Metric.TIME].interval
        allowed = self.goal.slower_by
        return time is not None and allowed is not None and time.high > log(1 + allowed) > 0


def advise(field: Field, goal: Goal, asked_baseline: str | None = None) -> Advice | None:
    """Return the best setpoint at which every workload of ``field`` was measured; None without one.

    The kernels are chosen for each setpoint, for the sums over all workloads. They are exact for
    the least EDP, time or energy, and `solve.least_energy` says whether they are within a slowdown.

    Raises:
        InputError: ``asked_baseline`` is no setpoint of the field.
    """
    label = field.baseline(asked_baseline)
    if label is None:
        return None
    base = setting_at(field, label, goal)
    settings: list[Setting] = []
    too_slow: list[str] = []
    for name in field.complete:
        solution = goal.solve(_costs(field.layers(name)), base.cost)
        if solution is None:
            too_slow.append(name)
        else:
            settings.append(_setting(field, name, goal, solution))
    best = min(settings, key=lambda one: cost_figure(one.cost, goal.metric))
    tied = _tied(best, settings, goal.metric)
    rows, best_rows = ([field.row(name) for name in names] for names in (field.complete, tied))
    edges = tuple(
        f"{measured[0]} is the lowest {noun} measured: a lower one may be better still"
        for labels, noun in ((limits, "power limit"), (clocks, "clock"))
        if len(measured := labels(rows)) > 1 and labels(best_rows) == measured[:1]
    )
    chosen = ChosenPlan(best.plan, best.candidate.rivals, len(tied))
    return Advice(
        tuple(field.workloads),
        goal,
        best,
        base,
        tied,
        changes(base.candidate, chosen),
        tuple(settings),
        tuple(too_slow),
        edges,
    )


def setting_at(field: Field, setpoint: str, goal: Goal) -> Setting:
    """Return the best plan at a complete setpoint, as a baseline has it."""
    return _setting(field, setpoint, goal, goal.at_baseline(_costs(field.layers(setpoint))))


def advise_apart(field: Field, goal: Goal, base: Setting) -> Mapping[Metric, PlanChange] | None:
    """Return the changes if each workload had a setpoint of its own, chosen for the sums of all.

    None where none is fast enough.
    """
    pooled = [
        [one for found in field.options.values() for one in found.get(name, ())]
        for name in field.workloads
    ]
    solution = goal.solve(_costs(pooled), base.cost)
    if solution is None:
        return None
    return changes(base.candidate, _candidate(pooled, goal, solution))


def changes(base: ChosenPlan, new: ChosenPlan) -> dict[Metric, PlanChange]:
    """Return the change of each metric from one plan to another."""
    costs = plan_cost(base.plan), plan_cost(new.plan)
    return {
        metric: PlanChange(
            log(cost_figure(costs[1], metric) / cost_figure(costs[0], metric)),
            log_change(base, new, metric),
        )
        for metric in METRICS
    }


def _costs(layers: Sequence[Sequence[PlanOption]]) -> list[list[Cost]]:
    return [[option.cost for option in layer] for layer in layers]


def _setting(field: Field, setpoint: str, goal: Goal, solution: Solution) -> Setting:
    return Setting(setpoint, _candidate(field.layers(setpoint), goal, solution), solution)


def _candidate(
    layers: Sequence[Sequence[PlanOption]], goal: Goal, solution: Solution
) -> ChosenPlan:
    plan = [layer[place] for layer, place in zip(layers, solution.choice, strict=True)]
    prices = goal.prices(total(_costs(layers), solution.choice))
    return ChosenPlan(
        plan,
        [rivals(chosen, layer, prices) for chosen, layer in zip(plan, layers, strict=True)],
    )


def _tied(best: Setting, settings: Sequence[Setting], metric: Metric) -> tuple[str, ...]:
    """Return the setpoints that are not certainly worse than the best, as in `report.tie`."""
    tail = MAX_MISSED / max(1, len(settings) - 1)

    def may_be_as_good(one: Setting) -> bool:
        if one is best:
            return True
        change = log_change(best.candidate, one.candidate, metric, tail)
        if change is None:
            return cost_figure(one.cost, metric) <= cost_figure(best.cost, metric)
        return change.low <= 0

    return tuple(setting.setpoint for setting in settings if may_be_as_good(setting))


def sentences(field: Field, expected: Sequence[str] = ()) -> list[str]:
    """Return what is left out and what is missing, a sentence each.

    Args:
        field: the measurements to choose from.
        expected: names of the workloads that were asked for.
    """
    lines = []
    if field.left_out:
        counts = ", ".join(f"{count} {words}" for words, count in sorted(field.left_out.items()))
        lines.append(f"left out: {counts}")
    if field.shared:
        lines.append(
            f"{listed(field.shared)} stands for several workloads, which count as such: give each "
            "a name of its own"
        )
    if len(setpoints := list(field.options)) == 1:
        lines.append(
            f"{setpoints[0]} is the only setpoint with clean figures: measure others, too, to have "
            "a choice (--powercap, --smclock)"
        )
    if absent := [name for name in expected if name not in field.workloads]:
        lines.append(f"without a clean measurement, and not in the sums: {listed(absent)}")
    gaps = [(name, field.missing(name)) for name in field.options]
    if parts := [f"{name} ({listed(lacking)})" for name, lacking in gaps if lacking]:
        lines.append(f"setpoints that lack workloads, and are no choice for all: {listed(parts)}")
    if (count := len(field.boards)) > 1:
        lines.append(
            f"measured on {count} boards of one model: what boards differ in is part of the "
            "intervals"
        )
    return lines


@dataclass(frozen=True)
class Outcome:
    """The findings of ``gpuenergy advise``.

    Attributes:
        run: the run, or the last of several.
        gpu_name: the GPU model.
        emulated: whether it is emulated.
        boards: the cards that were measured.
        goal: the goal of the advice.
        weights: the number of runs of each workload, by its name.
        whole: the advice for all workloads at one setpoint; None if no setpoint has them all.
        apart: the changes of the sums if each workload had its own setpoint; None if that is not
            known, or there is only one workload.
        each: the advice for each workload by itself.
        sentences: sentences about what is left out and what is missing.
    """

    run: RunInfo
    gpu_name: str
    emulated: bool
    boards: tuple[str, ...]
    goal: Goal
    weights: Mapping[str, float]
    whole: Advice | None
    apart: Mapping[Metric, PlanChange] | None
    each: tuple[Advice, ...]
    sentences: tuple[str, ...]


def advise_on(
    report: Report,
    goal: Goal,
    *,
    weights: Mapping[str, float],
    baseline: str | None = None,
    expected: Sequence[str] = (),
) -> Outcome:
    """Return the advice on the measurements of a report.

    A workload by itself has the baseline of the whole where it was measured there.

    Args:
        report: measurements of one GPU model.
        goal: the metric to minimize, and the allowed slowdown.
        weights: the number of runs of each workload by name; 1 where it is not named.
        baseline: the label of the setpoint that others are compared with; None: see
            `Field.baseline`.
        expected: names of the workloads that were asked for, which may be missing.

    Raises:
        InputError: see `Field.of` and `Field.baseline`.
    """
    field = Field.of(report, weights)
    whole = advise(field, goal, baseline)
    common = None if whole is None else whole.baseline.setpoint
    each = []
    for name in field.workloads:
        own = field.only(name)
        wanted = common or baseline
        known = wanted is not None and wanted in own.options
        advice = advise(own, goal, wanted if known else None)
        assert advice is not None  # it was measured somewhere
        each.append(advice)
    apart = None
    if whole is not None and len(field.workloads) > 1:
        apart = advise_apart(field, goal, whole.baseline)
    return Outcome(
        report.run,
        field.gpu_name,
        field.emulated,
        tuple(field.boards),
        goal,
        field.workloads,
        whole,
        apart,
        tuple(each),
        tuple(sentences(field, expected)),
    )
