"""Branched loads and private arrays, found in a kernel's text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import branched_share, private_words

FAR = "x[(threadIdx.x + k) / 3]"


def kernel(body: str, name: str = "k") -> str:
    return (
        f"__global__ void {name}(const float* __restrict__ x, float* y, int n);\n"
        f"__global__ void {name}(const float* __restrict__ x, float* y, int n) {{\n{body}\n}}\n"
    )


def share(body: str) -> float:
    return branched_share(kernel(body), "k")


def looped(statement: str, trips: int = 8) -> str:
    return f"for (int k = 0; k < {trips}; ++k) {{ __syncthreads(); {statement} }}"


@pytest.mark.parametrize(
    "statement",
    [
        f"float v; if (n > 3) {{ v = {FAR}; }} else {{ v = 0; }}",
        f"float v = 0; if (n > 3) v = {FAR};",
        f"float v = n > 3 ? {FAR} : 0;",
        "float v = 0; if (n > 3) v = *(float2*)(x + (threadIdx.x + k) % 6);",
        "float v = 0; if (n > 3) v = x[(threadIdx.x + k) / n];",
    ],
)
def test_a_condition_around_a_division_makes_a_branch(statement):
    assert share(looped(statement)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        f"float v = {FAR};",
        "float v = 0; if (n > 3) v = x[threadIdx.x + k];",
        "float v = 0; if (n > 3) v = x[(threadIdx.x + k) / 4];",
        "float v = 0; if (n > 3) v = x[threadIdx.x / 3 + k];",
        "float v = 0; if (n > 3) v = x[k / 3 + threadIdx.x];",
        "int i = (threadIdx.x + k) / 3; float v = 0; if (n > 3) v = x[i];",
    ],
)
def test_an_address_that_is_there_already_makes_none(statement):
    assert share(looped(statement)) == 0


def test_a_loop_without_a_barrier_is_unrolled():
    inner = f"for (int k = 0; k < 4; ++k) {{ if (n > 3) v = {FAR}; }}"
    assert share(f"for (int j = 0; j < 8; ++j) {{ __syncthreads(); float v; {inner} }}") == 0


def test_without_a_loop_nothing_is_computed_before():
    assert share("float v = 0; if (n > 3) v = x[threadIdx.x / 3];") == 1


def test_stores_are_no_loads():
    assert share(looped("if (n > 3) y[(threadIdx.x + k) / 3] = 1;")) == 0


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_loads_count_as_often_as_they_are_executed(a, b, c):
    branched = looped(f"float v = 0; if (n > 3) v = {FAR};", a)
    plain = looped(f"for (int j = 0; j < {c}; ++j) {{ float w = x[j]; }}", b)
    assert share(branched + "\n" + plain) == pytest.approx(a / (a + b * c))


def test_only_the_kernel_asked_for_counts():
    both = kernel("float v = x[0];", "a") + kernel(looped(f"float v = n ? {FAR} : 0;"), "b")
    assert (branched_share(both, "a"), branched_share(both, "b")) == (0, 1)


@given(st.text(alphabet="x[](){};?:/%=<>*+-, \nifor03k", max_size=200))
def test_any_text_has_a_share(body):
    assert 0 <= share(body) <= 1


def of(body: str, entry: str = "k") -> int:
    return private_words(f"__global__ void k(float* x) {{\n{body}\n}}", entry)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("float sum[64];", 64),
        ("  alignas(64) float sum[64];", 64),
        ("float sum[8][4] = {};", 32),
        ("double sum[8];", 16),
        ("unsigned int seen[3];", 3),
        ("half pair[10];", 5),
        ("float4 tile[2];", 8),
        ("float one; int i = x[3];", 0),
        ("__shared__ float tile[1024];", 0),
        ("  // float sum[64];", 0),
        ("/*\nfloat sum[64];\n*/", 0),
        ("x[4] = 1;\nreturn;", 0),
        ("if (x) {\n  float a[2];\n}\nfloat b[3];", 5),
        ("if (x) {\n  float a[2];\n} else {\n  float b[3];\n}", 3),
        ("{\n  float a[2];\n  {\n  float b[3];\n  }\n}\n{\n  float c[4];\n}", 5),
        ("float a[2] = {1, 2};\nfloat b[3] = {};", 5),
        ("float a[4];\n*reinterpret_cast<float4*>(a) = v;", 0),
        ("float a[4];\n*reinterpret_cast<const float4 *>( a ) = v;\nfloat ab[4];", 4),
        ("float a[8];\n*reinterpret_cast<float4*>(a) = v;", 8),
    ],
)
def test_declarations_are_counted_in_words(body, words):
    assert of(body) == words


def test_only_the_entry_counts():
    source = """
    __global__ void first(float* x);
    __global__ void first(float* x) {
      float a[2];
    }
    __global__ void second(float* x) {
      float b[30];
    }"""
    assert [private_words(source, entry) for entry in ("first", "second")] == [2, 30]


def test_a_template_is_found_by_its_name():
    source = "template <int n> __global__ void k(float* x) {\nfloat a[7];\n}"
    assert private_words(source, "k<4>") == 7


@given(st.text(alphabet="float a[0123];{}()k/*\"'\n", max_size=200))
def test_any_text_is_read(text):
    assert private_words(text, "k") >= 0


def test_those_of_a_kernel_in_a_namespace_are_its_own():
    text = "namespace a { __device__ void f() { int i[9]; } __global__ void k() { int i[4]; } }"
    assert private_words(text, "a::k") == 4
