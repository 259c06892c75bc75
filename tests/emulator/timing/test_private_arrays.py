"""Arrays of a thread, found in a kernel's text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import private_words


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
def test_declarations_are_counted_in_words(body: str, words: int) -> None:
    assert of(body) == words


def test_only_the_entry_counts() -> None:
    source = """
    __global__ void first(float* x);
    __global__ void first(float* x) {
      float a[2];
    }
    __global__ void second(float* x) {
      float b[30];
    }"""
    assert [private_words(source, entry) for entry in ("first", "second")] == [2, 30]


def test_a_template_is_found_by_its_name() -> None:
    source = "template <int n> __global__ void k(float* x) {\nfloat a[7];\n}"
    assert private_words(source, "k<4>") == 7


@given(st.text(alphabet="float a[0123];{}()k/*\"'\n", max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert private_words(text, "k") >= 0


def test_those_of_a_kernel_in_a_namespace_are_its_own() -> None:
    text = "namespace a { __device__ void f() { int i[9]; } __global__ void k() { int i[4]; } }"
    assert private_words(text, "a::k") == 4
