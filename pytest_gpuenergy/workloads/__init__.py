"""What is computed: tensors, inputs from a seed, a float64 reference, FLOPs and bytes."""

from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.contract import Contract
from pytest_gpuenergy.workloads.conv2d import Conv2d
from pytest_gpuenergy.workloads.gemm import Gemm
from pytest_gpuenergy.workloads.table import (
    CASES,
    NETWORKS,
    all_networks,
    choose_workloads,
    distinct_shapes,
    find_workload,
    network,
    networks_named,
    parse_shape,
    project_workloads,
)
from pytest_gpuenergy.workloads.workload import Scalar, Tensor, Workload

__all__ = [
    "CASES",
    "NETWORKS",
    "Contract",
    "Conv2d",
    "ErrorBound",
    "Gemm",
    "Scalar",
    "Tensor",
    "Workload",
    "all_networks",
    "choose_workloads",
    "distinct_shapes",
    "find_workload",
    "network",
    "networks_named",
    "parse_shape",
    "project_workloads",
]
