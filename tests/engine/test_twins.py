"""A kernel is verified on its workload's twins as well."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Gemm

M, N, K = 32, 16, 64
PRODUCT = Gemm("product", M, N, K)
SOURCE = """
extern "C" __global__ void product(const float* A, const float* B, float* C) {
  float sum = 0;
  for (int k = 0; k < 64; ++k) sum += A[blockIdx.x * 64 + k] * B[k * 16 + threadIdx.x];
  C[blockIdx.x * 16 + threadIdx.x] = sum;
}
"""


def kernel(source: str) -> Kernel:
    return Kernel(source, (Launch("product", (M, 1, 1), (N, 1, 1), ("A", "B", "C")),))


@pytest.mark.slow
def test_an_exact_product_is_right() -> None:
    with EmulatedDevice() as device:
        assert verify_on_device(device, kernel(SOURCE), PRODUCT).seeds[:2] == (0, 1)


@pytest.mark.slow
def test_errors_of_the_size_of_rounding_are_found_where_nothing_is_rounded() -> None:
    careless = kernel(SOURCE.replace("= sum;", "= sum * 1.0000002f;"))
    with EmulatedDevice() as device, pytest.raises(KernelFault, match=r"bound 0\.0e\+00"):
        verify_on_device(device, careless, PRODUCT)
