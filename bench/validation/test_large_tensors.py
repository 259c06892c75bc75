"""How long does it take to verify a kernel of large tensors?

Collected only when this path is named; on a real GPU:

    pytest bench/validation/test_large_tensors.py --powercap current --gpuenergy-durations

The limit is two seconds for 64 Mi elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytest_gpuenergy.workloads import Contract, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import Kernel
    from pytest_gpuenergy.pytest_plugin import EnergyBenchmark

ELEMENTS, BLOCK = 1 << 26, 256
EXPRESSIONS = {
    "doubled": ("2 * x[i]", lambda x: 2 * x),
    "of_wide_range": ("expf(x[i])", np.exp),
}
SOURCE = """
extern "C" __global__ void large(const float* __restrict__ x, float* __restrict__ y) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = {expression};
}}
"""


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_64_mi_elements(
    name: str,
    gpu: Device,
    load_kernel: Callable[..., Kernel],
    energy_benchmark: EnergyBenchmark,
) -> None:
    if gpu.emulated:
        pytest.skip("needs a real GPU: the emulated one runs 64 Mi threads on the host")
    expression, compute = EXPRESSIONS[name]
    workload = Contract(
        name,
        (
            Tensor("x", (ELEMENTS,), "float32", "input"),
            Tensor("y", (ELEMENTS,), "float32", "output"),
        ),
        lambda inputs: {"y": compute(inputs["x"])},
        flops=ELEMENTS,
    )
    source = SOURCE.format(expression=expression)
    grid = ELEMENTS // BLOCK
    kernel = load_kernel(source, entry="large", grid=grid, block=BLOCK, arguments=("x", "y"))
    energy_benchmark(kernel, workload=workload)
