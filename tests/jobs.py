"""Jobs of kernels without a workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_gpuenergy.kernels import Job, Kernel
from pytest_gpuenergy.workloads import IoContract, Scalar


def job_of(
    kernel: Kernel,
    scalars: Mapping[str, Scalar] | None = None,
    *,
    flops: int = 0,
    bytes_moved: int = 0,
    **options: Any,
) -> Job:
    """A job whose amount of work is not known unless it is given."""
    values = tuple((scalars or {}).values())
    io = IoContract("w", scalars=values, flops=flops, bytes_moved=bytes_moved)
    return Job(kernel, io, **options)
