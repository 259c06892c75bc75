"""The evaluation of a state: its figures, its power, and when the power is not needed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kernel_specs import spec_with, write

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.energy import MeterSettings
from pytest_gpuenergy.engine import Harness, Subject
from pytest_gpuenergy.record import Metric, Peaks, peaks_of
from pytest_gpuenergy.search import (
    PowerCutoff,
    Result,
    SearchBench,
    SearchNode,
    SpecWorkload,
    floor_ms,
    kernel_of,
    power_cutoff,
    read_spec,
    workload_of,
)

PEAKS = Peaks(bandwidth_gb_s=1000.0, fp32_tflops=1.0, l2_bytes=1_000_000)


def workload(folder: Path, **fields: Any) -> SpecWorkload:
    spec = read_spec(write(folder, spec_with(**fields)))
    return workload_of(spec, spec.sizes[0])


def test_what_is_beyond_the_l2_must_move(tmp_path):
    found = workload(tmp_path, bytes_moved=3_000_000, flops=0)
    assert floor_ms(found, PEAKS) == pytest.approx(2_000_000 / 1e12 * 1e3)


def test_each_tensor_moves_once_by_default(tmp_path):
    found = workload(tmp_path, sizes=[{"N": 1_000_000}], flops=0)
    assert floor_ms(found, PEAKS) == pytest.approx(7_000_000 / 1e12 * 1e3)


def test_arithmetic_takes_time_where_tensor_cores_are_not_allowed(tmp_path):
    flops = 10**12
    assert floor_ms(workload(tmp_path, flops=flops), PEAKS) == pytest.approx(1e3)
    assert floor_ms(workload(tmp_path, flops=flops, tensor_cores=True), PEAKS) == 0


def test_an_unknown_card_has_no_peaks(tmp_path):
    assert peaks_of("Some other GPU") is None
    assert floor_ms(workload(tmp_path, flops=10**12), None) == 0


def test_seeds_are_drawn_anew_by_each_bench_of_a_real_gpu(tmp_path):
    card: Any = SimpleNamespace(emulated=False)
    bench = SearchBench(read_spec(write(tmp_path)), card, Metric.TIME)
    assert bench.hidden.seeds("x") == bench.hidden.seeds("x")
    assert bench.hidden.seeds("x") != replace(bench).hidden.seeds("x")


def test_seeds_of_the_emulated_gpu_depend_on_that_of_the_search(tmp_path):
    card: Any = SimpleNamespace(emulated=True)
    spec = read_spec(write(tmp_path))
    one, same, other = (SearchBench(spec, card, Metric.TIME, seed) for seed in (1, 1, 2))
    assert one.hidden.seeds("x") == same.hidden.seeds("x")
    assert one.hidden.seeds("x") != other.hidden.seeds("x")
    assert one.hidden.seeds("x") != one.hidden.seeds("y")


FIGURES = st.lists(st.tuples(st.floats(0.01, 10), st.floats(50, 700)), min_size=1, max_size=9)
NEEDING_POWER = st.sampled_from([Metric.ENERGY, Metric.EDP])


def cost_of(metric: Metric, time_ms: float, power_w: float) -> float:
    return power_w * time_ms ** (2 if metric is Metric.EDP else 1)


def node(metric: Metric, time_ms: float, power_w: float) -> SearchNode:
    cost = cost_of(metric, time_ms, power_w)
    return SearchNode(id="s", parent=None, outcome="correct", cost=cost, time_ms=time_ms)


@given(FIGURES, NEEDING_POWER, st.floats(1, 3), st.floats(0.7, 2))
def test_what_is_beyond_the_limit_is_not_the_best(figures, metric, longer, power):
    nodes = [node(metric, *one) for one in figures]
    limit = power_cutoff(nodes, metric)
    assert limit is not None
    best = min(one.cost or 0.0 for one in nodes)
    least_w = min(power_w for _, power_w in figures)
    assert cost_of(metric, limit.time_ms * longer, power * least_w) >= best * (1 - 1e-9)


@given(FIGURES, NEEDING_POWER)
def test_the_best_is_within_the_limit(figures, metric):
    nodes = [node(metric, *one) for one in figures]
    limit = power_cutoff(nodes, metric)
    best = min(nodes, key=lambda one: one.cost or 0.0)
    assert limit is not None
    assert best.time_ms is not None
    assert best.time_ms < limit.time_ms


def test_there_is_none_without_power_or_figures():
    assert power_cutoff([node(Metric.TIME, 1.0, 100.0)], Metric.TIME) is None
    failed = SearchNode(id="s", parent=None, outcome="runtime", cost=None, time_ms=None)
    assert power_cutoff([failed], Metric.EDP) is None


@pytest.mark.slow
def test_a_slow_variant_has_an_assumed_power(tmp_path):
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        bench = SearchBench(spec, device, Metric.EDP)
        slow = bench.evaluate(spec.baseline, PowerCutoff(1e-6, 321.0))
        fast = bench.evaluate(spec.baseline, PowerCutoff(1e6, 321.0))
    assert slow.time_ms is not None
    assert (slow.outcome, slow.power_w, slow.energy_mj) == ("correct", None, None)
    assert slow.cost == pytest.approx(321.0 * slow.time_ms**2)
    assert "power" not in slow.steps_s
    assert "verify again" in slow.steps_s
    assert fast.assumed_power_w is None
    assert fast.cost == fast.edp_mj_ms


@pytest.mark.slow
def test_a_variant_that_costs_more_than_the_best_is_measured_for_a_moment_only(tmp_path):
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        bench = SearchBench(spec, device, Metric.EDP)
        whole = bench.evaluate(spec.baseline)
        best = whole.cost or 0.0
        worse = bench.evaluate(spec.baseline, PowerCutoff(1e6, 321.0, 0.9 * best))
        equal = bench.evaluate(spec.baseline, PowerCutoff(1e6, 321.0, best))
    assert (worse.outcome, worse.power_w, worse.energy_mj) == ("correct", None, None)
    assert worse.assumed_power_w == pytest.approx(whole.power_w, rel=0.05)
    assert worse.time_ms == worse.burst_time_ms
    assert worse.cost is not None
    assert worse.cost > best * 0.9
    assert "verify again" in worse.steps_s
    assert equal.cost == equal.edp_mj_ms == pytest.approx(best, rel=0.02)


@given(st.floats(0.5, 2.0), st.floats(50, 700), NEEDING_POWER)
def test_no_variant_is_given_up_that_may_cost_less_than_the_best(time_ms, power_w, metric):
    cutoff = PowerCutoff(1e6, 321.0, cost_of(metric, 1.0, 300.0))
    cost = cost_of(metric, time_ms, power_w)
    assert not cutoff.is_passed(time_ms, power_w, metric) or cost > 1.03 * cutoff.cost


LOW_W = 100.0
"""A limit under which the kernel takes a third longer."""


@pytest.mark.slow
def test_the_process_of_a_state_begins_to_use_the_gpu_while_it_is_compiled(tmp_path, monkeypatch):
    steps: list[str] = []
    for step in ("renew", "begin_context", "compile_job", "load"):
        method = getattr(EmulatedDevice, step)

        def noted(*arguments: Any, step: str = step, method: Any = method) -> Any:
            steps.append(step)
            return method(*arguments)

        monkeypatch.setattr(EmulatedDevice, step, noted)
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        assert SearchBench(spec, device, Metric.TIME).evaluate(spec.baseline).outcome == "correct"
    first = steps.index("compile_job")
    assert steps[first - 2 : first] == ["renew", "begin_context"]
    assert "load" not in steps[:first]


def evaluated(
    folder: Path, objective: Metric = Metric.EDP, limit: PowerCutoff | None = None
) -> Result:
    """Evaluate the baseline on a card whose low limit takes effect after the first moments."""
    spec = read_spec(write(folder))
    with pytest.MonkeyPatch.context() as patch:
        fault = {"enforced_limit": {"power_w": LOW_W, "after_s": 0.05}}
        patch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps(fault))
        with EmulatedDevice() as device:
            return SearchBench(spec, device, objective).evaluate(spec.baseline, limit)


@pytest.mark.slow
def test_figures_under_a_low_limit_are_those_of_a_bench(tmp_path):
    found = evaluated(tmp_path)
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        device.inject("enforced_limit", {"power_w": LOW_W})
        bench = SearchBench(spec, device, Metric.EDP)
        kernel = kernel_of(spec, spec.baseline, spec.sizes[0])
        workload = bench.workload(spec.sizes[0], device)
        subject = Subject("scale", kernel.short_digest)
        harness = Harness(device, MeterSettings(preheat_s=0.0))
        right = harness.measure_kernel(kernel, workload, subject)
    assert (found.cap_binding, right.cap_binding) == (True, True)
    assert found.time_ms == pytest.approx(right.time_ms, rel=0.005)
    assert found.energy_mj == pytest.approx(right.energy_mj, rel=0.015)
    assert found.edp_mj_ms == pytest.approx(right.edp_mj_ms, rel=0.02)
    assert found.burst_time_ms is not None
    assert right.time_ms is not None
    assert found.burst_time_ms < 0.8 * right.time_ms


@pytest.mark.slow
def test_the_first_moments_decide_whether_power_is_measured(tmp_path):
    burst_ms = evaluated(tmp_path).burst_time_ms
    assert burst_ms is not None
    within = evaluated(tmp_path, limit=PowerCutoff(1.01 * burst_ms, 300.0))
    assert within.time_ms is not None
    assert within.time_ms > 1.01 * burst_ms
    assert within.assumed_power_w is None
    beyond = evaluated(tmp_path, limit=PowerCutoff(0.99 * burst_ms, 300.0))
    assert (beyond.time_ms, beyond.assumed_power_w) == (burst_ms, 300.0)


@pytest.mark.slow
def test_a_search_for_time_measures_no_power(tmp_path):
    found = evaluated(tmp_path, Metric.TIME)
    assert found.time_ms == found.burst_time_ms
    assert (found.power_w, found.energy_mj, found.cap_binding) == (None, None, None)


@pytest.mark.slow
def test_a_search_on_a_real_card_learns_once_when_its_counter_advances(tmp_path, monkeypatch):
    spec = read_spec(write(tmp_path))
    monkeypatch.setattr(EmulatedDevice, "twin", lambda device: nullcontext(device))
    with EmulatedDevice() as device:
        bench = SearchBench(spec, device, Metric.EDP)
        reads: list[int] = []
        read = device.nvml.nvmlDeviceGetTotalEnergyConsumption

        def counted(handle: object) -> int:
            reads[-1] += 1
            return int(read(handle))

        monkeypatch.setattr(device.nvml, "nvmlDeviceGetTotalEnergyConsumption", counted)
        energies_mj = []
        for _ in range(3):
            reads.append(0)
            energies_mj.append(bench.evaluate(spec.baseline).energy_mj)
    assert reads[2] < reads[0] / 2
    assert energies_mj[1:] == pytest.approx(energies_mj[:1] * 2, rel=0.02)
