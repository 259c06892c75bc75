"""CUDA of recent years: cache hints, warp reductions, groups, asynchronous copies."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from outcomes import in_blocks

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow
X = np.arange(64).astype(np.float32)


def test_cache_hints_leave_values_as_they_are(run):
    loads = ("__ldg", "__ldca", "__ldcg", "__ldcs", "__ldcv", "__ldlu")
    stores = ("__stwb", "__stcg", "__stcs", "__stwt")
    bodies = [
        f"{store}((float4*)y + threadIdx.x, {load}((const float4*)x + threadIdx.x)); {store}(y, 3);"
        for load in loads
        for store in stores
    ]
    source = f"""__global__ void k(const float* x, float* y) {{
      y += 64 * blockIdx.x; {in_blocks(bodies)} }}"""
    outputs = {"y": (64 * len(bodies), "float32")}
    y = run(source, {"x": X}, outputs, block=16, grid=len(bodies))["y"]
    for body, found in zip(bodies, y.reshape(-1, 64), strict=True):
        np.testing.assert_array_equal(found, np.concatenate([[3], X[1:]]), body)


REDUCE = {
    "add": (np.add.reduce, "int unsigned"),
    "min": (np.minimum.reduce, "int unsigned"),
    "max": (np.maximum.reduce, "int unsigned"),
    "and": (np.bitwise_and.reduce, "unsigned"),
    "or": (np.bitwise_or.reduce, "unsigned"),
    "xor": (np.bitwise_xor.reduce, "unsigned"),
}


@pytest.mark.parametrize("kind", ["int", "unsigned"])
def test_warp_reductions_combine_the_lanes_of_the_mask(run, kind):
    dtype = "int32" if kind == "int" else "uint32"
    x = np.random.default_rng(1).integers(-(2**31), 2**31, 32).astype(dtype)
    masks = (0xFFFFFFFF, 0x00FF00FF)
    cases = [(name, m) for name, (_, kinds) in REDUCE.items() if kind in kinds for m in masks]
    bodies = [f"if ({m}u >> t & 1) y[t] = __reduce_{name}_sync({m}u, x[t]);" for name, m in cases]
    source = f"""__global__ void k(const {kind}* x, {kind}* y) {{
      int t = threadIdx.x;
      y += 32 * blockIdx.x;
      y[t] = x[t];
      {in_blocks(bodies)}
    }}"""
    outputs = {"y": (32 * len(cases), dtype)}
    y = run(source, {"x": x}, outputs, block=32, grid=len(cases))["y"]
    for (name, mask), found in zip(cases, y.reshape(-1, 32), strict=True):
        lanes = [k for k in range(32) if mask >> k & 1]
        expected = x.copy()
        expected[lanes] = REDUCE[name][0](x[lanes], dtype=dtype)
        np.testing.assert_array_equal(found, expected, f"{name} of {mask:x}")


def test_lanes_find_those_with_the_same_value(run):
    source = """__global__ void k(const float* x, unsigned* y) {
      int t = threadIdx.x, same;
      y[t] = __match_any_sync(~0u, x[t]);
      y[32 + t] = __match_all_sync(~0u, t / 64, &same) + same;
      y[64 + t] = __match_all_sync(~0u, (long long)t, &same) + same;
    }"""
    x = (np.arange(32) % 3).astype(np.float32)
    y = run(source, {"x": x}, {"y": (96, "uint32")}, block=32)["y"]
    same = [sum(1 << k for k in range(32) if k % 3 == lane % 3) for lane in range(32)]
    assert y.tolist() == same + [0] * 32 + [0] * 32


def test_clocks_go_on(run):
    source = """__global__ void k(int* y) {
      long long a = clock64(), b = clock64();
      clock_t c = clock();
      y[0] = b > a && c > 0;
    }"""
    assert run(source, outputs={"y": (1, "int32")})["y"][0] == 1


def test_special_registers_of_ptx_are_read(run):
    source = """__global__ void k(unsigned* y) {
      long long a, b; unsigned lane, warp, warps, low, high;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a));
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(b) :: "memory");
      asm volatile("mov.u32 %0, %%globaltimer_lo; mov.u32 %1, %%clock_hi;" : "=r"(low), "=r"(high));
      asm("mov.u32 %0, %%laneid;" : "=r"(lane));
      asm("mov.u32 %0, %%warpid; mov.u32 %1, %%nwarpid;" : "=r"(warp), "=r"(warps));
      y[threadIdx.x] = 1000 * (b > a) + 100 * (warp < warps) + lane;
    }"""
    y = run(source, outputs={"y": (64, "uint32")}, block=64)["y"]
    np.testing.assert_array_equal(y, 1100 + np.arange(64) % 32)


GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(const float* x, float* y) {
  cg::thread_block block = cg::this_thread_block();
  __shared__ float s[64];
  s[block.thread_rank()] = x[block.thread_rank()];
  block.sync();
  int t = block.thread_rank();
  float v = s[block.size() - 1 - t];
  y += 64 * blockIdx.x;
  BODY
}
"""
RESULTS = [
        ("cg::reduce(tile, v, cg::plus<float>())", lambda v, n: v.reshape(-1, n).sum(1).repeat(n)),
        ("cg::reduce(tile, v, cg::less<float>())", lambda v, n: v.reshape(-1, n).min(1).repeat(n)),
        ("tile.shfl(v, 0)", lambda v, n: v[::n].repeat(n)),
        ("tile.shfl_xor(v, 1)", lambda v, _: v.reshape(-1, 2)[:, ::-1].ravel()),
        ("tile.shfl_down(v, 1) - v", lambda _, n: np.where(np.arange(64) % n == n - 1, 0, -1)),
        ("tile.shfl_up(v, 1) - v", lambda _, n: np.where(np.arange(64) % n == 0, 0, 1)),
        ("tile.thread_rank() + 100 * tile.meta_group_rank()",
         lambda _, n: np.arange(64) % n + 100 * (np.arange(64) // n)),
        ("tile.size() + tile.meta_group_size()", lambda _, n: np.full(64, n + 64 // n)),
        ("tile.ballot(tile.thread_rank() < 2)", lambda *_: np.full(64, 3)),
        ("tile.any(v == 5) + 2 * tile.all(v >= 0)",
         lambda v, n: (v.reshape(-1, n) == 5).any(1).repeat(n) + 2),
]  # fmt: skip


@pytest.mark.parametrize("size", [2, 8, 32])
def test_groups_of_threads_cooperate(run, size):
    tile = f"auto tile = cg::tiled_partition<{size}>(block);"
    bodies = [f"{tile} y[t] = {result};" for result, _ in RESULTS]
    source = GROUPS.replace("BODY", in_blocks(bodies))
    outputs = {"y": (64 * len(RESULTS), "float32")}
    y = run(source, {"x": X}, outputs, block=64, grid=len(RESULTS))["y"]
    for (result, expected), found in zip(RESULTS, y.reshape(-1, 64), strict=True):
        np.testing.assert_array_equal(found, expected(X[::-1], size), result)


def test_the_grid_is_a_group(run):
    body = "y[t] = cg::this_grid().size() + cg::this_grid().thread_rank();"
    y = run(GROUPS.replace("BODY", body), {"x": X}, {"y": (128, "float32")}, block=64, grid=2)["y"]
    np.testing.assert_array_equal(y, 128 + np.arange(128))


def test_groups_beyond_the_emulated_gpu_are_refused(run):
    source = """#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __global__ void k() { auto t = cg::tiled_partition<64>(cg::this_thread_block()); }"""
    reason = "^line 3: cannot run on the emulated GPU: .*a tile of other than 1, 2"
    with pytest.raises(KernelFault, match=reason):
        run(source)


@pytest.mark.parametrize(
    ("to", "count", "said"),
    [("s + 1", 16, "misaligned"), ("s", 12, "copies 12 bytes"), ("s", 1, "copies 1 bytes")],
)
def test_async_copies_need_aligned_words(run, to, count, said):
    source = f"""#include <cuda_pipeline.h>
    __global__ void k(const float* x) {{
      __shared__ float s[64]; __pipeline_memcpy_async({to}, x, {count});
    }}"""
    with pytest.raises(KernelFault, match=said):
        run(source, {"x": X})


def test_a_launch_need_not_wait_for_the_one_before(run):
    source = """__global__ void k(const float* x, float* y) {
      cudaGridDependencySynchronize();
      asm volatile("griddepcontrol.wait;" ::: "memory");
      y[threadIdx.x] = fdividef(x[threadIdx.x], 2.0f);
      asm volatile("griddepcontrol.launch_dependents;");
      cudaTriggerProgrammaticLaunchCompletion();
    }"""
    np.testing.assert_array_equal(
        run(source, {"x": X}, {"y": (64, "float32")}, block=64)["y"], X / 2
    )


PASSED = [
    "float (*op)(float) = twice; y[t] = op(x[t]);",
    "y[t] = last_of<1>(twice, x + t);",
    "y[t] = last_of<2>(Half::of, x + t) * 4;",
    "y[t] = last_of<3>(t % 2 ? table[0] : times<2>, x + t);",
    "y[t] = last_of<4>(attributed, x + t);",
    "y[t] = twice(x[t]) + down(t % 4);",
]


def test_functions_that_must_be_inlined_may_be_passed_or_recursive(run):
    source = f"""#define INLINE __device__ __forceinline__
    struct Half {{ static INLINE float of(float v) {{ return 0.5f * v; }} }};
    INLINE float twice(float v) {{ return 2 * v; }}
    template <int N> INLINE float times(float v) {{ return N * v; }}
    __attribute__((always_inline)) __device__ inline float attributed(float v) {{ return 2 * v; }}
    INLINE int down(int n) {{ return n > 0 ? down(n - 1) : n; }}
    __device__ float (*table[1])(float) = {{twice}};
    // GCC inlines what is called once, and knows only then which function is passed.
    template <int> __device__ float last_of(float (*op)(float), const float* x) {{
      float y = 0;
      for (int k = 0; k < 3; ++k) y = op(*x);
      return y;
    }}
    __global__ void k(const float* x, float* y) {{
      int t = threadIdx.x;
      y += 64 * blockIdx.x;
      {in_blocks(PASSED)}
    }}"""
    outputs = {"y": (64 * len(PASSED), "float32")}
    y = run(source, {"x": X}, outputs, block=64, grid=len(PASSED))["y"]
    np.testing.assert_array_equal(y, np.tile(2 * X, len(PASSED)))


TAKEN = """
    value copy fill first entry Entry Table Guarded Storage storage number name kernel initial
    thread block block_dim grid_dim build checked bits Small Pair Caller call convert Argument
    aligned noinline always_inline error op mask lane other result address mark Real Number Object
    By function left to from threads order plan launch
"""


def test_no_name_of_a_macro_is_taken(run):
    source = "#include <cuda_fp16.h>\n"
    source += "".join(f"#define {name} (-3)\n" for name in TAKEN.split())
    source += """
    __device__ int total = 5;
    __constant__ int steps[2] = {1, 2};
    __global__ void __launch_bounds__(64) k(const float* x, float* y) {
      __shared__ __align__(16) float s[64];
      extern __shared__ float d[];
      int t = threadIdx.x + blockIdx.x * blockDim.x * gridDim.x;
      s[t] = x[t];
      memcpy(d + t, x + t, sizeof(float));
      __syncthreads();
      assert(t / steps[0] == t);
      y[t] = s[63 - t] + (float)(__half)d[t] + value + (int)x[0] % steps[1] + total;
    }"""
    y = run(source, {"x": X}, {"y": (64, "float32")}, block=64, shared_bytes=256)["y"]
    np.testing.assert_array_equal(y, X[::-1] + X - 3 + 5)


BEFORE = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
"""
SCANS = """
__global__ void k(const int* x, int* y) {
  int t = threadIdx.x, v = x[t];
  y += 64 * blockIdx.x;
  BODY
}
"""
OPERATORS = {
    "plus": lambda a, b: a + b,
    "less": min,
    "greater": max,
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
}


def _scanned(values, size, f, exclusive):
    rows = [list(accumulate(row, f)) for row in values.reshape(-1, size).tolist()]
    return np.array([[0, *row[:-1]] if exclusive else row for row in rows]).ravel()


@pytest.mark.parametrize("kind", ["inclusive", "exclusive"])
def test_tiles_scan(run, kind):
    x = np.random.default_rng(4).integers(-99, 99, 64).astype(np.int32)
    cases = [(size, name) for size in (1, 4, 32) for name in OPERATORS] + [(16, "")]
    bodies = [
        f"""auto tile = cg::tiled_partition<{size}>(cg::this_thread_block());
        y[t] = cg::{kind}_scan(tile, v{f", cg::{name}<int>()" if name else ""});"""
        for size, name in cases
    ]
    source = BEFORE + SCANS.replace("BODY", in_blocks(bodies))
    outputs = {"y": (64 * len(cases), "int32")}
    y = run(source, {"x": x}, outputs, block=64, grid=len(cases))["y"]
    for (size, name), found in zip(cases, y.reshape(-1, 64), strict=True):
        expected = _scanned(x, size, OPERATORS[name or "plus"], kind == "exclusive")
        np.testing.assert_array_equal(found, expected, f"{name} of {size} lanes")


PARTS = {
    "cg::labeled_partition(tile, x[t] % 3)": lambda x: x % 3,
    "cg::labeled_partition(tile, (long long)x[t] / 8)": lambda x: x // 8,
    "cg::binary_partition(tile, x[t] > 5)": lambda x: x > 5,
    "cg::binary_partition(tile, x[t] >= 0)": lambda x: x >= 0,
}


def test_lanes_with_one_label_are_a_group(run):
    bodies = [
        f"""auto part = {part};
        y[t] = part.size() + 100 * part.thread_rank();
        y[32 + t] = part.meta_group_size();
        y[64 + t] = cg::reduce(part, x[t], cg::plus<int>());
        y[96 + t] = cg::invoke_one_broadcast(part, [&] {{ return t; }});"""
        for part in PARTS
    ]
    source = f"""{BEFORE}__global__ void k(const int* x, int* y) {{
      int t = threadIdx.x;
      auto tile = cg::tiled_partition<32>(cg::this_thread_block());
      y += 128 * blockIdx.x;
      {in_blocks(bodies)}
    }}"""
    x = np.random.default_rng(3).permutation(32).astype(np.int32)
    outputs = {"y": (128 * len(PARTS), "int32")}
    got = run(source, {"x": x}, outputs, block=32, grid=len(PARTS))["y"]
    for (part, label), y in zip(PARTS.items(), got.reshape(-1, 4, 32), strict=True):
        labels = label(x)
        for lane in range(32):
            same = np.flatnonzero(labels == labels[lane])
            groups = len(set(labels.tolist()))
            size_and_rank = len(same) + 100 * list(same).index(lane)
            expected = [size_and_rank, groups, x[same].sum(), same[0]]
            assert y[:, lane].tolist() == expected, part


def test_active_lanes_are_a_group_that_scans(run):
    source = f"""{BEFORE}__global__ void k(const int* x, int* y) {{
      int t = threadIdx.x;
      y[t] = 0;
      if (x[t] % 2) {{
        auto active = cg::coalesced_threads();
        y[t] = cg::inclusive_scan(active, 1);
      }}
    }}"""
    x = np.random.default_rng(5).integers(0, 9, 32).astype(np.int32)
    y = run(source, {"x": x}, {"y": (32, "int32")}, block=32)["y"]
    np.testing.assert_array_equal(y, np.where(x % 2, np.cumsum(x % 2), 0))


COPY = """__shared__ float s[2][64];
auto block = cg::this_thread_block();
FIRST
cg::memcpy_async(block, s[1], 64, x + 64, 100);
WAIT
y[t] = s[0][63 - t];
LAST
y[64 + t] = s[1][63 - t];"""
FIRST = "cg::memcpy_async(block, s[0], x, sizeof(float) * 64);"
TILE = """auto tile = cg::tiled_partition<32>(block);
cg::memcpy_async(tile, &s[0][t / 32 * 32], &x[t / 32 * 32], sizeof(float) * 32);"""


def _copy(first=FIRST, wait="cg::wait_prior<1>(block);", last="cg::wait(block);"):
    return COPY.replace("FIRST", first).replace("WAIT", wait).replace("LAST", last)


ARRIVED = [_copy(), _copy(wait="cg::wait(block);"), _copy(first=TILE)]
EARLY = [
    _copy(wait="__syncthreads();"),
    _copy(wait="cg::wait_prior<2>(block);"),
    _copy(last="block.sync();"),
]


@pytest.mark.parametrize("text", ARRIVED)
def test_copies_by_a_group_arrive_in_order(right, small_kernel, text):
    assert right(*small_kernel(text, before=BEFORE, among=ARRIVED), "y", np.ones(128)) == 1


@pytest.mark.parametrize("text", EARLY)
def test_copies_by_a_group_are_not_there_before_the_wait(run_orders, text):
    for result in run_orders(text, before=BEFORE, among=EARLY):
        assert not np.array_equal(result["y"][:128], np.ones(128))


def test_waiting_for_the_copies_of_others_needs_their_group(wrong):
    text = _copy(first=TILE, wait="cg::wait_prior<1>(tile);", last="cg::wait(tile);")
    wrong("race on shared memory", text, before=BEFORE)
