"""Items with kernels that the emulated GPU cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.kernels import AnyKernel, Job, LibraryCall, TritonKernel
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import IoContract

if TYPE_CHECKING:
    from conftest import Project

TRITON = TritonKernel("import triton", "add", (1, 1, 1), ("x",))
CALL = LibraryCall("torch.matmul", {"input": "x", "other": "x", "out": "y"})
ITEM = """
from pytest_gpuenergy.kernels import LibraryCall, TritonKernel
from pytest_gpuenergy.workloads import Contract, Tensor

X, Y = (Tensor(n, (4, 4), "float32", role) for n, role in (("x", "input"), ("y", "output")))
WORK = Contract("w", (X, Y), dict)

def test_triton(energy_benchmark):
    energy_benchmark(TritonKernel("import triton", "add", (1, 1, 1), ("x",)), workload=WORK)

def test_library(energy_benchmark):
    call = LibraryCall("torch.matmul", {"input": "x", "other": "x", "out": "y"})
    energy_benchmark(call, workload=WORK)
"""


def test_items_of_other_kinds_are_skipped_with_the_reason(project: Project) -> None:
    project.module(ITEM)
    result = project.run("--powercap", "current", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            f"*{name} needs a real GPU: the emulated one runs CUDA text only*"
            for name in ("add", "torch.matmul")
        ]
    )


@pytest.mark.parametrize("kernel", [TRITON, CALL])
def test_the_emulated_gpu_refuses_other_kinds(kernel: AnyKernel) -> None:
    with EmulatedDevice() as device:
        device.prepare([kernel])
        with pytest.raises(KernelFault, match="needs a real GPU") as fault:
            device.compile(kernel)
        with pytest.raises(KernelFault, match="needs a real GPU"):
            device.run_once(Job(kernel, IoContract("w")), {})
    assert fault.value.outcome == "constraints"


def test_the_emulated_gpu_has_no_libraries() -> None:
    with EmulatedDevice() as device, pytest.raises(KernelFault, match="needs a real GPU"):
        device.offered(CALL, IoContract("w"))
