"""A kernel uses tensor cores only where its workload declares them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import MmaParameters, SimtParameters
from pytest_gpuenergy.workloads import Gemm

FLOAT32 = Gemm("g", 8, 8, 8)
SPLIT = Gemm("g", 8, 8, 8, mode="3xtf32")
ON_TENSOR_CORES = MmaParameters(tile_m=16, tile_n=16, tile_k=16, warp_m=16, warp_n=16, stages=2)
ON_CUDA_CORES = SimtParameters(tile_m=16, tile_n=32, tile_k=4, thread_m=4, thread_n=4, stages=2)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def test_float32_is_not_computed_on_tensor_cores(device: EmulatedDevice) -> None:
    kernel = ON_TENSOR_CORES.kernel(SPLIT)
    with pytest.raises(KernelFault) as fault:
        verify_on_device(device, kernel, FLOAT32)
    assert fault.value.outcome == "correctness"
    assert "instructions for tensor cores (mma), but g is declared as float32" in str(fault.value)
    assert "declare mode=3xtf32" in str(fault.value)


def test_a_mode_that_declares_them_may(device: EmulatedDevice) -> None:
    assert verify_on_device(device, ON_TENSOR_CORES.kernel(SPLIT), SPLIT).max_relative_error < 1e-5


def test_float32_may_be_computed_on_cuda_cores(device: EmulatedDevice) -> None:
    assert (
        verify_on_device(device, ON_CUDA_CORES.kernel(FLOAT32), FLOAT32).max_relative_error < 1e-5
    )


def test_text_that_is_not_compiled_does_not_count(device: EmulatedDevice) -> None:
    kernel = ON_CUDA_CORES.kernel(FLOAT32)
    unused = "#if 0\n" + ON_TENSOR_CORES.kernel(SPLIT).source + "\n#endif\n"
    other = type(kernel)(unused + kernel.source, kernel.launches)
    assert device.tensor_core_instructions(Job.of(other, FLOAT32)) == frozenset()
