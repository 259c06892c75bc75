"""Checks that a kernel computes in the precision that its workload declares."""

from __future__ import annotations

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Workload


def check_precision(device: Device, kernel: AnyKernel, workload: Workload) -> None:
    """Refuse tensor cores where the workload does not allow them.

    The machine code of a library cannot be looked through, so that its word must be taken.

    Raises:
        KernelFault: ``correctness``, if the machine code uses them; or the kernel does not compile.
    """
    if workload.allows_tensor_cores:
        return
    if found := device.tensor_core_instructions(Job.of(kernel, workload)):
        raise KernelFault(
            "correctness",
            f"The machine code has instructions for tensor cores ({', '.join(sorted(found))}), but "
            f"{workload.name} is declared as float32: declare mode=3xtf32 if it is as exact, or "
            "else mode=tf32.",
        )
