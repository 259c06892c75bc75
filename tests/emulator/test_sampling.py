"""Faults in the middle of a grid: blocks are checked until the budget of accesses is spent."""

import pytest
from points import each_once

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow


def test_all_blocks_of_a_small_grid_are_checked(check_races):
    assert check_races("y[i] = x[i];", grid=256).launches[0].blocks_run == 256


def test_the_budget_bounds_the_sample(check_races):
    body = "float sum = 0; for (int k = 0; k < 4096; ++k) sum += x[k]; y[i % 16384] = sum;"
    (launch,) = check_races(body, grid=100_000).launches
    assert 8_000_000 <= launch.blocks_run * 64 * 4096 <= 9_000_000


def test_blocks_without_accesses_count_too(check_races):
    (launch,) = check_races("if (b == gridDim.x - 1 && !t) y[0] = 1;", grid=1 << 20).launches
    assert 10_000 < launch.blocks_run < 200_000


def test_the_profile_is_that_of_the_first_blocks(check_races):
    (launch,) = check_races("if (!t && b == gridDim.x - 1) y[0] = 1;", grid=1000).launches
    assert launch.blocks_run == 1000
    assert launch.traffic.global_write_bytes == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    ("body", "block", "grid"),
    [
        ("n[(b * 37) % 100] += 1;", 1, 1000),  # a histogram with one thread a block
        ("atomicAdd(&n[0], 1); if (!t) y[b / 2] += x[b];", 32, 600),  # split-K without atomics
        ("if (b >= 300 && b < 302 && !t) y[7] = b;", 32, 600),
        ("if (!t) { int old = n[0]; n[0] = old + 1; }", 32, 64),
        ("y[b + t] = b;", 2, 500),  # neighbours overlap
    ],
)
def test_races_between_blocks_in_the_middle_are_found(fault_of, body, block, grid):
    fault = fault_of(body, block=block, grid=grid)
    assert fault.outcome == "correctness"
    assert "race on global memory" in str(fault)


def test_neighbours_in_a_large_grid_are_checked_together(fault_of):
    body = (
        "float sum = 0; for (int k = 0; k < 1024; ++k) sum += x[k];"
        " if (!t) y[(b + 1) / 2 % 16384] = sum + b;"
    )
    assert "race on global memory" in str(fault_of(body, grid=20_000))


@pytest.mark.parametrize("parts", [3, 4, 10])
def test_parts_of_a_tile_in_a_large_grid_are_checked_together(fault_of, parts):
    body = (
        "float sum = 0; for (int k = 0; k < 4096; ++k) sum += x[k];"
        f" if (!t) y[b % (gridDim.x / {parts})] += sum;"
    )
    assert "race on global memory" in str(fault_of(body, grid=6000))


@pytest.mark.parametrize(
    ("body", "outcome", "words"),
    [
        ("y[i] = x[i + (b == 100 ? 16384 : 0)];", "correctness", r"reads x[22784], past its end"),
        ("y[i] = x[i - (b == 100 ? 16384 : 0)];", "correctness", r"before its start"),
        ("if (b == 77) n[-1 - t] = t; y[i] = 1;", "correctness", r"before its start"),
        ("y[i] = b == 77 ? *(const double*)(x + 2 * t + 1) : 0;", "runtime", "misaligned address"),
    ],
)
def test_bad_addresses_in_the_middle_are_found(fault_of, body, outcome, words):
    fault = fault_of(body, grid=200)
    assert fault.outcome == outcome
    assert words in str(fault)


@pytest.mark.parametrize(
    ("value", "before", "body"),
    each_once(
        ["-1", "0", "0x7f7f7f7f", "__float_as_int(NAN)"],
        [
            ("", "__shared__ int s[63]; if (!t) s[63] = {}; __syncthreads(); n[i] = 0;"),
            ("extern __shared__ int s[];", "if (!t) s[25] = {}; n[i] = 0;"),
            ("__device__ int d[5];", "if (!t) d[5] = {}; n[i] = 0;"),
        ],
    ),
)
def test_what_a_kernel_writes_beside_a_variable_is_seen(run_orders, before, body, value):
    with pytest.raises(KernelFault, match=r"wrote .*, past its end"):
        run_orders(body.format(value), before=before, shared_bytes=100)
