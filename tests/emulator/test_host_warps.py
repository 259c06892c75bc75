"""How warps access memory, counted while the host runs a kernel, and how the model uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import DEFAULT_PROFILE as H200, Traffic, kernel_demand
from pytest_gpuenergy.kernels import Kernel, Launch

pytestmark = pytest.mark.slow

Count = Callable[..., Traffic]
ELEMENTS = 1 << 15


@pytest.fixture
def count(run: Callable[..., Any]) -> Count:
    """Make count(body, block, grid): the traffic of k(const float* x, float* y)."""

    def go(body: str, block: int = 32, grid: int = 1) -> Traffic:
        source = (
            "__global__ void k(const float* x, float* y) {\n"
            f"int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;\n{body}\n}}"
        )
        inputs, outputs = {"x": np.ones(ELEMENTS, np.float32)}, {"y": (ELEMENTS, "float32")}
        return run(source, inputs, outputs, block=block, grid=grid, checked=True)[0].traffic

    return go


@pytest.mark.parametrize(
    ("index", "sectors"),
    [("t", 4), ("31 - t", 4), ("t + 1", 5), ("2 * t", 8), ("8 * t", 32), ("100 * t", 32), ("7", 1)],
)
def test_the_sectors_of_a_load_are_counted(count, index, sectors):
    launch = count(f"y[t] = x[{index}];")
    assert (launch.global_loads, launch.global_stores) == (1, 1)
    assert launch.global_sectors == sectors + 4


@pytest.mark.parametrize(
    ("index", "wavefronts"), [("t", 1), ("0", 1), ("2 * t", 2), ("32 * t", 32), ("33 * t", 1)]
)
def test_bank_conflicts_are_counted(count, index, wavefronts):
    launch = count(
        "__shared__ float s[1056];\nfor (int k = t; k < 1056; k += 32) s[k] = 0;\n"
        f"__syncthreads();\ny[t] = s[{index}];"
    )
    assert launch.shared_accesses == 33 + 1
    assert launch.shared_wavefronts == 33 + wavefronts


def test_wide_loads_are_few(count):
    launch = count("((float4*)y)[t] = ((const float4*)x)[t];")
    assert (launch.global_loads, launch.global_stores, launch.global_sectors) == (1, 1, 32)


SHARED = "__shared__ alignas(16) float s[1024];\nfor (int k = t; k < 1024; k += 32) s[k] = 0;\n"
STORED = 32


@pytest.mark.parametrize(
    ("words", "accesses", "wavefronts"),
    [
        (("4 * t", "4 * t + 1", "4 * t + 2", "4 * t + 3"), 1, 4),
        (("4 * t + 3", "4 * t", "4 * t + 2", "4 * t + 1"), 1, 4),
        (("2 * t", "2 * t + 1"), 1, 2),
        (("0", "1", "2", "3"), 1, 4),
        (("4 * t", "4 * t + 1", "4 * t + 2"), 2, 8),  # of 8 bytes, and of 4
        (("4 * t + 1", "4 * t + 2"), 2, 8),
        (("5 * t", "5 * t + 1"), 2, 2),
    ],
)
def test_loads_of_neighbouring_words_are_joined(count, words, accesses, wavefronts):
    total = " + ".join(f"s[{word}]" for word in words)
    launch = count(f"{SHARED}__syncthreads();\ny[t] = {total};")
    assert launch.shared_accesses == STORED + accesses
    assert launch.shared_wavefronts == STORED + wavefronts


@pytest.mark.parametrize(
    ("body", "accesses"),
    [
        (
            "float sum = 0;\nfor (int k = 0; k < 16; ++k) sum += s[16 * (t / 8) + k];\ny[t] = sum;",
            4,
        ),
        ("float a = s[2 * t];\n__syncthreads();\ny[t] = a + s[2 * t + 1];", 2),
    ],
    ids=["turns of a loop", "a barrier between"],
)
def test_loads_are_joined_up_to_a_barrier(count, body, accesses):
    assert count(f"{SHARED}__syncthreads();\n{body}").shared_accesses == STORED + accesses


def test_stores_and_loads_of_tensors_are_as_wide_as_the_text(count):
    launch = count(
        "__shared__ alignas(16) float s[64];\ns[2 * t] = x[2 * t];\ns[2 * t + 1] = x[2 * t + 1];\n"
        "__syncthreads();\ny[t] = s[t];"
    )
    assert (launch.global_loads, launch.shared_accesses) == (2, 3)


def test_loads_in_branches_are_counted(count):
    launch = count(
        "float v = 0;\nfor (int k = 0; k < 4; ++k) {\n__syncthreads();\n"
        "if (t + k < 30) v += x[(threadIdx.x + k) / 3];\nv += x[64 + 32 * k + t];\n}\ny[t] = v;"
    )
    assert (launch.global_loads, launch.branched_loads) == (8, 4)


def test_every_warp_counts(count):
    launch = count("y[i] = x[i];", block=256, grid=64)
    assert (launch.global_loads, launch.global_sectors) == (8, 64)


def test_lanes_that_skip_a_load_do_not_shift_the_others(count):
    launch = count("float a = 0;\nif (t % 2) a = x[t];\ny[t] = a + x[64 + t];")
    assert launch.global_loads == 2
    assert launch.global_sectors == 12


@pytest.mark.parametrize(("barrier", "accesses"), [("", 2), ("__syncthreads();\n", 11)])
def test_a_word_stays_in_its_register_up_to_a_barrier(count, barrier, accesses):
    launch = count(
        "__shared__ float s[64];\ns[t] = x[t];\n__syncthreads();\n"
        f"for (int k = 0; k < 10; ++k) {{\n{barrier}y[32 * k + t] = s[t] + k;\n}}"
    )
    assert launch.shared_accesses == accesses


def test_what_a_block_reads_again_comes_from_its_l1(count):
    launch = count("for (int k = 0; k < 8; ++k) {\n__syncthreads();\ny[32 * k + t] = x[8 * t];\n}")
    assert launch.global_sectors == 8 * (32 + 4)
    assert launch.l2_sectors == 32 + 8 * 4


def test_a_long_loop_is_scaled_from_its_beginning(count):
    launch = count("for (int k = 0; k < 30000; k += 2) y[i] += x[(k + t) % 8192];")
    assert launch.global_loads == pytest.approx(15000, rel=0.05)
    read = launch.global_sectors - 4 * launch.global_stores
    assert read / launch.global_loads == pytest.approx(4.75, abs=0.5)


@pytest.mark.parametrize(
    ("cell", "before"), [("y", ""), ("s", "__shared__ float s[1];\ny[t] = 0;\n")]
)
def test_an_atomic_update_counts_as_a_store(count, cell, before):
    launch = count(f"{before}for (int k = 0; k < 5; ++k) atomicAdd(&{cell}[0], x[t]);")
    assert launch.global_loads == 1
    assert launch.global_stores + launch.shared_accesses == 5 + bool(before)


def test_intervals_that_load_are_counted(count):
    launch = count(
        "for (int k = 0; k < 6; ++k) {\nif (k % 3 == 0) y[t] = x[t + k];\n__syncthreads();\n}"
    )
    assert (launch.barriers, launch.load_intervals) == (6, 2)


def test_arrays_of_a_thread_are_counted(count):
    launch = count("float sum[5];\nfor (int k = 0; k < 5; ++k) sum[k] = x[k];\ny[t] = sum[t % 5];")
    assert launch.private_words == 5


def modelled_s(traffic: Traffic, flops: int, blocks: int, block: int) -> float:
    kernel = Kernel("k", (Launch("k", (blocks, 1, 1), (block, 1, 1), ()),))
    work = Work(flops, 8 * blocks * block)
    return kernel_demand(kernel, work, [traffic], H200).time_s


def test_an_uncoalesced_copy_is_slower(count):
    along, across = (
        count(f"y[i] = x[{index} % {ELEMENTS}];", block=256, grid=64)
        for index in ("i", "(i * 32 + i / 1024)")
    )
    times = [modelled_s(launch, 0, 640_000, 256) for launch in (along, across)]
    assert times[1] > 1.4 * times[0]


def test_a_copy_of_much_memory_comes_near_its_bandwidth(count):
    copy = count("y[i] = x[i];", block=256, grid=64)
    blocks = 4_000_000_000 // (8 * 256)
    assert 4e9 / modelled_s(copy, 0, blocks, 256) > 0.5 * H200.bandwidth_gb_s * 1e9


def test_a_matrix_product_gains_from_tiles(count):
    n = 128
    naive = count(
        f"""
        int row = i / {n}, column = i % {n};
        float sum = 0;
        for (int k = 0; k < {n}; ++k) sum += x[row * {n} + k] * x[k * {n} + column];
        y[i] = sum;""",
        block=256,
        grid=n * n // 256,
    )
    tiled = count(
        f"""
        __shared__ float a[32][32], b[32][32];
        int row = blockIdx.x / 4 * 32, column = blockIdx.x % 4 * 32, tx = t % 32, ty = t / 32;
        float sum[4] = {{}};
        for (int k0 = 0; k0 < {n}; k0 += 32) {{
          for (int r = ty; r < 32; r += 8) {{
            a[r][tx] = x[(row + r) * {n} + k0 + tx];
            b[r][tx] = x[(k0 + r) * {n} + column + tx];
          }}
          __syncthreads();
          for (int k = 0; k < 32; ++k)
            for (int r = 0; r < 4; ++r) sum[r] += a[ty + 8 * r][k] * b[k][tx];
          __syncthreads();
        }}
        for (int r = 0; r < 4; ++r) y[(row + ty + 8 * r) * {n} + column + tx] = sum[r];""",
        block=256,
        grid=n * n // 1024,
    )
    # As many blocks of each as a large matrix has: 256 elements of a naive block, 1024 of a tile.
    flops = 2 * n * 256 * 40_000
    assert modelled_s(tiled, flops, 10_000, 256) < 0.7 * modelled_s(naive, flops, 40_000, 256)


def reduction_s(count: Count, each: int, elements: int = 1 << 26) -> float:
    """Return the modelled time of a sum: ``each`` elements by a thread, then a tree in a block.

    Harris, "Optimizing Parallel Reduction in CUDA".
    """
    traffic = count(
        f"""
        __shared__ float s[256];
        float sum = 0;
        for (int k = 0; k < {each}; ++k)
          sum += x[(blockIdx.x * {each} + k) * 256 % {ELEMENTS} + t];
        s[t] = sum;
        for (int step = 128; step > 0; step /= 2) {{
          __syncthreads();
          if (t < step) s[t] += s[t + step];
        }}
        if (!t) y[blockIdx.x] = s[0];""",
        block=256,
        grid=64,
    )
    assert (traffic.barriers, traffic.load_intervals, traffic.global_loads) == (8, 1, 8 * each)
    blocks = elements // (256 * each)
    kernel = Kernel("k", (Launch("k", (blocks, 1, 1), (256, 1, 1), ()),))
    return kernel_demand(kernel, Work(elements, 4 * elements), [traffic], H200).time_s


def test_a_reduction_gains_from_what_a_thread_adds_before_it_meets_others(count):
    times = [reduction_s(count, each) for each in (1, 4, 16)]
    assert times[0] > 1.5 * times[1] > 1.5**2 * times[2]


def test_a_reduction_comes_near_the_bandwidth(count):
    assert 4 * (1 << 26) / reduction_s(count, 16) > 0.3 * H200.bandwidth_gb_s * 1e9


LOOP = """float s = 0;
for (int k = t; k < 16384; k += 32) s += LOAD(x + k);
__syncthreads();
y[i] = s;"""


@pytest.mark.parametrize("load", ["__ldcg", "__ldcv", "*(volatile const float*)"])
def test_loads_past_the_l1_count_as_others_do(count, load):
    plain = count(LOOP.replace("LOAD", "__ldg"), grid=40)
    assert plain.global_loads == 512
    assert count(LOOP.replace("LOAD", load), grid=40) == plain


def test_blocks_that_may_wait_for_others_count_when_they_have_ended(count):
    body = LOOP.replace("LOAD(x + k)", "x[k] + __ldcg(&y[16384])")
    one, many = (count(body, grid=grid) for grid in (1, 40))
    assert one.barriers == 1
    for name in ("global_read_bytes", "global_write_bytes", "barriers", "load_intervals"):
        assert getattr(many, name) == getattr(one, name), name
    assert many.global_loads == pytest.approx(one.global_loads, rel=0.02)


ROWS = 96
ROW_SUM = f"""if (i < {ROWS}) {{
  float s = 0;
  for (int k = 0; k < 300; ++k) s += x[i * 300 + k];
  y[i] = s;
}}"""
TREE = f"""__shared__ float s[1024];
float sum = 0;
if (t < {ROWS}) for (int k = 0; k < 100; ++k) sum += x[t * 100 + k];
s[t] = sum;
for (int step = 64; step > 0; step /= 2) {{
  __syncthreads();
  if (t < step && t + step < {ROWS}) s[t] += s[t + step];
}}
if (!t) y[0] = s[0];"""


@pytest.mark.parametrize("body", [ROW_SUM, TREE])
def test_idle_warps_take_no_time_and_hide_none(count, body):
    times = []
    for block in (96, 128, 256, 512, 1024):
        traffic = count(body, block=block)
        assert traffic.global_loads == pytest.approx(3 * (300 if body == ROW_SUM else 100), rel=0.1)
        times.append(modelled_s(traffic, 2 * ROWS * 300, 1, block))
    assert max(times) < 1.3 * min(times), times
