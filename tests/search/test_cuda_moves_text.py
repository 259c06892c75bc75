"""How moves change CUDA text."""

from __future__ import annotations

import pytest
from move_checks import only, spec_of, whats
from moved_kernels import ADD, CASES, HALF_ADD, SOFTMAX, STENCIL, TILED_GEMM, gemm_of
from msgspec.structs import replace

from pytest_gpuenergy.search import State


def lines(state: State) -> list[str]:
    return [line.strip() for line in state.source.splitlines()]


def test_a_thread_takes_four_elements_and_the_grid_a_fourth_of_the_blocks():
    state = only("vectorize_global_loads", CASES["add"].spec, "4 elements")
    assert state.launch.grid == ("ceil_div(ceil_div(N, 64), 4)",)
    text = lines(state)
    assert text[2] == "int i_first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;  // the element"
    assert text[3] == "if (i_first + 4 <= n) {"
    assert (
        "*reinterpret_cast<float4*>(a_part) = *reinterpret_cast<const float4*>(&a[i_first]);"
        in (text)
    )
    assert "float s = a_part[i_lane] + b_part[i_lane];" in text
    assert "for (int i = i_first; i < n; ++i) {" in text
    assert "float s = a[i] + b[i];" in text  # the tail


def test_eight_halves_are_one_load_of_16_bytes():
    state = only("vectorize_global_loads", CASES["half add"].spec, "8 elements")
    assert "alignas(16) half a_part[8];" in lines(state)
    loaded = "*reinterpret_cast<uint4*>(a_part) = *reinterpret_cast<const uint4*>(&a[i_first]);"
    assert loaded in lines(state)


def test_only_aligned_neighbours_are_loaded_together():
    text = only("vectorize_global_loads", CASES["stencil"].spec, "2 elements").source
    assert text.count("reinterpret_cast<const float2*>") == 1
    assert "float left = i > 0 ? x[i - 1] : 0.0f;" in text
    assert "const int i = i_first + i_lane;" in text


def test_a_loop_whose_length_is_a_multiple_has_no_tail():
    text = only("vectorize_global_loads", CASES["softmax"].spec, "by 4").source
    assert "for (int c_first = tid * 4; c_first < cols; c_first += blockDim.x * 4) {" in text
    assert "else" not in text
    assert "m = fmaxf(m, x_part[c_lane]);" in text


def test_addresses_are_looked_at_where_other_sizes_are_not_aligned():
    text = only("vectorize_global_loads", CASES["uneven softmax"].spec, "by 4").source
    aligned = "reinterpret_cast<size_t>(&xr[c_first]) % 16 == 0"
    assert text.count(f"if (c_first + 4 <= cols && {aligned}) {{") == 2
    assert text.count("for (int c = c_first; c < c_first + 4 && c < cols; ++c) {") == 3


def test_what_is_updated_is_loaded_and_stored():
    source = ADD.replace("out[i] =", "out[i] +=").replace("b[i]", "out[i]")
    text = lines(only("vectorize_global_loads", replace(CASES["add"].spec, source=source), "2 el"))
    loaded = "*reinterpret_cast<float2*>(out_part) = *reinterpret_cast<float2*>(&out[i_first]);"
    stored = "*reinterpret_cast<float2*>(&out[i_first]) = *reinterpret_cast<float2*>(out_part);"
    assert text.index(loaded) < text.index("out_part[i_lane] += s * 2.0f;  // twice")
    assert text.index("out_part[i_lane] += s * 2.0f;  // twice") < text.index(stored)


def test_an_index_that_the_body_computes_is_computed_before_it():
    body = "    int at = row * k + i;\n      acc += a[at] * b[i * n + col];"
    source = CASES["naive gemm"].spec.source.replace(
        "acc += a[row * k + i] * b[i * n + col];", f"{{\n  {body}\n    }}"
    )
    spec = gemm_of(source, (17, 33, 20)).spec
    text = only("vectorize_global_loads", spec, "by 4").source
    assert "(&a[(row * k + i_first)]);" in text


def test_names_of_the_text_are_not_taken_again():
    source = ADD.replace("float s", "float a_part").replace("s *", "a_part *")
    spec = replace(CASES["add"].spec, source=source)
    text = only("vectorize_global_loads", spec, "2 elements").source
    assert "float a_part = a_part2[i_lane] + b_part[i_lane];" in text


def test_a_hint_is_put_around_every_load_of_a_tensor():
    text = only("cache_policy_cg", CASES["stencil"].spec, "__ldcg for x").source
    assert text.count("__ldcg(&x[") == STENCIL.count("x[") == 3


def test_hints_fit_vectors_pointers_and_other_hints():
    source = """
    __global__ void kernel(const float* x, float* y) {
      const float* at = x + 4 * threadIdx.x;
      float4 v = *reinterpret_cast<const float4*>(at);
      float4 w = ((const float4*)x)[threadIdx.x];
      y[threadIdx.x] = v.x + w.y + *at + __ldcs(at + 1) + at[2];
    }"""
    spec = spec_of(source, ("x[256]", ">y[64]"))
    text = only("cache_policy_cg", spec, "__ldg for x").source
    assert "float4 v = __ldg(reinterpret_cast<const float4*>(at));" in text
    assert "float4 w = __ldg(&((const float4*)x)[threadIdx.x]);" in text
    assert "v.x + w.y + __ldg(at) + __ldg(at + 1) + __ldg(&at[2]);" in text


def test_rows_get_longer_by_banks():
    spec = CASES["transpose"].spec
    assert "tile[32][32 + 1];" in only("pad_tail_and_mask", spec, "by 1").source
    halves = CASES["half gemm"].spec
    assert "Bs[TILE][TILE + 8];" in only("pad_tail_and_mask", halves, "Bs by 8").source


def test_conditions_that_always_hold_go():
    text = only("pad_tail_and_mask", CASES["whole tiles"].spec, "guards").source
    assert "    As[ty][tx] = a[row * k + t * TILE + tx];\n" in text
    assert "\n  c[row * n + col] = acc;\n}" in text


def test_a_return_that_never_comes_goes():
    spec = replace(CASES["half add"].spec, sizes=({"N": 128}, {"N": 640}))
    text = only("pad_tail_and_mask", spec, "guards").source
    assert text == HALF_ADD.replace("if (i >= n) return;", "")


def test_loops_tell_what_their_variable_reaches():
    source = TILED_GEMM.replace("t = 0; t < (k + TILE - 1) / TILE; ++t", "t = 0; t < k; t += TILE")
    spec = gemm_of(source.replace("t * TILE", "t"), (48, 32, 16), (16, 48, 64)).spec
    text = only("pad_tail_and_mask", spec, "guards").source
    assert "As[ty][tx] = a[row * k + t + tx];" in text


def test_a_sum_is_kept_by_the_thread_until_the_end():
    text = lines(only("avoid_atomics_reduce", CASES["squares"].spec, "block"))
    assert text[2] == "float total_partial = 0;"
    assert "total_partial += x[i] * x[i];" in text
    assert "__shared__ float total_partials[32];" in text
    assert text.count("atomicAdd(&total[0], total_partial);") == 1


def test_a_block_of_two_dimensions_counts_its_threads():
    source = CASES["squares"].spec.source.replace("blockIdx.x", "threadIdx.y + blockIdx.x")
    spec = replace(CASES["squares"].spec, source=source)
    spec = replace(spec, launch=replace(spec.launch, block=(32, 2)))
    text = only("avoid_atomics_reduce", spec, "warp").source
    thread = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
    assert f"if ({thread} % 32 == 0) atomicAdd(&total[0], total_partial);" in text


def test_a_histogram_is_counted_in_shared_memory():
    text = only("avoid_atomics_reduce", CASES["histogram"].spec, "copy").source
    assert "__shared__ int counts_of_block[32];" in text
    assert "    atomicAdd(&counts_of_block[bin], 1);\n  }\n  __syncthreads();" in text


def test_blocks_are_renumbered_before_anything_else():
    text = only("grouped_gemm_colmajor", CASES["tiled gemm"].spec, "4 rows").source
    head, _, rest = text.partition("const unsigned block_x =")
    assert "blockIdx.y * gridDim.x + blockIdx.x" in head
    assert "int row = block_y * TILE + ty;" in rest
    assert "blockIdx" not in rest


def test_a_maximum_and_its_sum_are_found_in_one_loop():
    text = only("softmax_math_fusion", CASES["softmax"].spec, "online").source
    assert text.count("for (int c = tid;") == SOFTMAX.count("for (int c = tid;") - 1
    assert "sum_online *= expf(m_online - element);" in text
    assert "  sum = sum_online * expf(m_online - m);\n" in text


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("fast functions", "yr[c] = __expf(xr[c] - m) / sum;  // normalized"),
        ("base 2", "yr[c] = exp2f((xr[c] - m) * 1.44269504f) / sum;  // normalized"),
        ("fast divisions", "yr[c] = __fdividef(expf(xr[c] - m), sum);  // normalized"),
        ("reciprocals", "yr[c] = expf(xr[c] - m) * sum_reciprocal;  // normalized"),
        ("reciprocals", "const float sum_reciprocal = 1.0f / sum;"),
    ],
)
def test_arithmetic_gets_cheaper(what, text):
    assert text in lines(only("softmax_math_fusion", CASES["softmax"].spec, what))


def test_a_reciprocal_stands_before_the_pragma_of_its_loop():
    looped = SOFTMAX.replace(
        "  for (int c = tid; c < cols; c += blockDim.x) {\n    yr",
        "  #pragma unroll\n  for (int c = tid; c < cols; c += blockDim.x) {\n    yr",
    )
    spec = replace(CASES["softmax"].spec, source=looped)
    text = lines(only("softmax_math_fusion", spec, "reciprocals"))
    at = text.index("const float sum_reciprocal = 1.0f / sum;")
    assert text[at + 1] == "#pragma unroll"


def test_functions_for_both_precisions_are_replaced_for_single_precision():
    source = SOFTMAX.replace("expf(", "exp(")
    spec = replace(CASES["softmax"].spec, source=source)
    assert "yr[c] = __expf(xr[c] - m)" in only("softmax_math_fusion", spec, "fast func").source


def test_tiles_are_copied_ahead():
    text = only("enable_async_pipeline", CASES["tiled gemm"].spec, "2 stages").source
    assert text.startswith("#include <cuda_pipeline.h>\n")
    assert "__shared__ float As[2][TILE][TILE];" in text
    assert "__pipeline_memcpy_async(&As[(stage + 1) % 2][ty][tx], &a[row * k + t * TILE" in text
    assert "else As[(stage + 1) % 2][ty][tx] = 0.0f;" in text
    assert "acc += As[stage][ty][i] * Bs[stage][i][tx];" in text


def test_vectors_are_copied_as_16_bytes():
    source = """
    __global__ void kernel(const float* __restrict__ x, float* y, int n) {
      __shared__ float tile[256];
      float sum = 0;
      #pragma unroll 1
      for (int first = 0; first < n; first += 256) {
        *reinterpret_cast<float4*>(&tile[4 * threadIdx.x]) =
            *reinterpret_cast<const float4*>(&x[first + 4 * threadIdx.x]);
        __syncthreads();
        for (int i = 0; i < 4; ++i) sum += tile[64 * i + threadIdx.x];
        __syncthreads();
      }
      y[threadIdx.x] = sum;
    }"""
    spec = spec_of(source, ("x[N]", ">y[64]"), scalars=("n",), sizes=({"N": 1024},))
    text = only("enable_async_pipeline", spec, "3 stages").source
    assert (
        "__pipeline_memcpy_async(reinterpret_cast<float4*>(&tile[ahead][4 * threadIdx.x]), "
        "reinterpret_cast<const float4*>(&x[first + 4 * threadIdx.x]), 16);"
    ) in text
    assert "const int first = 0 + ahead * 256;" in text
    assert "const int first_later = first + 256 * 2;" in text
    assert text.index("int stage = 0;") < text.index("#pragma unroll 1")


def test_a_product_of_tiles_is_made_by_tensor_cores():
    text = only("switch_to_mma_or_wgmma", CASES["half gemm"].spec, "wmma").source
    assert "nvcuda::wmma::load_matrix_sync(As_tile, &As[warp / (blockDim.x / 16) * 16][step]" in (
        text
    )
    assert "__shared__ alignas(32) half As[TILE][TILE];" in text
    assert "  acc = acc_block[threadIdx.y][threadIdx.x];\n  if (row < m && col < n)" in text


def test_constants_of_the_launch_are_known():
    source = TILED_GEMM.replace("#define TILE 16\n", "")
    spec = gemm_of(source, (48, 32, 16), constants={"TILE": 16}).spec
    assert "As[TILE][TILE + 4]" in only("pad_tail_and_mask", spec, "rows of As by 4").source


def test_a_macro_that_the_launch_contradicts_is_not_known():
    spec = gemm_of(TILED_GEMM, (48, 32, 16), constants={"TILE": 8}).spec
    assert whats("pad_tail_and_mask", spec) == []
