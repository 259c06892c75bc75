"""Accesses outside tensors that only some inputs lead to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice, HostRunner
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def device(host_cache: Path) -> Iterator[EmulatedDevice]:
    with EmulatedDevice(runner=HostRunner(host_cache, jobs=2)) as emulated:
        yield emulated


def doubled(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": 2 * inputs["x"], "z": inputs["x"] + 1}


def verified(device: EmulatedDevice, size: int, body: str) -> Correctness:
    """Two times x, and x plus one, by a kernel that also runs ``body`` on each element ``v``."""
    source = f"""__global__ void k(const float* x, float* y, float* z) {{
      __shared__ float s[256];
      int i = blockIdx.x * 256 + threadIdx.x, n = {size};
      s[threadIdx.x] = 0;
      if (i >= n) return;
      float v = x[i];
      {body}
      y[i] = 2 * v; z[i] = x[i] + 1; }}"""
    launch = Launch("k", (-(-size // 256), 1, 1), (256, 1, 1), ("x", "y", "z"))
    tensors = (
        Tensor("x", (size,), "float32", "input"),
        *(Tensor(name, (size,), "float32", "output") for name in "yz"),
    )
    return verify_on_device(
        device, Kernel(source, (launch,)), Contract("doubled", tensors, doubled)
    )


RARE = {
    "a read past the end": ("if (v > 50.f) if (x[n + (int)v] > 1e30f) v = 0;", "reads x"),
    "the element after the last": ("if (v > 50.f) if (x[n] > 1e30f) v = 0;", "reads x"),
    "the element before the first": ("if (v < -50.f) if (x[-1] > 1e30f) v = 0;", "reads x"),
    "an index that is negative": ("if (v > 50.f) if (x[-(int)v] > 1e30f) v = 0;", "reads x"),
    "a read of an output": ("if (v > 50.f) if (y[n + 3] > 1e30f) v = 0;", "reads y"),
    "a write past the end": ("if (v > 50.f) y[n] = v;", "(writes|wrote) y|end of y"),
    "shared memory": ("if (v > 50.f) if (s[206 + (int)v] > 1e30f) v = 0;", "reads s"),
    "a pointer to another tensor": (
        "if (v > 50.f) v = (x + (1 << 26))[i] > 1e30f ? 0 : v;",
        "reads (x|address)",
    ),
}


@pytest.mark.parametrize("size", [1000, 4096, 5003])
@pytest.mark.parametrize("name", RARE)
def test_an_access_that_rare_inputs_make_is_found(
    device: EmulatedDevice, name: str, size: int
) -> None:
    body, told = RARE[name]
    with pytest.raises(KernelFault, match=told):
        verified(device, size, body)


@pytest.mark.parametrize("size", [1000, 4096, 5003])
def test_a_kernel_that_checks_its_index_passes(device: EmulatedDevice, size: int) -> None:
    body = "if (v > 50.f && i + (int)v < n) if (x[i + (int)v] > 1e38f) v = 0;"
    assert verified(device, size, body).max_relative_error < 1e-6


LITTLE_BEFORE = ("the element before the first", "an index that is negative")
"""Seen only in tensors of whole pages, if accesses are too many to check."""


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (n, more)
        for n in list(RARE)[:6]
        for more in (0, 16, 1008)
        if not (more and n in LITTLE_BEFORE)
    ],
)
def test_an_access_in_a_run_with_too_many_for_a_check_is_found(
    device: EmulatedDevice, name: str, more: int
) -> None:
    body, told = RARE[name]
    with pytest.raises(KernelFault, match=told):
        verified(device, (3 << 20) + more, body)
