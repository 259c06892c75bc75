"""CUDA texts that moves leave alone, because they cannot know that the result is the same."""

from __future__ import annotations

from typing import Any

import pytest
from move_checks import only, results, spec_of, whats
from moved_kernels import (
    ADD,
    CASES,
    SOFTMAX,
    TILED_GEMM,
    gemm_of,
)
from msgspec.structs import replace

from pytest_gpuenergy.search import MOVES, KernelSpec

ON_TEXT = [move.name for move in MOVES if move.name != "change_block_sizes"]


def changed(case: str, old: str, new: str, **fields: Any) -> KernelSpec:
    """The spec of a case whose text has ``new`` in place of ``old``."""
    spec = CASES[case].spec
    assert old in spec.source
    return replace(spec, source=spec.source.replace(old, new), **fields)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a[i]", "a[i + 1]"),
        ("a[i]", "a[2 * i]"),
        ("a[i]", "a[n - i]"),
        ("float s", "if (b[i] > 0) return; float s"),
        ("float s", "a += 1; float s"),
        ("i < n", "i <= n"),
        ("(i < n)", "(threadIdx.x < 9)"),
        ("i < n", "i < n && threadIdx.x < 9"),
    ],
)
def test_both_tensors_of_an_element_kernel_must_be_read_in_order(old, new):
    only_a = CASES["add"].spec.source.replace("b[i]", "b[i * i]")
    spec = replace(CASES["add"].spec, source=only_a.replace(old, new).replace("b[i * i]", "1.0f"))
    assert whats("vectorize_global_loads", spec) == []


SUM_OF_PRODUCTS = "acc += a[row * k + i] * b[i * n + col];"
ADDED = "atomicAdd(total, x[i] * x[i]);"
MEET = "__device__ float meet(float x) { __syncthreads(); return x; }\n"
LEFT_ALONE = {
    ("vectorize_global_loads", "add"): [  # threads have other work, or wait for each other
        ("  if (i < n)", "  atomicAdd(out, 1.0f);\n  if (i < n)"),
        ("float s =", "float s = __shfl_down_sync(~0u, a[i], 1) +"),
        (ADD, MEET + ADD.replace("a[i] +", "meet(a[i]) +")),
    ],
    ("vectorize_global_loads", "softmax"): [("c += blockDim.x", "c += 2 * blockDim.x")],
    ("vectorize_global_loads", "grid stride"): [  # not all threads share the loop
        ("i < n;", "i < n - (int)threadIdx.x;"),
        ("  for", "  if (threadIdx.x > 3) for"),
    ],
    ("vectorize_global_loads", "layernorm"): [("threadIdx.x / 32;", "threadIdx.x % 2;")],
    ("vectorize_global_loads", "naive gemm"): [  # not surely loaded in order
        (SUM_OF_PRODUCTS, "if (i > 2) acc += a[row * k + i];"),
        (SUM_OF_PRODUCTS, "acc += i > 2 ? a[row * k + i] : 0;"),
        (SUM_OF_PRODUCTS, "{ acc += a[row * k + i]; if (acc > 9) break; }"),
        (SUM_OF_PRODUCTS, "acc += a[i * k + row];"),
        (SUM_OF_PRODUCTS, "{ acc += c[row * k + i]; c[row] = acc; }"),
        (SUM_OF_PRODUCTS, "acc += a[row * k + i + n];"),
    ],
    ("pad_tail_and_mask", "transpose"): [  # the array must keep its shape
        ("tile[threadIdx.x][threadIdx.y]", "tile[0][threadIdx.x * 32 + threadIdx.y]"),
        ("tile[threadIdx.x][threadIdx.y]", "((float*)tile)[threadIdx.x * 32 + threadIdx.y]"),
        ("tile[threadIdx.x][threadIdx.y]", "helper(tile, threadIdx.x)"),
        ("tile[32][32]", "tile[32][n]"),
        ("tile[32][32]", "tile[383][32]"),
    ],
    ("avoid_atomics_reduce", "squares"): [  # another sum, or not by all threads
        (ADDED, "if (atomicAdd(total, x[i]) > 3) break;"),
        (ADDED, "{ atomicAdd(total, x[i]); if (i > 5) return; }"),
        (ADDED, "if (threadIdx.x == 0) atomicAdd(total, x[i]);"),
        (ADDED, "{ atomicAdd(total, x[i]); total[1] = 0; }"),
        (ADDED, "atomicMax(total, x[i]);"),
        (ADDED, "atomicAdd(&total[threadIdx.x], x[i]);"),
    ],
    ("softmax_math_fusion", "softmax"): [  # double precision
        (SOFTMAX, SOFTMAX.replace("float", "double").replace("expf", "exp").replace("<d", "<f")),
    ],
    ("switch_to_mma_or_wgmma", "half gemm"): [  # not the product of two tiles
        ("half", "float"),
        ("As[ty][i]", "As[i][ty]"),
        ("acc +=", "acc -="),
        ("float acc = 0.0f", "float acc = 1.0f"),
        ("i < TILE", "i < TILE - 1"),
        ("  int ty", "  if (blockIdx.x > 3) return;\n  int ty"),
        ("++i)", "i += 2)"),
    ],
    ("grouped_gemm_colmajor", "tiled gemm"): [  # blocks have another meaning
        ("blockIdx.x", "blockIdx.y"),
        ("int ty", "int width = gridDim.x; int ty"),
        ("int ty", "dim3 self = blockIdx; int ty"),
    ],
}


@pytest.mark.parametrize(
    ("move", "case", "old", "new"),
    [(*key, old, new) for key, changes in LEFT_ALONE.items() for old, new in changes],
)
def test_a_kernel_that_may_compute_something_else_is_left_alone(move, case, old, new):
    assert whats(move, changed(case, old, new)) == []


@pytest.mark.parametrize(("move", "case"), LEFT_ALONE)
def test_the_kernel_as_it_is_is_not(move, case):
    assert whats(move, CASES[case].spec)


def test_blocks_that_share_no_operand_keep_their_order():
    spec = replace(CASES["transpose"].spec, sizes=({"N": 640},))
    assert whats("grouped_gemm_colmajor", spec) == []


@pytest.mark.parametrize(
    ("move", "case"),
    [
        ("avoid_atomics_reduce", "squares"),
        ("avoid_atomics_reduce", "histogram"),
        ("enable_async_pipeline", "tiled gemm"),
    ],
)
def test_what_a_move_has_changed_it_leaves_alone(move, case):
    spec = CASES[case].spec
    found = results(move, spec)
    assert found
    assert not any(results(move, spec, one.state) for one in found)


@pytest.mark.parametrize("cols", [201, 202])
def test_rows_must_be_aligned_for_the_first_sizes(cols):
    sizes = ({"ROWS": 2, "COLS": cols}, {"ROWS": 3, "COLS": 200})
    found = whats("vectorize_global_loads", replace(CASES["softmax"].spec, sizes=sizes))
    assert [what[-4:] for what in found] == ([] if cols % 2 else ["by 2"])


def test_a_number_that_depends_on_the_thread_must_not_be_used_for_other_elements():
    source = """
    __global__ void kernel(const float* x, const float* w, float* y, int cols) {
      float mine = w[threadIdx.x];
      for (int c = threadIdx.x; c < cols; c += blockDim.x) y[c] = x[c] * mine;
    }"""
    tensors = ("x[COLS]", "w[64]", ">y[COLS]")
    spec = spec_of(source, tensors, scalars=("cols",), sizes=({"COLS": 128},))
    assert whats("vectorize_global_loads", spec) == []
    same = replace(spec, source=source.replace("w[threadIdx.x]", "w[0]"))
    assert len(whats("vectorize_global_loads", same)) == 2


def test_a_shared_array_that_other_loops_use_keeps_its_threads():
    source = """
    __global__ void kernel(const float* x, float* y, int n) {
      __shared__ float keep[128];
      for (int c = threadIdx.x; c < n; c += blockDim.x) keep[c] = x[c];
      for (int c = threadIdx.x; c < n; c += blockDim.x) y[2 * c] = keep[c];
    }"""
    spec = spec_of(source, ("x[N]", ">y[2 * N]"), scalars=("n",), sizes=({"N": 128},))
    assert whats("vectorize_global_loads", spec) == []


def test_a_tensor_that_is_passed_twice_may_be_written_through_the_other_name():
    spec = CASES["add"].spec
    twice = replace(spec, arguments=("out", "b", "out", "n"))
    found = [*whats("vectorize_global_loads", twice), *whats("cache_policy_cg", twice)]
    assert all(" b" in what or "per thread" in what for what in found)
    text = results("vectorize_global_loads", twice)[0].state.source
    assert "a_part" not in text
    assert "out_part" not in text


@pytest.mark.parametrize(
    "macro",
    [
        "#define LOAD(p, i) p[i]\n{}".format(ADD.replace("a[i]", "LOAD(a, i)")),
        "#define ELEMENT a[i]\n{}".format(ADD.replace("a[i]", "ELEMENT")),
        ADD.replace("    float s", "#ifdef FAST\n    float s").replace("b[i];", "b[i];\n#endif"),
    ],
    ids=["with parameters", "not a number", "conditional"],
)
def test_macros_in_the_way_prevent_all_moves(macro):
    spec = replace(CASES["add"].spec, source=macro)
    assert [what for name in ON_TEXT for what in whats(name, spec)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out[i] =", "const_cast<float*>(a)[i] = 0; out[i] ="),
        ("out[i] =", "helper(a); out[i] ="),
        ("out[i] =", "float* p = (float*)a; p[i] = 1; out[i] ="),
        ("a[i] + b[i]", "*a++ + b[i]"),
    ],
)
def test_a_tensor_used_in_other_ways_gets_no_hint(old, new):
    found = whats("cache_policy_cg", changed("add", old, new))
    hints = [what for what in found if what.startswith("__ld")]
    assert {what.partition(" for ")[2] for what in hints} == {"b"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (row < m && col < n) c", "if ((unsigned)(row - 1) < (unsigned)m) c"),
        ("int row", "m -= 1; int row"),
        ("row < m", "row * ty < m"),
    ],
)
def test_a_guard_that_may_fail_stays(old, new):
    case = gemm_of(TILED_GEMM.replace(old, new), (48, 32, 16), (16, 48, 64))
    state = only("pad_tail_and_mask", case.spec, "guards")
    assert (new if "-=" not in new else "row < m") in state.source


def test_guards_stay_if_one_set_of_sizes_has_a_tail():
    spec = CASES["tiled gemm"].spec  # with tails of columns, not of rows
    state = only("pad_tail_and_mask", spec, "guards")
    assert "if (col < n) c[row * n + col] = acc;" in state.source


@pytest.mark.parametrize(("n", "holds"), [(4096, True), (4160, False)])
def test_a_guard_stays_if_another_size_of_the_block_needs_it(n, holds):
    spec = CASES["add"].spec
    launch = replace(spec.launch, grid=("ceil_div(N, block_x)",))
    found = whats("pad_tail_and_mask", replace(spec, launch=launch, sizes=({"N": n},)))
    assert (found == ["guards that always hold"]) == holds


def test_a_histogram_too_large_for_a_block_is_not_copied():
    case = CASES["histogram"].spec
    tensors = tuple(replace(t, shape=(1 << 14,)) if t.name == "counts" else t for t in case.tensors)
    assert whats("avoid_atomics_reduce", replace(case, tensors=tensors)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum += expf(xr[c] - m)", "sum += expf(xr[c] * 2 - m)"),
        ("sum += expf(xr[c] - m)", "sum -= expf(xr[c] - m)"),
        ("float sum = 0.0f", "float sum = 1.0f"),
        ("m = fmaxf(m, xr[c])", "m = fminf(m, xr[c])"),
        ("sum = 0.0f;\n  for (int c = tid;", "sum = 0.0f;\n  for (int c = 0;"),
        ("const float* xr", "float* xr"),
    ],
)
def test_loops_that_are_no_softmax_are_not_fused(old, new):
    found = whats("softmax_math_fusion", changed("softmax", old, new))
    assert not any("online" in what for what in found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const float* a", "float* a"),
        ("    __syncthreads();\n    #pragma", "    #pragma"),
        ("Bs[i][tx];", "Bs[i][tx] * (row + t);"),
        ("? a[", "? 2.0f * a["),
        ("    // tiles", "    int mine = t * 2;"),
        ("    // tiles", "    row += 1;"),
        ("    // tiles", "    if (t == 3) break;"),
        ("    // tiles", "    c[t] = 1.0f;"),
        ("TILE 16", "TILE 88"),
    ],
)
def test_loops_whose_turns_may_depend_on_each_other_are_no_pipeline(old, new):
    source = TILED_GEMM.replace(old, new, 1)
    source = source.replace("acc += As", "acc += mine * As") if "mine" in new else source
    source = source.replace("acc +=", "a[i] +=") if new == "float* a" else source
    found = whats("enable_async_pipeline", gemm_of(source, (80, 33, 20)).spec)
    independent = new in ("Bs[i][tx] * (row + t);",)
    assert bool(found) == independent


def test_a_text_that_does_not_fit_its_spec_is_left_alone():
    spec = CASES["add"].spec
    for other in (
        replace(spec, entry="other"),
        replace(spec, arguments=spec.arguments[:-1]),
        replace(spec, launch=replace(spec.launch, grid=("ceil_div(N, M)",))),
        replace(spec, source=ADD.replace("__global__", "__device__")),
    ):
        assert [what for name in ON_TEXT for what in whats(name, other)] == []


def test_what_other_tests_leave_alone_has_changes_as_it_is():
    assert any("online" in what for what in whats("softmax_math_fusion", CASES["softmax"].spec))
    assert whats("enable_async_pipeline", gemm_of(TILED_GEMM, (80, 33, 20)).spec)
