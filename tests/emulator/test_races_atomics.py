"""Races beside atomics, fences and volatile accesses, in memory of every kind."""

import numpy as np
import pytest

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
    """Each of the kernels with each cell."""
    cases = [
        pytest.param(body, cell, marks=[pytest.mark.thorough] * (cell in THOROUGH_CELLS and at > 0))
        for at, body in enumerate(bodies)
        for cell in CELLS
    ]
    return pytest.mark.parametrize(("body", "cell"), cases)


@everywhere(RACES)
def test_unordered_accesses_of_a_block_race(fault_of, cell, body):
    before, inside = CELLS[cell]
    fault = fault_of(inside + body, before=before)
    assert fault.outcome == "correctness"
    assert f"race on {'shared' if cell == 'shared' else 'global'} memory" in str(fault)


@everywhere(RIGHT)
def test_ordered_accesses_of_a_block_do_not(check_races, cell, body):
    before, inside = CELLS[cell]
    assert check_races(inside + body, before=before).launches[0].blocks_run == 1


def test_an_atomic_of_the_block_is_none_among_blocks(fault_of, check_races):
    body = "atomicAdd_block(n + b % (gridDim.x / 2), t); atomicMax_system(n + 100, t);"
    assert "updates with an atomic of the block n[0]" in str(fault_of(body, grid=4))
    assert "n[0]" in str(fault_of(body, grid=2))
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


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"take": "atomicInc(&ticket, gridDim.x - 1)", "reset": ""},
        {"fence": "__threadfence_system();"},
        {"fence": "", "store": "atomicExch(&part[b], x[b]);", "load": "atomicAdd(&part[k], 0.0f)"},
        {"store": "((volatile float*)part)[b] = x[b];", "load": "((volatile float*)part)[k]"},
        {"reset": "if (last) atomicExch(&ticket, 0u);"},
    ],
)  # fmt: skip
def test_the_last_block_may_read_what_was_fenced(check_races, change):
    body = LAST_BLOCK.format(**PLAIN | change)
    assert check_races(body, grid=40, before=TICKET).launches[0].blocks_run == 40


@pytest.mark.parametrize(
    "change",
    [
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
    ],
)  # fmt: skip
def test_the_last_block_needs_a_fence_before_an_atomic_ticket(fault_of, change):
    fault = fault_of(LAST_BLOCK.format(**PLAIN | change), grid=40, before=TICKET)
    assert fault.outcome == "correctness"


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
    assert check_races(body + tail, grid=10, before=TICKET).launches[0].blocks_run == 10


def test_what_is_written_after_the_fence_is_not_covered(fault_of):
    body = """
    __shared__ unsigned mine;
    __threadfence(); n[i] = i; __syncthreads();
    if (!t) mine = atomicAdd(&ticket, 1u);
    __syncthreads();
    if (mine == gridDim.x - 1) for (int k = t; k < 640; k += 64) y[k] = n[k];"""
    assert "nothing orders blocks" in str(fault_of(body, grid=10, before=TICKET))


def test_knowledge_passes_on_from_block_to_block(check_races):
    """A chain of blocks in which each adds to what the one before has left."""
    body = """
    __shared__ int mine;
    if (!t) mine = atomicAdd(&n[0], 0);
    __syncthreads();
    y[t] += 1;
    n[100 + b] = b;
    if (mine && !t) y[100] = n[100];
    __threadfence();
    __syncthreads();
    if (!t) atomicAdd(&n[0], 1);"""
    assert check_races(body, grid=40).launches[0].blocks_run == 40


def test_two_chains_do_not_order_each_other(fault_of):
    body = """
    if (!t) { atomicAdd(&n[b % 2], 0); y[0] += 1; __threadfence(); atomicAdd(&n[b % 2], 1); }"""
    assert "nothing orders blocks" in str(fault_of(body, grid=8))


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
    assert [launch.entry for launch in profile.launches] == ["add", "take"]
