"""Results that depend on the order of lanes, warps, threads or blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
ALL_OF_BLOCK = """__shared__ int s; if (!t) s = 0; __syncthreads();
  atomicAdd(&s, 1); {0} if (t == {1}) y[b] = atomicAdd(&s, 0);"""
WAITS = {
    "a barrier of its warp": "__syncwarp();",
    "a shuffle": "__shfl_sync(~0u, t, 0);",
    "some sleep": "__syncwarp(); for (int k = 0; k < 20; ++k) __nanosleep(1000);",
    "some cycles": "__syncwarp(); long long c = clock64(); while (clock64() - c < 5000) {}",
    "a barrier of two warps": 'if (t / 64 == READER / 64) asm volatile("bar.sync 1, 64;");',
}
"""What a thread does instead of waiting for its block."""


def values(results: list[dict[str, Any]], blocks: int, name: str = "y") -> set[float]:
    return {float(value) for result in results for value in result[name][:blocks]}


WAITING = {
    (wait, reader): ALL_OF_BLOCK.format(text.replace("READER", str(reader)), reader)
    for wait, text in WAITS.items()
    for reader in (0, 160, 255)
}


@pytest.mark.parametrize(("wait", "reader"), WAITING)
def test_a_warp_does_not_wait_for_its_block(run_orders, wait, reader):
    results = run_orders(WAITING[wait, reader], 256, 4, among=WAITING.values())
    assert values(results, 4) > {256}


@pytest.mark.parametrize("block", [32, 96, 1024])
def test_all_warps_have_come_to_a_barrier(run_orders, block):
    body = ALL_OF_BLOCK.format("__syncthreads();", block - 1)
    assert values(run_orders(body, block, 4), 4) == {block}


LOST = {
    "an exchange after an addition of zero": "atomicExch(p, atomicAdd(p, 0) + 1);",
    "an exchange after a comparison": "atomicExch(p, atomicCAS(p, 0, 0) + 1);",
    "a maximum": "atomicMax(p, atomicOr(p, 0) + 1);",
    "two exchanges": "int o = atomicExch(p, 0); atomicExch(p, o + 1);",
    "a comparison that is not repeated": "int o = atomicAdd(p, 0); atomicCAS(p, o, o + 1);",
    "a load and a store": (
        "cuda::atomic_ref<int> r(*p); r.store(r.load(cuda::memory_order_relaxed) + 1);"
    ),
    "relaxed PTX": 'int o; asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(o) : "l"(p));'
    ' asm volatile("st.relaxed.gpu.s32 [%0], %1;" :: "l"(p), "r"(o + 1));',
}
"""Updates of a counter that others may overwrite."""
KEPT = {
    "an addition": "atomicAdd(p, 1);",
    "a repeated comparison": """int o = atomicAdd(p, 0), a;
      do { a = o; o = atomicCAS(p, a, a + 1); } while (o != a);""",
    "a lock": """for (bool done = false; !done;) if (!atomicCAS(n + 1, 0, 1)) {
      __threadfence(); atomicExch(p, atomicAdd(p, 0) + 1); __threadfence();
      atomicExch(n + 1, 0); done = true; }""",
}


@pytest.mark.parametrize("update", LOST)
def test_updates_in_two_steps_are_lost(run_orders, update):
    before = "#include <cuda/atomic>\n#define p n"
    results = run_orders(LOST[update], 64, 3, before=before, among=LOST.values())
    assert min(result["n"][0] for result in results) < 64 * 3


@pytest.mark.parametrize("update", KEPT)
def test_atomic_updates_are_kept(run_orders, update):
    results = run_orders(KEPT[update], 64, 3, before="#define p n", among=KEPT.values())
    assert [result["n"][0] for result in results] == [64 * 3] * 3


ALL_ORDERS = (0, 1, 2, 4, 6, 8)
"""Those of a verification with its last three launches."""
TICKET = """if (!t) {{ bool last; {0} if (last) {{ __threadfence(); y[0] = atomicAdd(n, 0); }} }}"""
LAST = "last = atomicAdd(n + 1, 1) == gridDim.x - 1; __threadfence();"


@pytest.mark.parametrize("grid", [4, 16, 100])
def test_a_block_takes_its_ticket_too_early(run_orders, grid):
    early = run_orders(TICKET.format(f"{LAST} atomicAdd(n, 1);"), 32, grid, orders=ALL_ORDERS)
    assert {int(result["y"][0]) for result in early} > {grid}
    right = TICKET.format(f"atomicAdd(n, 1); __threadfence(); {LAST}")
    results = run_orders(right, 32, grid, orders=ALL_ORDERS)
    assert {int(result["y"][0]) for result in results} == {grid}


def test_blocks_of_a_cluster_run_ahead_of_one_another(run_orders):
    body = "if (!t) y[b] = atomicAdd(n + b / 4, 1);"
    results = run_orders(body, 32, 4, before="#define k __cluster_dims__(4, 1, 1) k")
    leaders = {int(np.argmin(result["y"][:4])) for result in results}
    assert len(leaders) > 1


@pytest.mark.parametrize(
    "body", ["y[i] = clock() & 1;", "y[i] = clock64() & 2;", "y[i] = (int)clock() >> 4 & 1;"]
)
def test_a_bit_of_the_clock_differs_between_threads(run_orders, body, bodies):
    assert len(values(run_orders(body, 64, among=bodies), 64)) == 2


PLACE = """unsigned sm, sms, warp, time;
  asm volatile("mov.u32 %0, %%smid; mov.u32 %1, %%nsmid; mov.u32 %2, %%warpid;"
               : "=r"(sm), "=r"(sms), "=r"(warp));
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time));
  n[i] = sm; n[4096 + i] = warp; n[8192 + i] = time >> 20; n[12288] = sms;"""


def test_where_a_thread_runs_differs_between_launches(run_orders):
    results = [result["n"] for result in run_orders(PLACE, 96, 8, orders=(0, 0, 1, 2))]
    for part in range(3):
        places = [tuple(n[part * 4096 : part * 4096 + 768]) for n in results]
        assert len(set(places)) == 4
    for order, n in enumerate(results):
        blocks, warps = n[:768].reshape(8, 96), n[4096 : 4096 + 768].reshape(24, 32)
        assert (blocks == blocks[:, :1]).all()
        assert (warps == warps[:, :1]).all()
        assert len(set(blocks[:, 0])) == 8 if order < 3 else 4 <= len(set(blocks[:, 0])) <= 5
        assert set(blocks[:, 0]) <= set(range(n[12288]))
        assert all(len(set(of_block)) == 3 for of_block in warps[:, 0].reshape(8, 3))


SHARED = "__shared__ float s[64]; s[t] = 0; __syncthreads();"
"""So that all is initialized."""


def with_shared(bodies: list[str]) -> list[str]:
    return [f"{SHARED} {body}" for body in bodies]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "__shfl_sync(~0u, t, 0);",
        "__shfl_xor_sync(~0u, t, 1);",
        "__ballot_sync(~0u, t & 1);",
        "__any_sync(~0u, 1);",
        "__activemask();",
        "__threadfence_block();",
        "__syncwarp(1u << t % 32);",
    ],
)
def test_only_syncwarp_orders_the_memory_of_lanes(wrong, body, bodies):
    text = f"{SHARED} s[t] = x[t]; {{}} y[t] = s[t ^ 1];"
    wrong("race on shared memory", text.format(body), among=map(text.format, bodies))


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1];",
        "s[t] = x[t]; __syncwarp(3u << (t % 32 & ~1)); y[t] = s[t ^ 1];",
        "s[t] = x[t]; __syncwarp(t & 16 ? 0xffff0000u : 0xffffu); y[t] = s[t ^ 9];",
        "s[t] = x[t]; __syncwarp(); float v = s[t ^ 1]; __syncwarp(); s[t ^ 1] = v + t;",
        "for (int d = 16; d; d /= 2) { if (t % 32 < d) s[t] += s[t + d]; __syncwarp(); }",
        "if (t < 16) { s[t] = t; __syncwarp(0xffff); y[t] = s[15 - t]; }",
        "s[t] = t; __shfl_sync(~0u, t, 0); __syncwarp(); y[t] = s[t ^ 3];",
        # One lane may learn of another's writes from a third.
        "if (t == 0) s[0] = 1; if (t < 2) __syncwarp(3); if (t == 1 || t == 2) __syncwarp(6);"
        " if (t == 2) y[0] = s[0];",
    ],
)
def test_syncwarp_orders_the_lanes_of_its_mask(check_races, body, bodies):
    assert check_races(f"{SHARED} {body}", among=with_shared(bodies))[0].blocks_run == 1


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = x[t]; __syncwarp(t & 16 ? 0xffff0000u : 0xffffu); y[t] = s[t ^ 16];",
        "s[t] = x[t]; __syncwarp(3u << (t % 32 & ~1)); y[t] = s[t ^ 2];",
        "if (t < 16) { s[t] = t; __syncwarp(0xffff); } else if (t < 32) y[t] = s[t - 16];",
        "if (t == 0) s[0] = 1; if (t == 1 || t == 2) __syncwarp(6); if (t < 2) __syncwarp(3);"
        " if (t == 2) y[0] = s[0];",
        "for (int d = 16; d; d /= 2) { if (t % 32 < d) s[t] += s[t + d]; }",
        "s[t] = t; for (int d = 32; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncwarp(); }",
        "s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1]; s[t] = 2;",
        "s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 32];",
    ],
)
def test_syncwarp_orders_no_others(wrong, body, bodies):
    wrong("race on shared memory", f"{SHARED} {body}", among=with_shared(bodies))


def test_tensors_are_ordered_by_lane_too(check_races, wrong):
    body = "y[t] = t; {} if (t % 2) y[t ^ 1] += 1;"
    assert check_races(body.format("__syncwarp();"))[0].blocks_run == 1
    wrong("race on global memory", body.format("__shfl_sync(~0u, t, 0);"))
