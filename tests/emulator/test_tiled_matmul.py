"""What kernels of matrix products use: stages in large shared memory, wide loads, copies."""

from __future__ import annotations

import numpy as np
import pytest
from points import each_once

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

N = 64
MATMUL = """
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
constexpr int N = 64, TILE = 32, DEPTH = 16, STAGES = 3, PARTS = N / DEPTH;

// c = a b, each block a tile of 32 x 32, each thread two by two of it.
__global__ void __launch_bounds__(256) k(const float* a, const float* b, float* c) {
  extern __shared__ __align__(128) unsigned char memory[];
  // As far apart as the stages of a large kernel.
  float* tiles = reinterpret_cast<float*>(memory);
  constexpr int STRIDE = ROOM / 4 / STAGES;
  int t = threadIdx.x, row = blockIdx.y * TILE, column = blockIdx.x * TILE;
  auto a_of = [&](int part) { return tiles + part % STAGES * STRIDE; };
  auto b_of = [&](int part) { return a_of(part) + TILE * DEPTH; };
  float sum[2][2] = {};
  auto multiply = [&](int part) {
    const float *at = a_of(part), *bt = b_of(part);
    for (int d = 0; d < DEPTH; ++d)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
          sum[i][j] += at[(t / 16 * 2 + i) * DEPTH + d] * bt[d * TILE + t % 16 * 2 + j];
  };
  // The thread's copies of a part: 4 or 8 bytes, or 16 by every second thread.
  auto load = [&](int part, auto copy) {
    for (int i = t; i < TILE * DEPTH / WIDTH; i += 256) {
      int e = i * WIDTH;
      copy(a_of(part) + e, a + (row + e / DEPTH) * N + part * DEPTH + e % DEPTH);
      copy(b_of(part) + e, b + (part * DEPTH + e / TILE) * N + column + e % TILE);
    }
  };
BODY
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j)
      c[(row + t / 16 * 2 + i) * N + column + t % 16 * 2 + j] = sum[i][j];
}
"""
PRIMITIVES = """
  auto fetch = [&](int part) {
    if (part < PARTS)
      load(part, [](float* to, const float* from) {
        __pipeline_memcpy_async(to, from, WIDTH * 4);
      });
    __pipeline_commit();
  };
  for (int part = 0; part < STAGES - 1; ++part) fetch(part);
  for (int part = 0; part < PARTS; ++part) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch(part + STAGES - 1);
    multiply(part);
  }"""
PIPELINE = """
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
  auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
  for (int part = 0, next = 0; part < PARTS; ++part) {
    for (; next < PARTS && next < part + STAGES; ++next) {
      pipe.producer_acquire();
      load(next, [&](float* to, const float* from) {
        cuda::memcpy_async(to, from, cuda::aligned_size_t<WIDTH * 4>(WIDTH * 4), pipe);
      });
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    multiply(part);
    pipe.consumer_release();
  }"""
BARRIERS = """
  barrier* full = reinterpret_cast<barrier*>(memory + ROOM);
  if (t < STAGES) init(full + t, 256);
  __syncthreads();
  auto fetch = [&](int part) {
    barrier& bar = full[part % STAGES];
    load(part, [&](float* to, const float* from) { cuda::memcpy_async(to, from, WIDTH * 4, bar); });
    (void)bar.arrive();
  };
  for (int part = 0; part < STAGES - 1; ++part) fetch(part);
  for (int part = 0; part < PARTS; ++part) {
    full[part % STAGES].wait_parity(part / STAGES % 2);
    __syncthreads();
    if (part + STAGES - 1 < PARTS) fetch(part + STAGES - 1);
    multiply(part);
  }"""
WIDE_LOADS = """
  for (int part = 0; part < PARTS; ++part) {
    load(part, [](float* to, const float* from) {
      *(WORD*)to = __ldg((const WORD*)from);
    });
    __syncthreads();
    multiply(part);
    __syncthreads();
  }"""
BODIES = {
    "primitives": PRIMITIVES,
    "pipeline": PIPELINE,
    "barriers": BARRIERS,
    "wide loads": WIDE_LOADS,
}


A, B = np.random.default_rng(1).standard_normal((2, N, N)).astype(np.float32)


@pytest.fixture
def product(built):
    """Make product(body, width, room_kib), which returns the kernel and its arenas."""

    def make(body, width=4, room_kib=48):
        room = room_kib * 1024 // 384 * 384
        text = MATMUL.replace("BODY", body).replace("WIDTH", str(width)).replace("ROOM", str(room))
        text = text.replace("WORD", {1: "float", 2: "float2", 4: "float4"}[width])
        outputs = {"c": ((N, N), "float32")}
        sizes = {"grid": (2, 2, 1), "block": 256, "shared_bytes": room + 24}
        return built(text, {"a": A, "b": B}, outputs, **sizes)

    return make


@pytest.mark.parametrize(
    ("body", "width", "room_kib"), each_once(BODIES, [(1, 12), (2, 96), (4, 226)])
)
def test_stages_in_shared_memory_of_any_size_multiply_matrices(
    runner, product, body, width, room_kib
):
    kernel, arenas = product(body, width, room_kib)
    runner.run(kernel, arenas, {}, timeout_s=20.0)
    np.testing.assert_allclose(arenas["c"].value(), A.astype(float) @ B.astype(float), atol=1e-4)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_right_stages_do_not_race(runner, product, body):
    profile = runner.check_races(*product(body), {}, timeout_s=20.0)
    assert profile[0].blocks_run == 4


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (PRIMITIVES, "    __syncthreads();\n"),
        (PIPELINE, "      pipe.producer_acquire();\n"),
        (PIPELINE, "    pipe.consumer_wait();\n"),
        (BARRIERS, "    __syncthreads();\n"),
        (WIDE_LOADS, "    __syncthreads();\n    multiply(part);\n"),
    ],
)
def test_stages_race_where_nothing_orders_them(runner, product, body, missing):
    assert missing in body
    wrong = body.replace(missing, "    multiply(part);\n" if "multiply" in missing else "", 1)
    with pytest.raises(KernelFault, match=r"race on shared memory|expects"):
        runner.check_races(*product(wrong), {}, timeout_s=20.0)


WAITS = {
    PRIMITIVES: "__pipeline_wait_prior(STAGES - 2);",
    BARRIERS: "full[part % STAGES].wait_parity(part / STAGES % 2);",
}


@pytest.mark.parametrize("body", WAITS)
def test_a_barrier_of_the_block_does_not_wait_for_copies(runner, product, body):
    assert WAITS[body] in body
    kernel, arenas = product(body.replace(WAITS[body], ""))
    runner.run(kernel, arenas, {}, timeout_s=20.0)
    assert np.isnan(arenas["c"].value()).any()


ZEROS = """
#include <cuda_pipeline.h>
__global__ void k(const WORD* x, WORD* y) {
  __shared__ WORD s[8];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&s[t], x + t, sizeof(WORD), t * sizeof(WORD) / 7 / 4 * 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  y[t] = s[t];
}
"""


@pytest.mark.parametrize(("word", "floats"), [("float", 1), ("float2", 2), ("float4", 4)])
def test_copies_of_each_width_fill_up_with_zeros(run, word, floats):
    x = np.arange(1, 8 * floats + 1).astype(np.float32)
    source = ZEROS.replace("WORD", word)
    y = run(source, {"x": x}, {"y": (8 * floats, "float32")}, block=8)["y"].reshape(8, -1)
    expected = x.reshape(8, -1).copy()
    for thread in range(8):
        zeros = thread * floats * 4 // 7 // 4
        expected[thread, floats - zeros :] = 0
    np.testing.assert_array_equal(y, expected)
