"""Threads and blocks that wait for others, also at the barrier of a whole grid."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from outcomes import raises
from points import each_once

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, HostRunner, with_turns
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow
ACTIVE = """
  if (t % 3 == 0) {
    unsigned m = __activemask();
    int leader = __ffs(m) - 1, lane = t % 32, base = 0;
    if (lane == leader) base = atomicAdd(&n[100], __popc(m));
    base = __shfl_sync(m, base, leader);
    n[base + __popc(m & ((1u << lane) - 1))] = 1;
  }"""
LAST_WARP = """
  __shared__ float part[2];
  __shared__ unsigned count;
  if (!t) count = 0;
  __syncthreads();
  float v = x[t];
  for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
  unsigned taken = 0;
  if (t % 32 == 0) { part[t / 32] = v; FENCE taken = atomicAdd(&count, 1u); }
  taken = __shfl_sync(~0u, taken, 0);
  if (taken == 1) {
    float sum = t % 32 < 2 ? part[t % 32] : 0;
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (t % 32 == 0) n[0] = sum;
  }"""
LOCK = """
  __shared__ int lock, sum;
  if (!t) lock = sum = 0;
  __syncthreads();
  TAKE
  sum += 1;
  FENCE
  atomicExch(&lock, 0);
  __syncthreads();
  if (!t) n[0] = sum;"""
TAKE = "while (atomicCAS(&lock, 0, 1) != 0) {}"
FLAG = """
  __shared__ int flag, data;
  if (!t) flag = 0;
  __syncthreads();
  if (t == WRITER) { data = 64; FENCE SET; }
  else if (t == READER) { while (GET == 0) {} n[0] = data; }"""


def flag(writer, reader, fence, set_, get):
    body = FLAG.replace("WRITER", str(writer)).replace("READER", str(reader))
    return body.replace("FENCE", fence).replace("SET", set_).replace("GET", get)


ATOMIC = ("atomicExch(&flag, 1)", "atomicAdd(&flag, 0)")
VOLATILE = ("*(volatile int*)&flag = 1", "*(volatile int*)&flag")
FENCED = "__threadfence_block();"
WAITING = [
    LAST_WARP.replace("FENCE", FENCED),
    LOCK.replace("TAKE", TAKE).replace("FENCE", FENCED),
    LOCK.replace("TAKE", "while (true) { if (atomicCAS(&lock, 0, 1) == 0) break; }").replace(
        "FENCE", "__threadfence();"
    ),
    LOCK.replace("TAKE", "while (atomicExch(&lock, 1)) __nanosleep(20);").replace("FENCE", FENCED),
    *(
        pytest.param(
            flag(writer, reader, FENCED, *how), marks=[] if shown else [pytest.mark.thorough]
        )
        for writer, reader, atomically in ((0, 40, True), (40, 0, False), (3, 5, True))
        for how, shown in ((ATOMIC, atomically), (VOLATILE, not atomically))
    ),
    flag(40, 0, FENCED, *VOLATILE).replace("while (*", "for (; *").replace(") {} n", ";) {} n"),
    flag(40, 0, FENCED, *VOLATILE).replace("{} n[0]", "; n[0]"),
]
BODIES = [one if isinstance(one, str) else one.values[0] for one in WAITING]


def unfenced(body: str) -> str:
    return body.replace(FENCED, "").replace("__threadfence();", "")


@pytest.mark.parametrize("body", WAITING)
def test_threads_may_wait_for_others(right, small_kernel, body):
    assert right(*small_kernel(body, among=BODIES), "n", [64]) == 1


@pytest.mark.parametrize("body", WAITING)
def test_what_is_waited_for_must_be_fenced(wrong, body):
    wrong("race on shared memory", unfenced(body), among=map(unfenced, BODIES))


def test_active_lanes_of_a_branch_may_shuffle(right, small_kernel):
    assert right(*small_kernel(ACTIVE), "n", [*[1] * 22, 0]) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("n[t] = __activemask();", [-1] * 64),
        ("if (t % 2) n[t] = __activemask(); else n[t] = t;",
         [t if t % 2 == 0 else -0x55555556 for t in range(64)]),
        ("for (int k = 0; k < t; ++k) n[t] = __popc(__activemask());",
         [min(1, t % 32 + t // 32) if t % 32 == 31 else None for t in range(64)]),
    ],
)  # fmt: skip
def test_the_active_lanes_are_those_at_the_line(run_orders, body, expected):
    for result in run_orders(body):
        for got, right in zip(result["n"], expected, strict=False):
            assert right is None or got == right


@pytest.mark.parametrize(
    "body",
    [
        "if (t < 16) __syncwarp(); else __shfl_sync(~0u, t, 0);",
        "if (t % 32 == 5) __ballot_sync(~0u, 1); else __syncwarp();",
        "if (t % 2) n[t] = __any_sync(~0u, 1); else n[t] = __shfl_xor_sync(~0u, t, 1);",
    ],
)
def test_lanes_that_meet_in_different_functions_are_a_fault(run_orders, fault_of, body):
    assert fault_of(body).outcome == "runtime"
    with raises("runtime", r"divergence: .* calls .* with the same mask"):
        run_orders(body)


def test_waiting_for_what_never_comes_is_a_timeout(runner, small_kernel):
    kernel, arenas = small_kernel("if (t == 3) while (atomicAdd(&n[1], 0) == 0) {}")
    with raises("timeout"):
        runner.run(kernel, arenas, {}, timeout_s=0.3)


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("int k; while (k) {}", 0),
        ('asm volatile("x;"); while (k) {}', 0),
        ("#define __volatile__ volatile\n// asm/volatile\nint k; while (k) {}", 0),
        ("volatile int k; while (k) {}", 1),
        ("volatile int k; do {} while (k);", 1),
        ("volatile int k; for (;;) {}", 1),
        ("volatile int k; for (int i = 0; i < 3; ++i) {}", 1),
        ("volatile int k; for (int i : all) {}", 0),
        ("int* k; while (__ldcg(k)) __nanosleep(20);", 1),
        ("int* k; while (f(__ldcg(k))) {}", 1),
        ("int* k; while (__ldcg(k)) n++;", 1),
        ("int* k; do { n[0] = __ldcg(k); } while (n[0]);", 1),
        ("int* k; do { *n = __ldcg(k); } while (*n);", 1),
        ("int* k; do { v = __ldcg(k); n += v; } while (v);", 1),
        ("volatile int* n; int* k; while (__ldcg(k) && n[0]) {}", 1),
        ("volatile int k; while (int left = k) {}", 0),
        ("volatile int k; // while (k)", 0),
        ("volatile int k; /* for (;;) */ while (f(k, (g(2)))) for (int i = h(1); i; ) {}", 2),
    ],
)
def test_loops_beside_volatile_variables_let_others_run(text, turns):
    translated = with_turns(text)
    assert translated.count("cuhost_turn()") == turns
    assert translated.replace("::cuhost::cuhost_turn(), ", "").replace("true ;", ";") == text


def test_a_volatile_loop_computes_as_before(right, small_kernel):
    body = "volatile int* v = n + t; for (int k = 0; k < 700; ++k) *v = *v + k;"
    right(*small_kernel(body), "n", [700 * 699 // 2] * 64)


BEFORE = """
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
__device__ cuda::barrier<cuda::thread_scope_device> all;
"""
# Each block but the last waits for the flag of the next one.
NEXT_BLOCK = """if (b + 1 < (int)gridDim.x) {
    while (atomicAdd(&n[b + 1], 0) == 0) {} __threadfence(); got = y[4096 + b + 1]; }
  y[4096 + b] = b; __threadfence(); atomicExch(&n[b], 1);"""
BEGIN = """__shared__ float s[64]; __shared__ float got;
  #pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier bar;
  if (t == 0) { init(&bar, 64); got = b + 1; }
  __syncthreads();
"""
HELD = {
    "others sleep in the phase": f"""{BEGIN}
  s[t] = x[t] + b;
  if (t == 63) {{ {NEXT_BLOCK} }}
  bar.arrive_and_wait();
  y[i] = s[63 - t] + got;""",
    "copies of the phase": f"""{BEGIN}
  cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar);
  if (t == 63) {{ {NEXT_BLOCK} }}
  bar.arrive_and_wait();
  y[i] = s[63 - t] + b + got;""",
    "copies of each thread": f"""{BEGIN}
  auto pipe = cuda::make_pipeline();
  pipe.producer_acquire();
  cuda::memcpy_async(&s[t], &x[t], cuda::aligned_size_t<4>(4), pipe);
  pipe.producer_commit();
  if (t == 63) {{ {NEXT_BLOCK} }}
  pipe.consumer_wait();
  __syncthreads();
  y[i] = s[63 - t] + b + got;""",
}
MEET = """
  if (b == 0 && t == 0) { init(&all, gridDim.x); __threadfence(); atomicExch(n, 1); }
  if (t == 0) {
    while (atomicAdd(n, 0) == 0) {}
    __threadfence();
    for (int round = 0; round < 3; ++round) {
      n[64 * round + 64 + b] = round ? n[64 * round + (b + 1) % gridDim.x] + 1 : b;
      all.arrive_and_wait();
    }
    y[b] = n[192 + (b + 1) % gridDim.x];
  }"""


@pytest.mark.parametrize("body", HELD.values(), ids=HELD)
def test_a_block_keeps_its_barrier_and_copies_while_it_waits_for_another(right, small_kernel, body):
    expected = np.repeat(1 + np.arange(5) + np.arange(1, 6), 64)
    assert right(*small_kernel(body, before=BEFORE, grid=5), "y", expected) == 5


def test_a_phase_does_not_hide_that_another_block_must_fence(wrong):
    body = HELD["others sleep in the phase"].replace("__threadfence();", "")
    wrong("nothing orders blocks", body, before=BEFORE, grid=5)


def test_blocks_meet_at_a_barrier_in_global_memory(right, small_kernel):
    expected = (np.arange(9) + 3) % 9 + 2
    assert right(*small_kernel(MEET, before=BEFORE, grid=9), "y", expected) == 9


def test_an_arrival_without_a_wait_does_not_order_blocks(wrong):
    body = MEET.replace("all.arrive_and_wait();", "(void)all.arrive();")
    wrong("nothing orders blocks", body, before=BEFORE, grid=9)


@pytest.mark.parametrize("blocks", [1, 5])
def test_blocks_that_all_wait_for_one_more_are_a_deadlock(run_orders, blocks):
    body = MEET.replace("init(&all, gridDim.x)", "init(&all, gridDim.x + 1)")
    with raises("runtime", r"deadlock: .* for 1 more arrivals"):
        run_orders(body, before=BEFORE, grid=blocks)


SMALL = dataclasses.replace(DEFAULT_PROFILE, sm_count=2, blocks_per_sm=4)
FLAGS = {
    "volatile": ("*(volatile int*)&n[{0}] = {1}", "*(volatile int*)&n[{0}]"),
    "atomic": ("atomicExch(&n[{0}], {1})", "atomicAdd(&n[{0}], 0)"),
    "L2 cache": ("__stcg(&n[{0}], {1})", "(__nanosleep(20), __ldcg(&n[{0}]))"),
    "PTX": (
        'asm volatile("st.relaxed.gpu.s32 [%0], %1;" :: "l"(&n[{0}]), "r"({1}) : "memory")',
        '({{ int got; asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(got) : "l"(&n[{0}])'
        ' : "memory"); got; }})',
    ),
    "loaded again": ("atomicExch(&n[{0}], {1})", "(__nanosleep(20), __ldcv(&n[{0}]))"),
}
"""How a flag is set and read."""
FIRST_WAITS = """
  __shared__ int got;
  if (b == 1) { y[0] = 7; __threadfence(); __syncthreads(); if (!t) SET; }
  if (b == 0) { if (!t) { while (GET == 0) {} __threadfence(); got = 3; } __syncthreads();
                y[1 + t] = y[0] + got; }"""
# Aggregates and prefixes of blocks (Merrill and Garland, "Single-pass Parallel Prefix Scan with
# Decoupled Look-back", 2016), 64 elements each; n[b] is 0, 1 for an aggregate, 2 for a prefix.
SCAN = """
  __shared__ float s[64]; __shared__ float before;
  volatile int* state = n; float* sums = y + 8192;
  s[t] = t + b % 3; __syncthreads();
  for (int d = 1; d < 64; d *= 2) {
    float v = t >= d ? s[t - d] : 0; __syncthreads(); s[t] += v; __syncthreads();
  }
  if (t == 63) {
    sums[2 * b] = s[63]; __threadfence(); state[b] = 1;
    float sum = 0;
    for (int k = b - 1; k >= 0; --k) {
      int found; while ((found = state[k]) == 0) {}
      __threadfence();
      if (found == 2) { sum += sums[2 * k + 1]; break; }
      sum += sums[2 * k];
    }
    sums[2 * b + 1] = sum + s[63]; __threadfence(); state[b] = 2;
    before = sum;
  }
  __syncthreads();
  y[i] = before + s[t];"""
# All warps vote on what their lanes have read of the flags.
WARP_LOOKS_BACK = """
  volatile int* state = n;
  if (t == 0) { y[4096 + b] = b + 1; __threadfence(); state[b] = 1; }
  int k = b - 1 - t;
  bool there;
  do { there = k < 0 || state[k] != 0; } while (!__all_sync(~0u, there));
  __threadfence();
  float sum = k < 0 ? 0 : y[4096 + k];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (t == 0) y[b] = sum;"""
# The block that finishes a tile waits for the partial sums of the others (stream-K).
FIX_UP = """
  __shared__ float tile[64];
  volatile int* done = n;
  tile[t] = x[i] * (b + 1);
  __syncthreads();
  if (b % 4 == 0) {
    for (int k = b + 1; k < b + 4; ++k) {
      if (!t) while (done[k] == 0) {}
      __threadfence();
      __syncthreads();
      tile[t] += y[4096 + 64 * k + t];
    }
    y[64 * (b / 4) + t] = tile[t];
  } else {
    y[4096 + 64 * b + t] = tile[t];
    __threadfence();
    __syncthreads();
    if (!t) done[b] = 1;
  }"""
# All blocks meet twice.
GRID_BARRIER = """
  for (int round = 1; round < 3; ++round) {
    n[64 * round + b] = round == 1 ? b : n[64 + (b + 1) % gridDim.x];
    __threadfence();
    __syncthreads();
    if (!t) { atomicAdd(n, 1); while (atomicAdd(n, 0) < round * (int)gridDim.x) {} }
    __syncthreads();
    __threadfence();
  }
  y[i] = n[128 + (b + 1) % gridDim.x];"""


# Blocks add to the same places in turn.
IN_TURN = """
  if (!t) while (atomicAdd(n, 0) != b) {}
  __syncthreads();
  __threadfence();
  y[t] += b;
  __threadfence();
  __syncthreads();
  if (!t) atomicAdd(n, 1);"""
ARRIVES = "if (!t) { atomicAdd(n, 1); while"
STORES = "n[64 * round + b] = round == 1 ? b : n[64 + (b + 1) % gridDim.x];\n    __threadfence();"
TOO_EARLY = {
    "turn": IN_TURN.replace("!= b", "+ 1 < b"),
    "one short": GRID_BARRIER.replace("< round *", "< -1 + round *"),
    "stored late": GRID_BARRIER.replace(STORES, "")
    .replace(ARRIVES, f"if (!t) {{ atomicAdd(n, 1); {STORES} while")
    .replace("__syncthreads();\n    if", "if"),
    "first of three": FIX_UP.replace("done[k]", "done[b + 1]"),
    "some tries": IN_TURN.replace("while", "for (int k = 0; k < 9; ++k) if"),
}
"""Blocks that come before the work of another one, though only if that is held up."""


def test_blocks_may_add_in_turn(right, small_kernel):
    assert right(*small_kernel(IN_TURN, grid=9), "y", np.full(64, 36)) == 9


@pytest.mark.parametrize("name", TOO_EARLY)
def test_blocks_that_another_one_should_wait_for_are_held_up(wrong, name):
    wrong("nothing orders blocks", TOO_EARLY[name], grid=8)


def test_a_thread_that_polls_alone_leaves_the_time_to_other_blocks(right, small_kernel):
    body = """
    volatile int* state = n;
    if (t == 1023) {
      if (!b) atomicExch(n, 2);
      else {
        atomicExch(n + b, 1);
        for (int k = b - 1;;) {
          int found = state[k];
          if (found == 2) break;
          if (found == 1) --k;
        }
        atomicExch(n + b, 2);
      }
    }
    __syncthreads();
    if (t < 64) y[b * 64 + t] = b;"""
    expected = np.repeat(np.arange(30), 64)
    assert right(*small_kernel(body, block=1024, grid=30), "y", expected) == 30


@pytest.mark.parametrize("flag", FLAGS)
def test_the_first_block_may_wait_for_the_second(right, small_kernel, flag):
    put, get = FLAGS[flag]
    body = FIRST_WAITS.replace("SET", put.format(5, 1)).replace("GET", get.format(5))
    assert right(*small_kernel(body, grid=2), "y", [7, *[10] * 64]) == 2


@pytest.mark.parametrize(
    ("wait", "get"),
    each_once(
        ["while (GET == 0) {}", "while (GET < 1);", "int v; do { v = GET; } while (!v);"],
        ["__ldcg(&n[5])", "__ldcv(n + 5)"],
    ),
)
def test_a_loop_without_effect_that_waits_is_left_out(wrong, wait, get):
    """What CUDA 13.0's ptxas does with ld.global.cg and ld.global.cv."""
    body = FIRST_WAITS.replace("SET", "atomicExch(&n[5], 1)")
    body = body.replace("while (GET == 0) {}", wait.replace("GET", get))
    wrong("waits in a loop that does nothing but load by __ldcg or __ldcv", body, grid=2)


@pytest.mark.parametrize("blocks", [2, 9, 100])
def test_a_scan_looks_back_at_other_blocks(right, small_kernel, blocks):
    each = np.arange(64) + np.arange(blocks)[:, None] % 3
    assert right(*small_kernel(SCAN, grid=blocks), "y", np.cumsum(each)) >= min(blocks, 8)


def test_a_warp_looks_back_together(right, small_kernel):
    expected = [sum(range(max(1, b - 31), b + 1)) for b in range(40)]
    assert right(*small_kernel(WARP_LOOKS_BACK, block=32, grid=40), "y", expected) == 40


def test_a_block_fixes_up_a_tile_that_others_have_begun(right, small_kernel):
    expected = np.repeat([4 * k * 4 + 10 for k in range(10)], 64)
    assert right(*small_kernel(FIX_UP, grid=40), "y", expected) == 40


@pytest.mark.parametrize("blocks", [1, 2, 33])
def test_all_blocks_may_meet(right, small_kernel, blocks):
    expected = np.repeat((np.arange(blocks) + 2) % blocks, 64)
    assert right(*small_kernel(GRID_BARRIER, grid=blocks), "y", expected) == blocks


@pytest.mark.parametrize(
    ("body", "grid"),
    [
        *(
            (FIRST_WAITS.replace("SET", put.format(5, 1)).replace("GET", get.format(5)), 2)
            for put, get in (FLAGS["atomic"], FLAGS["L2 cache"])
        ),
        (SCAN, 20),
        (WARP_LOOKS_BACK, 20),
        (FIX_UP, 8),
        (GRID_BARRIER, 8),
    ],
    ids=["flag", "L2 cache", "scan", "warp", "fix-up", "barrier"],
)  # fmt: skip
def test_what_another_block_waits_for_must_be_fenced(wrong, body, grid):
    block = 32 if body == WARP_LOOKS_BACK else 64
    wrong("nothing orders blocks", body.replace("__threadfence();", ""), grid=grid, block=block)


@pytest.mark.parametrize("blocks", [20, 100])
def test_blocks_that_wait_keep_their_shared_memory(right, small_kernel, blocks):
    body = """
    __shared__ int fixed[64]; extern __shared__ int dynamic[];
    fixed[t] = i; dynamic[63 - t] = 2 * i;
    __syncthreads();
    if (!t) { atomicAdd(n, 1); while (atomicAdd(n, 0) < (int)gridDim.x) {} }
    __syncthreads();
    y[i] = fixed[63 - t] + dynamic[t];"""
    last = np.repeat(np.arange(blocks) * 64 + 63, 64) - np.tile(np.arange(64), blocks)
    right(*small_kernel(body, grid=blocks, shared_bytes=256), "y", 3 * last)


@pytest.fixture(scope="module")
def small_gpu(host_cache):
    """A runner for a GPU that holds eight blocks."""
    host = HostRunner(host_cache, jobs=2, profile=SMALL)
    yield host
    host.close()


def test_as_many_blocks_meet_as_the_gpu_holds(small_gpu, small_kernel):
    kernel, arenas = small_kernel(GRID_BARRIER, grid=8)
    small_gpu.run(kernel, arenas, {}, timeout_s=20.0)
    assert arenas["n"].value()[0] == 16


def test_a_timeout_names_blocks_that_wait_for_one_another(small_gpu, small_kernel):
    kernel, arenas = small_kernel(GRID_BARRIER, grid=9)
    with raises("timeout", r"8 blocks wait for .* and the GPU holds 8 at once"):
        small_gpu.run(kernel, arenas, {}, timeout_s=0.5)


def test_shared_memory_limits_how_many_blocks_meet(small_kernel, host_cache):
    profile = dataclasses.replace(SMALL, shared_per_sm=48 << 10, shared_per_block=48 << 10)
    kernel, arenas = small_kernel(GRID_BARRIER, grid=8, shared_bytes=24 << 10)
    host = HostRunner(host_cache, jobs=2, profile=profile)
    with pytest.raises(KernelFault, match="the GPU holds 4 at once"):
        host.run(kernel, arenas, {}, timeout_s=0.5)
    host.close()


def test_blocks_before_a_later_launch_wait_too(runner, tmp_path):
    source = """
    __device__ int flags[20];
    __global__ void chain(int* y) {
      if (blockIdx.x) while (atomicAdd(&flags[blockIdx.x - 1], 0) == 0) {}
      __threadfence();
      y[blockIdx.x] = blockIdx.x ? y[blockIdx.x - 1] + 1 : 1;
      __threadfence();
      atomicExch(&flags[blockIdx.x], 1);
    }
    __global__ void take(int* y) { y[20] = y[19]; }"""
    y = Arena.create(tmp_path / "y", Tensor("y", (21,), "int32", "output"))
    launches = (
        Launch("chain", (20, 1, 1), (1, 1, 1), ("y",)),
        Launch("take", (1, 1, 1), (1, 1, 1), ("y",)),
    )
    kernel = Kernel(source, launches)
    profile = runner.check_races(kernel, {"y": y}, {}, timeout_s=20.0)
    assert profile[0].blocks_run == 20
    runner.run(kernel, {"y": y}, {}, timeout_s=20.0, order_seed=1)
    assert y.value()[20] == 20


SYNC = "grid.sync();"
SOURCE = f"""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* part, int* y) {{
  cg::grid_group grid = cg::this_grid();
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  for (int round = 0; round < 3; ++round) {{
    atomicAdd(&sum, x[grid.thread_rank()]);
    __syncthreads();
    if (threadIdx.x == 0) part[round * gridDim.x + blockIdx.x] = sum;
    {SYNC}
    int all = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) all += part[round * gridDim.x + b];
    if (threadIdx.x < gridDim.x) atomicAdd(&y[blockIdx.x], all);
    __syncthreads();
  }}
}}"""


@pytest.fixture
def summed(built):
    """Make summed(source, blocks): the kernel, its arenas and the right y."""

    def make(source, blocks=6):
        x = np.arange(64 * blocks, dtype="int32")
        outputs = {"part": (3 * blocks, "int32"), "y": (blocks, "int32")}
        kernel, arenas = built(source, {"x": x}, outputs, grid=blocks, block=64)
        for name in outputs:
            arenas[name].fill(np.zeros(outputs[name][0], "int32"))
        return kernel, arenas, np.full(blocks, 6 * x.sum())

    return make


def test_blocks_see_what_others_wrote_before_the_barrier(right, summed):
    kernel, arenas, expected = summed(SOURCE)
    right(kernel, arenas, "y", expected)


def test_a_kernel_without_a_loop_has_its_blocks_at_once(right, summed):
    source = """#include <cooperative_groups.h>
__global__ void k(const int* x, int* part, int* y) {
  if (threadIdx.x == 0) part[blockIdx.x] = x[blockIdx.x];
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) y[blockIdx.x] = part[gridDim.x - 1 - blockIdx.x];
}"""
    kernel, arenas, _ = summed(source)
    right(kernel, arenas, "y", np.arange(6)[::-1])


@pytest.mark.parametrize(
    ("old", "new", "blocks", "reason"),
    [
        (SYNC, "__syncthreads();", 6, "race on global memory: .* nothing orders blocks"),
        ("round * gridDim.x +", "", 6, "race on global memory: .* nothing orders blocks"),
        (SYNC, f"if (threadIdx.x) {SYNC}", 6, "barrier"),
        (SYNC, SYNC, 10_000, "barrier of a grid of 10000 blocks, of which the GPU holds"),
    ],
)
def test_what_is_wrong_at_the_barrier_is_found(runner, summed, old, new, blocks, reason):
    kernel, arenas, _ = summed(SOURCE.replace(old, new), blocks)
    with pytest.raises(KernelFault, match=reason):
        runner.check_races(kernel, arenas, {}, timeout_s=20.0)


def test_a_block_that_ends_without_coming_to_the_barrier_is_found(runner, summed):
    kernel, arenas, _ = summed(SOURCE.replace(SYNC, f"if (blockIdx.x == 2) return; {SYNC}"))
    reason = "deadlock: 5 blocks of k wait at the barrier of the grid, and 1 have ended without"
    with pytest.raises(KernelFault, match=reason):
        runner.run(kernel, arenas, {}, timeout_s=20.0)
