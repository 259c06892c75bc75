"""What of a CUDA file is kept for a kernel: files with host code, as people publish them."""

from __future__ import annotations

import re

import pytest

from pytest_gpuenergy.kernels import load_kernel, reachable

KERNEL = "__global__ void f(const float* x, float* y) { y[threadIdx.x] = BODY; }\n"
PLAIN = KERNEL.replace("BODY", "x[threadIdx.x]")


def kept(before: str, body: str = "x[threadIdx.x]", after: str = "") -> str:
    text = before + KERNEL.replace("BODY", body) + after
    found = reachable(text, ("f",), lambda header: header.startswith("cuda"))
    assert found.count("\n") == text.count("\n")
    return found


@pytest.mark.parametrize(
    "unneeded",
    [
        "#include <iostream>\n",
        '#include "helper_cuda.h"\n',
        "int main(int argc, char** argv) { f<<<1, 32>>>(0, 0); return 0; }\n",
        "static void check(cudaError_t e) { if (e) { std::cerr << '}' << \"{\"; exit(1); } }\n",
        "__global__ void old(float* y) { y[0] = __shfl_down(y[0], 1); }\n",
        "template <class T> void run(T* y) { std::vector<T> v{1, 2}; f<<<1, 1>>>(y, y); }\n",
        "template void run<float>(float* y);\n",
        "struct Options { std::string name; int n = 3; };\n",
        "static std::vector<float> results;\n",
        "float reference(const float* x, int n);\n",
        "typedef std::map<int, int> Table;\n",
        'extern "C" void launch(float* y) { f<<<1, 1>>>(y, y); }\n',
        "using std::string;\n",
        "void check(status_t s) {}\n#define check(s) check(s, __LINE__)\n",
        "typedef struct shared_st { handle_t x; } shared_t;\n",
        "using Clock = std::chrono::steady_clock;\n",
        "using namespace std::chrono;\n",
        "using namespace DirectX;\n",
        "template <class T> class Reader { std::string name; virtual void read(T v) = 0; };\n",
        "template <class T> class Image : public Base<T> { std::string name; };\n",
        "#define RUN(n) void n() { f<<<1, 1>>>(0, 0); }\nRUN(first)\nRUN(second)\n",
        "#define GO f<<<1, 1>>>\n#define RUN(n) void n() { GO(0, 0); }\nRUN(first)\n",
        "namespace host { void g() { f<<<1, 1>>>(0, 0); } int k; }\n",
        "inline std::string f(int x) { if (x) throw 1; return std::to_string(x); }\n",
        "template <class T> void y(T* x, cudaStream_t s) { x[0] = 1; }\n",
        "#define OF(T) template void run<T>(T* y, cudaStream_t s);\nOF(float);\nOF(double);\n",
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_what_the_entry_does_not_need_is_left_out(unneeded, behind):
    found = kept("", after=unneeded) if behind else kept(unneeded)
    left = re.sub(
        r"(?<!using )namespace host|#define.*|[{}\s]", "", found.replace(PLAIN.strip(), "")
    )
    assert left == ""


@pytest.mark.parametrize(
    ("needed", "body"),
    [
        ("#include <cuda_fp16.h>\n", "x[0]"),
        ("#define N 4\n", "x[N]"),
        ("__device__ float twice(float v) { return 2 * v; }\n", "twice(x[0])"),
        ("constexpr int N = 4;\n", "x[N]"),
        ("__constant__ float c[4], d;\n", "d * x[0]"),
        ("struct P { int a; __device__ int get() { return a; } };\n", "P{3}.get()"),
        ("enum Kind { ONE = 1, TWO };\n", "x[TWO]"),
        ("typedef unsigned int uint32;\n", "x[(uint32)0]"),
        ("using real = float;\n", "(real)x[0]"),
        ("template <typename T> __device__ T id(T v) { return v; }\n", "id<float>(x[0])"),
        ("namespace a { namespace b { __device__ int g() { return 0; } } }\n", "x[a::b::g()]"),
        ("inline __host__ __device__ float2 operator+(float2 a, float2 b) { return a; }\n", "x[0]"),
        ("#define GET(v) take(v)\n__device__ float take(float v) { return v; }\n", "GET(x[0])"),
        ("#define FN(n) __device__ float n(float v) { return v; }\nFN(g)\n", "g(x[0])"),
        ("using namespace cooperative_groups;\n", "x[0]"),
        ("namespace own { __device__ int g() { return 0; } }\nusing namespace own;\n", "x[g()]"),
        ("class A { public: int n; };\nclass B : public A {};\n", "x[B().n]"),
        ("#ifdef A\n__device__ float g(float v) {\n#else\n__device__ float g(int v) {\n#endif\n"
         "return v; }\n", "g(x[0])"),
    ],
)  # fmt: skip
def test_what_the_entry_needs_stays(needed, body):
    assert kept(needed, body) == needed + KERNEL.replace("BODY", body)


def test_directives_within_what_is_left_out_stay():
    found = kept("void host() {\n#define N 4\n#if N > 2\n  f<<<1, 1>>>(0, 0);\n#endif\n}\n", "x[N]")
    assert "#define N 4" in found
    assert found.count("#") == 3
    assert "<<<" not in found


def test_a_brace_that_each_branch_opens_counts_once():
    branches = "#ifdef A\n  if (n > 1) {\n#elif B\n  if (n) {\n#else\n  {\n#endif\n"
    found = kept(f"void host(int n) {{\n{branches}    f<<<1, 1>>>(0, 0);\n  }}\n}}\n")
    assert "<<<" not in found
    assert PLAIN in found


def test_a_text_whose_braces_do_not_match_is_left_alone():
    text = "int main() { f<<<1, 1>>>(0, 0);\n" + PLAIN
    assert reachable(text, ("f",), lambda _: True) == text


def test_files_included_in_quotes_are_read_once_with_the_kernels(tmp_path):
    (tmp_path / "a.h").write_text('#pragma once\n#include "b.h"\n#define A 1\n')
    (tmp_path / "b.h").write_text('#include "a.h"\n#define B 2\n')
    path = tmp_path / "f.cu"
    path.write_text('#include "a.h"\n#include "b.h"\n#include "gone.h"\n' + PLAIN)
    source = load_kernel(path, entry="f", grid=1, block=32, arguments=("x", "y")).source
    assert [source.count(word) for word in ("define A", "define B", '"gone.h"', "once")] == [
        1,
        1,
        1,
        0,
    ]
