"""Warps of the template for CUDA cores use shared memory without conflicts of banks.

The addresses are those of the text itself, compiled for the host, where it reads stages whose
elements are their own places.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from points import each_once

from pytest_gpuenergy.tuners import SimtParameters
from pytest_gpuenergy.workloads import Gemm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]

_BEFORE = """
#include <cstdio>
#define __device__
#define __forceinline__
unsigned long __cvta_generic_to_shared(const void*) { return 0; }
constexpr int max(int a, int b) { return a > b ? a : b; }
constexpr int min(int a, int b) { return a < b ? a : b; }
struct { int x; } threadIdx, blockIdx;
struct { int z; } gridDim;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
void __syncthreads() {}
void __syncwarp() {}
"""
_AFTER = """
struct Stage { const float *a, *b; };

int main() {
  int b_stage = TILE_K * B_ROW;
  float4* memory = new float4[max(A_STAGE, b_stage) / 4];
  float* places = &memory->x;
  for (int i = 0; i < max(A_STAGE, b_stage); ++i) places[i] = i;
  std::printf("[");
  for (int k = 0; k < DEPTH; ++k) {
    int loads[THREAD_M + THREAD_N][32], count = 0;
    for (threadIdx.x = 0; threadIdx.x < 32; ++threadIdx.x) {
      Factors factors;
      read(factors, Stage{places, places}, Thread(), k);
      count = 0;
      if (A_BY_COLUMNS) {
        for (int i = 0; i < THREAD_M; i += PIECE)
          loads[count++][threadIdx.x] = factors.a[i][k % PIECE];
      } else if (k % PIECE == 0) {
        for (int i = 0; i < THREAD_M; ++i) loads[count++][threadIdx.x] = factors.a[i][0];
      }
      for (int j = 0; j < THREAD_N; j += PIECE) loads[count++][threadIdx.x] = factors.b[j];
    }
    for (int load = 0; load < count; ++load) {
      std::printf(k + load ? ", [" : "[");
      for (int lane = 0; lane < 32; ++lane) std::printf(lane ? ", %d" : "%d", loads[load][lane]);
      std::printf("]");
    }
  }
  std::printf("]");
}
"""

_COPIES = """
int main() {
  float* from = new float[TILE_M * LDA];
  float* to = new float[A_STAGE];
  for (int i = 0; i < TILE_M * LDA; ++i) from[i] = i + 1;
  std::printf("[");
  for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) {
    for (int place = 0; place < A_STAGE; ++place) to[place] = 0;
    using Own = Shares<TILE_M, TILE_K, 1, TURNED_ALONG>;
    int row = Own::row(), column = Own::column();
    copy_transposed<TILE_M, TILE_K, LDA, A_ROW, TURNED_ALONG, true, true, 1>(  //
        {to + column * A_ROW + (row ^ exchange<Own::ALONG>(column)), 0},
        from + row * LDA + column, from, TILE_M, TILE_K, 0, true);
    std::printf(threadIdx.x ? ", [" : "[");
    bool first = true;
    for (int place = 0; place < A_STAGE; ++place) {
      if (!to[place]) continue;
      std::printf(first ? "[%d, %d]" : ", [%d, %d]", int(to[place]) - 1, place);
      first = false;
    }
    std::printf("]");
  }
  std::printf("]");
}
"""


def wavefronts(elements: Sequence[int]) -> int:
    """How often shared memory is accessed for a load of 16 bytes by each lane of a warp.

    Lanes are served in quarters of a warp. Two quarters are served at once if each lane has the
    address of the one beside it, or of the one after the next: the arrangement of lanes in CUTLASS
    (``RowMajorInterleaved<2>``) relies on this, which NVIDIA does not document.
    """
    halved = any(all(elements[i] == elements[i ^ bit] for i in range(32)) for bit in (1, 2))
    size = 16 if halved else 8
    groups = [set(elements[first : first + size]) for first in range(0, 32, size)]
    return sum(max(Counter(one // 4 % 8 for one in group).values()) for group in groups)


def printed_by(main: str, parameters: SimtParameters, layout: Any, folder: Path) -> Any:
    gemm = Gemm("g", 256, 256, 256, layout)
    text, _ = parameters.kernel(gemm).source.split("// The kernel of templates")
    (folder / "text.cpp").write_text(_BEFORE + text + main)
    command = ["g++", "-std=c++17", "-w", "-o", "text", "text.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    printed = subprocess.run([folder / "text"], capture_output=True, check=True).stdout
    return json.loads(printed)


SIZES = (
    {"tile_m": 128, "tile_n": 256, "tile_k": 16, "thread_m": 8, "thread_n": 16},
    {"tile_m": 64, "tile_n": 96, "tile_k": 8, "thread_m": 8, "thread_n": 12},
    {"tile_m": 64, "tile_n": 64, "tile_k": 32, "thread_m": 8, "thread_n": 8, "slices": 2},
    {"tile_m": 32, "tile_n": 32, "tile_k": 64, "thread_m": 8, "thread_n": 4, "slices": 8},
    {"tile_m": 32, "tile_n": 32, "tile_k": 128, "thread_m": 8, "thread_n": 4, "slices": 4},
)


@pytest.mark.parametrize(
    ("sizes", "layout", "transpose_a"),
    each_once(
        {f"sizes{at}": (sizes,) for at, sizes in enumerate(SIZES)},
        [("nn", 0), ("nt", 0), ("nn", 8), ("tn", 0), ("tt", 8)],
    ),
)
def test_half_a_warp_is_served_at_once(sizes, layout, transpose_a, tmp_path):
    parameters = SimtParameters(**sizes, transpose_a=transpose_a, asynchronous=False)
    loads: list[list[int]] = printed_by(_AFTER, parameters, layout, tmp_path)
    depth = parameters.tile_k // parameters.slices
    assert len(loads) == depth * (parameters.thread_m + parameters.thread_n) // 4
    assert {wavefronts(one) for one in loads} == {2}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("which", [0, -1], ids=["least", "most"])
def test_elements_that_are_transposed_go_to_different_banks(sizes, which, tmp_path):
    offered = SimtParameters(**sizes).worth_copying
    if which and len(offered) == 1:
        pytest.skip("the most is the least")
    along = offered[which]
    parameters = SimtParameters(**sizes, transpose_a=along, asynchronous=False)
    of_threads = [sorted(one) for one in printed_by(_COPIES, parameters, "nn", tmp_path)]
    column = parameters.tile_m + 4
    for thread in of_threads:
        for at, place in thread:
            row, k = divmod(at, 256)
            assert place == k * column + (row ^ k % along // 8 * (32 // along))
    assert sum(map(len, of_threads)) == parameters.tile_m * parameters.tile_k
    warps = [of_threads[first : first + 32] for first in range(0, len(of_threads), 32)]
    for warp in warps:
        for copied in zip(*warp, strict=True):  # each thread's next element, in the order of copies
            assert len({place % 32 for _, place in copied}) == 32


def test_rows_of_all_banks_would_conflict():
    rows = [lane // 16 * 2 + lane % 2 for lane in range(32)]
    assert wavefronts([row * 36 for row in rows]) == 2
    assert wavefronts([row * 32 for row in rows]) == 4


def test_lanes_in_rows_of_eight_would_be_served_by_quarters():
    assert wavefronts([lane // 8 * 4 for lane in range(32)]) == 2
    assert wavefronts([lane % 8 * 4 for lane in range(32)]) == 4
