"""Kernels that read the tensors they write, on the emulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import arenas_for, verify_on_device
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

pytestmark = pytest.mark.slow

SIZE = 4096
TEXT = """
extern "C" __global__ void f(const float* x, float* y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  BODY
}
"""


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def kernel(body: str) -> Kernel:
    return Kernel(
        TEXT.replace("BODY", body), (Launch("f", (SIZE // 256, 1, 1), (256, 1, 1), ("x", "y")),)
    )


def workload(role: Any = "inout", dtype: str = "float32") -> Contract:
    return Contract(
        "axpy",
        (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), dtype, role)),
        lambda given: {"y": given["x"] + (given["y"] if role == "inout" else 0)},
    )


@pytest.mark.parametrize(
    "body", ["y[i] += x[i];", "y[i] = x[i] + y[i];", "atomicAdd(&y[i], x[i]);"]
)
def test_an_inout_is_restored_before_each_launch(gpu: EmulatedDevice, body: str) -> None:
    assert verify_on_device(gpu, kernel(body), workload()).max_relative_error < 1e-6


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = x[i];",
        "y[i] += i == 77 ? 0.f : x[i];",
        "y[i] += x[i]; if (i == 5) y[i] += x[i];",
        "if (y[i] != 0.f) y[i] += 1.001f * x[i];",
        "static __device__ int n; if (i == 0 && ++n > 6) y[i] = 0.f; else y[i] += x[i];",
        "",
    ],
)
def test_a_wrong_update_is_found(gpu: EmulatedDevice, body: str) -> None:
    with pytest.raises(KernelFault, match=r"\by\b"):
        verify_on_device(gpu, kernel(body), workload())


@pytest.mark.parametrize(
    "body", ["y[i] += x[i];", "y[i] = x[i] + 0.f * y[i];", "atomicAdd(y + i, x[i]);"]
)
def test_a_kernel_that_reads_an_output_is_told_so(gpu: EmulatedDevice, body: str) -> None:
    with pytest.raises(KernelFault, match=r"4096 elements .* computed from what y held before"):
        verify_on_device(gpu, kernel(body), workload("output"))


def test_an_output_that_is_not_written_is_told_so(gpu: EmulatedDevice) -> None:
    with pytest.raises(KernelFault, match=r"1 of 4096 .* never written"):
        verify_on_device(gpu, kernel("if (i != 9) y[i] = x[i];"), workload("output"))


def test_the_copy_that_restores_an_inout_is_part_of_the_modelled_time(gpu: EmulatedDevice) -> None:
    """An emulated figure: the same kernel with an output and with an inout."""
    times = []
    for role in ("output", "inout"):
        job = Job.of(kernel("y[i] = x[i];"), workload(role))
        with arenas_for(workload(role), 0) as arenas, gpu.repeat(job, arenas) as repeater:
            repeater.start()
            gpu.clock.sleep_s(0.2)
            timeline = repeater.stop()
            times.append(timeline.busy_s.sum() / timeline.launches[-1])
    assert np.diff(times)[0] > 0.5e-6  # a node of a graph, at least


@pytest.mark.parametrize("body", ["if (x[i] > 0.f) y[i] = x[i];", "y[i] = x[i];"])
def test_a_masked_output_is_checked_after_many_launches(gpu: EmulatedDevice, body: str) -> None:
    masked = Contract(
        "positive",
        workload("output").contract,
        lambda given: {"y": np.ma.masked_where(given["x"] <= 0, given["x"])},
    )
    if body.startswith("if"):
        verify_on_device(gpu, kernel(body), masked)
    else:
        with pytest.raises(KernelFault, match=r"written .* although the reference masks"):
            verify_on_device(gpu, kernel(body), masked)


@pytest.mark.parametrize("limit", ["0.f", "0.001f"])
def test_an_infinite_output_is_checked_after_many_launches(gpu: EmulatedDevice, limit: str) -> None:
    logits = Contract(
        "logits",
        workload("output").contract,
        lambda given: {"y": np.where(given["x"] > 0, given["x"], -np.inf)},
    )
    body = f"y[i] = x[i] > {limit} ? x[i] : -INFINITY;"
    if limit == "0.f":
        verify_on_device(gpu, kernel(body), logits)
    else:
        with pytest.raises(KernelFault, match="-inf"):
            verify_on_device(gpu, kernel(body), logits)
