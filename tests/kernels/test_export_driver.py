"""The exported driver's own arithmetic, with the CUDA runtime replaced by host memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from exported_programs import run_exported
from points import each_once

from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.workloads import Conv2d, Gemm, Tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]

# A convolution of stride 2 with a window that is not square, gathered tap by tap: another loop
# order and another padding logic than the driver's own reference.
SIZES = (2, 7, 9, 3, 2, 3, 2, 2, 1)
GATHER = """
  for (int i = 0; i < 2 * 3 * 4 * 5; ++i) {
    const int x = i % 5, y = i / 5 % 4, co = i / 20 % 3, n = i / 60;
    double sum = 0;
    for (int t = 0; t < 12; ++t) {
      const int ci = t / 6, row = 2 * y + t / 2 % 3 - 1, column = 2 * x + t % 2 - 1;
      if (row < 0 || row > 6 || column < 0 || column > 8) continue;
      sum += data[((n * 2 + ci) * 7 + row) * 9 + column] * weight[co * 12 + t];
    }
    BODY
  }
"""
# Dilated by 2, in two groups of two input and three output channels.
DILATED_SIZES = (1, 7, 9, 6, 4, 3, 2, 1, 2, 2, 2)
DILATED = """
  for (int i = 0; i < 6 * 7 * 11; ++i) {
    const int x = i % 11, y = i / 11 % 7, co = i / 77;
    double sum = 0;
    for (int t = 0; t < 12; ++t) {
      const int ci = t / 6 + (co < 3 ? 0 : 2);
      const int row = y + t / 2 % 3 * 2 - 2, column = x + t % 2 * 2 - 2;
      if (row < 0 || row > 6 || column < 0 || column > 8) continue;
      sum += data[(ci * 7 + row) * 9 + column] * weight[co * 12 + t];
    }
    BODY
  }
"""
LAUNCH = Launch("gather", (1, 1, 1), (1, 1, 1), ("data", "weight", "output"))
FUNCTION = "inline void gather(float* data, float* weight, float* output) {%s}"


def run_driver(
    folder: Path, body: str, sizes: Sequence[int] = SIZES, gather: str = GATHER
) -> subprocess.CompletedProcess[str]:
    """The driver with a kernel that is a function of the host, called instead of launched."""
    source = FUNCTION % gather.replace("BODY", body)
    return run_exported(folder, Conv2d.of("tiny", *sizes), Kernel(source, (LAUNCH,)))


def test_a_right_kernel_is_timed_and_exits_with_0(tmp_path):
    done = run_driver(tmp_path, "output[i] = float(sum);")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "tiny kernel01 on host"
    assert ": correct" in done.stdout
    # 16 launches took 64 ms, so that a replay of 50 ms holds 12; 12 of them take 64 / 12 ms each.
    assert "time 5.333333 ms, 0.0 GFLOP/s (median of 11 replays of 12 launches)" in done.stdout


def test_dilation_and_groups_are_computed(tmp_path):
    done = run_driver(tmp_path, "output[i] = float(sum);", DILATED_SIZES, DILATED)
    assert done.returncode == 0
    assert ": correct" in done.stdout


@pytest.mark.parametrize(
    "body",
    ["output[i] = float(sum) + (i == 77 ? 1e-3f : 0);", "if (i != 77) output[i] = float(sum);"],
    ids=["off", "unwritten"],
)
def test_a_wrong_kernel_exits_with_1_and_has_no_time(tmp_path, body):
    done = run_driver(tmp_path, body)
    assert done.returncode == 1
    assert "WRONG" in done.stdout
    assert "time" not in done.stdout


# Element by element, with K in descending order: another order than the driver's own reference.
PRODUCT = """
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 7; ++j) {
      double sum = 0;
      for (int k = 11; k >= 0; --k) {
        sum += double(float(a[NEXT_A])) * double(float(b[k * 9 + j]));
      }
      c[i * 7 + j] = TYPE(float(sum));
    }
  }
"""


@pytest.mark.parametrize(
    ("mode", "c_type", "layout", "next_a"),
    each_once(
        [("float32", "float"), ("float16", "half"), ("bfloat16", "nv_bfloat16")],
        [("nn", "i * 14 + k"), ("nt", "k * 14 + i")],
    ),
)
def test_products_in_each_layout_and_mode_are_computed(tmp_path, layout, next_a, mode, c_type):
    body = PRODUCT.replace("NEXT_A", next_a).replace("TYPE", c_type)
    include = "" if mode == "float32" else "#include <cuda_fp16.h>\n#define BFLOAT16 1\n"
    source = f"{include}inline void product({c_type}* a, {c_type}* b, {c_type}* c) {{{body}}}"
    launch = Launch("product", (1, 1, 1), (1, 1, 1), ("A", "B", "C"))
    gemm = Gemm("tiny", 5, 7, 12, layout, mode, lda=14, ldb=9)
    done = run_exported(tmp_path, gemm, Kernel(source, (launch,)))
    assert done.returncode == 0, done.stdout
    assert ": correct" in done.stdout


@pytest.mark.parametrize(
    ("layout", "next_a"),
    [("nn", "i * 600 + k"), pytest.param("nt", "k * 3 + i", marks=pytest.mark.thorough)],
)
def test_a_product_larger_than_a_part_of_the_reference_is_computed(tmp_path, layout, next_a):
    source = """
        inline void product(float* a, float* b, float* c) {
          for (int i = 0; i < 3; ++i) {
            for (int j = 0; j < 70; ++j) {
              double sum = 0;
              for (int k = 0; k < 600; ++k) sum += double(a[NEXT_A]) * b[k * 70 + j];
              c[i * 70 + j] = float(sum);
            }
          }
        }
    """
    launch = Launch("product", (1, 1, 1), (1, 1, 1), ("A", "B", "C"))
    kernel = Kernel(source.replace("NEXT_A", next_a), (launch,))
    done = run_exported(tmp_path, Gemm("tiny", 3, 70, 600, layout), kernel)
    assert done.returncode == 0, done.stdout
    assert ": correct" in done.stdout


def test_a_kernel_that_needs_a_workspace_of_zeros_is_wrong(tmp_path):
    body = "output[i] = float(sum) + pack[0];"
    source = "inline void gather(float* data, float* weight, float* output, float* pack) {%s}"
    launch = Launch("gather", (1, 1, 1), (1, 1, 1), ("data", "weight", "output", "pack"))
    kernel = Kernel(
        source % GATHER.replace("BODY", body),
        (launch,),
        workspaces=(Tensor("pack", (1,), "float32", "workspace"),),
    )
    done = run_exported(tmp_path, Conv2d.of("tiny", *SIZES), kernel)
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def test_names_and_macros_of_a_kernel_do_not_meet_those_of_the_driver(tmp_path):
    source = """
        #define BFLOAT16 0
        #define COUNT nonsense
        struct Tensor {};
        static void check(Tensor) {}
        namespace exported { inline void prepare(Tensor) {} }
        inline void launch(float* data, float* weight, float* output) {
          check(Tensor()); exported::prepare(Tensor()); GATHER }
    """
    gather = GATHER.replace("BODY", "output[i] = float(sum);")
    launch = Launch("launch", (1, 1, 1), (1, 1, 1), ("data", "weight", "output"))
    kernel = Kernel(source.replace("GATHER", gather), (launch,))
    done = run_exported(tmp_path, Conv2d.of("tiny", *SIZES), kernel)
    assert done.returncode == 0, done.stderr
    assert ": correct" in done.stdout


@pytest.mark.parametrize(
    ("distribution", "are_right"),
    [
        ("normal", lambda values: 2 < max(values) < 6 and min(values) < -2),
        ("uniform", lambda values: -1 <= min(values) < -0.9 and 0.9 < max(values) <= 1),
        ("integers", lambda values: set(values) == set(range(-4, 5))),
        ("ones", lambda values: set(values) == {1}),
        ("zeros", lambda values: set(values) == {0}),
        ("sorted", lambda values: values == sorted(values) and len(set(values)) > 90),
        ("sparse:0.25", lambda values: 150 < sum(value != 0 for value in values) < 270),
    ],
)
def test_inputs_are_drawn_from_the_distribution_of_the_product(tmp_path, distribution, are_right):
    source = """
        #include <cstdio>
        inline void show(float* a, float* c) {
          static bool shown = false;
          for (int i = 0; i < 300 && !shown; ++i) std::printf("a %g\\n", a[i]);
          shown = true;
        }
    """
    kernel = Kernel(source, (Launch("show", (1, 1, 1), (1, 1, 1), ("A", "C")),))
    done = run_exported(tmp_path, Gemm("tiny", 3, 2, 100, distribution=distribution), kernel)
    drawn = [float(line.split()[1]) for line in done.stdout.splitlines() if line[:2] == "a "]
    assert len(drawn) == 300
    assert are_right(drawn)
