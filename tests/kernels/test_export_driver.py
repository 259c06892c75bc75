"""The exported driver's own arithmetic, with the CUDA runtime replaced by host memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from exported_programs import build_exported, run_program
from points import each_once, nightly

from pytest_gpuenergy.kernels import Kernel, Launch, RankedKernel, export_kernels
from pytest_gpuenergy.workloads import Conv2d, Gemm, Tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]
Run = Callable[..., subprocess.CompletedProcess[str]]

# Two images, stride 2, dilated rows, two groups and a window that is not square, gathered tap by
# tap: another loop order and another padding logic than the driver's own reference. Its names and
# macros are those of the driver.
CONVOLUTION = Conv2d.of("tiny", 2, 7, 9, 6, 4, 3, 2, 2, 2, 2, 2)
GATHER = """
  #define BFLOAT16 0
  #define COUNT nonsense
  #include <cstdlib>
  struct Tensor {};
  static void check(Tensor) {}
  namespace exported { inline void prepare(Tensor) {} }
  inline void launch(float* data, float* weight, float* output, float* pack) {
    check(Tensor()); exported::prepare(Tensor());
    const char fault = *std::getenv("FAULT");
    for (int i = 0; i < 2 * 6 * 4 * 6; ++i) {
      const int x = i % 6, y = i / 6 % 4, co = i / 24 % 6, n = i / 144;
      double sum = 0;
      for (int t = 0; t < 12; ++t) {
        const int ci = t / 6 + (co < 3 ? 0 : 2);
        const int row = 2 * y + t / 2 % 3 * 2 - 2, column = 2 * x + t % 2 * 2 - 2;
        if (row < 0 || row > 6 || column < 0 || column > 8) continue;
        sum += data[((n * 4 + ci) * 7 + row) * 9 + column] * weight[co * 12 + t];
      }
      if (fault == 'u' && i == 77) continue;
      output[i] = float(sum) + (fault == 'o' && i == 77 ? 1e-3f : 0) + (fault == 'w' ? *pack : 0);
    }
  }
"""


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The program of a convolution, whose kernel is a function of the host; run with a fault."""
    arguments = ("data", "weight", "output", "pack")
    kernel = Kernel(
        GATHER,
        (Launch("launch", (1, 1, 1), (1, 1, 1), arguments),),
        workspaces=(Tensor("pack", (1,), "float32", "workspace"),),
    )
    folder = tmp_path_factory.mktemp("convolution")
    program = build_exported(folder, CONVOLUTION, kernel)
    return lambda fault: run_program(program, "7", libraries=folder / "none", FAULT=fault)


def test_a_right_kernel_is_timed_and_exits_with_0(convolution):
    done = convolution("none")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[0] == "tiny kernel01 on host"
    assert ": correct" in done.stdout
    # 16 launches took 64 ms, so that a replay of 50 ms holds 12; 12 of them take 64 / 12 ms each.
    assert "time 5.333333 ms, 0.0 GFLOP/s (median of 11 replays of 12 launches)" in done.stdout


@pytest.mark.parametrize("fault", ["off", "unwritten", "workspace-of-zeros"])
def test_a_wrong_kernel_exits_with_1_and_has_no_time(convolution, fault):
    done = convolution(fault)
    assert done.returncode == 1
    assert "WRONG" in done.stdout
    assert "time" not in done.stdout


# The same convolution with the loops over rows and columns swapped, for other options.
GATHER_OF = """
  #include <cuda_fp16.h>
  inline void launch(TYPE* data, TYPE* weight, BIAS TYPE* output) {
    for (int i = 0; i < 2 * 6 * 4 * 6; ++i) {
      const int co = OUTPUT, y = ROW, x = COLUMN, n = i / 144;
      double sum = START;
      for (int kw = 0; kw < 2; ++kw) {
        for (int kh = 0; kh < 3; ++kh) {
          for (int c = 0; c < 2; ++c) {
            const int row = 2 * y + kh * 2 - 2, column = 2 * x + kw * 2 - 2;
            if (row < 0 || row > 6 || column < 0 || column > 8) continue;
            const int ci = c + (co < 3 ? 0 : 2);
            sum += double(float(data[DATA])) * double(float(weight[WEIGHT]));
          }
        }
      }
      output[i] = TYPE(float(END));
    }
  }
"""
LAYOUTS = {
    "nchw": {
        "OUTPUT": "i / 24 % 6",
        "ROW": "i / 6 % 4",
        "COLUMN": "i % 6",
        "DATA": "((n * 4 + ci) * 7 + row) * 9 + column",
        "WEIGHT": "((co * 2 + c) * 3 + kh) * 2 + kw",
    },
    "nhwc": {
        "OUTPUT": "i % 6",
        "ROW": "i / 36 % 4",
        "COLUMN": "i / 6 % 6",
        "DATA": "((n * 7 + row) * 9 + column) * 4 + ci",
        "WEIGHT": "((co * 3 + kh) * 2 + kw) * 2 + c",
    },
}


@pytest.mark.parametrize(
    ("layout", "mode", "bias", "relu"),
    [
        ("nhwc", "float16", True, True),
        pytest.param("nhwc", "3xtf32", False, False, marks=pytest.mark.thorough),
        ("nchw", "tf32", True, True),
    ],
)
def test_convolutions_in_other_modes_and_layouts_are_computed(tmp_path, layout, mode, bias, relu):
    c_type = "half" if mode == "float16" else "float"
    words = {
        **LAYOUTS[layout],
        "TYPE": c_type,
        "BIAS": f"{c_type}* bias," if bias else "",
        "START": "double(float(bias[co]))" if bias else "0",
        "END": "sum < 0 ? 0 : sum" if relu else "sum",
    }
    source = re.sub(
        "|".join(sorted(words, key=len, reverse=True)), lambda m: words[m[0]], GATHER_OF
    )
    source = re.sub("TYPE", c_type, source)
    workload = CONVOLUTION.varied(mode=mode, layout=layout, bias=bias, relu=relu).called("tiny")
    arguments = tuple(tensor.name for tensor in workload.tensors)
    kernel = Kernel(source, (Launch("launch", (1, 1, 1), (1, 1, 1), arguments),))
    program = build_exported(tmp_path, workload, kernel)
    done = run_program(program, "7", libraries=tmp_path / "none")
    assert done.returncode == 0, done.stdout
    assert ": correct" in done.stdout


# Element by element, with K in descending order: another order than the driver's own reference.
PRODUCT = """
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 70; ++j) {
      double sum = 0;
      for (int k = DEPTH - 1; k >= 0; --k) {
        sum += double(float(a[NEXT_A])) * double(float(b[NEXT_B]));
      }
      c[i * 73 + j] = TYPE(float(sum));
    }
  }
"""


# The first is larger than the parts in which the reference is computed.
@pytest.mark.parametrize(
    ("mode", "c_type", "depth", "layout", "next_a", "next_b"),
    each_once(
        [("float32", "float", 600), ("float16", "half", 12), ("bfloat16", "nv_bfloat16", 12)],
        [
            ("nn", "i * (DEPTH + 2) + k", "k * 702 + j"),
            ("nt", "k * 702 + i", "k * 702 + j"),
            ("tn", "i * (DEPTH + 2) + k", "j * 702 + k"),
            ("tt", "k * 702 + i", "j * 702 + k"),
        ],
    ),
)
def test_products_in_each_layout_and_mode_are_computed(
    tmp_path, layout, next_a, next_b, mode, c_type, depth
):
    body = PRODUCT.replace("NEXT_A", next_a).replace("NEXT_B", next_b)
    body = body.replace("DEPTH", str(depth)).replace("TYPE", c_type)
    include = "" if mode == "float32" else "#include <cuda_fp16.h>\n#define BFLOAT16 1\n"
    source = f"{include}inline void product({c_type}* a, {c_type}* b, {c_type}* c) {{{body}}}"
    launch = Launch("product", (1, 1, 1), (1, 1, 1), ("A", "B", "C"))
    lda = depth + 2 if layout[1] == "n" else 702
    gemm = Gemm("tiny", 3, 70, depth, layout, mode, lda=lda, ldb=702, ldc=73)
    program = build_exported(tmp_path, gemm, Kernel(source, (launch,)))
    done = run_program(program, "7", libraries=tmp_path / "none")
    assert done.returncode == 0, done.stdout
    assert ": correct" in done.stdout


# Three products, or three groups of two rows, none and one: C of one row after another.
PRODUCTS = """
  const int rows[] = {ROWS};
  int first = 0;
  for (int p = 0; p < 3; ++p) {
    for (int i = 0; i < rows[p]; ++i, ++first) {
      for (int j = 0; j < 5; ++j) {
        double sum = bias[p * 5 + j];
        for (int k = 0; k < 4; ++k) sum += double(a[NEXT_A]) * b[(p * 4 + k) * 6 + j];
        c[first * 7 + j] = float(sum < 0 ? 0 : sum) + residual[first * 7 + j];
      }
    }
  }
"""


@pytest.mark.parametrize(
    ("options", "rows", "layout", "next_a"),
    [
        ({"M": 2, "B": 3}, "2, 2, 2", "nn", "first * 8 + k"),
        ({"M": 2, "B": 3}, "2, 2, 2", "nt", "(p * 4 + k) * 8 + i"),
        ({"M": 3, "groups": "2,0,1"}, "2, 0, 1", "nn", "first * 8 + k"),
        ({"M": 3, "groups": "2,0,1"}, "2, 0, 1", "nt", "k * 8 + first"),
    ],
    ids=["batch", "batch-nt", "groups", "groups-nt"],
)
def test_batches_and_groups_are_computed(tmp_path, options, rows, layout, next_a):
    body = PRODUCTS.replace("ROWS", rows).replace("NEXT_A", next_a)
    names = ("A", "B", "bias", "residual", "C")
    arguments = ", ".join(f"float* {name if len(name) > 1 else name.lower()}" for name in names)
    launch = Launch("product", (1, 1, 1), (1, 1, 1), names)
    ends = {"bias": True, "activation": "relu", "residual": True, "lda": 8, "ldb": 6, "ldc": 7}
    gemm = Gemm("tiny", N=5, K=4, layout=layout, **options, **ends)
    kernel = Kernel(f"inline void product({arguments}) {{{body}}}", (launch,))
    done = run_program(build_exported(tmp_path, gemm, kernel), "7", libraries=tmp_path / "none")
    assert done.returncode == 0, done.stdout
    assert ": correct" in done.stdout


ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "bias-gelu-residual": (
        {"bias": True, "activation": "gelu", "residual": True},
        "0.5 * (x + bias[j]) * std::erfc(-0.70710678 * (x + bias[j])) + residual[i * 73 + j]",
    ),
    "gelu_tanh": (
        {"activation": "gelu_tanh"},
        "0.5 * x * (1 + std::tanh(0.79788456 * (x + 0.044715 * x * x * x)))",
    ),
    "silu-residual": (
        {"activation": "silu", "residual": True},
        "x / (1 + std::exp(-x)) + residual[i * 73 + j]",
    ),
    "bias-relu": ({"bias": True, "activation": "relu"}, "std::max(x + bias[j], 0.0)"),
}


@pytest.mark.parametrize("name", nightly(ENDS, ["silu-residual", "bias-relu"]))
def test_the_end_of_a_product_is_computed(tmp_path, name):
    end, text = ENDS[name]
    gemm = Gemm("tiny", 3, 70, 12, ldc=73, **end)
    arguments = tuple(tensor.name for tensor in gemm.tensors)
    body = f"""
      const bool has_end = *std::getenv("END") == 'y';
      for (int i = 0; i < 3; ++i) for (int j = 0; j < 70; ++j) {{
        double x = 0;
        for (int k = 0; k < 12; ++k) x += double(A[i * 12 + k]) * B[k * 70 + j];
        C[i * 73 + j] = has_end ? {text} : x;
      }}
    """
    headers = "".join(f"#include <{name}>\n" for name in ("algorithm", "cmath", "cstdlib"))
    parameters = ", ".join(f"float* {one}" for one in arguments)
    kernel = Kernel(
        f"{headers}inline void p({parameters}) {{{body}}}",
        (Launch("p", (1, 1, 1), (1, 1, 1), arguments),),
    )
    program = build_exported(tmp_path, gemm, kernel)
    done = run_program(program, "7", libraries=tmp_path / "none", END="yes")
    assert done.returncode == 0, done.stdout
    assert ": correct" in done.stdout
    done = run_program(program, "7", libraries=tmp_path / "none", END="no")
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def test_a_kernel_that_writes_between_rows_of_c_is_wrong(tmp_path):
    body = PRODUCT.replace("NEXT_A", "i * 4 + k").replace("NEXT_B", "k * 70 + j")
    body = body.replace("DEPTH", "4").replace("TYPE", "float") + "c[72] = 0;"
    source = f"inline void product(float* a, float* b, float* c) {{{body}}}"
    kernel = Kernel(source, (Launch("product", (1, 1, 1), (1, 1, 1), ("A", "B", "C")),))
    program = build_exported(tmp_path, Gemm("tiny", 3, 70, 4, ldc=73), kernel)
    done = run_program(program, "7", libraries=tmp_path / "none")
    assert done.returncode == 1
    assert "C: 1 elements are written that lie between its rows" in done.stdout


SHOW = """
    #include <cstdio>
    inline void show(float* a, float* c) {
      static bool shown = false;
      for (int i = 0; i < 300 && !shown; ++i) std::printf("a %g\\n", a[i]);
      shown = true;
    }
"""
INPUTS = re.compile(r"^constexpr Inputs INPUTS = (Inputs::[A-Z]+);$", re.MULTILINE)


def shown(distribution: str) -> tuple[Gemm, Kernel]:
    kernel = Kernel(SHOW, (Launch("show", (1, 1, 1), (1, 1, 1), ("A", "C")),))
    return Gemm("tiny", 3, 2, 100, distribution=distribution), kernel


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The program that shows what it draws; run with the name of a distribution of its header."""
    choice = 'static const Inputs INPUTS = Inputs(std::atoi(std::getenv("INPUTS")));'
    folder = tmp_path_factory.mktemp("draw")
    program = build_exported(
        folder, *shown("sparse:0.25"), header=lambda text: INPUTS.sub(choice, text)
    )
    names = re.search(r"enum class Inputs {(.*)}", (folder / "driver.cpp").read_text())
    assert names is not None
    numbers = {f"Inputs::{name.strip()}": str(k) for k, name in enumerate(names[1].split(","))}
    return lambda name: run_program(program, "7", libraries=folder / "none", INPUTS=numbers[name])


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
def test_inputs_are_drawn_from_the_distribution_of_the_product(
    draw, tmp_path, distribution, are_right
):
    export_kernels([RankedKernel(shown(distribution)[0], 1, shown(distribution)[1])], tmp_path)
    (named,) = INPUTS.findall((tmp_path / "kernels/tiny/kernel01.workload.cuh").read_text())
    lines = draw(named).stdout.splitlines()
    drawn = [float(line.split()[1]) for line in lines if line[:2] == "a "]
    assert len(drawn) == 300
    assert are_right(drawn)
