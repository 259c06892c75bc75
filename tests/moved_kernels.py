"""Small kernels of different shape that moves rewrite, with what they compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from move_checks import Reference, spec_of

from pytest_gpuenergy.search import KernelSpec

ADD = """
extern "C" __global__ void kernel(const float* __restrict__ a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;  // the element
  if (i < n) {
    float s = a[i] + b[i];
    out[i] = s * 2.0f;  // twice
  }
}
"""

HALF_ADD = """
#include <cuda_fp16.h>
__global__ void kernel(const half* a, const half* b, half* out, int n) {
  const int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  out[i] = __hadd(a[i], b[i]);
}
"""

GRID_STRIDE = """
__global__ void kernel(const float* a, const float* b, float* out, int n) {
  const int stride = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
    out[i] = a[i] + (b[i] > 0 ? b[i] : 0) + a[i + 1 < n ? i + 1 : 0];
}
"""

SOFTMAX = """
#include <float.h>
__global__ void kernel(const float* __restrict__ x, float* __restrict__ y, int cols) {
  const int row = blockIdx.x;
  const int tid = threadIdx.x;
  __shared__ float part[64];
  const float* xr = x + row * cols;
  float* yr = y + row * cols;
  // the largest
  float m = -FLT_MAX;
  for (int c = tid; c < cols; c += blockDim.x) m = fmaxf(m, xr[c]);
  part[tid] = m;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) part[tid] = fmaxf(part[tid], part[tid + s]);
    __syncthreads();
  }
  m = part[0];
  __syncthreads();
  float sum = 0.0f;
  for (int c = tid; c < cols; c += blockDim.x) sum += expf(xr[c] - m);
  part[tid] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) part[tid] += part[tid + s];
    __syncthreads();
  }
  sum = part[0];
  for (int c = tid; c < cols; c += blockDim.x) {
    yr[c] = expf(xr[c] - m) / sum;  // normalized
  }
}
"""

ROWS = """
__global__ void kernel(const float* x, float* y, int w) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < w) y[blockIdx.y * w + i] = 2.0f * x[blockIdx.y * w + i];
}
"""

LAYERNORM = """
__global__ void kernel(const float* x, const float* w, float* y, int cols) {
  int lane = threadIdx.x % 32;
  const int row = blockIdx.x * 2 + threadIdx.x / 32;
  float s = 0.f, q = 0.f;
  for (int c = lane; c < cols; c += 32) {
    float v = x[row * cols + c];
    s += v; q += v * v;
  }
  for (int o = 16; o > 0; o >>= 1) {
    s += __shfl_xor_sync(0xffffffff, s, o);
    q += __shfl_xor_sync(0xffffffff, q, o);
  }
  float mean = s / cols;
  float inv = 1.0f / sqrtf(q / cols - mean * mean + 1e-5f);
  for (int c = lane; c < cols; c += 32)
    y[row * cols + c] = (x[row * cols + c] - mean) * inv * w[c];
}
"""

HISTOGRAM = """
__global__ void kernel(const int* values, int* counts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int bin = values[i] % 32;
  atomicAdd(&counts[bin], 1);
}
"""

SQUARES = """
__global__ void kernel(const float* x, float* total, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(total, x[i] * x[i]);
}
"""

NAIVE_GEMM = """
__global__ void kernel(const float* a, const float* b, float* c, int m, int n, int k) {
  int col = blockIdx.x * 16 + threadIdx.x;
  int row = blockIdx.y * 16 + threadIdx.y;
  if (row < m && col < n) {
    float acc = 0;
    for (int i = 0; i < k; ++i) acc += a[row * k + i] * b[i * n + col];
    c[row * n + col] = acc;
  }
}
"""

TILED_GEMM = """
#define TILE 16
__global__ void kernel(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float As[TILE][TILE];
  __shared__ float Bs[TILE][TILE];
  int ty = threadIdx.y, tx = threadIdx.x;
  int row = blockIdx.y * TILE + ty;
  int col = blockIdx.x * TILE + tx;
  float acc = 0.0f;
  for (int t = 0; t < (k + TILE - 1) / TILE; ++t) {
    // tiles
    As[ty][tx] = (row < m && t * TILE + tx < k) ? a[row * k + t * TILE + tx] : 0.0f;
    Bs[ty][tx] = (t * TILE + ty < k && col < n) ? b[(t * TILE + ty) * n + col] : 0.0f;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < TILE; ++i) acc += As[ty][i] * Bs[i][tx];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = acc;
}
"""

HALF_GEMM = "#include <cuda_fp16.h>" + (
    TILED_GEMM.replace("const float*", "const half*")
    .replace("__shared__ float", "__shared__ half")
    .replace(": 0.0f", ": __float2half(0.0f)")
    .replace("As[ty][i] * Bs[i][tx]", "__half2float(As[ty][i]) * __half2float(Bs[i][tx])")
)

TRANSPOSE = """
__global__ void kernel(const float* x, float* y, int n) {
  __shared__ float tile[32][32];
  int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 32 + threadIdx.y;
  if (i < n && j < n) tile[threadIdx.y][threadIdx.x] = x[j * n + i];
  __syncthreads();
  int p = blockIdx.y * 32 + threadIdx.x, q = blockIdx.x * 32 + threadIdx.y;
  if (p < n && q < n) y[q * n + p] = tile[threadIdx.x][threadIdx.y];
}
"""

STENCIL = """
__global__ void kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float left = i > 0 ? x[i - 1] : 0.0f;
    float right = i + 1 < n ? x[i + 1] : 0.0f;
    y[i] = (left + x[i] + right) / 3.0f;
  }
}
"""


@dataclass(frozen=True)
class Case:
    """A kernel; ``options`` are those of `move_checks.check`."""

    spec: KernelSpec
    reference: Reference
    options: dict[str, Any] = field(default_factory=dict)


def _softmax(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    e = np.exp(inputs["x"] - inputs["x"].max(1, keepdims=True))
    return {"y": e / e.sum(1, keepdims=True)}


def _layernorm(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    x = inputs["x"]
    mean = x.mean(1, keepdims=True)
    return {"y": (x - mean) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * inputs["w"]}


def _stencil(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    x = np.pad(inputs["x"], 1)
    return {"y": (x[:-2] + x[1:-1] + x[2:]) / 3}


def _grid_stride(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    a = inputs["a"]
    return {"out": a + np.maximum(inputs["b"], 0) + np.roll(a, -1)}


TAILS = ({"N": 1000}, {"N": 37})
_VECTORS = ("a[N]", "b[N]", ">out[N]")
_HALVES = {"a": "float16", "b": "float16"}


def _case(
    source: str,
    tensors: Iterable[str],
    reference: Reference,
    options: dict[str, Any] | None = None,
    **named: Any,
) -> Case:
    """A case, by default with a thread for each of N elements."""
    shape = {"scalars": ("n",), "grid": ("ceil_div(N, 64)",), "sizes": TAILS}
    return Case(spec_of(source, tensors, **{**shape, **named}), reference, options or {})


def gemm_of(source: str, *sizes: tuple[int, int, int], **named: Any) -> Case:
    """A product with a block of 16 by 16 threads for as large a tile."""
    return _case(
        source,
        ("a[M, K]", "b[K, N]", ">c[M, N]"),
        lambda inputs: {"c": inputs["a"] @ inputs["b"]},
        scalars=("m", "n", "k"),
        grid=("ceil_div(N, 16)", "ceil_div(M, 16)"),
        block=(16, 16),
        sizes=[dict(zip("MNK", some, strict=True)) for some in sizes],
        **named,
    )


def _softmax_of(*sizes: tuple[int, int]) -> Case:
    rows = [{"ROWS": rows, "COLS": cols} for rows, cols in sizes]
    tensors = ("x[ROWS, COLS]", ">y[ROWS, COLS]")
    return _case(SOFTMAX, tensors, _softmax, scalars=("cols",), grid=("ROWS",), sizes=rows)


CASES = {
    "add": _case(ADD, _VECTORS, lambda inputs: {"out": 2 * (inputs["a"] + inputs["b"])}),
    "half add": _case(
        HALF_ADD,
        _VECTORS,
        lambda inputs: {"out": inputs["a"] + inputs["b"]},
        {"bound": None},
        dtypes={**_HALVES, "out": "float16"},
    ),
    "grid stride": _case(GRID_STRIDE, _VECTORS, _grid_stride, grid=(3,)),
    "softmax": _softmax_of((3, 200), (2, 20)),
    "uneven softmax": _softmax_of((2, 20), (3, 201), (3, 102)),
    "rows": _case(
        ROWS,
        ("x[H, W]", ">y[H, W]"),
        lambda inputs: {"y": 2 * inputs["x"]},
        scalars=("w",),
        grid=("ceil_div(W, 64)", "H"),
        sizes=({"H": 2, "W": 64}, {"H": 3, "W": 101}),
    ),
    "layernorm": _case(
        LAYERNORM,
        ("x[2 * R, COLS]", "w[COLS]", ">y[2 * R, COLS]"),
        _layernorm,
        scalars=("cols",),
        grid=("R",),
        sizes=({"R": 3, "COLS": 200}, {"R": 2, "COLS": 516}),
    ),
    "histogram": _case(
        HISTOGRAM,
        ("values[N]", ">counts[32]"),
        lambda inputs: {"counts": np.bincount(inputs["values"] % 32, minlength=32)},
        {"zeroed": "counts", "init": {"values": (0, 1000)}, "bound": None},
        dtypes={"values": "int32", "counts": "int32"},
    ),
    "squares": _case(
        SQUARES,
        ("x[N]", ">total[1]"),
        lambda inputs: {"total": (inputs["x"] ** 2).sum(keepdims=True)},
        {"zeroed": "total"},
        grid=(3,),
    ),
    "naive gemm": gemm_of(NAIVE_GEMM, (17, 33, 20), (16, 16, 64)),
    "tiled gemm": gemm_of(TILED_GEMM, (80, 33, 20), (48, 48, 64)),
    "whole tiles": gemm_of(TILED_GEMM, (48, 32, 16), (16, 48, 64)),
    "half gemm": gemm_of(HALF_GEMM, (40, 33, 20), (48, 48, 64), dtypes=_HALVES),
    "transpose": _case(
        TRANSPOSE,
        ("x[N, N]", ">y[N, N]"),
        lambda inputs: {"y": inputs["x"].T},
        grid=("ceil_div(N, 32)",) * 2,
        block=(32, 32),
        sizes=({"N": 40}, {"N": 64}),
    ),
    "stencil": _case(STENCIL, ("x[N]", ">y[N]"), _stencil),
}
"""By name."""
