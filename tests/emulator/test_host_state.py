"""Kernels that keep something from launch to launch, or skip work, on the emulated GPU."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

pytestmark = pytest.mark.slow

SIZE = 1024
DOUBLE = Contract(
    "double",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
)
TEXT = """
DECLARED
extern "C" __global__ void f(const float* x, float* y) {
  int i = blockIdx.x * 128 + threadIdx.x;
  BODY
}
"""
SLOW = "float v = 0; for (int k = 0; k < 40000; ++k) v = fmaf(v, 0.5f, x[i]); "
"""So that a launch takes the host too long to be repeated: v is 2 x."""


def verified(body: str, declared: str = "") -> Correctness:
    text = TEXT.replace("DECLARED", declared).replace("BODY", body)
    launch = Launch("f", (SIZE // 128, 1, 1), (128, 1, 1), ("x", "y"))
    with EmulatedDevice() as device:
        return verify_on_device(device, Kernel(text, (launch,)), DOUBLE)


STATE = {
    "finite": ("if (isfinite(y[i])) return; y[i] = 2 * x[i];", ""),
    "looks right": ("if (fabsf(y[i]) < 1000.0f) return; y[i] = 2 * x[i];", ""),
    "static counter": (
        "static int n[1024]; if (n[i]++ > 0) return; y[i] = 2 * x[i];",
        "",
    ),
    "device counter": (
        "if (runs[i]++ > 0) return; y[i] = 2 * x[i];",
        "__device__ int runs[1024];",
    ),
    "memo of a pointer": (
        "if (last[i] == x) { y[i] = known[i]; return; } "
        "last[i] = x; known[i] = 2 * x[i]; y[i] = known[i];",
        "__device__ const float* last[1024]; __device__ float known[1024];",
    ),
    "memo of an element": (
        "if (i > 0 && seen[i]) { y[i] = known[i]; return; } "
        "seen[i] = 1; known[i] = 2 * x[i]; y[i] = known[i];",
        "__device__ int seen[1024]; __device__ float known[1024];",
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_a_kernel_with_state_is_wrong(name: str) -> None:
    body, declared = STATE[name]
    with pytest.raises(KernelFault, match=r"elements of y .* (wrong|never written)"):
        verified(body, declared)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (at > 0)) for at, name in enumerate(STATE)],
)
def test_it_is_wrong_too_if_its_launches_are_too_long_to_be_repeated(name: str) -> None:
    body, declared = STATE[name]
    with pytest.raises(KernelFault, match=r"elements of y .* (wrong|never written)"):
        verified(SLOW + body.replace("2 * x[i]", "v"), declared)


def test_a_ticket_that_is_never_reset_is_wrong() -> None:
    body = """
    __shared__ bool last;
    y[i] = 2 * x[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) y[0] = 2 * x[0];
    else if (i == 0) y[0] = 0;
    """
    with pytest.raises(KernelFault):
        verified(body, "__device__ unsigned ticket;")


def test_a_counter_that_is_reset_is_right() -> None:
    body = "if (threadIdx.x == 0) atomicExch(&runs, 0u); y[i] = 2 * x[i];"
    assert verified(body, "__device__ unsigned runs;").max_relative_error == 0
