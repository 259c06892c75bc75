"""The quick time of one launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from jobs import job_of
from tuning_fakes import FakeDevice

from pytest_gpuenergy.devices import Timeline
from pytest_gpuenergy.emulator import EmulatedDevice, VirtualRepeater
from pytest_gpuenergy.engine import (
    arenas_for,
    measure_sustained,
    measure_time_ms,
    median_time_ms,
    quick_job,
    verify_timed,
)
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
KERNEL = Kernel("text", (Launch("k", (1, 1, 1), (1, 1, 1), ("data", "weight", "output")),))
JOB = quick_job(KERNEL, WORKLOAD)


def timeline(launches: list[float], busy_s: list[float]) -> Timeline:
    return Timeline(np.array(busy_s), np.array(launches), np.array(busy_s))


def test_it_is_the_gpu_time_of_a_launch() -> None:
    device = FakeDevice(lambda _: 0.25)
    with arenas_for(WORKLOAD, seed=0) as arenas:
        assert measure_time_ms(device, JOB, arenas) == pytest.approx(0.25)


def test_it_runs_for_as_long_as_told_by_the_devices_clock() -> None:
    device = FakeDevice(lambda _: 0.25)
    began_s = device.clock.now_s()
    with arenas_for(WORKLOAD, seed=0) as arenas:
        measure_time_ms(device, JOB, arenas, duration_s=0.04)
    assert device.clock.now_s() - began_s == pytest.approx(0.04)


def test_a_disturbed_batch_does_not_count() -> None:
    busy_s = [0.0, 0.01, 0.02, 0.12, 0.13, 0.14]
    assert median_time_ms(timeline([0, 10, 20, 30, 40, 50], busy_s)) == pytest.approx(1.0)


def test_the_first_batch_does_not_count_when_there_are_others() -> None:
    assert median_time_ms(timeline([0, 10, 20, 30], [0, 0.5, 0.51, 0.52])) == pytest.approx(1.0)


def test_a_single_batch_is_enough() -> None:
    assert median_time_ms(timeline([0, 1], [0, 0.5])) == pytest.approx(500.0)


@pytest.mark.parametrize("launches", [[], [0], [0, 0], [5, 5]])
def test_no_finished_launch_is_a_fault(launches: list[float]) -> None:
    with pytest.raises(KernelFault) as fault:
        median_time_ms(timeline(launches, [0.1] * len(launches)))
    assert fault.value.outcome == "runtime"


def test_sustained_figures_are_those_of_a_card_held_back_by_its_limit(
    device: EmulatedDevice,
) -> None:
    launch = Launch("f", (1, 1, 1), (32, 1, 1), ())
    figures = RecordedFigures(device.name, 700.0, 0.02, 400.0, 8.0)
    kernel = Kernel("text", (launch,), recorded=(figures,))
    job = job_of(kernel, flops=10**8, bytes_moved=10**6)
    device.inject("enforced_limit", {"power_w": 250.0, "after_s": 0.1})
    time_ms = measure_time_ms(device, job, {})
    found = measure_sustained(device, job, {})
    assert found is not None
    assert time_ms == pytest.approx(0.02, rel=0.01)
    assert found.time_ms > 1.1 * time_ms
    assert found.energy_mj == pytest.approx(found.power_w * found.time_ms, rel=0.01)
    assert found.power_w == pytest.approx(250.0, rel=0.03)


def test_a_fault_of_the_kernel_passes_through() -> None:
    def hang(kernel: Kernel) -> float:
        raise KernelFault("timeout", f"{kernel.short_digest} hangs.")

    with arenas_for(WORKLOAD, seed=0) as arenas, pytest.raises(KernelFault) as fault:
        measure_time_ms(FakeDevice(hang), JOB, arenas)
    assert fault.value.outcome == "timeout"


@pytest.mark.slow
def test_a_kernel_that_is_right_only_at_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves the poison in place when it is run back to back."""

    def relaunch(_: VirtualRepeater, *, once: bool) -> Iterator[int]:
        assert not once
        yield 2001

    source = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1; }'
    kernel = Kernel(source, (Launch("k", (1, 1, 1), (8, 1, 1), ("y",)),))
    workload = Contract("one", (Tensor("y", (8,), "float32", "output"),), ones)
    with open_device("emulated") as device:
        verify_timed(device, kernel, workload)
        monkeypatch.setattr(VirtualRepeater, "relaunch", relaunch)
        with pytest.raises(KernelFault, match=r"^Correct at first, wrong after 2001 launches: 8 "):
            verify_timed(device, kernel, workload)


def ones(_: object) -> dict[str, npt.NDArray[np.float64]]:
    return {"y": np.ones(8)}
