"""Stores that another block does not see yet, because no fence of the device comes between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

BEFORE = "#include <cuda/atomic>\n__device__ volatile int data[64]; __device__ int flag, held;"
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
RIGHT = {
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


def threads(body: str) -> dict[str, Any]:
    return {"block": 32 if "held" in body else 64, "grid": 6, "before": BEFORE}


@pytest.mark.parametrize("kind", RIGHT)
def test_fenced_stores_are_seen(check_races: Callable[..., Any], kind: str) -> None:
    assert check_races(RIGHT[kind], **threads(RIGHT[kind])).launches[0].blocks_run == 6


@pytest.mark.parametrize("kind", WRONG)
def test_stores_without_a_fence_are_seen_late(
    fault_of: Callable[..., KernelFault], kind: str
) -> None:
    fault = fault_of(WRONG[kind], **threads(WRONG[kind]))
    assert fault.outcome == "correctness"


def test_the_message_names_the_store_and_the_reader(fault_of: Callable[..., KernelFault]) -> None:
    message = str(fault_of(WRONG["a flag without a fence"], **threads("")))
    assert "n[1] depends on whether thread (0,0,0) of block (" in message
    assert "thread (0,0,0) of block (0,0,0) has stored in data[0]" in message
    assert "__threadfence()" in message
