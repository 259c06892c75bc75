"""What a search knows before it runs anything: the least time, and seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_specs import spec_with, write

from pytest_gpuenergy.record import Metric, Peaks, peaks_of
from pytest_gpuenergy.search import Bench, SpecWorkload, floor_ms, read_spec, workload_of

PEAKS = Peaks(bandwidth_gb_s=1000.0, fp32_tflops=1.0, l2_bytes=1_000_000)


def workload(folder: Path, **fields: Any) -> SpecWorkload:
    spec = read_spec(write(folder, spec_with(**fields)))
    return workload_of(spec, spec.sizes[0])


def test_what_is_beyond_the_l2_must_move(tmp_path: Path) -> None:
    found = workload(tmp_path, bytes_moved=3_000_000, flops=0)
    assert floor_ms(found, PEAKS) == pytest.approx(2_000_000 / 1e12 * 1e3)


def test_each_tensor_moves_once_by_default(tmp_path: Path) -> None:
    found = workload(tmp_path, sizes=[{"N": 1_000_000}], flops=0)
    assert floor_ms(found, PEAKS) == pytest.approx(7_000_000 / 1e12 * 1e3)


def test_arithmetic_takes_time_where_tensor_cores_are_not_allowed(tmp_path: Path) -> None:
    flops = 10**12
    assert floor_ms(workload(tmp_path, flops=flops), PEAKS) == pytest.approx(1e3)
    assert floor_ms(workload(tmp_path, flops=flops, tensor_cores=True), PEAKS) == 0


def test_an_unknown_card_has_no_peaks(tmp_path: Path) -> None:
    assert peaks_of("Some other GPU") is None
    assert floor_ms(workload(tmp_path, flops=10**12), None) == 0


def test_seeds_are_drawn_anew_by_each_bench_of_a_real_gpu(tmp_path: Path) -> None:
    card: Any = SimpleNamespace(emulated=False)
    bench = Bench(read_spec(write(tmp_path)), card, Metric.TIME)
    assert bench.hidden_seeds("x") == bench.hidden_seeds("x")
    assert bench.hidden_seeds("x") != replace(bench).hidden_seeds("x")


def test_seeds_of_the_emulated_gpu_depend_on_that_of_the_search(tmp_path: Path) -> None:
    card: Any = SimpleNamespace(emulated=True)
    spec = read_spec(write(tmp_path))
    one, same, other = (Bench(spec, card, Metric.TIME, seed) for seed in (1, 1, 2))
    assert one.hidden_seeds("x") == same.hidden_seeds("x")
    assert one.hidden_seeds("x") != other.hidden_seeds("x")
    assert one.hidden_seeds("x") != one.hidden_seeds("y")
