"""Kernels that are written in ways that hide what rules look for, or seem to show it."""

from __future__ import annotations

import pytest
from move_checks import check, results, spec_of, whats

from pytest_gpuenergy.search import MOVES, KernelSpec

VECTORS = ("x[N]", ">y[N]")
TAILS = ({"N": 1000}, {"N": 37})
IN_COMMENTS = """
__global__ void kernel /* the entry */ (const float* x /* in */, float* y, // out
                                        int n) {
  int i = /* block */ blockIdx.x * blockDim.x /* threads */ + threadIdx.x; // element
  if (i < n /* bound */) { // guard
    float v /* value */ = x[i /* } */]; /* kept */
    y[i] = /* ( */ v * 2.0f; // "}"
  }
}
"""
NESTED = """
__global__ void kernel(const float* x, float* y, int h, int w) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  int r = blockIdx.y;
  if (r < h) {
    if (c < w) { y[r * w + c] = x[r * w + c] * 2.0f; }
  }
}
"""
CHOSEN = """
__global__ void kernel(const float* x, float* y, int n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (unsigned)n) return;
  if (x[i] > 0.5f) y[i] = 1; else y[i] = x[i] < 0 || i > 5 ? -1 : 0;
}
"""
SUM = """
__global__ void kernel(const float* x, float* y, int n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (CONDITION) return;
  atomicAdd(&y[0], x[i]);
}
"""
REFERENCES = """
__device__ void set(float& to, const float& from) { to = from + 1.0f; }
__global__ void kernel(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { SET }
}
"""
BY_WARPS = """
__global__ void kernel(const float* x, float* y, int n) {
  __shared__ float part[64];
  float s = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = part[0] + LAST;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] / s;
}
"""


def spec(source: str) -> KernelSpec:
    return spec_of(source, VECTORS, scalars=("n",), grid=("ceil_div(N, 64)",), sizes=TAILS)


DENIED = CHOSEN.replace("(i >= (unsigned)n)", "(!(i < (unsigned)n))")


@pytest.mark.parametrize("source", [IN_COMMENTS, CHOSEN, DENIED])
def test_odd_elements_are_vectorized(source):
    expected = ["2 elements per thread", "4 elements per thread"]
    assert whats("vectorize_global_loads", spec(source)) == expected


def test_comments_between_statements_stay():
    given = spec(IN_COMMENTS)
    states = [one.state for move in MOVES for one in results(move, given)]
    assert states
    assert all("/* kept */" in one.source and '// "}"' in one.source for one in states)


@pytest.mark.slow
def test_guards_in_one_another_are_one():
    sizes = ({"H": 4, "W": 140}, {"H": 3, "W": 33})
    tensors, scalars = ("x[H, W]", ">y[H, W]"), ("h", "w")
    grid = ("ceil_div(W, 64)", "H")
    given = spec_of(NESTED, tensors, scalars=scalars, grid=grid, sizes=sizes)
    wide = [one.state for one in results("vectorize_global_loads", given)]
    assert len(wide) == 2
    check(wide[-1], given, lambda inputs: {"y": 2 * inputs["x"]})


def test_a_denied_condition_keeps_its_parentheses():
    source = SUM.replace("CONDITION", "!(i < 3 || i < (unsigned)n) || i >= 900")
    texts = [one.state.source for one in results("avoid_atomics_reduce", spec(source))]
    assert len(texts) == 2
    assert all("if ((i < 3 || i < (unsigned)n) && i < 900) {" in text for text in texts)


def test_what_a_guard_keeps_from_reading_is_not_read_before_it():
    source = NESTED.replace("if (r < h) {", "{").replace("(c < w)", "(c < w) if (x[r * w + 8] > 0)")
    grid, sizes = ("ceil_div(W, 64)", "H"), ({"H": 4, "W": 140},)
    given = spec_of(source, ("x[H, W]", ">y[H, W]"), scalars=("h", "w"), grid=grid, sizes=sizes)
    assert whats("vectorize_global_loads", given) == []


@pytest.mark.parametrize(
    "statement",
    [
        "float& out = y[i]; out = x[i] + 1.0f;",
        "float& out = (i > 3 ? y[i] : y[n - 1]); out = x[i] + 1.0f;",
        "set(y[i], x[i]);",
    ],
)
def test_an_output_with_another_name_is_no_load(statement):
    given = spec(REFERENCES.replace("SET", statement))
    assert not any("for y" in what for what in whats("cache_policy_cg", given))
    states = [one.state.source for move in MOVES for one in results(move, given)]
    assert not any("y_part" in source for source in states)


def test_a_constant_reference_is_a_load():
    given = spec(REFERENCES.replace("SET", "const float& v = x[i]; y[i] = v;"))
    assert "4 elements per thread" in whats("vectorize_global_loads", given)


@pytest.mark.parametrize(("last", "least"), [("part[1]", 64), ("part[0]", 32)])
def test_blocks_fill_the_places_that_are_read_by_number(last, least):
    given = spec_of(
        BY_WARPS.replace("LAST", last), VECTORS, scalars=("n",), block=(128,), sizes=TAILS
    )
    sizes = [int(what.partition("=")[2]) for what in whats("change_block_sizes", given)]
    assert min(sizes) == least
