"""Which variants are so slow that their power need not be measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from kernel_specs import write

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import Bench, Limit, Node, limit_of, read_spec

FIGURES = st.lists(st.tuples(st.floats(0.01, 10), st.floats(50, 700)), min_size=1, max_size=9)
NEEDING_POWER = st.sampled_from([Metric.ENERGY, Metric.EDP])


def cost_of(metric: Metric, time_ms: float, power_w: float) -> float:
    return power_w * time_ms ** (2 if metric is Metric.EDP else 1)


def node(metric: Metric, time_ms: float, power_w: float) -> Node:
    cost = cost_of(metric, time_ms, power_w)
    return Node(id="s", parent=None, outcome="correct", cost=cost, time_ms=time_ms)


@given(FIGURES, NEEDING_POWER, st.floats(1, 3), st.floats(0.7, 2))
def test_what_is_beyond_the_limit_is_not_the_best(
    figures: list[tuple[float, float]], metric: Metric, longer: float, power: float
) -> None:
    nodes = [node(metric, *one) for one in figures]
    limit = limit_of(nodes, metric)
    assert limit is not None
    best = min(one.cost or 0.0 for one in nodes)
    least_w = min(power_w for _, power_w in figures)
    assert cost_of(metric, limit.time_ms * longer, power * least_w) >= best * (1 - 1e-9)


@given(FIGURES, NEEDING_POWER)
def test_the_best_is_within_the_limit(figures: list[tuple[float, float]], metric: Metric) -> None:
    nodes = [node(metric, *one) for one in figures]
    limit = limit_of(nodes, metric)
    best = min(nodes, key=lambda one: one.cost or 0.0)
    assert limit is not None
    assert best.time_ms is not None
    assert best.time_ms < limit.time_ms


def test_there_is_none_without_power_or_figures() -> None:
    assert limit_of([node(Metric.TIME, 1.0, 100.0)], Metric.TIME) is None
    failed = Node(id="s", parent=None, outcome="runtime", cost=None, time_ms=None)
    assert limit_of([failed], Metric.EDP) is None


@pytest.mark.slow
def test_a_slow_variant_has_an_assumed_power(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        bench = Bench(spec, device, Metric.EDP)
        slow = bench.evaluate(spec.baseline, Limit(1e-6, 321.0))
        fast = bench.evaluate(spec.baseline, Limit(1e6, 321.0))
    assert slow.time_ms is not None
    assert (slow.outcome, slow.power_w, slow.energy_mj) == ("correct", None, None)
    assert slow.cost == pytest.approx(321.0 * slow.time_ms**2)
    assert "power" not in slow.steps_s
    assert "verify again" in slow.steps_s
    assert fast.assumed_power_w is None
    assert fast.cost == fast.edp_mj_ms
