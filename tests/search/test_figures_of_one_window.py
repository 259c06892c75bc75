"""The quick figures of a variant whose power is measured come from one window, as a bench's do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernel_specs import write

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.energy import MeterSettings
from pytest_gpuenergy.engine import Harness, Subject
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import Bench, Limit, Result, kernel_of, read_spec

pytestmark = pytest.mark.slow
LOW_W = 100.0
"""A limit under which the kernel takes a third longer."""


def evaluated(folder: Path, objective: Metric = Metric.EDP, limit: Limit | None = None) -> Result:
    """The baseline on a card that keeps to a low limit only after the first moments."""
    spec = read_spec(write(folder))
    with pytest.MonkeyPatch.context() as patch:
        fault = {"enforced_limit": {"power_w": LOW_W, "after_s": 0.05}}
        patch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps(fault))
        with EmulatedDevice() as device:
            return Bench(spec, device, objective).evaluate(spec.baseline, limit)


def test_figures_under_a_low_limit_are_those_of_a_bench(tmp_path: Path) -> None:
    found = evaluated(tmp_path)
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        device.inject("enforced_limit", {"power_w": LOW_W})
        bench = Bench(spec, device, Metric.EDP)
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


def test_the_first_moments_decide_whether_power_is_measured(tmp_path: Path) -> None:
    burst_ms = evaluated(tmp_path).burst_time_ms
    assert burst_ms is not None
    within = evaluated(tmp_path, limit=Limit(1.01 * burst_ms, 300.0))
    assert within.time_ms is not None
    assert within.time_ms > 1.01 * burst_ms
    assert within.assumed_power_w is None
    beyond = evaluated(tmp_path, limit=Limit(0.99 * burst_ms, 300.0))
    assert (beyond.time_ms, beyond.assumed_power_w) == (burst_ms, 300.0)


def test_a_search_for_time_measures_no_power(tmp_path: Path) -> None:
    found = evaluated(tmp_path, Metric.TIME)
    assert found.time_ms == found.burst_time_ms
    assert (found.power_w, found.energy_mj, found.cap_binding) == (None, None, None)
