"""CUDA texts in which something else than the statements decides what a move may do."""

from __future__ import annotations

import pytest
from move_checks import only, results, spec_of

from pytest_gpuenergy.search import MOVES, KernelSpec, not_understood

VECTORS = "vectorize_global_loads"
SHARED = """
__global__ void kernel(const float* x, float* y, int n) {
  float acc = 1.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * acc;
}
"""
ELEMENTS = """
__global__ void kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""
GROUPS = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
SUM = "struct Sum { float s; __device__ void add(float v) { s = s / 2 + v; } };\n"


def spec_with(source: str, *, grid: str = "ceil_div(N, 64)") -> KernelSpec:
    return spec_of(source, ["x[N]", "> y[N]"], scalars=["n"], grid=(grid,), sizes=({"N": 256},))


@pytest.mark.parametrize(
    ("before", "statement"),
    [
        ("__device__ int lane() { return threadIdx.x % 32; }", "y[i] = x[i] * lane();"),
        (
            "__device__ int lane() { return threadIdx.x % 32; }\n"
            "namespace d { template <class T> __device__ T twice(T v) { return v * lane(); } }",
            "y[i] = d::twice<float>(x[i]);",
        ),
        (
            '__device__ int lane() { int l; asm("mov.u32 %0, %%laneid;" : "=r"(l)); return l; }',
            "y[i] = x[i] * lane();",
        ),
        (GROUPS, "y[i] = x[i] * cg::this_thread_block().thread_rank();"),
        ("", "{ acc = acc / 2 + x[i]; y[i] = acc; }"),
        ("", "y[i] = acc = acc / 2 + x[i];"),
        ("", "{ float v = acc; y[i] = v; acc += x[i]; }"),
        ("", "{ acc += x[i]; if (acc > 3) y[i] = x[i]; }"),
        ("__device__ void halve(float& v) { v /= 2; }", "{ y[i] = x[i] * acc; ::halve(acc); }"),
        (
            "template <class T> __device__ void halve(T& v) { v /= 2; }",
            "{ y[i] = x[i] * acc; halve<float>(acc); }",
        ),
        (SUM, "{ sum.add(x[i]); y[i] = sum.s; }"),
    ],
)
def test_elements_of_a_shared_loop_stay_with_their_thread(before, statement):
    source = before + SHARED.replace("y[i] = x[i] * acc;", statement)
    if before == SUM:
        source = source.replace("float acc = 1.0f;", "Sum sum{0};")
    assert results(VECTORS, spec_with(source, grid="1")) == []
    assert results(VECTORS, spec_with(SHARED, grid="1"))


def test_a_number_that_each_thread_is_given_belongs_to_it():
    source = SHARED.replace("float acc = 1.0f;", "float acc; acc = x[threadIdx.x];")
    assert results(VECTORS, spec_with(source, grid="1")) == []


def test_elements_stay_with_threads_that_a_function_tells_apart():
    helper = "__device__ int odd() { return threadIdx.x & 1; }"
    source = helper + ELEMENTS.replace("2 * x[i]", "odd() + x[i]")
    assert results(VECTORS, spec_with(source)) == []


def test_a_bound_that_another_name_changes_is_not_fixed():
    source = """
    __global__ void kernel(const float* x, float* y, int n) {
      int m = n; int* other = &m;
      for (int i = 0; i < m; i++) { y[i] = x[i]; if (x[i] > 3) *other = 5; }
    }"""
    assert results(VECTORS, spec_with(source, grid="1")) == []
    assert results(VECTORS, spec_with(source.replace("&m", "&n"), grid="1"))


@pytest.mark.parametrize(
    "source",
    [
        f"#ifdef FAST\n{ELEMENTS}#else\n{ELEMENTS.replace('2 *', '3 *')}#endif\n",
        f"#if __CUDA_ARCH__ >= 900\n{ELEMENTS}\n#endif",
        ELEMENTS + ELEMENTS.replace("int n", "int n, int m"),
        ELEMENTS.replace("const float* x", "volatile const float* x"),
        ELEMENTS.replace("int i =", "volatile int i ="),
        "#ifdef BIG\n#define K 3\n#else\n#define K 2\n#endif\n" + ELEMENTS.replace("2 *", "K *"),
        "#ifdef BIG\n#define K 2\n#endif\n" + ELEMENTS.replace("2 *", "K *"),
        "#define K 3\n#undef K\n" + ELEMENTS.replace("2 *", "K *"),
        "#define K 3\n#define K 2\n" + ELEMENTS.replace("2 *", "K *"),
    ],
    ids=[
        *("one of two kernels", "conditional kernel", "overloaded", "volatile", "volatile local"),
        *("one of two macros", "conditional macro", "macro undefined", "macro defined twice"),
    ],
)
def test_what_only_the_compiler_decides_prevents_all_moves(source):
    spec = spec_with(source)
    found = [one for move in MOVES for one in move.applications(spec.baseline, spec)]
    assert [one.what for one in found if one.state.source != source] == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("#define AT(p) p[i]\n" + ELEMENTS.replace("x[i]", "AT(x)"), "the macro AT, "),
        ("#define AT(p) p[i]\n" + ELEMENTS.replace("x[i]", "AT(x)"), '"extract": true'),
        (ELEMENTS.replace("2 *", "[&] { return 2; }() *"), "because of a lambda, and change"),
        (ELEMENTS.replace("const float* x", "volatile float* x"), "a volatile variable"),
        (ELEMENTS.replace("int n)", "int n, int m)"), "parameters other than the spec's"),
        (ELEMENTS, ""),
    ],
)
def test_a_sentence_says_what_is_not_understood(source, said):
    found = not_understood(spec_with(source))
    assert said in found
    assert bool(found) == bool(said)


def test_a_default_and_a_guard_around_a_file_decide_nothing():
    source = "#ifndef K\n#define K 2\n#endif\n" + ELEMENTS.replace("2 *", "K *")
    assert results(VECTORS, spec_with(f"#ifndef KERNEL_H\n#define KERNEL_H\n{source}#endif\n"))


@pytest.mark.parametrize("kind", ["unsigned char", "float"])
def test_an_index_that_may_lose_digits_is_not_that_of_the_element(kind):
    source = ELEMENTS.replace("if (i < n)", f"{kind} c = i; if (i < n)").replace(
        "x[i]", "x[(int)c]"
    )
    assert results(VECTORS, spec_with(source)) == []


@pytest.mark.parametrize("source", [SHARED, ELEMENTS])
def test_an_element_whose_number_may_not_fit_is_not_one_of_several(source):
    narrow = source.replace("int i =", "unsigned char i =")
    assert results(VECTORS, spec_with(narrow, grid="1")) == []


def test_names_of_inner_blocks_stay_theirs():
    body = "{ int k = 3; s += x[k]; } { int k = 2; s += x[k]; }"
    loop = "for (int k = 0; k < 4; ++k) s += x[k];"
    source = ELEMENTS.replace("y[i] = 2 *", f"{{ float s = 0; {body} {loop} y[i] = s +")
    spec = spec_with(source.replace("x[i];", "x[i]; }"))
    text = only(VECTORS, spec, "2 elements per thread side by side").source
    inner = text[text.index("k = 3") : text.index("k = 2")]
    assert inner.count("}") == inner.count("{") == 1
