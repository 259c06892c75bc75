"""Barriers of <cuda/barrier> and the copies that they wait for."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

BEFORE = """
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
RIGHT = {
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
    "drop": "s[t] = t + 1; if (t >= 32) { bar.arrive_and_drop(); return; } bar.arrive_and_wait();"
    " y[t] = s[63 - t]; y[t + 32] = s[31 - t]; bar.arrive_and_wait();",
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


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_barriers_order_what_comes_before_and_after(run_orders, check_races, body):
    for result in run_orders(BEGIN + body, before=BEFORE):
        np.testing.assert_array_equal(result["y"][:64], 64 - np.arange(64))
    assert check_races(BEGIN + body, before=BEFORE).launches[0].blocks_run == 1


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
def test_a_wait_that_is_missing_is_a_race(fault_of, body):
    fault = fault_of(BEGIN + body, before=BEFORE)
    assert fault.outcome == "correctness"
    assert "race on shared memory" in str(fault)


@pytest.mark.parametrize(
    "copy",
    [
        "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); y[t] = s[t]; bar.arrive_and_wait();",
        "cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); auto k = bar.arrive(); y[t] = s[t];"
        " bar.wait(std::move(k));",
        "auto k = bar.arrive(); bar.wait(std::move(k));"
        " cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar); y[t] = s[t];"
        " bar.arrive_and_wait();",
    ],
)
def test_a_copy_is_not_there_before_its_phase_ends(run_orders, copy):
    for result in run_orders(BEGIN + copy, before=BEFORE):
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
def test_misuse_of_a_barrier_is_a_fault_with_its_reason(run_orders, body, reason):
    with pytest.raises(KernelFault, match=reason, check=lambda e: e.outcome == "runtime"):
        run_orders(BEGIN + body, before=BEFORE)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("cuda::counting_semaphore<cuda::thread_scope_block> c(1);", "cuda::counting_semaphore"),
        ("cuda::device::barrier_native_handle(bar);", "cuda::device"),
        (
            "cg::multi_grid_group g = cg::this_multi_grid();",
            "(cooperative_groups|cg)::multi_grid_group",
        ),
    ],
)
def test_what_else_there_is_in_cudas_namespaces_is_refused_by_name(run_orders, statement, name):
    with pytest.raises(KernelFault, match=f"cannot run on the emulated GPU: {name}$"):
        run_orders(BEGIN + statement, before=BEFORE)
