"""Races beside atomics, fences and volatile accesses, and stores that others do not see yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from points import each_once

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow
CELLS = {
    "shared": ("", "__shared__ int c[2]; if (!t) c[0] = c[1] = 0; __syncthreads();"),
    "device": ("__device__ int c[2];", ""),
    "managed": ("__managed__ int c[2];", ""),
    "tensor": ("", "int* c = n;"),
}
"""The declaration of c, outside of the kernel and in it."""
THOROUGH_CELLS = ("device", "managed")  # for all but the first kernel: global memory as a tensor is
RACES = [
    "atomicAdd(c, t); __syncwarp(); if (t == 0) y[0] = c[0];",
    "atomicAdd(c, t); __syncwarp(); if (t == 63) y[0] = c[0];",
    "atomicAdd(c, t); if (t % 32 == 0) y[t] = c[0];",
    "if (t == 40) c[0] = 5; atomicAdd(c, 1);",
    "atomicAdd(c, 1); if (t == 40) c[0] = 5;",
    "if (c[0] < t) atomicAdd(c, t);",
    "atomicMax(c, t); y[t] = c[0];",
    "if (atomicAdd(c, 1) == 0) c[1] = 7; if (atomicAdd(c, 0) > 3) y[t] = c[1];",
    "c[0]++;",
    "int mine = c[0]++; y[mine] = x[t];",
    "c[0] += t; __syncthreads(); y[t] = c[0];",
    "c[t / 32] += t;",
    "volatile int* v = c; if (t == 3) c[1] = 9; v[1] = 4 + t;",
    "volatile int* v = c; y[t] = v[0]; if (t == 40) c[0] = 3;",
    "if (t == 40) { c[1] = 9; atomicExch(c, 1); } else if (atomicAdd(c, 0)) y[t] = c[1];",
    "if (t == 0) { c[1] = 9; *(volatile int*)c = 1; } else if (*(volatile int*)c) y[t] = c[1];",
]
RIGHT = [
    "atomicAdd(c, t); __syncthreads(); if (t == 0) y[0] = c[0];",
    "atomicAdd(c, t); __syncthreads(); if (t == 0) c[0] = 0; __syncthreads(); atomicMax(c, t);",
    "if (atomicAdd(c, 1) == 63) c[0] = 0;",
    "atomicMax(c, t); atomicAdd(c + 1, 1);",
    "if (c[0] < t) atomicMax(c, t);",
    "if (t < 32) atomicAdd(c, t); __syncwarp(); if (t == 0) y[0] = c[0];",
    "volatile int* v = c; atomicAdd(c, 1); y[t] = v[0];",
    "if (t == 0) { c[1] = 9; __threadfence_block(); atomicExch(c, 1); }"
    " else if (atomicAdd(c, 0)) y[t] = c[1];",
    "if (t == 0) { c[1] = 9; __threadfence(); *(volatile int*)c = 1; }"
    " else if (*(volatile int*)c) y[t] = c[1];",
    "c[1] = 5; __syncthreads(); y[t] = c[1] + c[0];",
]


def everywhere(bodies: list[str]) -> pytest.MarkDecorator:
    """Combine each kernel with each cell."""
    cases = [
        pytest.param(body, cell, marks=[pytest.mark.thorough] * (cell in THOROUGH_CELLS and at > 0))
        for at, body in enumerate(bodies)
        for cell in CELLS
    ]
    return pytest.mark.parametrize(("body", "cell"), cases)


@everywhere(RACES)
def test_unordered_accesses_of_a_block_race(wrong, cell, body):
    before, inside = CELLS[cell]
    space = "shared" if cell == "shared" else "global"
    among = [inside + one for one in RACES]
    wrong(f"race on {space} memory", inside + body, before=before, among=among)


@everywhere(RIGHT)
def test_ordered_accesses_of_a_block_do_not(check_races, cell, body):
    before, inside = CELLS[cell]
    among = [inside + one for one in RIGHT]
    assert check_races(inside + body, before=before, among=among)[0].blocks_run == 1


def test_an_atomic_of_the_block_is_none_among_blocks(wrong, check_races):
    body = "atomicAdd_block(n + b % (gridDim.x / 2), t); atomicMax_system(n + 100, t);"
    wrong(r"updates with an atomic of the block n\[0\]", body, grid=4)
    wrong(r"n\[0\]", body, grid=2)
    check_races(body.replace("/ 2", ""), grid=4)


TICKET = "__device__ unsigned ticket; __device__ float part[64];"
LAST_BLOCK = """
  __shared__ bool last;
  if (t == 0) {{ {store} {fence} last = {take} == gridDim.x - 1; {reset} }}
  __syncthreads();
  if (last) {{ float sum = 0; for (int k = 0; k < gridDim.x; ++k) sum += {load}; y[t] = sum; }}"""
PLAIN = {
    "store": "part[b] = x[b];",
    "fence": "__threadfence();",
    "take": "atomicAdd(&ticket, 1u)",
    "reset": "if (last) ticket = 0;",
    "load": "part[k]",
}


FENCED = [
    LAST_BLOCK.format(**PLAIN | change)
    for change in (
        {},
        {"take": "atomicInc(&ticket, gridDim.x - 1)", "reset": ""},
        {"fence": "__threadfence_system();"},
        {"fence": "", "store": "atomicExch(&part[b], x[b]);", "load": "atomicAdd(&part[k], 0.0f)"},
        {"store": "((volatile float*)part)[b] = x[b];", "load": "((volatile float*)part)[k]"},
        {"reset": "if (last) atomicExch(&ticket, 0u);"},
    )
]  # fmt: skip
UNFENCED = [
    LAST_BLOCK.format(**PLAIN | change)
    for change in (
        {"fence": ""},
        {"fence": "__threadfence_block();"},
        {"store": "", "reset": "part[b] = x[b]; __threadfence();"},  # after the ticket
        {"fence": "", "store": "__threadfence(); part[b] = x[b];"},
        {"take": "ticket++"},
        *(
            {"fence": fence, "store": "((volatile float*)part)[b] = x[b];",
             "load": "((volatile float*)part)[k]", "reset": reset}
            for fence, reset in (
                ("", PLAIN["reset"]),
                ("__threadfence_block();", PLAIN["reset"]),
                ("", "__threadfence();" + PLAIN["reset"]),
            )
        ),
    )
]  # fmt: skip


@pytest.mark.parametrize("body", FENCED)
def test_the_last_block_may_read_what_was_fenced(check_races, body):
    assert check_races(body, grid=40, before=TICKET, among=FENCED)[0].blocks_run == 40


@pytest.mark.parametrize("body", UNFENCED)
def test_the_last_block_needs_a_fence_before_an_atomic_ticket(wrong, body):
    wrong(None, body, grid=40, before=TICKET, among=UNFENCED)


@pytest.mark.parametrize(
    "body",
    [
        "n[i] = i; __threadfence(); __syncthreads();",
        "n[i] = i; __syncthreads(); if (!t) __threadfence();",
    ],
)
def test_a_fence_before_or_after_the_barrier_covers_the_block(check_races, body):
    tail = """
    __shared__ unsigned mine;
    if (!t) mine = atomicAdd(&ticket, 1u);
    __syncthreads();
    if (mine == gridDim.x - 1) for (int k = t; k < 640; k += 64) y[k] = n[k];"""
    assert check_races(body + tail, grid=10, before=TICKET)[0].blocks_run == 10


def test_what_is_written_after_the_fence_is_not_covered(wrong):
    body = """
    __shared__ unsigned mine;
    __threadfence(); n[i] = i; __syncthreads();
    if (!t) mine = atomicAdd(&ticket, 1u);
    __syncthreads();
    if (mine == gridDim.x - 1) for (int k = t; k < 640; k += 64) y[k] = n[k];"""
    wrong("nothing orders blocks", body, grid=10, before=TICKET)


def test_knowledge_passes_on_from_block_to_block(check_races):
    """Each block of a chain adds to the result of the block before it."""
    body = """
    __shared__ int mine;
    if (!t) while ((mine = atomicAdd(&n[0], 0)) != b) {}
    __syncthreads();
    y[t] += 1;
    n[100 + b] = b;
    if (mine && !t) y[100] = n[100];
    __threadfence();
    __syncthreads();
    if (!t) atomicAdd(&n[0], 1);"""
    assert check_races(body, grid=40)[0].blocks_run == 40


def test_two_chains_do_not_order_each_other(wrong):
    body = """
    if (!t) { atomicAdd(&n[b % 2], 0); y[0] += 1; __threadfence(); atomicAdd(&n[b % 2], 1); }"""
    wrong("nothing orders blocks", body, grid=8)


def test_launches_are_ordered(runner, tmp_path):
    source = """
    __device__ int total;
    __global__ void add(int* y) { atomicAdd(&total, 1); }
    __global__ void take(int* y) { y[threadIdx.x] = total; }"""
    y = Arena.create(tmp_path / "y", Tensor("y", (32,), "int32", "output"), np.zeros(32, np.int32))
    launches = (
        Launch("add", (2000, 1, 1), (32, 1, 1), ("y",)),
        Launch("take", (1, 1, 1), (32, 1, 1), ("y",)),
    )
    profile = runner.check_races(Kernel(source, launches), {"y": y}, {}, timeout_s=20.0)
    assert [launch.entry for launch in profile] == ["add", "take"]


SHARED = "__shared__ volatile int v[2]; if (!t) v[0] = v[1] = 0; __syncthreads();"
TENSOR = "volatile int* v = n;"
LOST = [
    "v[0]++;",
    "v[0] += t + 1;",
    "v[t % 2] -= 1;",
    "int mine = v[0]; v[0] = mine + 1; y[mine] = x[t];",
    "v[0] = t;",
    "v[0] = t; y[t] = v[0];",
    "if (t % 32 == 0) v[0] = t;",
    "atomicAdd((int*)v, 1); if (t == 40) v[0] = 5;",
    "if (t == 3) v[0] = v[0] * 2 + 1; else if (t == 40) v[0] = v[0] + 3;",
    "v[0] = v[0] > t ? v[0] : t;",
]
KEPT = [
    "v[0] = 7; y[t] = v[0];",
    "if (!v[0]) v[0] = 1;",
    "if (t == 0) v[0]++; __syncthreads(); if (t == 40) v[0]++;",
    "for (int k = 0; k < 64; ++k) { if (t == k) v[0] += t; __syncthreads(); }",
    "if (t < 32) for (int k = 0; k < 32; ++k) { if (t == k) v[0] += t; __syncwarp(); }",
    "while (v[0] != t) {} v[0] = t + 1;",
    "if (t == 40) { v[0] = 1; while (v[0] == 1) {} v[0] = 3; }"
    " else if (t == 3) { while (v[0] != 1) {} v[0] = 2; }",
    "while (atomicCAS((int*)v, 0, 1)) {} __threadfence_block(); v[1] += t; __threadfence_block();"
    " v[0] = 0;",
    "if (atomicAdd((int*)v, 1) == 63) v[0] = 0;",
    "if (t == 40) v[0] = 1; while (!v[0]) {} if (t == 3) v[0] = 2;",
]


@pytest.mark.parametrize(
    ("variable", "body"), each_once({"shared": SHARED, "tensor": TENSOR}, LOST)
)
def test_a_volatile_update_may_be_lost(wrong, variable, body):
    among = [variable + one for one in LOST]
    wrong(r"the second writes another value \(volatile\)", variable + body, among=among)


@pytest.mark.parametrize(
    ("variable", "body"), each_once({"shared": SHARED, "tensor": TENSOR}, KEPT)
)
def test_threads_may_take_turns_with_a_volatile_variable(check_races, variable, body):
    among = [variable + one for one in KEPT]
    assert check_races(variable + body, among=among)[0].blocks_run == 1


VOLATILE_TICKET = """
  __shared__ bool last;
  if (t == 0) { part[b] = x[b]; __threadfence(); last = TAKE == gridDim.x - 1; }
  __syncthreads();
  if (last && t == 0) { float sum = 0; for (int k = 0; k < gridDim.x; ++k) sum += part[k];
                        y[0] = sum; ticket = 0; }"""
VOLATILE_DECLARED = "__device__ volatile unsigned ticket; __device__ volatile float part[64];"


@pytest.mark.parametrize(
    ("grid", "take"),
    each_once(
        [3, 8, 64],
        ["ticket++", "(ticket += 1) - 1", "({ unsigned mine = ticket; ticket = mine + 1; mine; })"],
    ),
)
def test_a_volatile_ticket_of_blocks_is_no_atomic(wrong, grid, take):
    wrong(
        "nothing orders blocks",
        VOLATILE_TICKET.replace("TAKE", take),
        grid=grid,
        before=VOLATILE_DECLARED,
    )


def test_an_atomic_ticket_may_be_reset_as_volatile(check_races):
    body = VOLATILE_TICKET.replace("TAKE", "atomicAdd((unsigned*)&ticket, 1u)")
    assert check_races(body, grid=64, before=VOLATILE_DECLARED)[0].blocks_run == 64


@pytest.mark.parametrize("body", ["v[0] += x[i];", "v[b % 3] += 1;", "if (!t) v[0] = b;"])
def test_blocks_that_change_a_volatile_variable_race(wrong, body):
    wrong("nothing orders blocks", "volatile float* v = y;" + body, grid=12, block=1)


def test_what_blocks_store_past_their_caches_may_be_lost(wrong):
    wrong("writes another value", "__stcg(y, __ldcg(y) + x[i]);", grid=12, block=1)


LOADS_OF_CONSTANTS = {
    "an intrinsic": "__ldg(y + (i ^ 1))",
    "a vector": "__ldg((const float4*)(y + (i & ~3))).y",
    "PTX": """({ float v; asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];"
                                       : "=f"(v) : "l"(y + (i ^ 1))); v; })""",
}


@pytest.mark.parametrize("kind", LOADS_OF_CONSTANTS)
def test_what_a_launch_has_written_is_no_constant(wrong, kind):
    body = f"y[i] = x[i]; __syncthreads(); n[i] = {LOADS_OF_CONSTANTS[kind]} > 0;"
    match = r"reads y\[\d+\] by __ldg or ld.global.nc, .* and thread .* has written it"
    among = [body.replace(LOADS_OF_CONSTANTS[kind], one) for one in LOADS_OF_CONSTANTS.values()]
    wrong(match, body, among=among)


def test_loads_of_constants_are_for_what_no_thread_has_written(check_races):
    body = (
        "__shared__ float s[64]; s[t] = __ldg(x + i); __syncthreads(); y[i] = __ldg(s + (t ^ 1));"
    )
    assert check_races(body)[0].blocks_run


FLAG_DECLARED = (
    "#include <cuda/atomic>\n__device__ volatile int data[64]; __device__ int flag, held;"
)
REF = "cuda::atomic_ref<int, cuda::thread_scope_{0}>(flag)"
LOCKED = """if (t == 0) {{ while (atomicCAS(&held, 0, 1)) __nanosleep(20); }}
  __syncwarp(); __threadfence();
  volatile int* sum = n; sum[t] = sum[t] + b;
  {fence} __syncwarp(); if (t == 0) {release};"""
PASSED = """
  if (b == 0) {{
    if (!t) data[0] = 7; __syncthreads();
    if (t == 32) {{ {publish} }}
  }} else if (!t) {{
    {wait}
    n[b] = data[0];
  }}"""
SPIN = "while (!*(volatile int*)&flag) {}"
VISIBLE = {
    "a lock": LOCKED.format(fence="__threadfence();", release="atomicExch(&held, 0)"),
    "a lock that is released by a store": LOCKED.format(
        fence="__threadfence();", release="*(volatile int*)&held = 0"
    ),
    "a flag": PASSED.format(publish="__threadfence(); *(volatile int*)&flag = 1;", wait=SPIN),
    "a flag of another thread": PASSED.format(
        publish="__threadfence(); atomicExch(&flag, 1);", wait="while (!atomicAdd(&flag, 0)) {}"
    ),
    "release and acquire": PASSED.format(
        publish=REF.format("device") + ".store(1, cuda::memory_order_release);",
        wait=f"while (!{REF.format('device')}.load(cuda::memory_order_acquire)) {{}}",
    ),
    "release and acquire in PTX": PASSED.format(
        publish='asm volatile("st.release.gpu.s32 [%0], 1;" :: "l"(&flag) : "memory");',
        wait='int f = 0; while (!f) asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(f) '
        ': "l"(&flag) : "memory");',
    ),
    "one word with its flag": """volatile long long* word = (volatile long long*)(data + 2);
      if (!b && !t) *word = 5ll << 32 | 1;
      if (b && !t) { long long w; while (!((w = *word) & 1)) {} n[b] = (int)(w >> 32); }""",
    "a check that saves atomics": "if (*(volatile int*)&flag < i) atomicMax(&flag, i);",
    "what has been seen stays seen": """if (!b && !t) *(volatile int*)&flag = 1;
      if (b && !t) { while (!*(volatile int*)&flag) {} n[b] = *(volatile int*)&flag; }""",
    "what an atomic has seen stays seen": """if (!b && !t) *(volatile int*)&flag = 1;
      if (b && !t) { while (!atomicAdd(&flag, 0)) {} n[b] = *(volatile int*)&flag; }""",
}
WRONG = {
    "a lock without a fence": LOCKED.format(fence="", release="atomicExch(&held, 0)"),
    "a lock with a fence of the block": LOCKED.format(
        fence="__threadfence_block();", release="atomicExch(&held, 0)"
    ),
    "a lock whose fence is of another lane": LOCKED.format(
        fence="if (t == 0) __threadfence();", release="atomicExch(&held, 0)"
    ),
    "a lock that is released too early": LOCKED.format(
        fence="", release="{ *(volatile int*)&held = 0; __threadfence(); }"
    ),
    "a flag without a fence": PASSED.format(publish="*(volatile int*)&flag = 1;", wait=SPIN),
    "a flag before the fence": PASSED.format(
        publish="*(volatile int*)&flag = 1; __threadfence();", wait=SPIN
    ),
    "a relaxed flag": PASSED.format(
        publish=REF.format("device") + ".store(1, cuda::memory_order_relaxed);",
        wait=f"while (!{REF.format('device')}.load(cuda::memory_order_acquire)) {{}}",
    ),
    "a release within the block": PASSED.format(
        publish=REF.format("block") + ".store(1, cuda::memory_order_release);", wait=SPIN
    ),
    "relaxed PTX": PASSED.format(
        publish='asm volatile("st.relaxed.gpu.s32 [%0], 1;" :: "l"(&flag) : "memory");', wait=SPIN
    ),
    "a store past the L1 cache": PASSED.replace("data[0] = 7", "__stcg((int*)data, 7)").format(
        publish="atomicExch(&flag, 1);", wait="while (!atomicAdd(&flag, 0)) {}"
    ),
    "a lock that is tested and taken in two steps": LOCKED.replace(
        "while (atomicCAS(&held, 0, 1)) __nanosleep(20);",
        "while (atomicOr(&held, 0)) __nanosleep(20); atomicExch(&held, 1);",
    ).format(fence="__threadfence();", release="atomicExch(&held, 0)"),
    "a barrier of the grid without a fence": """__stcg((int*)data + b, b + 1); __syncthreads();
      if (!t) { atomicAdd(&flag, 1); while (atomicAdd(&flag, 0) < gridDim.x) {} }
      __syncthreads(); n[i] = __ldcg((int*)data + (b + 1) % gridDim.x);""",
    "a flag in the word after": """volatile int* d = data;
      if (!b && !t) { d[2] = 5; d[3] = 1; }
      if (b && !t) { while (!d[3]) {} n[b] = d[2]; }""",
}


def threads(body: str, among: dict[str, str]) -> dict[str, Any]:
    return {
        "block": 32 if "held" in body else 64,
        "grid": 6,
        "before": FLAG_DECLARED,
        "among": among.values(),
    }


@pytest.mark.parametrize("kind", VISIBLE)
def test_fenced_stores_are_seen(check_races, kind):
    assert check_races(VISIBLE[kind], **threads(VISIBLE[kind], VISIBLE))[0].blocks_run == 6


@pytest.mark.parametrize("kind", WRONG)
def test_stores_without_a_fence_are_seen_late(wrong, kind):
    wrong(None, WRONG[kind], **threads(WRONG[kind], WRONG))


def test_the_message_names_the_store_and_the_reader(fault_of):
    message = str(fault_of(WRONG["a flag without a fence"], **threads("", WRONG)))
    assert "n[1] depends on whether thread (0,0,0) of block (" in message
    assert "thread (0,0,0) of block (0,0,0) has stored in data[0]" in message
    assert "__threadfence()" in message
