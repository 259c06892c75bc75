"""The emulated GPU with kernels that really run on the host, measured in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from jobs import job_of

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import EmulatedDevice, host_kernel
from pytest_gpuenergy.energy import EnergyMeter
from pytest_gpuenergy.engine import SEEDS, arenas_for, measure_time_ms, quick_job, verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

pytestmark = pytest.mark.slow

SIZE = 16_384
SCALE = {"a": Scalar("a", "float32", 2.0)}

SCALED = """
extern "C" __global__ void scaled(float* y, const float* x, float a) {
  int i = blockIdx.x * 256 + threadIdx.x;
  y[i] = a * x[i];
}
"""

RACING = """
extern "C" __global__ void scaled(float* y, const float* x, float a) {
  __shared__ float t[256];
  t[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  y[blockIdx.x * 256 + threadIdx.x] = a * t[255 - threadIdx.x];
}
"""


def kernel(source: str) -> Kernel:
    return Kernel(source, (Launch("scaled", (64, 1, 1), (256, 1, 1), ("y", "x", "a")),))


@pytest.fixture
def arenas(tmp_path: Path) -> dict[str, Arena]:
    x, y = (Tensor(n, (SIZE,), "float32", r) for n, r in (("x", "input"), ("y", "output")))
    values = np.arange(SIZE, dtype=np.float32)
    return {"x": Arena.create(tmp_path / "x", x, values), "y": Arena.create(tmp_path / "y", y)}


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def test_a_kernel_is_computed_and_measured(gpu: EmulatedDevice, arenas: dict[str, Arena]) -> None:
    gpu.run_once(job_of(kernel(SCALED), SCALE), arenas)
    np.testing.assert_array_equal(arenas["y"].value(), 2 * np.arange(SIZE, dtype=np.float32))
    with gpu.repeat(job_of(kernel(SCALED), SCALE), arenas) as repeater:
        reading = EnergyMeter(gpu).measure(repeater)
    assert reading.power_w > 0.95 * gpu.profile.idle_w
    assert reading.energy_mj.value == pytest.approx(
        reading.power_w * reading.time_ms.value, rel=0.01
    )


def test_a_race_is_found_before_the_first_run(
    gpu: EmulatedDevice, arenas: dict[str, Arena]
) -> None:
    with pytest.raises(KernelFault) as fault:
        gpu.run_once(job_of(kernel(RACING), SCALE), arenas)
    assert fault.value.outcome == "correctness"


WORKLOAD = Contract(
    "scaled",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    values=tuple(SCALE.values()),
)
COUNTS = "int calls = ++launches[i]; "


def counting(condition: str) -> Kernel:
    """A kernel that leaves its output alone where the condition holds."""
    body = f"{COUNTS} if ({condition}) return; y[i] ="
    return kernel(f"__device__ int launches[{SIZE}];{SCALED.replace('y[i] =', body)}")


@pytest.mark.parametrize(
    "condition",
    ["calls > 3", "calls > 20", "calls > 3 && i == 99", "calls > 3 && isfinite(y[i])"],
)
def test_a_kernel_that_is_right_only_at_first_is_wrong(gpu: EmulatedDevice, condition: str) -> None:
    with pytest.raises(KernelFault, match=r"wrong|leaves another") as fault:
        verify_on_device(gpu, counting(condition), WORKLOAD)
    assert fault.value.outcome == "correctness"


SLOWLY = "float v = a * x[i]; for (int k = 0; k < 150; ++k) v = __fadd_rn(v, 0.0f); y[i] = v;"
"""A launch takes several times as long as `little_affordable` affords."""
LATER = ("calls > 2", "isfinite(y[i])", "isfinite(y[b])", "y[b] == a * x[b]")
TOGETHER = "if (i < 0) atomicAdd(&launches[0], 1); "


@pytest.fixture
def little_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a launch be slow that takes a tenth of the time that usually counts as slow."""
    monkeypatch.setattr(host_kernel, "AFFORDABLE_S", host_kernel.AFFORDABLE_S / 10)


@pytest.mark.usefixtures("little_affordable")
@pytest.mark.parametrize(
    ("condition", "more"),
    [
        *((skips, "") for skips in (*LATER, "calls > 2 && i == 99")),
        (LATER[0], TOGETHER),
        *(pytest.param(skips, TOGETHER, marks=pytest.mark.thorough) for skips in LATER[1:]),
    ],
)
def test_slow_kernels_are_launched_again_too(
    gpu: EmulatedDevice, condition: str, more: str
) -> None:
    body = f"{COUNTS} {more} int b = blockIdx.x * 256; bool skips = {condition}; __syncthreads();"
    text = SCALED.replace("y[i] = a * x[i];", f"{body} if (skips) return; {SLOWLY}")
    with pytest.raises(KernelFault, match="wrong") as fault:
        verify_on_device(gpu, kernel(f"__device__ int launches[{SIZE}];{text}"), WORKLOAD)
    assert fault.value.outcome == "correctness"


@pytest.mark.usefixtures("little_affordable")
@pytest.mark.parametrize("more", ["", TOGETHER])
def test_slow_kernels_that_stay_right_pass(gpu: EmulatedDevice, more: str) -> None:
    body = f"{COUNTS} {more} {SLOWLY}"
    text = f"__device__ int launches[{SIZE}];" + SCALED.replace("y[i] = a * x[i];", body)
    assert verify_on_device(gpu, kernel(text), WORKLOAD).max_relative_error == 0.0


def test_seeds_share_a_process_and_what_a_kernel_leaves_in_it(gpu: EmulatedDevice) -> None:
    with pytest.raises(KernelFault, match=r"never written|wrong \(seed 1\)"):
        verify_on_device(gpu, counting("calls > 1"), WORKLOAD)


def test_a_kernel_that_counts_and_stays_right_passes(gpu: EmulatedDevice) -> None:
    correctness = verify_on_device(gpu, counting("calls < 0"), WORKLOAD)
    assert correctness.max_relative_error == 0.0
    assert correctness.seeds[:-1] == SEEDS


def test_text_that_does_not_compile_cannot_be_repeated(
    gpu: EmulatedDevice, arenas: dict[str, Arena]
) -> None:
    broken = kernel(SCALED.replace("y[i]", "z[i]"))
    with (
        pytest.raises(KernelFault) as fault,
        gpu.repeat(job_of(broken, SCALE), arenas),
    ):
        pass
    assert fault.value.outcome == "compile"


LOOP = """
__global__ void copy(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += 32) y[i] = x[i];
}
"""


def test_one_kernel_takes_longer_where_a_scalar_gives_it_more_to_do(gpu: EmulatedDevice) -> None:
    times_ms = []
    for count in (64, 8192):
        workload = Contract(
            "copy",
            (Tensor("x", (8192,), "float32", "input"), Tensor("y", (8192,), "float32", "output")),
            lambda inputs: {"y": inputs["x"]},
            values=(Scalar("n", "int32", count),),
        )
        looping = Kernel(LOOP, (Launch("copy", (1, 1, 1), (32, 1, 1), ("x", "y", "n")),))
        with arenas_for(workload, 0) as arenas:
            times_ms.append(measure_time_ms(gpu, quick_job(looping, workload), arenas))
    assert times_ms[1] > 2 * times_ms[0]
