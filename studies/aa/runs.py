"""A fixed set of kernels to measure again and again: convolutions, products, memory-bound ones."""

import numpy as np
import pytest

from pytest_gpuenergy.workloads import Contract, Tensor, find_workload, parse_shape

N = 1 << 24
SCALE = """
extern "C" __global__ void scale(const float4* __restrict__ x, float4* __restrict__ y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 v = x[i];
  v.x *= 2; v.y *= 2; v.z *= 2; v.w *= 2;
  y[i] = v;
}
"""
ROWS, COLUMNS = 4096, 1024
SOFTMAX = """
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y) {
  const float* row = x + blockIdx.x * 1024;
  float v[32], most = -INFINITY, sum = 0;
  for (int k = 0; k < 32; k++) { v[k] = row[k * 32 + threadIdx.x]; most = fmaxf(most, v[k]); }
  for (int s = 16; s; s /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, s));
  for (int k = 0; k < 32; k++) { v[k] = expf(v[k] - most); sum += v[k]; }
  for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(0xffffffff, sum, s);
  for (int k = 0; k < 32; k++) y[blockIdx.x * 1024 + k * 32 + threadIdx.x] = v[k] / sum;
}
"""


def softmax(inputs):
    x = inputs["x"]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": e / e.sum(axis=1, keepdims=True)}


@pytest.mark.parametrize("name", ["case1", "case4", "case5", "resnet01"])
def test_conv2d(name, powercap, load_kernel, energy_benchmark):
    kernel = load_kernel(f"kernels/{name}/kernel01.json")
    energy_benchmark(kernel, workload=find_workload(name))


@pytest.mark.parametrize(
    "size", ["MNK=2048 layout=nn", "MNK=4096 layout=nn mode=tf32"], ids=["f2048", "t4096"]
)
def test_gemm(size, powercap, load_kernel, energy_benchmark):
    workload = parse_shape(f"gemm:{size}")
    kernel = load_kernel(f"kernels/{workload.name}/kernel01.json")
    energy_benchmark(kernel, workload=workload)


def test_scale(powercap, load_kernel, energy_benchmark):
    contract = Contract(
        "scale64mib",
        (Tensor("x", (N,), "float32", "input"), Tensor("y", (N,), "float32", "output")),
        lambda inputs: {"y": 2 * inputs["x"]},
        flops=N,
    )
    kernel = load_kernel(SCALE, entry="scale", grid=N // 1024, block=256, arguments=("x", "y"))
    energy_benchmark(kernel, workload=contract)


def test_softmax(powercap, load_kernel, energy_benchmark):
    contract = Contract(
        "softmax",
        (
            Tensor("x", (ROWS, COLUMNS), "float32", "input"),
            Tensor("y", (ROWS, COLUMNS), "float32", "output"),
        ),
        softmax,
        flops=5 * ROWS * COLUMNS,
        reduction_length=COLUMNS,
    )
    kernel = load_kernel(SOFTMAX, entry="softmax", grid=ROWS, block=32, arguments=("x", "y"))
    energy_benchmark(kernel, workload=contract)
