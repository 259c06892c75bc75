"""Elements beside each other that a thread names one by one are moved together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from move_checks import check, only, spec_of, whats

from pytest_gpuenergy.search import KernelSpec

VECTORS = "vectorize_global_loads"
PAIRS = """
__global__ void kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) {
    float b = x[2 * i + 1], a = x[i * 2];
    y[2 * i] = a + b;  // the sum
    y[2 * i + 1] = a - b;
  }
}
"""
FOURS = """
__global__ void kernel(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x)
    y[i] = __ldg(&x[4 * i]) + __ldg(x + 4 * i + 1) * __ldg(&x[4 * i + 2]) - __ldg(&x[i * 4 + 3]);
}
"""
HALVES = """
#include <cuda_fp16.h>
__global__ void kernel(const half* x, half* y, int n) {
  x += 2 * blockIdx.x * blockDim.x;
  const int i = threadIdx.x, e = blockIdx.x * blockDim.x + i;
  if (e < n / 2) y[e] = __hadd(x[2 * i], x[2 * i + 1]);
}
"""


def spec(source: str, *sizes: int, each: str = "N", **named: Any) -> KernelSpec:
    return spec_of(
        source,
        ("x[N]", f">y[{each}]"),
        scalars=("n",),
        grid=("ceil_div(N, 128)",),
        sizes=[{"N": size} for size in sizes or (1000, 36)],
        **named,
    )


def pairs(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    even, odd = inputs["x"][::2], inputs["x"][1::2]
    return {"y": np.stack([even + odd, even - odd], 1).reshape(-1)}


def fours(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    a, b, c, d = inputs["x"].reshape(-1, 4).T
    return {"y": a + b * c - d}


def found(source: str, *sizes: int, **named: Any) -> list[str]:
    every = whats(VECTORS, spec(source, *sizes, **named))
    return [what for what in every if what.startswith("neighbours")]


@pytest.mark.slow
def test_pairs_are_loaded_and_stored_together():
    given = spec(PAIRS, 1000, 38)
    state = only(VECTORS, given, "neighbours of x, y by 2")
    assert state.source.count("<const float2*>(&x[i * 2])") == 1
    assert state.source.count("<float2*>(&y[2 * i])") == 1
    check(state, given, pairs)


@pytest.mark.slow
def test_four_are_loaded_together_with_their_hint():
    given = spec(FOURS, each="N // 4")
    state = only(VECTORS, given, "neighbours of x by 4")
    assert "__ldg(reinterpret_cast<const float4*>(&x[4 * i]))" in state.source
    check(state, given, fours)


@pytest.mark.slow
def test_halves_of_a_moved_pointer_are_loaded_together():
    halves = {"x": "float16", "y": "float16"}
    given = spec(HALVES, each="N // 2", dtypes=halves)
    state = only(VECTORS, given, "neighbours of x by 2")
    assert "<const unsigned*>" in state.source
    check(state, given, lambda one: {"y": one["x"].reshape(-1, 2).sum(1)}, bound=None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i * 2]", "(2 * i + 2 < n ? x[2 * i + 2] : 0)"),
        ("x[2 * i + 1]", "x[2 * i + 2]"),
        ("x[2 * i + 1]", "x[i + 1]"),
        ("float b = x[2 * i + 1], a", "float b = 0; if (2 * i + 1 < n) b = x[2 * i + 1]; float a"),
        ("float b = x[2 * i + 1], a", "float b = i > 0 && x[2 * i + 1] > 0, a"),
        (
            "float b = x[2 * i + 1], a",
            "float b = x[2 * i + 1]; if (b > 0) return; float a",
        ),
        (
            "float b = x[2 * i + 1], a = x[i * 2]",
            "int k = 2 * i; float b = x[k + 1]; k = 0; float a = x[k]",
        ),
        (
            "float b = x[2 * i + 1], a = x[i * 2]",
            "float b = x[2 * i + 1]; int e = 0; float a = x[e]",
        ),
        ("2 * i + 1]", "2 * (i + (int)x[0]) + 1]"),
    ],
)
def test_elements_that_are_not_surely_both_loaded_stay(old, new):
    source = PAIRS.replace(old, new)
    assert source != PAIRS
    assert not any("of x" in what for what in found(source))


def test_elements_that_may_not_be_aligned_stay():
    rows = PAIRS.replace("x[2 * i + 1]", "x[n + 2 * i + 1]").replace("x[i * 2]", "x[n + i * 2]")
    assert found(rows, 1000, 38) == ["neighbours of x, y by 2"]
    assert found(rows, 1000, 37) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[2 * i + 1] =", "y[2 * i + 1] +="),
        ("y[2 * i] = a + b;", "y[2 * i] = a + b; __syncthreads();"),
        ("y[2 * i] = a + b;", "y[2 * i] = y[2 * i + 1] = a + b;"),
        ("y[2 * i + 1] =", "if (a > 0) y[2 * i + 1] ="),
        ("y[2 * i] = a + b;", "y[2 * i] = a + b; y[0] = 1;"),
    ],
)
def test_other_stores_stay_as_they_are(old, new):
    source = PAIRS.replace(old, new)
    assert source != PAIRS
    assert set(found(source)) <= {"neighbours of x by 2"}
