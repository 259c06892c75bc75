"""Loops that count in other ways than ``for (int i = ...; ...)`` are understood, too."""

from __future__ import annotations

import pytest
from move_checks import check, only, results, spec_of

from pytest_gpuenergy.search import MOVES, KernelSpec

PLAIN = """
__global__ void kernel(const float* a, const float* b, float* out, int n) {
  const int stride = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    out[i] = a[i] * b[i];
  }
}
"""
WHILE = """
__global__ void kernel(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int stride = gridDim.x * blockDim.x;
  while (i < n) {  // all
    out[i] = a[i] * b[i];
    i += stride;
  }
}
"""
OPEN = """
__global__ void kernel(const float* a, const float* b, float* out, int n) {
  const int stride = gridDim.x * blockDim.x;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < n; i = stride + i)
    out[i] = a[i] * b[i];
}
"""
DECLARED = """
__global__ void kernel(const float* a, const float* b, float* out, int n) {
  int i;
  const int stride = gridDim.x * blockDim.x;
  for (i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) out[i] = a[i] * b[i];
}
"""


def spec(source: str) -> KernelSpec:
    tensors = ("a[N]", "b[N]", ">out[N]")
    return spec_of(source, tensors, scalars=("n",), grid=(3,), sizes=({"N": 1000}, {"N": 37}))


def rewritten(source: str) -> str:
    """The text that moves start from, as the one that only declares tensors apart leaves it."""
    state = only("cache_policy_cg", spec(source), "__restrict__ for all tensors")
    return state.source.replace("__restrict__ ", "")


def described(source: str) -> set[tuple[str, str]]:
    found = (one for move in MOVES for one in results(move, spec(source)))
    return {(one.move, one.what.partition(" at line")[0]) for one in found}


@pytest.mark.parametrize("source", [WHILE, OPEN, DECLARED])
def test_what_applies_is_the_same_as_with_the_usual_loop(source):
    assert described(source) == described(PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("source", [WHILE, OPEN, DECLARED])
def test_a_rewritten_loop_is_right(source):
    given = spec(source)
    state = only("vectorize_global_loads", given, "by 4")
    assert "float4" in state.source
    check(state, given, lambda inputs: {"out": inputs["a"] * inputs["b"]})


def test_only_the_loop_and_its_variables_first_value_change():
    text = rewritten(WHILE)
    assert "int i_start = blockIdx.x" in text
    assert "for (int i = i_start; i < n; i += stride) {  // all\n    out[i]" in text
    assert "out[i] = a[i] * b[i];\n  }" in text


def test_a_first_value_may_be_used_before():
    source = WHILE.replace("while", "const float* p = a + i;\n  while").replace("a[i]", "*p")
    assert "const float* p = a + i_start;" in rewritten(source)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i += stride;", "if (a[i] > 0) continue;\n    i += stride;"),
        ("i += stride;", "i += stride;\n    out[0] = 1;"),
        ("i += stride;", "i -= stride;"),
        ("i += stride;", "i *= 2;"),
        ("i += stride;", "i = i + i;"),
        ("i += stride;", "int by = n / 4;\n    i += by;"),
        ("i += stride;", "i += stride;\n  }\n  if (i > n) {\n    out[0] = i;"),
        ("out[i] =", "i++;\n    out[i] ="),
        ("while", "for (int twice = 0; twice < 2; ++twice) while"),
        ("while", "int* p = &i;\n  while"),
        ("while (i < n)", "while (i != n)"),
        ("int i =", "short i ="),
        ("int i =", "static int i ="),
    ],
)
def test_other_loops_are_left_as_they_are(old, new):
    source = WHILE.replace(old, new)
    assert source != WHILE
    assert rewritten(source) == source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out[i] = a[i] * b[i];", "{}\n  out[0] = i;"),
        ("(i = ", "(i = i + "),
        ("out[i] = a[i]", "for (i = 0; i < 2; ++i) out[i] = a[i]"),
    ],
)
def test_variables_that_others_ask_for_stay_outside(old, new):
    source = DECLARED.replace(old, new)
    assert source != DECLARED
    assert rewritten(source) == source


def test_a_variable_of_several_loops_is_one_of_each():
    second = "  for (i = threadIdx.x; i < 3; i++) out[i] += 1;\n}"
    source = DECLARED.rstrip().removesuffix("}") + second
    assert rewritten(source).count("(int i = ") == 2
