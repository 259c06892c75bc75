"""What no proposal of a language model may add is found; what kernels need is let through."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from points import nightly

from pytest_gpuenergy.search import (
    MOVES,
    LaunchPlan,
    ModuleError,
    State,
    additions,
    assembler_statements,
    read_spec,
)

CUDA_PIECES = """
    { } ( ) ; = < > # \" ' / * /* */ // \\ \n namespace struct template __device__ __global__ static
    extern "C" int x include define asm void R" 1'0 alignas ( [ ] %: ## <<<
"""
TRITON_PIECES = """
    import from triton language tl math . , ( ) : = * def f x @triton.jit \n return pass [ ] {0}
"""
KERNELS = Path(__file__).parents[2] / "bench/search/kernels"
SHIPPED = sorted(path.stem for path in KERNELS.glob("*.json"))
CUDA = """
#include <cuda_fp16.h>
#include "mma.h"
// printf, clock64() and static in a comment do not matter
#pragma unroll
#define TILE 4
#define LOAD(p) (*(const float4*)(p))
namespace tools {
template <typename T, int N>
struct Vector { T data[N]; __device__ T& operator[](int i) { return data[i]; } };
constexpr int kWarp = 32;
}
int const kTurns = 2, kRows = kWarp * 2;
static const float* const kNothing = nullptr;
using tools::Vector;
template <class T> using Four = Vector<T, 4>;
typedef struct { float x; } Pair;
__constant__ float table[2] = {1.0f, 2.0f};
extern __shared__ float dynamic[];
template <class T>
__device__ __forceinline__ T twice(T x) { return x + x; }
extern "C" __global__ void __launch_bounds__(256) scale(const float* x, float* y, int n) {
  __shared__ float tile[32];
  static constexpr int kStep = 2;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  auto f = [&](float a) { return a * table[0]; };
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(0), "l"(x));
  asm volatile("{ .reg .pred p;"
               "}" ::: "memory");
  if (i < n) { y[i] = f(twice(x[i])) * 1'000.0f; }
}
"""
TRITON = '''
"""A module."""
import math
import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = 128
SCALE = -1.5
COUNT = tl.constexpr(3)


@triton.jit
def half(x):
    return x / 2


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr = 128):
    """Scales."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0, cache_modifier=".cg").to(tl.float32)
    for _ in tl.static_range(2):
        x = half(x) * math.pi + tl.math.exp(x) + libdevice.tanh(x)
    tl.store(y_ptr + at, x, mask=at < n)
'''


def cuda(text: str) -> State:
    return State("cuda", text, LaunchPlan((1,), (32,)))


def triton(text: str) -> State:
    return State("triton", text, LaunchPlan((1,), (1,)))


def added_to_nothing(state: State) -> frozenset[str]:
    """What a text contains that no variant may add."""
    return additions(state, State(state.language, "", state.launch))


def test_an_ordinary_cuda_kernel_is_let_through():
    assert added_to_nothing(cuda(CUDA)) == frozenset()


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cu")), ids=lambda path: path.name)
def test_the_shipped_kernels_are_let_through(path):
    assert added_to_nothing(cuda(path.read_text())) == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(SHIPPED, SHIPPED[1::2]))
def test_what_the_rules_write_is_let_through(name):
    spec = read_spec(KERNELS / f"{name}.json")
    for move in MOVES:
        for one in move.applications(spec.baseline, spec):
            assert additions(one.state, spec.baseline) == frozenset(), one.what


@pytest.mark.parametrize(
    ("added", "finding"),
    [
        ("__device__ int launches;", "the file-scope variable __device__ int launches"),
        ("__device__ int launches = 0;", "the file-scope variable"),
        ("__device__ const int launches = 0;", "the file-scope variable"),
        ("__device__ __align__(16) float cache[4]{};", "the file-scope variable"),
        ("__device__ int launches(0);", "the file-scope variable"),
        ("__device__ int (launches){0};", "the file-scope variable"),
        ("__device__ int (*launches){0};", "the file-scope variable"),
        ("__device__ int (launches[4]){};", "the file-scope variable"),
        ("__device__ int ((launches)){};", "the file-scope variable"),
        ("__device__ auto launches = [] { return 0; };", "the file-scope variable"),
        ("struct S { static __device__ int launches; };", "a static variable"),
        ("namespace inner { __device__ int launches; }", "the file-scope variable"),
        ("__managed__ int launches;", "__managed__"),
        ("int launches;", "the file-scope variable int launches"),
        ("struct S { int x; } launches;", "the file-scope variable of type struct S"),
        ("template <int N> __device__ int launches = N;", "the file-scope variable"),
        ("__device__ void f() { static int n; ++n; }", "a static variable before int"),
        ("__device__ int f() { return __device__; }", "__device__ in a function"),
        ("int main() { return 0; }", "the host function int main ( )"),
        ("__host__ __device__ int f() { return 0; }", "__host__"),
        ('extern "C" int system(const char*);', "the external declaration"),
        ('extern "C" { int system(const char*); }', "the external declaration"),
        ("extern int other;", "the external declaration extern int other"),
        ("__device__ void f() { extern int system(const char*); }", "an external declaration"),
        ("#include <stdio.h>", "#include <stdio.h>"),
        ('#include "/etc/passwd"', '#include "/etc/passwd"'),
        ("#inc\\\nlude <fstream>", "#include <fstream>"),
        ("%:include <fstream>", "another spelling of a symbol, %:"),
        ("/* */ # /* */ include <fstream>", "a stray #"),
        ("#embed </etc/passwd>", "#embed"),
        ("#if 0\n#endif", "#if 0"),
        ("#pragma GCC poison x", "#pragma GCC poison x"),
        ("#define D __device__", "the macro D, which pastes or declares"),
        ("#define GLUE(a, b) a##b", "the macro GLUE, which pastes or declares"),
        ("#define BEGIN {", "the macro BEGIN, whose braces do not match"),
        ("#define __device__", "a macro called __device__"),
        ("#define static const", "a macro called static"),
        ("#undef __global__", "a macro called __global__"),
        ("__device__ long long f() { return clock64(); }", "clock64"),
        ("__device__ int f() { return clock(); }", "clock"),
        ("__device__ auto f() { return cuda::std::chrono::system_clock::now(); }", "chrono"),
        ('__device__ void f() { printf("%d", 1); }', "printf"),
        ("__device__ void* f() { return malloc(4); }", "malloc"),
        ("__device__ int* f() { return new int; }", "new"),
        ("__device__ void f() { cudaDeviceSynchronize(); }", "cudaDeviceSynchronize"),
        ("__global__ void g() { scale<<<1, 1>>>(0, 0, 0); }", "a launch of its own"),
        ('__device__ void f() { asm("mov.u64 %0, %%globaltimer;"); }', "assembler with"),
        ('__device__ void f() { asm(".global .u32 n;"); }', "assembler with"),
        ('asm(".global .u32 n;");', "assembler outside a function"),
        ("__attribute__((constructor)) void f() {}", "__attribute__"),
        ("__device__ void f() { __builtin_trap(); }", "__builtin_trap"),
        ('__device__ const char* f() { return R"(x)"; }', "a raw string"),
        ("__device__ void f() {", "braces that do not match"),
        ("/* endless", "a raw string or an endless comment"),
        ('__device__ void f() { "', 'a stray "'),
        ("__device__ int f();", "the declaration __device__ int f ( ), which has no body"),
        ("int n = sizeof(const int);", "the file-scope variable int n"),
        ("const char* at = nullptr;", "the file-scope variable const char * at"),
        ("const int one = 1, *at = nullptr;", "the file-scope variable const int one"),
        ("auto&& n = (const int&&)0;", "the file-scope variable auto && n"),
        ("template <const int N> int n = N;", "the file-scope variable template"),
        ("#define V(x) int x;\nV(n) const int one = 1;", "the file-scope variable V ( n )"),
        ("struct S { mutable int n; };", "mutable"),
        ("__device__ int f() { return rand(); }", "rand"),
        ("// a comment\r__device__ int launches;", "a carriage return within a line"),
        ("// a comment??/\n/*\n__device__ int launches;\n// */", "the trigraph ??/"),
        ("struct S <% static inline int n; %> const x = {};", "another spelling of a symbol"),
        ("constexpr int a<:1:> = {};", "another spelling of a symbol, <:"),
        ("__device__ void f() { __nv_aligned_device_malloc(8, 8); }", "__nv_aligned_device"),
        ("__device__ int f() { return fegetround(); }", "fegetround"),
        ('__device__ void f() { asm("mov.u32 %0, %%clo" "ck;"); }', "assembler with mov.u32"),
        ('__device__ void f() { asm("mov.u32 %0, %%cl\\x6fck;"); }', "assembler with an escape"),
        ('__device__ void f() { asm("mov.u32 %0, %%cl" O "ck;"); }', "a macro completes"),
        ('__device__ void f() { asm("mov.u64 %0, %%gridid;"); }', "assembler with"),
        ('__device__ void f() { asm("mov.u64 %0, %%current_graph_exec;"); }', "assembler with"),
    ],
)
def test_what_no_cuda_proposal_may_add_is_found(added, finding):
    found = added_to_nothing(cuda(f"{CUDA}\n{added}\n"))
    assert any(one.startswith(finding) or finding in one for one in found), found


def test_cuda_assembler_is_counted():
    assert assembler_statements(cuda(CUDA)) == 2


def test_an_ordinary_triton_module_is_let_through():
    assert added_to_nothing(triton(TRITON)) == frozenset()


@pytest.mark.parametrize(
    ("added", "finding"),
    [
        ("import os", "import os"),
        ("import torch", "import torch"),
        ("import triton.runtime", "import triton.runtime"),
        ("from os import system", "from os import system"),
        ("from . import x", "from None import x"),
        ("from triton import runtime", "from triton import runtime"),
        ("from triton.language import core", "from triton.language import core"),
        ("from triton.language.core import os", "from triton.language.core import os"),
        ("from math import *", "from math import *"),
        ("@triton.jit\ndef f(x):\n    import os", "import os in a function"),
        ("SCALE = open('/etc/passwd')", "the statement SCALE = open('/etc/passwd')"),
        ("SCALE: open('x') = 1", "the statement SCALE: open('x') = 1"),
        ("SCALE = half.constexpr(1)", "the statement SCALE = half.constexpr(1)"),
        ("SCALE = [0] * 1000000000", "the statement SCALE = [0] * 1000000000"),
        ("SCALE = 9 ** 9 ** 9", "the statement SCALE = 9 ** 9 ** 9"),
        ("half(1)", "the statement half(1)"),
        ("if True:\n    X = 1", "the statement if True: X = 1"),
        ("X, Y = 1, 2", "the statement X, Y = (1, 2)"),
        ("class C:\n    pass", "the statement class C: pass"),
        ("def plain(x):\n    return x", "plain, which is not decorated with triton.jit alone"),
        ("@triton.autotune([], [])\n@triton.jit\ndef f(x):\n    pass", "f, which is not decorated"),
        ("@triton.jit\ndef f(x=half(1)):\n    pass", "the default half(1)"),
        ("@triton.jit\ndef f(x: half(1)):\n    pass", "the annotation half(1)"),
        ("@triton.jit\ndef f(x) -> half(1):\n    pass", "the annotation half(1)"),
        ("@triton.jit\ndef f(x):\n    eval('1')", "eval"),
        ("@triton.jit\ndef f(x):\n    getattr(x, 'y')", "getattr"),
        ("@triton.jit\ndef f(x):\n    x.__class__", "__class__"),
        ("@triton.jit\ndef f(x):\n    tl._x", "the attribute _x"),
        ("@triton.jit\ndef f(x):\n    tl.core.os.system(x)", "triton.language.core.os.system"),
        ("@triton.jit\ndef f(x):\n    tl.math.core.os(x)", "triton.language.math.core.os"),
        ("@triton.jit\ndef f(x):\n    tl.extra.cuda.os(x)", "triton.language.extra.cuda.os"),
        ("@triton.jit\ndef f(x):\n    triton.runtime.driver(x)", "triton.runtime.driver"),
        ("@triton.jit\ndef f(x):\n    m = tl\n    m.core", "the module triton.language as a value"),
        ("tl = 1", "another meaning of tl"),
        ("@triton.jit\ndef f(x):\n    global SCALE", "Global"),
        ("@triton.jit\ndef f(x):\n    print(x)", "print"),
        ("@triton.jit\ndef f(x):\n    tl.device_print('x', x)", "device_print"),
        ("@triton.jit\ndef f(x):\n    (lambda: 1)()", "Lambda"),
        (
            "@triton.jit\ndef f(x):\n    tl.inline_asm_elementwise('mov %clock;', '=r', [x])",
            "a text with clock",
        ),
        ("@triton.jit\ndef f(x):\n    tl.inline_asm_elementwise('%clo' + 'ck')", "put together"),
        ("@triton.jit\ndef f(x):\n    tl.inline_asm_elementwise(asm=f'{x}ck;')", "put together"),
        ("@triton.jit\ndef f(x):\n    tl.inline_asm_elementwise('mov %gridid;')", "assembler with"),
        ("@triton.jit\ndef f(x):\n    g = tl.inline_asm_elementwise", "another meaning of"),
        ("from triton.language import inline_asm_elementwise", "from triton.language import"),
        ("from triton.language import constexpr_function as jit", "another meaning of jit"),
        ("import math as triton", "another meaning of triton"),
        ("@triton.jit\ndef jit(x):\n    pass", "another meaning of jit"),
        ("@triton.jit\ndef f(x):\n    tl.load = tl.store", "an assignment to tl.load"),
    ],
)
def test_what_no_triton_proposal_may_add_is_found(added, finding):
    found = added_to_nothing(triton(f"{TRITON}\n\n{added}\n"))
    assert any(one.startswith(finding) or finding in one for one in found), found


@pytest.mark.parametrize(
    "begin", ["# coding: utf-7\n", "'''A text.\r# vim: fileencoding=utf_7\n'''\n"]
)
def test_a_module_that_python_reads_otherwise_is_found(begin):
    assert "another encoding than UTF-8" in added_to_nothing(triton(f"{begin}# +AAo-import os\n"))
    assert added_to_nothing(triton("# coding: utf-8\nX = 1\n")) == frozenset()


def test_triton_assembler_is_counted():
    call = "\n\n@triton.jit\ndef f(x):\n    return tl.inline_asm_elementwise('', '', [x])\n"
    assert assembler_statements(triton(TRITON + call)) == 1
    assert assembler_statements(triton("def (")) == 0


def test_what_is_no_module_is_said_to_be_none():
    with pytest.raises(ModuleError, match="no Python module"):
        added_to_nothing(triton("def ("))


@given(st.lists(st.sampled_from(CUDA_PIECES.split(" "))).map(" ".join) | st.text())
def test_any_text_is_checked_as_cuda(text):
    assert all(added_to_nothing(cuda(text)))
    assert assembler_statements(cuda(text)) >= 0


@given(
    st.lists(st.sampled_from(CUDA_PIECES.split(" "))).map(" ".join),
    st.sampled_from(["__device__ int launches;", "int f() { return 0; }"]),
)
def test_nothing_before_it_hides_what_is_found(text, added):
    """Unless the text before is refused itself."""
    assert added_to_nothing(cuda(f"{text}\n\n;{added}"))


@given(st.lists(st.sampled_from(TRITON_PIECES.split(" "))).map(" ".join) | st.text())
def test_any_text_is_checked_as_triton(text):
    try:
        assert all(added_to_nothing(triton(text)))
    except ModuleError:
        assert assembler_statements(triton(text)) == 0
