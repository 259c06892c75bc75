"""`vectorize_global_loads` where a thread's element is used in loops, and in rows of blocks."""

from __future__ import annotations

import numpy as np
import pytest
from move_checks import check, only, spec_of, whats

from pytest_gpuenergy.search import KernelSpec

MOVE = "vectorize_global_loads"
DISTANCES = """
__global__ void kernel(const float* __restrict__ a, const float* b, float* c, int m, int n, int k) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || col >= k) return;
  float sum = 0, largest[2] = {-1, -2};
  #pragma unroll 2
  for (int i = 0; i < n; ++i) {
    const float difference = a[row * n + i] - b[i * k + col];
    sum += difference * difference;
    if (difference > largest[0]) largest[0] = difference;
  }
  c[row * k + col] = sum + largest[0] + largest[1];
}
"""
SUMS = """
__global__ void kernel(const float* x, float* y, int width) {
  const size_t first = (size_t)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (int part = 0; part < 3; ++part) {
      sum += __ldg(&x[first * 3 + part * width + i]);
    }
    __stcs(&y[first + i], sum);
  }
}
"""


def distances(source: str = DISTANCES, sizes: tuple[int, ...] = (8, 3)) -> KernelSpec:
    return spec_of(
        source,
        ["a[M, N]", "b[N, K]", "> c[M, K]"],
        scalars=["m", "n", "k"],
        grid=("ceil_div(K, 8)", "ceil_div(M, 4)"),
        block=(8, 4),
        sizes=tuple({"M": 5, "N": 6, "K": 4 * size + (size % 2)} for size in sizes),
    )


def distances_of(v: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    by_pair = v["a"][:, :, None] - v["b"]
    return {"c": (by_pair**2).sum(axis=1) + np.maximum(by_pair.max(axis=1), -1) - 2}


def sums(source: str = SUMS) -> KernelSpec:
    return spec_of(
        source,
        ["x[ROWS, 3, WIDTH]", "> y[ROWS, WIDTH]"],
        scalars=["width"],
        grid=("ROWS",),
        sizes=({"ROWS": 3, "WIDTH": 200}, {"ROWS": 2, "WIDTH": 77}),
    )


def found(spec: KernelSpec) -> list[str]:
    return [what for what in whats(MOVE, spec) if "side by side" in what]


def lines(spec: KernelSpec, what: str) -> list[str]:
    return [line.strip() for line in only(MOVE, spec, what).source.splitlines()]


class TestText:
    def test_what_elements_share_is_loaded_once_and_what_they_do_not_as_a_vector(self):
        text = lines(distances(), "4 elements per thread side by side")
        assert "if (col_first + 4 <= k && (k) % 4 == 0) {" in text
        loop = text.index("for (int i = 0; i < n; ++i) {")
        assert text[loop - 1] == "#pragma unroll 2"
        assert text[loop + 1 : loop + 5] == [
            "alignas(16) float b_row[4];",
            "*reinterpret_cast<float4*>(b_row) = "
            "*reinterpret_cast<const float4*>(&b[i * k + col_first]);",
            "float difference_lanes[4];",
            "#pragma unroll",
        ]
        assert "difference_lanes[col_lane] = a[row * n + i] - b_row[col_lane];" in text

    def test_arrays_and_results_are_of_one_element_each(self):
        text = lines(distances(), "2 elements per thread side by side")
        assert "float largest_lanes[2][2] = {{-1, -2}, {-1, -2}};" in text
        assert (
            "*reinterpret_cast<float2*>(&c[row * k + col_first]) = "
            "*reinterpret_cast<float2*>(c_row);" in text
        )

    def test_loops_under_a_condition_are_done_for_one_element_after_the_other(self):
        loop = "for (int i = 1; i < n; ++i) { const float d = a[i]; sum += d; }"
        source = DISTANCES.replace("  c[row", f"  if (sum > 1) {loop}\n  c[row")
        text = lines(distances(source), "4 elements per thread side by side")
        found = next(line for line in text if line.startswith("if (sum_lanes[col_lane] > 1)"))
        assert found.endswith("{ const float d = a[i]; sum_lanes[col_lane] += d; }")

    def test_stores_to_a_tensor_that_has_others_stay_where_they_are(self):
        twice = "largest[1];\n  if (n > 5) c[row * k + col] = 0;\n"
        source = DISTANCES.replace("largest[1];\n", twice)
        text = lines(distances(source), "4 elements per thread side by side")
        assert not any("c_row" in line for line in text)

    def test_the_grid_has_fewer_blocks_in_a_row(self):
        state = only(MOVE, distances(), "4 elements per thread side by side")
        assert state.launch.grid == ("ceil_div(ceil_div(K, 8), 4)", "ceil_div(M, 4)")

    def test_other_conditions_of_a_kernel_stay_around_it(self):
        assert "if ((row < m)) {" in lines(distances(), "4 elements per thread side by side")

    def test_loops_that_a_block_shares_are_changed_likewise_and_hints_stay(self):
        text = lines(sums(), "by 4")
        assert (
            "*reinterpret_cast<float4*>(x_row) = __ldg(reinterpret_cast<const float4*>("
            "&x[first * 3 + part * width + i_first]));" in text
        )
        assert (
            "__stcs(reinterpret_cast<float4*>(&y[first + i_first]), "
            "*reinterpret_cast<float4*>(y_row));" in text
        )


@pytest.mark.slow
class TestResults:
    @pytest.mark.parametrize("width", [2, 4])
    def test_they_are_right_in_rows_of_blocks(self, width):
        spec = distances()
        state = only(MOVE, spec, f"{width} elements per thread side by side")
        check(state, spec, distances_of)

    @pytest.mark.parametrize("width", [2, 4])
    def test_they_are_right_in_shared_loops(self, width):
        spec = sums()
        check(only(MOVE, spec, f"by {width}"), spec, lambda v: {"y": v["x"].sum(axis=1)})


class TestLeftAlone:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("sum += difference * difference;", "if (sum > 3) break; sum += difference;"),
            ("sum += difference * difference;", "sum += __shfl_sync(~0u, difference, 0);"),
            ("sum += difference * difference;", "sum += difference; __syncthreads();"),
            ("sum += difference * difference;", "sum += difference; row = 0;"),
            ("sum += difference * difference;", "sum += difference; atomicAdd(&c[0], 1.0f);"),
            ("const float difference", "auto difference"),
            ("const float difference", "static float difference"),
            ("float sum = 0,", "float* sum = c; float"),
            ("{-1, -2}", "{(float)col, -2}"),
            ("for (int i = 0; i < n;", "for (int i = 0; i < n + col;"),
            ("b[i * k + col]", "b[i * k + 2 * col]"),
            ("b[i * k + col]", "b[i * k + col + 1]"),
            ("b[i * k + col]", "b[i * k + (col ^ 1)]"),
            ("b[i * k + col]", "(i > 2 ? b[i * k + col] : 0)"),
            ("row >= m || col >= k", "row >= m || col > k"),
            ("row >= m || col >= k", "atomicAdd(&c[0], 1.0f) > 3 || col >= k"),
            ("float sum = 0,", "float sum = blockIdx.x,"),
            ("  float sum = 0,", "  const int j = threadIdx.x;\n  float sum = j,"),
        ],
    )
    def test_kernels_in_which_it_could_be_wrong_or_of_no_use(self, old, new):
        assert old in DISTANCES
        assert found(distances(DISTANCES.replace(old, new))) == []

    def test_elements_that_are_not_aligned_when_measured(self):
        assert found(distances(sizes=(3, 8))) == []

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("float sum = 0.0f;", "if (i > 4) continue; float sum = 0.0f;"),
            ("i += blockDim.x", "i += 64 + part_of_block"),
            ("sum += __ldg", "sum += __reduce_add_sync(~0u, i) + __ldg"),
        ],
    )
    def test_shared_loops_in_which_elements_matter_to_others(self, old, new):
        assert old in SUMS
        assert whats(MOVE, sums(SUMS.replace(old, new))) == []

    def test_turns_of_one_thread_may_depend_on_each_other(self):
        source = SUMS.replace("int i = threadIdx.x", "int i = 0").replace("i += blockDim.x", "++i")
        assert not any("loop 1" in what for what in whats(MOVE, sums(source)))


def test_names_that_the_text_has_are_not_used_again():
    source = DISTANCES.replace("difference", "col_lane").replace("largest", "sum_lanes")
    text = only(MOVE, distances(source), "4 elements per thread side by side").source
    assert "col_lane2" in text
    assert "sum_lanes2[4]" in text
