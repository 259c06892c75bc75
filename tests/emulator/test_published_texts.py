"""Texts as people publish them: overloads, macros and headers that nvcc accepts."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault

X = np.arange(64, dtype="float32")
KERNEL = "__global__ void k(const float* x, float* y) { int t = threadIdx.x; BODY }"


@pytest.mark.parametrize(
    ("before", "body", "expected"),
    [
        ("__device__ float2 make_float2(float v) { return make_float2(v, v); }",
         "y[t] = make_float2(x[t]).y;", X),
        ("__device__ float2 fminf(float2 a, float2 b) { return make_float2(fminf(a.x, b.x), 0); }",
         "y[t] = fminf(make_float2(x[t], 0), make_float2(9, 0)).x + fminf(1.f, 2.f);",
         np.minimum(X, 9) + 1),
        ("__device__ int2 max(int2 a, int2 b) { return make_int2(max(a.x, b.x), max(a.y, b.y)); }",
         "y[t] = max(make_int2(t, 0), make_int2(9, 0)).x;", np.maximum(X, 9)),
        ("__device__ void atomicAdd(float2* p, float v) { atomicAdd(&p->x, v); }",
         "float2 a = {x[t], 0}; atomicAdd(&a, 1.f); y[t] = a.x;", X + 1),
        ("#include <algorithm>", "y[t] = std::min(x[t], 9.f);", np.minimum(X, 9)),
        ("#define DYNAMIC(T, name) extern __shared__ T name[];",
         "DYNAMIC(float, s) s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];", X[::-1]),
        ("#include <cufft.h>\nstatic __device__ cufftComplex twice(cufftComplex v);\n"
         "__device__ cufftComplex twice(cufftComplex v) { v.x *= 2; return v; }",
         "y[t] = twice(make_float2(x[t], 0)).x;", 2 * X),
        ('#define ADD(d, a) \\\n  asm("add.f32 %0, %1, %2;" : "=f"(d) : "f"( \\\n    a), "f"(1.f))',
         "float v; ADD(v, x[t]); y[t] = v;", X + 1),
        ("#include <torch/extension.h>\n__device__ float up(half v) { return __half2float(v); }",
         "y[t] = up(__float2half(x[t]));", X),
    ],
)  # fmt: skip
def test_what_nvcc_accepts_runs(run, before, body, expected):
    source = f"{before}\n{KERNEL.replace('BODY', body)}"
    found = run(source, {"x": X}, {"y": (64, "float32")}, block=64, shared_bytes=256)["y"]
    np.testing.assert_array_equal(found, expected)


GROUP = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ float sum(cg::thread_group g, float* s, float v) {
  int t = g.thread_rank();
  for (int half = g.size() / 2; half > 0; half /= 2) {
    s[t] = v;
    g.sync();
    if (t < half) v += s[t + half];
    g.sync();
  }
  return v;
}
__global__ void k(const float* x, float* y) {
  __shared__ float s[64];
  cg::thread_block block = cg::this_thread_block();
  int t = block.thread_rank();
  float all = sum(block, s, x[t]);
  auto tile = cg::tiled_partition(block, 16);
  float part = sum(tile, s + t / 16 * 16, x[t]);
  if (t == 0) y[0] = all;
  if (tile.thread_rank() == 0) y[1 + t / 16] = part;
}"""


def test_a_group_may_be_passed_as_any_group(run):
    y = run(GROUP, {"x": X}, {"y": (5, "float32")}, block=64)["y"]
    np.testing.assert_array_equal(y, [X.sum(), *X.reshape(4, 16).sum(1)])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#include <cute/tensor.hpp>\nusing namespace cute;\n"
         "__global__ void k(float* y) { y[0] = size(Layout()); }",
         "^line 1: cannot run on the emulated GPU: #include <cute/tensor.hpp>"),
        ('#include <vector>\n#include "own.h"\nstd::vector<int> v;\n'
         "__global__ void k(float* y) { y[0] = OWN; }",
         r"line 4: .*OWN.*; own.h, which it includes, was left out: if"),
        ("struct P { int a; };\n__global__ void k(float* y, P p) { y[0] = p.a; }",
         "a kernel parameter that is no pointer, number or tensor map; write a kernel that"),
        ("__global__ void k(CUtexObject t, float* y) { y[0] = tex2D<float>(t, 0.f, 0.f); }",
         "line 1: cannot run on the emulated GPU: textures and surfaces; pass the data as a"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(run, text, reason):
    with pytest.raises(KernelFault, match=reason):
        run(text, outputs={"y": (1, "float32")}, arguments=("y", "y"))
