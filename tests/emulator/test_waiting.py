"""Threads that wait for other threads of their block, and warp functions that do not fit."""

import numpy as np
import pytest

from pytest_gpuenergy.emulator import with_turns
from pytest_gpuenergy.support import KernelFault

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


@pytest.mark.parametrize("body", WAITING)
def test_threads_may_wait_for_others(check_races, run_orders, body):
    assert check_races(body).launches[0].blocks_run == 1
    assert [result["n"][0] for result in run_orders(body)] == [64, 64, 64]


@pytest.mark.parametrize("body", WAITING)
def test_what_is_waited_for_must_be_fenced(fault_of, body):
    fault = fault_of(body.replace(FENCED, "").replace("__threadfence();", ""))
    assert fault.outcome == "correctness"
    assert "race on shared memory" in str(fault)


def test_active_lanes_of_a_branch_may_shuffle(check_races, run_orders):
    assert check_races(ACTIVE).launches[0].blocks_run == 1
    for result in run_orders(ACTIVE):
        assert (result["n"][:22] == 1).all()
        assert result["n"][22] == 0


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
    with pytest.raises(KernelFault, match=r"divergence: .* calls .* with the same mask") as fault:
        run_orders(body)
    assert fault.value.outcome == "runtime"


def test_waiting_for_what_never_comes_is_a_timeout(runner, small_kernel):
    kernel, arenas = small_kernel("if (t == 3) while (atomicAdd(&n[1], 0) == 0) {}")
    with pytest.raises(KernelFault) as fault:
        runner.run(kernel, arenas, {}, timeout_s=1.0)
    assert fault.value.outcome == "timeout"


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
        ("int* k; while (__ldcg(k)) {}", 1),
        ("volatile int k; while (int left = k) {}", 0),
        ("volatile int k; // while (k)", 0),
        ("volatile int k; /* for (;;) */ while (f(k, (g(2)))) for (int i = h(1); i; ) {}", 2),
    ],
)
def test_loops_beside_volatile_variables_let_others_run(text, turns):
    translated = with_turns(text)
    assert translated.count("cuhost_turn()") == turns
    assert translated.replace("::cuhost::cuhost_turn(), ", "").replace("true ;", ";") == text


def test_a_volatile_loop_computes_as_before(run_orders):
    body = "volatile int* v = n + t; for (int k = 0; k < 700; ++k) *v = *v + k;"
    for result in run_orders(body):
        np.testing.assert_array_equal(result["n"][:64], 700 * 699 // 2)
