"""Barriers in inline PTX: ``mbarrier``, and ``bar`` for some of a block's warps."""

from __future__ import annotations

import numpy as np
import pytest
from outcomes import each_of, one_after_another, raises

pytestmark = pytest.mark.slow
MBARRIER = """
#include <cstdint>
__device__ uint32_t at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ void init(uint64_t* b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(n) : "memory");
}
__device__ uint64_t arrive(uint64_t* b) {
  uint64_t state;
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];"
    : "=l"(state) : "r"(at(b)) : "memory");
  return state;
}
__device__ void arrive_twice(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" :: "r"(at(b)) : "memory");
}
__device__ void expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    :: "r"(at(b)), "r"(bytes) : "memory");
}
__device__ void expect_more(uint64_t* b, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
    :: "r"(at(b)), "r"(bytes));
}
__device__ void complete(uint64_t* b, int bytes) {
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
    :: "r"(at(b)), "r"(bytes));
}
__device__ bool test(uint64_t* b, uint64_t state) {
  int over;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.acquire.cta.shared::cta.b64 p, [%1], %2;"
    "selp.b32 %0, 1, 0, p; }" : "=r"(over) : "r"(at(b)), "l"(state) : "memory");
  return over;
}
__device__ void wait(uint64_t* b, int parity) {
  asm volatile("{\\n.reg .pred P1;\\nLAB_WAIT:\\n"
    "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\\n@P1 bra.uni DONE;\\n"
    "bra.uni LAB_WAIT;\\nDONE:\\n}" :: "r"(at(b)), "r"(parity) : "memory");
}
__device__ void wait_a_while(uint64_t* b, int parity) {
  asm volatile("{ .reg .pred p; again:"
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1, 100;"
    "@!p bra again; }" :: "r"(at(b)), "r"(parity) : "memory");
}
"""
BEGIN = """__shared__ float s[64]; __shared__ uint64_t bar, other;
  if (t == 0) { init(&bar, 64); init(&other, 1); }
  if (t == 0) asm volatile("fence.mbarrier_init.release.cluster;");
  __syncthreads();
"""
RIGHT_MBARRIERS = {
    "state": "s[t] = t + 1; uint64_t state = arrive(&bar); while (!test(&bar, state)) {}"
    " y[t] = s[63 - t];",
    "parity": "s[t] = t + 1; arrive(&bar); wait(&bar, 0); y[t] = s[63 - t];",
    "time": "s[t] = t + 1; arrive(&bar); wait_a_while(&bar, 0); y[t] = s[63 - t];",
    "phases": "for (int k = 0; k < 5; ++k) { wait(&bar, ~k & 1); s[t] = t + k; arrive(&bar);"
    " wait(&bar, k & 1); y[t] = s[63 - t] - 3; if (k < 4) __syncthreads(); }",
    "two arrivals": "s[t] = t + 1; __syncwarp();"
    " if (t % 2) arrive_twice(&bar); wait(&bar, 0); y[t] = s[63 - t];",
    "bytes": "if (!t) { s[0] = 1; expect(&other, 8); complete(&other, 8); } wait(&other, 0);"
    " y[t] = 63 - t + s[0];",
    "more bytes": "if (!t) { s[0] = 1; expect_more(&other, 100); complete(&other, 108);"
    " expect(&other, 8); } wait(&other, 0); y[t] = 63 - t + s[0];",
    "late bytes": "if (!t) { expect(&other, 8); } if (t == 1) { s[0] = 1; complete(&other, 8); }"
    " __syncthreads(); wait(&other, 0); y[t] = 63 - t + s[0];",
    "invalidated": "asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\"); if (!t)"
    ' { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&other)) : "memory"); }'
    " __syncthreads(); if (!t) init(&other, 64); __syncthreads(); s[t] = t + 1; arrive(&other);"
    " wait(&other, 0); y[t] = s[63 - t];",
    "elected": "int leader, mine; asm volatile(\"{ .reg .pred p; elect.sync %0|p, 0xffffffff;"
    ' selp.b32 %1, 1, 0, p; }" : "=r"(leader), "=r"(mine)); s[t] = mine; __syncthreads();'
    " float sum = 0; for (int k = 0; k < 64; ++k) sum += s[k] * (k % 32 == leader);"
    " y[t] = 64 - t + sum - 2;",
}  # fmt: skip


def test_threads_meet_at_an_mbarrier(right, small_kernel):
    body = one_after_another(BEGIN + one for one in RIGHT_MBARRIERS.values())
    expected = each_of(64 - np.arange(64), len(RIGHT_MBARRIERS))
    right(*small_kernel(body, before=MBARRIER), "y", expected)


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = x[t]; arrive(&bar); y[t] = s[63 - t]; wait(&bar, 0);",
        "s[t] = x[t]; arrive(&bar); wait(&bar, 1); y[t] = s[63 - t];",
        "s[t] = x[t]; test(&bar, arrive(&bar)); y[t] = s[63 - t];",
        "arrive(&bar); wait(&bar, 0); s[t] = x[t]; wait(&bar, 0); y[t] = s[63 - t];",
    ],
)
def test_an_mbarrier_that_is_not_waited_for_is_a_race(wrong, body, bodies):
    among = [BEGIN + one for one in bodies]
    wrong("race on shared memory", BEGIN + body, before=MBARRIER, among=among)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if (t) arrive(&bar); wait(&bar, 0);", "deadlock: .* for 1 more arrivals"),
        ("if (!t) { expect(&other, 12); complete(&other, 8); } wait(&other, 0);",
         "deadlock: .* for 0 more arrivals and 4 more bytes"),
        ("if (!t) arrive_twice(&other);", "arrives 2 times .* expects 1 more"),
        ("if (!t) expect(&other, 1 << 20);", "at most 1048575"),
        ("__shared__ uint64_t none; none = 0; arrive(&none);", "nothing has initialized"),
    ],
)  # fmt: skip
def test_misuse_of_an_mbarrier_is_a_fault_with_its_reason(run_orders, body, bodies, reason):
    among = [BEGIN + one for one in bodies]
    with raises("runtime", reason):
        run_orders(BEGIN + body, before=MBARRIER, among=among)


COPIES = (
    MBARRIER
    + """
__device__ __forceinline__ void copy(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void arrive_expected(uint64_t* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at(b)) : "memory");
}
__device__ __forceinline__ void arrive_more(uint64_t* b) {
  asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(at(b)) : "memory");
}
"""
)
RIGHT_COPIES = {
    "expected": "copy(s + t, x + t); arrive_expected(&bar); wait(&bar, 0); y[t] = s[63 - t];",
    "more": "copy(s + t, x + t); arrive_more(&bar); arrive(&bar); wait(&bar, 0); y[t] = s[63 - t];",
    "generic address": "copy(s + t, x + t); asm volatile("
    '"cp.async.mbarrier.arrive.noinc.b64 [%0];" :: "l"(&bar) : "memory");'
    " wait(&bar, 0); y[t] = s[63 - t];",
    "of two groups": "__shared__ float u[64]; copy(s + t, x + t); commit(); copy(u + t, x + t);"
    " arrive_expected(&bar); wait(&bar, 0); y[t] = s[63 - t] + u[63 - t] - 1;",
    "waited for also as a group": "copy(s + t, x + t); commit(); arrive_expected(&bar);"
    ' asm volatile("cp.async.wait_group 0;" ::: "memory"); float mine = s[t];'
    " wait(&bar, 0); y[t] = s[63 - t] + mine - 1;",
    "not copied again": "copy(s + t, x + t); commit(); arrive_expected(&bar); wait(&bar, 0);"
    " float sum = s[63 - t]; __syncthreads(); s[t] = 2;"
    ' asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncthreads();'
    " y[t] = sum + s[63 - t] - 2;",
    "phases": "float sum = 0; for (int k = 0; k < 4; ++k) { copy(s + t, x + t);"
    " arrive_expected(&bar); wait(&bar, k & 1); sum += s[63 - t]; __syncthreads(); }"
    " y[t] = sum - 3;",
    "no copies": "s[t] = 1; arrive_expected(&bar); wait(&bar, 0); y[t] = s[63 - t];",
    "zeros": 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"'
    ' :: "r"(at(s + t)), "l"(x + t), "r"(t % 2 * 4) : "memory");'
    " arrive_expected(&bar); wait(&bar, 0); y[t] = s[63 - t] + t % 2;",
}  # fmt: skip


def test_an_mbarrier_waits_for_the_copies_of_threads(right, small_kernel):
    body = one_after_another(BEGIN + one for one in RIGHT_COPIES.values())
    right(*small_kernel(body, before=COPIES), "y", each_of(np.ones(64), len(RIGHT_COPIES)))


@pytest.mark.parametrize(
    "body",
    [
        "copy(s + t, x + t); arrive(&bar); wait(&bar, 0); y[t] = s[63 - t];",
        "arrive_expected(&bar); copy(s + t, x + t); wait(&bar, 0); y[t] = s[t];",
        "copy(s + t, x + t); arrive_expected(&bar); y[t] = s[t];",
    ],
    ids=["without their arrival", "begun after it", "not waited for"],
)
def test_copies_that_an_mbarrier_does_not_wait_for_are_not_there(run_orders, body, bodies):
    among = [BEGIN + one for one in bodies]
    for result in run_orders(BEGIN + body, before=COPIES, among=among):
        assert not (result["y"][:64] == 1).any()


@pytest.mark.parametrize(
    "body",
    [
        "copy(s + t, x + t); arrive_expected(&bar); y[t] = s[63 - t]; wait(&bar, 0);",
        "arrive_expected(&bar); copy(s + t, x + t); wait(&bar, 0); y[t] = s[63 - t];",
        "copy(s + t, x + t); arrive_expected(&bar); wait(&bar, 0); y[t] = s[63 - t];"
        " copy(s + t, x + t);",
    ],
)
def test_copies_beside_their_arrival_at_an_mbarrier_race(wrong, body, bodies):
    among = [BEGIN + one for one in bodies]
    wrong("race on shared memory", BEGIN + body, before=COPIES, among=among)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("copy(s + t, x + t); arrive_more(&bar); wait(&bar, 0);", "deadlock: .* 64 more arrivals"),
        ("__shared__ uint64_t none; none = 0; arrive_more(&none);", "nothing has initialized"),
    ],
)
def test_misuse_of_an_arrival_of_copies_is_a_fault(run_orders, body, reason, bodies):
    among = [BEGIN + one for one in bodies]
    with raises("runtime", reason):
        run_orders(BEGIN + body, before=COPIES, among=among)


NAMED_BARRIER = """
#define SYNC(number, threads) \\
  asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(threads) : "memory")
#define ARRIVE(number, threads) \\
  asm volatile("barrier.cta.arrive %0, %1;" :: "r"(number), "n"(threads) : "memory")
"""
# Two pairs of warps reverse their halves; the first then passes everything on to the last warp.
RIGHT_NAMED = """__shared__ float s[128], v[128];
  int first = t / 64 * 64;
  s[t] = t;
  SYNC(1 + t / 64, 64);
  v[t] = s[2 * first + 63 - t];
  SYNC(1 + t / 64, 64);
  s[t] = 0;
  if (t < 96) { ARRIVE(3, 128); return; }
  SYNC(3, 128);
  for (int k = t - 96; k < 128; k += 32) y[k] = v[k];
"""


def test_some_warps_meet_and_others_only_arrive(right, small_kernel):
    expected = np.concatenate([np.arange(64)[::-1], np.arange(64, 128)[::-1]])
    right(*small_kernel(RIGHT_NAMED, before=NAMED_BARRIER, block=128), "y", expected)


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = t; SYNC(1 + t / 64, 64); y[t] = s[127 - t];",
        "s[t] = t; if (t < 64) { ARRIVE(1, 128); y[t] = s[127 - t]; } else SYNC(1, 128);",
    ],
)
def test_a_barrier_orders_only_those_that_wait_for_one_another(wrong, body):
    wrong(
        "race on shared memory", f"__shared__ float s[128]; {body}", before=NAMED_BARRIER, block=128
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if (t < 96) SYNC(2, 128);", "deadlock: .* at barrier 2, to which 96 of 128 threads"),
        ("if (t < 64) SYNC(2, 128); else SYNC(2, 96);", "for (96|128) threads, and others for"),
        ("SYNC(1, 100);", "for whole warps"),
        ("SYNC(16, 128);", "there are 16"),
    ],
)  # fmt: skip
def test_misuse_of_a_barrier_is_a_fault_with_its_reason(run_orders, body, bodies, reason):
    with raises("runtime", reason):
        run_orders(body, before=NAMED_BARRIER, block=128, among=bodies)
