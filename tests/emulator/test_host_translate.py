"""The translation of CUDA text to C++ for the host compiler."""

import re

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
    assert re.findall(r"CUHOST_SHARED\(\d, (.*?)\)", translate(source, ["first<1>"])) == [
        '"", everywhere',
        '"", bytes',
        '"first", tile',
        '"first", pair',
        '"first", other',
        '"first", both',
        '"second", n',
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
