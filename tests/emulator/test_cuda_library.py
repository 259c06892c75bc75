"""<cuda/barrier>, <cuda/pipeline> and <cuda/atomic>."""

from __future__ import annotations

import numpy as np
import pytest
from outcomes import each_of, one_after_another, raises

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow
BARRIER_HEADERS = """
#include <cuda/barrier>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
"""
BEGIN = """__shared__ float s[64];
  #pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier bar;
  if (t == 0) init(&bar, blockDim.x);
  __syncthreads();
"""
RIGHT_BARRIERS = {
    "arrive and wait": "s[t] = x[t] + t; bar.arrive_and_wait(); y[t] = s[63 - t];",
    "token": "s[t] = x[t] + t; auto token = bar.arrive(); bar.wait(std::move(token));"
    " y[t] = s[63 - t];",
    "two phases": "s[t] = t; bar.arrive_and_wait(); float v = s[63 - t]; bar.arrive_and_wait();"
    " s[t] = v; bar.arrive_and_wait(); y[t] = s[63 - t] + 63 - 2 * t + 1;",
    "try": "s[t] = x[t] + t; auto token = bar.arrive();"
    " while (!bar.try_wait_for(std::move(token), cuda::std::chrono::nanoseconds(9)));"
    " y[t] = s[63 - t];",
    "parity": "s[t] = x[t] + t; (void)bar.arrive(); bar.wait_parity(false); y[t] = s[63 - t];",
    "only some wait": "s[t] = x[t] + t; auto token = bar.arrive();"
    " if (t < 32) { bar.wait(std::move(token)); y[t] = s[63 - t]; y[t + 32] = s[31 - t]; }",
    "several arrivals of one": "if (t < 32) { s[t] = t + 1; s[t + 32] = t + 33;"
    " auto k = bar.arrive(2); bar.wait(std::move(k)); y[t] = s[63 - t]; y[t + 32] = s[31 - t]; }",
    "drop": "s[t] = t + 1; if (t >= 32) bar.arrive_and_drop(); else { bar.arrive_and_wait();"
    " y[t] = s[63 - t]; y[t + 32] = s[31 - t]; bar.arrive_and_wait(); }",
    "copy": "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); bar.arrive_and_wait();"
    " y[t] = s[63 - t] + 63 - t;",
    "copy of a group": "auto block = cg::this_thread_block();"
    " cuda::memcpy_async(block, s, x, sizeof(float) * 64, bar); bar.arrive_and_wait();"
    " y[t] = s[63 - t] + 63 - t;",
    "copy by one": "if (t == 7) cuda::memcpy_async(s, x, cuda::aligned_size_t<16>(256), bar);"
    " bar.arrive_and_wait(); y[t] = s[63 - t] + 63 - t;",
    "producers and consumers": "__shared__ barrier full, empty;"
    " if (t == 0) { init(&full, 64); init(&empty, 64); } __syncthreads();"
    " if (t < 32) { for (int k = 0; k < 3; ++k) { empty.arrive_and_wait(); s[t] = 64 - t - 32 * k;"
    " (void)full.arrive(); } }"
    " else { (void)empty.arrive(); for (int k = 0; k < 3; ++k) { full.arrive_and_wait();"
    " if (k < 2) y[t - 32 + 32 * k] = s[t - 32]; if (k < 2) (void)empty.arrive(); } }",
    "of one thread": "cuda::barrier<cuda::thread_scope_thread> own; init(&own, 1);"
    " own.arrive_and_wait(); y[t] = 64 - t;",
    "of the system": "__shared__ cuda::barrier<cuda::thread_scope_system> all[2];"
    " if (t < 2) init(all + t, 64); __syncthreads(); s[t] = t + 1;"
    " all[1].arrive_and_wait(); y[t] = s[63 - t];",
    "completion": "struct Sum { float* s; __device__ void operator()() { s[0] += s[1]; } };"
    " __shared__ cuda::barrier<cuda::thread_scope_block, Sum> sum;"
    " if (t == 0) init(&sum, 64, Sum{s}); __syncthreads();"
    " if (t < 2) s[t] = 32; sum.arrive_and_wait(); y[t] = s[0] - t;",
}


def test_barriers_order_what_comes_before_and_after(right, small_kernel):
    body = one_after_another(BEGIN + body for body in RIGHT_BARRIERS.values())
    kernel, arenas = small_kernel(body, before=BARRIER_HEADERS)
    right(kernel, arenas, "y", each_of(64 - np.arange(64), len(RIGHT_BARRIERS)))


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = t; (void)bar.arrive(); y[t] = s[63 - t];",
        "s[t] = t; bar.arrive_and_wait(); y[t] = s[63 - t]; s[t] = 0;",
        "(void)bar.arrive(); s[t] = t; bar.wait_parity(false); y[t] = s[63 - t];",
        # What came after the arrival at the phase before is not ordered by its end.
        "auto a = bar.arrive();"
        " if (t == 0) { bar.wait(std::move(a)); s[0] = 1; (void)bar.arrive(); }"
        " else if (t == 1) { bar.wait(std::move(a)); y[0] = s[0]; }",
        "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); (void)bar.arrive();"
        " y[t] = s[63 - t];",
        "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); __syncthreads(); y[t] = s[63 - t];"
        " s[t] = 0; bar.arrive_and_wait(); y[t] = s[63 - t]; y[t] = s[t];",
        "__shared__ barrier other; if (t == 0) init(&other, 64); other.arrive_and_wait();",
    ],
)
def test_a_wait_that_is_missing_is_a_race(wrong, body, bodies):
    among = [BEGIN + one for one in bodies]
    wrong("race on shared memory", BEGIN + body, before=BARRIER_HEADERS, among=among)


@pytest.mark.parametrize(
    "body",
    [
        "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); y[t] = s[t]; bar.arrive_and_wait();",
        "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); auto k = bar.arrive(); y[t] = s[t];"
        " bar.wait(std::move(k));",
        "auto k = bar.arrive(); bar.wait(std::move(k));"
        " cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); y[t] = s[t];"
        " bar.arrive_and_wait();",
    ],
)
def test_a_copy_is_not_there_before_its_phase_ends(run_orders, body, bodies):
    among = [BEGIN + one for one in bodies]
    for result in run_orders(BEGIN + body, before=BARRIER_HEADERS, among=among):
        assert not np.array_equal(result["y"][:64], np.ones(64))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if (t) bar.arrive_and_wait();", r"deadlock: .* for 1 more arrivals"),
        ("bar.arrive_and_wait(); if (t < 8) bar.arrive_and_wait(); else __syncthreads();",
         "deadlock: .* for 56 more arrivals"),
        ("__shared__ barrier none; none.arrive_and_wait();", "nothing has initialized"),
        ("(void)bar.arrive(3);", "expects 1 more"),
        ("if (!t) init(&bar, -1);", "initializes a cuda::barrier or mbarrier for -1"),
        ("cuda::memcpy_async((char*)s + 1, (const char*)x + 1, cuda::aligned_size_t<16>(32), bar);",
         "misaligned address: .* multiple of 16"),
    ],
)  # fmt: skip
def test_misuse_of_a_barrier_is_a_fault_with_its_reason(run_orders, body, bodies, reason):
    among = [BEGIN + one for one in bodies]
    with raises("runtime", reason):
        run_orders(BEGIN + body, before=BARRIER_HEADERS, among=among)


BULK = """namespace cde = cuda::device::experimental;
  __shared__ alignas(128) float in[64], out[64];
  if (t == 0) { init(&bar, 64); cde::fence_proxy_async_shared_cta(); }
  __syncthreads();
  barrier::arrival_token token;
  if (t == 0) {
    cde::cp_async_bulk_global_to_shared(in, x, sizeof in, bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, sizeof in);
  } else {
    token = bar.arrive();
  }
  bar.wait(std::move(token));
  out[t] = in[63 - t] + t;
  cde::fence_proxy_async_shared_cta();
  __syncthreads();
  if (t == 0) {
    cde::cp_async_bulk_shared_to_global(y, out, sizeof out);
    cde::cp_async_bulk_commit_group();
    cde::cp_async_bulk_wait_group_read<0>();
  }"""
"""The example of the CUDA programming guide, "Using TMA to transfer one-dimensional arrays"."""
BEGIN_BULK = """__shared__ barrier bar;
"""


def test_bulk_copies_of_the_programming_guide_arrive_at_a_barrier(right, small_kernel):
    kernel, arenas = small_kernel(BEGIN_BULK + BULK, before=BARRIER_HEADERS)
    right(kernel, arenas, "y", np.arange(64) + 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  bar.wait(std::move(token));\n", ""),
        ("barrier_arrive_tx(bar, 1, sizeof in)", "barrier_arrive_tx(bar, 1, 0)"),
        ("  cde::fence_proxy_async_shared_cta();\n  __syncthreads();\n  if (t == 0) {\n    cde::cp",
         "  __syncthreads();\n  if (t == 0) {\n    cde::cp"),
    ],
)  # fmt: skip
def test_a_step_that_is_missing_around_a_bulk_copy_is_found(fault_of, old, new):
    assert BULK.count(old) == 1
    fault = fault_of(BEGIN_BULK + BULK.replace(old, new), before=BARRIER_HEADERS)
    assert fault.outcome in ("correctness", "runtime")


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("cuda::counting_semaphore<cuda::thread_scope_block> c(1);", "cuda::counting_semaphore"),
        (
            "cg::multi_grid_group g = cg::this_multi_grid();",
            "(cooperative_groups|cg)::multi_grid_group",
        ),
    ],
)
def test_what_else_there_is_in_cudas_namespaces_is_refused_by_name(run_orders, statement, name):
    with pytest.raises(KernelFault, match=f"cannot run on the emulated GPU: {name}$"):
        run_orders(BEGIN + statement, before=BARRIER_HEADERS)


PIPELINE_HEADERS = """
#include <cooperative_groups.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
"""
# Each reads x in parts of 64 and adds up what is at 63 - t in each of the four.
OF_ONE = """__shared__ float s[2][64]; float sum = 0;
auto pipe = cuda::make_pipeline();
auto load = [&](int k) {
  pipe.producer_acquire();
  cuda::memcpy_async(&s[k % 2][t], &x[64 * k + t], cuda::aligned_size_t<4>(4), pipe);
  pipe.producer_commit();
};
load(0);
for (int k = 0; k < 4; ++k) {
  __syncthreads();
  if (k < 3) load(k + 1);
  WAIT
  __syncthreads();
  sum += s[k % 2][63 - t];
  pipe.consumer_release();
}
y[t] = sum;"""
SHARED = """__shared__ float s[2][64]; float sum = 0;
#pragma nv_diag_suppress static_var_with_dynamic_init
__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
auto block = cg::this_thread_block();
"""
UNIFIED = f"""{SHARED}auto pipe = cuda::make_pipeline(block, &state);
for (int k = 0, next = 0; k < 4; ++k) {{
  for (; next < 4 && next < k + 2; ++next) {{
    ACQUIRE
    cuda::memcpy_async(block, s[next % 2], x + 64 * next, sizeof(float) * 64, pipe);
    pipe.producer_commit();
  }}
  WAIT
  sum += s[k % 2][63 - t];
  RELEASE
}}
y[t] = sum;"""
PARTED = f"""{SHARED}auto pipe = cuda::make_pipeline(block, &state, ROLE);
if (t < 32) {{
  for (int k = 0; k < 4; ++k) {{
    ACQUIRE
    for (int i = t; i < 64; i += 32)
      cuda::memcpy_async(&s[k % 2][i], &x[64 * k + i], sizeof(float), pipe);
    pipe.producer_commit();
  }}
}} else {{
  float other = 0;
  for (int k = 0; k < 4; ++k) {{
    WAIT
    sum += s[k % 2][63 - t];
    other += s[k % 2][95 - t];
    RELEASE
  }}
  y[t] = sum; y[t - 32] = other;
}}
pipe.quit();"""
ROLES = "t < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer"


def _filled(text, **changed):
    usual = {
        "ACQUIRE": "pipe.producer_acquire();",
        "WAIT": "pipe.consumer_wait();",
        "RELEASE": "pipe.consumer_release();",
        "ROLE": ROLES,
    }
    for name, statement in {**usual, **changed}.items():
        text = text.replace(name, statement)
    return text


PRIOR = """if (k < 3) cuda::pipeline_consumer_wait_prior<1>(pipe);
  else cuda::pipeline_consumer_wait_prior<0>(pipe);"""
UNTIL = "while (!pipe.consumer_wait_for(cuda::std::chrono::nanoseconds(5)));"
RIGHT_PIPELINES = [
    _filled(OF_ONE),
    _filled(OF_ONE, WAIT=PRIOR),  # for all but the latest
    _filled(UNIFIED),
    _filled(PARTED),
    _filled(PARTED, ROLE="32"),  # by a number of producers
    _filled(PARTED, WAIT=UNTIL),
]


def test_pipelines_bring_copies_in_time(right, small_kernel):
    body = one_after_another(RIGHT_PIPELINES)
    expected = each_of([4] * 64, len(RIGHT_PIPELINES))
    right(*small_kernel(body, before=PIPELINE_HEADERS), "y", expected)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (OF_ONE, {"WAIT": ""}),
        (OF_ONE, {"WAIT": "cuda::pipeline_consumer_wait_prior<1>(pipe);"}),
    ],
)
def test_a_copy_that_the_thread_does_not_wait_for_is_not_there(run_orders, text, changed):
    for result in run_orders(_filled(text, **changed), before=PIPELINE_HEADERS):
        assert not np.array_equal(result["y"][:64], np.full(64, 4))


@pytest.mark.parametrize("text", [UNIFIED, PARTED])
@pytest.mark.parametrize("missing", ["WAIT", "ACQUIRE"])
def test_a_stage_that_is_not_waited_for_is_found(fault_of, text, missing):
    fault = fault_of(_filled(text, **{missing: ""}), before=PIPELINE_HEADERS)
    assert any(words in str(fault) for words in ("race on shared memory", "expects", "deadlock"))


@pytest.mark.parametrize("text", [UNIFIED, PARTED])
def test_a_stage_that_is_not_released_is_a_deadlock(run_orders, text):
    with pytest.raises(KernelFault, match=r"deadlock: .* waits at a cuda::barrier"):
        run_orders(_filled(text, RELEASE=""), before=PIPELINE_HEADERS)


INCLUDE = "#include <cuda/atomic>\n// A comment, before a variable ->\n"
DECLARED = {
    "reference": (
        "__device__ int flags[8];",
        "cuda::atomic_ref<int, cuda::thread_scope_SCOPE> mine(flags[b]), other(flags[7 - b]);",
    ),
    "object": (
        "__device__ cuda::atomic<int, cuda::thread_scope_SCOPE> flags[8];",
        "auto &mine = flags[b], &other = flags[7 - b];",
    ),
}
EXCHANGE = """
  y[i] = i;
  __syncthreads();
  if (t == 0) {
    mine.store(1, cuda::memory_order_RELEASE);
    while (other.load(cuda::std::memory_order_acquire) == 0) {}
    other.store(0, cuda::memory_order_relaxed);
  }
  __syncthreads();
  n[i] = y[64 * (7 - b) + t];"""


def _exchange(declared: str, release: str, scope: str = "device") -> tuple[str, str]:
    before, inside = DECLARED[declared]
    body = (inside + EXCHANGE).replace("RELEASE", release).replace("SCOPE", scope)
    return body, INCLUDE + before.replace("SCOPE", scope)


@pytest.mark.parametrize("declared", DECLARED)
def test_what_is_released_is_acquired(right, small_kernel, declared):
    body, before = _exchange(declared, "release")
    expected = np.arange(512).reshape(8, 64)[::-1].ravel()
    assert right(*small_kernel(body, grid=8, before=before), "n", expected) == 8


@pytest.mark.parametrize(("release", "scope"), [("relaxed", "device"), ("release", "block")])
def test_a_relaxed_store_and_the_scope_of_a_block_order_no_blocks(wrong, release, scope):
    body, before = _exchange("reference", release, scope)
    wrong("nothing orders blocks", body, grid=8, before=before)


FUNCTIONS = """
  __shared__ cuda::atomic<int, cuda::thread_scope_block> a;
  __shared__ float largest;
  if (!t) { a = 0; largest = -1; }
  __syncthreads();
  a += t; a++; --a; a.fetch_sub(t); a.fetch_add(2, cuda::memory_order_relaxed);
  a.fetch_or(0); a ^= 0; a &= -1;
  cuda::atomic_ref<float> top(largest);
  for (float old = top.load(); old < t && !top.compare_exchange_weak(old, (float)t);) {}
  cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_block);
  __syncthreads();
  if (t == 40) a.wait(128); else if (t == 3) { a.store(7); a.notify_all(); }
  __syncthreads();
  if (!t) { int old = 7; n[0] = a.compare_exchange_strong(old, 9) + 10 * a; n[1] = largest;
            n[2] = a.fetch_max(5) + a.fetch_min(4) + a.exchange(1) + a; }"""


def test_every_function_does_what_it_says(right, small_kernel):
    right(*small_kernel(FUNCTIONS, before=INCLUDE), "n", [91, 63, 9 + 9 + 4 + 1])


def test_headers_of_cuda_std_are_those_of_the_host(run):
    source = """
    #include <cuda/std/algorithm>
    #include <cuda/std/array>
    #include <cuda/std/functional>
    #include <cuda/std/numeric>
    #include <cuda/std/optional>
    #include <cuda/std/tuple>
    #include <cuda/std/variant>
    __global__ void k(const float* x, float* y) {
      cuda::std::array<float, 2> a{x[0], x[1]};
      auto [first, second] = cuda::std::make_tuple(a[0], cuda::std::max(a[1], 5.0f));
      cuda::std::optional<float> third = cuda::std::plus<float>()(first, second);
      y[0] = *third + cuda::std::accumulate(a.begin(), a.end(), 0.0f);
    }"""
    x = np.array([1, 2], np.float32)
    assert run(source, {"x": x}, {"y": (1, "float32")})["y"][0] == 9
