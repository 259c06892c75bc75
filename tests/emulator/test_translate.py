"""The translation of CUDA text into C++: texts as people publish them, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import translate
from pytest_gpuenergy.support import KernelFault


def _body(source):
    text = translate(source, ["k"])
    return text.split('#line 1 "kernel.cu"\n')[1].split('\n#line 1 "launch"')[0]


pieces = st.sampled_from(
    [
        'const char* s = "asm(\\"x\\") __shared__ {";',
        "// asm __shared__ } extern",
        "/* { asm\n __shared__ */",
        'R"x(asm __shared__ })")x";',
        "char c = '{'; char d = '\\'';",
        "int n = 1'000'000;",
        "my__shared__ asm_volatile externally",
        "extern int other;",
        "{ }",
        "\n",
        "#pragma unroll\n",
        "#define BODY { asm \\\n __shared__\n",
    ]
)


@given(st.lists(pieces, max_size=12))
def test_text_without_cuda_only_tokens_stays_as_it_is(parts):
    source = " x;\n".join(parts)
    assert _body(source) == source


translated = st.sampled_from(
    [
        "__shared__ float a[4];",
        "{ extern __shared__\n float b[]; }",
        '{ asm volatile(\n"cp.async.wait_all;"\n); }',
        "\n#include <cuda.h>\n",
        "{ __shared__\n int c; }",
        '{ asm("trap;"); }',
    ]
)


@given(st.lists(translated | pieces, max_size=12))
def test_lines_keep_their_numbers(parts):
    source = "\n".join(parts)
    assert _body(source).count("\n") == source.count("\n")


def test_shared_variables_are_announced_with_their_kernel():
    source = """
    __shared__ double everywhere[2];
    __device__ void helper() { __shared__ alignas(16) uchar bytes[8]; }
    __global__ void first();
    template <int N> __global__ void __launch_bounds__(N) first() {
      if (N) { __shared__ __align__(8) float tile[N][33]; }
      __shared__ Pair<int, N> pair, other[2];
      __shared__ struct { int a, b; } both;
    }
    extern "C" __global__ void __attribute__((cold)) second(void (*f)(int)) { __shared__ long n; }
    """
    announced = re.findall(r"CUHOST_(\w*SHARED)\(\d, (.*?)\)", translate(source, ["first<1>"]))
    assert announced == [
        ("SHARED", '"", everywhere'),
        ("SHARED", '"", bytes'),
        ("OWN_SHARED", '"first", tile'),
        ("OWN_SHARED", '"first", pair'),
        ("OWN_SHARED", '"first", other'),
        ("OWN_SHARED", '"first", both'),
        ("OWN_SHARED", '"second", n'),
    ]


def test_variables_of_the_device_are_announced_and_its_functions_and_constants_are_not():
    source = """
    __device__ float table[4] = {1, 2, 3, 4}, *free;
    namespace deep { static __device__ __constant__ Pair<int, 2> pair{1, 2}; }
    __device__ const float fixed[2] = {1, 2};
    extern __device__ int elsewhere[3];
    template <class T> __device__ T generic[3];
    struct Member { static __device__ int count[2]; __device__ int operator[](int i) const; };
    __device__ __forceinline__ float function(int n) { return n; }
    """
    announced = re.findall(r"CUHOST_DEVICE\(\d, (.*?)\)", translate(source, ["k"]))
    assert announced == ["table", "free", "pair"]


def test_an_array_without_bounds_becomes_the_dynamic_memory():
    assert "float * const tile = (float *)::cuhost::cuhost_dynamic_shared;" in _body(
        "__global__ void k() { extern __shared__ __align__(16) float tile[]; }"
    )
    assert "typedef float cuhost_element_tile[32];" in _body("extern __shared__ float tile[][32];")


@pytest.mark.parametrize("word", ["asm", "__asm__", "__asm"])
def test_assembler_text_outside_a_function_is_refused_with_its_line(word):
    with pytest.raises(KernelFault, match=r"line 2: .*inline PTX '.global .b32 x'"):
        translate(f'\n{word}(".global .b32 x;");', ["k"])


def _outcome(source):
    try:
        translate(source, ["k"])
    except KernelFault as fault:
        return fault.outcome
    return "correct"


@given(st.text(alphabet="asm_shrdextn{}()[]\"';:#/*\n ", max_size=60))
def test_any_text_is_translated_or_refused(source):
    assert _outcome(source) in ("correct", "compile")


words = st.sampled_from(
    ["__shared__", "extern", "asm", "__global__", "x", "float", '"y"', *"(){}[];,<>"]
)


@given(st.lists(words, max_size=14))
def test_any_tokens_are_translated_or_refused(tokens):
    assert _outcome(" ".join(tokens)) in ("correct", "compile")


X = np.arange(64, dtype="float32")
KERNEL = "__global__ void k(const float* x, float* y) { int t = threadIdx.x; BODY }"


@pytest.mark.parametrize(
    ("before", "body", "expected"),
    [
        ("__device__ float2 make_float2(float v) { return make_float2(v, v); }",
         "y[t] = make_float2(x[t]).y;", X),
        ("__device__ float2 fminf(float2 a, float2 b) { return make_float2(fminf(a.x, b.x), 0); }",
         "y[t] = fminf(make_float2(x[t], 0), make_float2(9, 0)).x + fminf(1.f, 2.f);",
         np.minimum(X, 9) + 1),
        ("__device__ int2 max(int2 a, int2 b) { return make_int2(max(a.x, b.x), max(a.y, b.y)); }",
         "y[t] = max(make_int2(t, 0), make_int2(9, 0)).x;", np.maximum(X, 9)),
        ("__device__ void atomicAdd(float2* p, float v) { atomicAdd(&p->x, v); }",
         "float2 a = {x[t], 0}; atomicAdd(&a, 1.f); y[t] = a.x;", X + 1),
        ("#include <algorithm>", "y[t] = std::min(x[t], 9.f);", np.minimum(X, 9)),
        ("#define DYNAMIC(T, name) extern __shared__ T name[];",
         "DYNAMIC(float, s) s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];", X[::-1]),
        ("#include <cufft.h>\nstatic __device__ cufftComplex twice(cufftComplex v);\n"
         "__device__ cufftComplex twice(cufftComplex v) { v.x *= 2; return v; }",
         "y[t] = twice(make_float2(x[t], 0)).x;", 2 * X),
        ('#define ADD(d, a) \\\n  asm("add.f32 %0, %1, %2;" : "=f"(d) : "f"( \\\n    a), "f"(1.f))',
         "float v; ADD(v, x[t]); y[t] = v;", X + 1),
        ("#include <torch/extension.h>\n__device__ float up(half v) { return __half2float(v); }",
         "y[t] = up(__float2half(x[t]));", X),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_nvcc_accepts_runs(run, before, body, expected):
    source = f"{before}\n{KERNEL.replace('BODY', body)}"
    found = run(source, {"x": X}, {"y": (64, "float32")}, block=64, shared_bytes=256)["y"]
    np.testing.assert_array_equal(found, expected)


GROUP = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ float sum(cg::thread_group g, float* s, float v) {
  int t = g.thread_rank();
  for (int half = g.size() / 2; half > 0; half /= 2) {
    s[t] = v;
    g.sync();
    if (t < half) v += s[t + half];
    g.sync();
  }
  return v;
}
__global__ void k(const float* x, float* y) {
  __shared__ float s[64];
  cg::thread_block block = cg::this_thread_block();
  int t = block.thread_rank();
  float all = sum(block, s, x[t]);
  auto tile = cg::tiled_partition(block, 16);
  float part = sum(tile, s + t / 16 * 16, x[t]);
  if (t == 0) y[0] = all;
  if (tile.thread_rank() == 0) y[1 + t / 16] = part;
}"""


def test_a_group_may_be_passed_as_any_group(run):
    y = run(GROUP, {"x": X}, {"y": (5, "float32")}, block=64)["y"]
    np.testing.assert_array_equal(y, [X.sum(), *X.reshape(4, 16).sum(1)])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#include <cute/tensor.hpp>\nusing namespace cute;\n"
         "__global__ void k(float* y) { y[0] = size(Layout()); }",
         "^line 1: cannot run on the emulated GPU: #include <cute/tensor.hpp>"),
        ('#include <vector>\n#include "own.h"\nstd::vector<int> v;\n'
         "__global__ void k(float* y) { y[0] = OWN; }",
         r"line 4: .*OWN.*; own.h, which it includes, was left out: if"),
        ("struct P { int a; ~P() {} };\n__global__ void k(float* y, P p) { y[0] = p.a; }",
         "a kernel parameter whose type has a copy constructor or destructor of its own; take"),
        ("__global__ void k(CUtexObject t, float* y) { y[0] = tex2D<float>(t, 0.f, 0.f); }",
         "line 1: cannot run on the emulated GPU: textures and surfaces; pass the data as a"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(run, text, reason):
    with pytest.raises(KernelFault, match=reason):
        run(text, outputs={"y": (1, "float32")}, arguments=("y", "y"))
