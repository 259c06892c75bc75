"""What is computed: tensors, inputs from a seed, a float64 reference, FLOPs and bytes."""

from pytest_gpuenergy.workloads.contract import Contract
from pytest_gpuenergy.workloads.conv2d import Conv2d
from pytest_gpuenergy.workloads.table import CASES, find_workload
from pytest_gpuenergy.workloads.workload import ErrorBound, Scalar, Tensor, Workload

__all__ = [
    "CASES",
    "Contract",
    "Conv2d",
    "ErrorBound",
    "Scalar",
    "Tensor",
    "Workload",
    "find_workload",
]
