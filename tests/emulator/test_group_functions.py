"""Scans, partitions and copies of cooperative groups, against NumPy."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from points import each_once

pytestmark = pytest.mark.slow

BEFORE = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
"""
SCANS = (
    BEFORE
    + """
__global__ void k(const int* x, int* y) {
  int t = threadIdx.x, v = x[t];
  auto tile = cg::tiled_partition<SIZE>(cg::this_thread_block());
  y[t] = SCAN;
}
"""
)
OPERATORS = {
    "plus": lambda a, b: a + b,
    "less": min,
    "greater": max,
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
}


def _scanned(values, size, f, exclusive):
    rows = [list(accumulate(row, f)) for row in values.reshape(-1, size).tolist()]
    return np.array([[0, *row[:-1]] if exclusive else row for row in rows]).ravel()


@pytest.mark.parametrize(("size", "operator"), each_once([1, 4, 32], list(OPERATORS)))
@pytest.mark.parametrize("kind", ["inclusive", "exclusive"])
def test_tiles_scan(run, size, operator, kind):
    x = np.random.default_rng(size).integers(-99, 99, 64).astype(np.int32)
    scan = f"cg::{kind}_scan(tile, v, cg::{operator}<int>())"
    source = SCANS.replace("SIZE", str(size)).replace("SCAN", scan)
    y = run(source, {"x": x}, {"y": (64, "int32")}, block=64)["y"]
    np.testing.assert_array_equal(y, _scanned(x, size, OPERATORS[operator], kind == "exclusive"))


@pytest.mark.parametrize("kind", ["inclusive", "exclusive"])
def test_scans_add_up_unless_told_otherwise(run, kind):
    x = np.arange(64).astype(np.int32)
    source = SCANS.replace("SIZE", "16").replace("SCAN", f"cg::{kind}_scan(tile, v)")
    y = run(source, {"x": x}, {"y": (64, "int32")}, block=64)["y"]
    np.testing.assert_array_equal(y, _scanned(x, 16, OPERATORS["plus"], kind == "exclusive"))


PARTS = {
    "cg::labeled_partition(tile, x[t] % 3)": lambda x: x % 3,
    "cg::labeled_partition(tile, (long long)x[t] / 8)": lambda x: x // 8,
    "cg::binary_partition(tile, x[t] > 5)": lambda x: x > 5,
    "cg::binary_partition(tile, x[t] >= 0)": lambda x: x >= 0,
}


@pytest.mark.parametrize("part", PARTS)
def test_lanes_with_one_label_are_a_group(run, part):
    source = f"""{BEFORE}__global__ void k(const int* x, int* y) {{
      int t = threadIdx.x;
      auto tile = cg::tiled_partition<32>(cg::this_thread_block());
      auto part = {part};
      y[t] = part.size() + 100 * part.thread_rank();
      y[32 + t] = part.meta_group_size();
      y[64 + t] = cg::reduce(part, x[t], cg::plus<int>());
      y[96 + t] = cg::invoke_one_broadcast(part, [&] {{ return t; }});
    }}"""
    x = np.random.default_rng(3).permutation(32).astype(np.int32)
    y = run(source, {"x": x}, {"y": (128, "int32")}, block=32)["y"].reshape(4, 32)
    labels = PARTS[part](x)
    for lane in range(32):
        same = np.flatnonzero(labels == labels[lane])
        assert y[0, lane] == len(same) + 100 * list(same).index(lane)
        assert y[1, lane] == len(set(labels.tolist()))
        assert y[2, lane] == x[same].sum()
        assert y[3, lane] == same[0]


def test_active_lanes_are_a_group_that_scans(run):
    source = f"""{BEFORE}__global__ void k(const int* x, int* y) {{
      int t = threadIdx.x;
      y[t] = 0;
      if (x[t] % 2) {{
        auto active = cg::coalesced_threads();
        y[t] = cg::inclusive_scan(active, 1);
      }}
    }}"""
    x = np.random.default_rng(5).integers(0, 9, 32).astype(np.int32)
    y = run(source, {"x": x}, {"y": (32, "int32")}, block=32)["y"]
    np.testing.assert_array_equal(y, np.where(x % 2, np.cumsum(x % 2), 0))


COPY = """__shared__ float s[2][64];
auto block = cg::this_thread_block();
FIRST
cg::memcpy_async(block, s[1], 64, x + 64, 100);
WAIT
y[t] = s[0][63 - t];
LAST
y[64 + t] = s[1][63 - t];"""
FIRST = "cg::memcpy_async(block, s[0], x, sizeof(float) * 64);"
TILE = """auto tile = cg::tiled_partition<32>(block);
cg::memcpy_async(tile, &s[0][t / 32 * 32], &x[t / 32 * 32], sizeof(float) * 32);"""


def _copy(first=FIRST, wait="cg::wait_prior<1>(block);", last="cg::wait(block);"):
    return COPY.replace("FIRST", first).replace("WAIT", wait).replace("LAST", last)


@pytest.mark.parametrize("text", [_copy(), _copy(wait="cg::wait(block);"), _copy(first=TILE)])
def test_copies_by_a_group_arrive_in_order(run_orders, check_races, text):
    for result in run_orders(text, before=BEFORE):
        np.testing.assert_array_equal(result["y"][:128], np.ones(128))
    assert check_races(text, before=BEFORE).launches[0].blocks_run == 1


@pytest.mark.parametrize(
    "text",
    [
        _copy(wait="__syncthreads();"),
        _copy(wait="cg::wait_prior<2>(block);"),
        _copy(last="block.sync();"),
    ],
)
def test_copies_by_a_group_are_not_there_before_the_wait(run_orders, text):
    for result in run_orders(text, before=BEFORE):
        assert not np.array_equal(result["y"][:128], np.ones(128))


def test_waiting_for_the_copies_of_others_needs_their_group(fault_of):
    text = _copy(first=TILE, wait="cg::wait_prior<1>(tile);", last="cg::wait(tile);")
    assert "race on shared memory" in str(fault_of(text, before=BEFORE))
