"""Volatile is no atomic: threads that change one volatile variable race unless they take turns."""

import pytest
from points import each_once

pytestmark = pytest.mark.slow

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
def test_a_volatile_update_may_be_lost(fault_of, variable, body):
    fault = fault_of(variable + body)
    assert fault.outcome == "correctness"
    assert "the second writes another value (volatile)" in str(fault)


@pytest.mark.parametrize(
    ("variable", "body"), each_once({"shared": SHARED, "tensor": TENSOR}, KEPT)
)
def test_threads_may_take_turns_with_a_volatile_variable(check_races, variable, body):
    assert check_races(variable + body).launches[0].blocks_run == 1


TICKET = """
  __shared__ bool last;
  if (t == 0) { part[b] = x[b]; __threadfence(); last = TAKE == gridDim.x - 1; }
  __syncthreads();
  if (last && t == 0) { float sum = 0; for (int k = 0; k < gridDim.x; ++k) sum += part[k];
                        y[0] = sum; ticket = 0; }"""
BEFORE = "__device__ volatile unsigned ticket; __device__ volatile float part[64];"


@pytest.mark.parametrize(
    ("grid", "take"),
    each_once(
        [3, 8, 64],
        ["ticket++", "(ticket += 1) - 1", "({ unsigned mine = ticket; ticket = mine + 1; mine; })"],
    ),
)
def test_a_volatile_ticket_of_blocks_is_no_atomic(fault_of, grid, take):
    fault = fault_of(TICKET.replace("TAKE", take), grid=grid, before=BEFORE)
    assert fault.outcome == "correctness"
    assert "nothing orders blocks" in str(fault)


def test_an_atomic_ticket_may_be_reset_as_volatile(check_races):
    body = TICKET.replace("TAKE", "atomicAdd((unsigned*)&ticket, 1u)")
    assert check_races(body, grid=64, before=BEFORE).launches[0].blocks_run == 64


@pytest.mark.parametrize("body", ["v[0] += x[i];", "v[b % 3] += 1;", "if (!t) v[0] = b;"])
def test_blocks_that_change_a_volatile_variable_race(fault_of, body):
    fault = fault_of("volatile float* v = y;" + body, grid=12, block=1)
    assert "nothing orders blocks" in str(fault)


def test_what_blocks_store_past_their_caches_may_be_lost(fault_of):
    fault = fault_of("__stcg(y, __ldcg(y) + x[i]);", grid=12, block=1)
    assert "writes another value" in str(fault)
