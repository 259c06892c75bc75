"""Sums of products that are computed four at a time in vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pytest_gpuenergy.emulator import with_vectors

A = np.linspace(-2, 3, 64).astype(np.float32)
B = np.linspace(0.5, 1.5, 64).astype(np.float32)
PLACES = {
    "four": [f"(i + {k})" for k in range(4)],
    "pairs": ["i", "(i + 1)", "(i + 32)", "(i + 33)"],
    "each": ["i", "(i + 8)", "(i + 16)", "(i + 24)"],
}
"""Indices of the factors that eight sums have in common, by how a vector of them is read."""


def kernel(places, *, order=range(8), size=8, declared="float", first=0, more=""):
    """Return a kernel that adds products of four elements of a and two of b, eight times."""
    begin = [f"  sums[{k}] = 0.0f;" for k in range(first, size)]
    add = [
        f"    sums[{k}] = (sums[{k}] + (a[{places[k % 4]}] * b[(i + {40 + k // 4})]));"
        for k in order
    ]
    add[3:3] = ["    int between = ((i * 2) + 1);"]
    store = [f"  y[{k}] = sums[{k}];" for k in range(size)]
    return "\n".join(
        [
            f"__global__ void k(const {declared}* a, const {declared}* b, float* y) {{",
            f"  alignas(64) float sums[{size}];",
            *begin,
            more or "  ;",
            "  for (int i = 0; i < 8; ++i) {",
            *add,
            "  }",
            *store,
            "}",
        ]
    )


def expected(places):
    values = np.zeros(8, np.float64)
    for i in range(8):
        for k in range(8):
            values[k] += float(A[eval(places[k % 4], {"i": i})]) * float(B[i + 40 + k // 4])
    return values


@pytest.mark.parametrize("kind", PLACES)
def test_sums_that_share_a_factor_become_vectors(kind):
    text = kernel(PLACES[kind])
    vectors = with_vectors(text)
    assert vectors.count(f"cuhost_{kind}(") == 2
    assert "sums[" not in re.sub(r"cuhost_sums_\d\[\d\]", "", vectors)
    assert vectors.count("\n") == text.count("\n") + 1  # the header's


@pytest.mark.slow
@pytest.mark.parametrize("order", [range(8), [0, 4, 1, 5, 2, 6, 3, 7], [7, 6, 5, 4, 3, 2, 1, 0]])
@pytest.mark.parametrize("kind", PLACES)
def test_vectors_compute_what_the_text_says(run, kind, order):
    text = kernel(PLACES[kind], order=order)
    assert with_vectors(text) != text
    out = run(text, {"a": A, "b": B}, {"y": (8, "float32")})
    np.testing.assert_allclose(out["y"], expected(PLACES[kind]), rtol=2e-6)


@pytest.mark.slow
def test_products_of_another_type_are_rounded_as_the_text_says(run):
    text = kernel(PLACES["four"], declared="double")
    assert with_vectors(text) != text  # which does not compile
    a, b = A.astype(np.float64) / 3, B.astype(np.float64) / 7
    out = run(text, {"a": a, "b": b}, {"y": (8, "float32")})
    sums = np.zeros(8, np.float32)
    for i in range(8):
        for k in range(8):
            sums[k] = np.float32(np.float64(sums[k]) + a[i + k % 4] * b[i + 40 + k // 4])
    np.testing.assert_array_equal(out["y"], sums)


LEFT_ALONE = {
    "an element without a first value": kernel(PLACES["four"], first=1),
    "an element whose address is taken": kernel(PLACES["four"], more="  f(&sums[0]);"),
    "the whole array": kernel(PLACES["four"], more="  f(sums);"),
    "an element that only a run knows": kernel(PLACES["four"], more="  y[8] = sums[n];"),
    "a number of sums that four does not divide": kernel(PLACES["four"], order=range(6), size=6),
    "the body of a condition": kernel(PLACES["four"]).replace(
        "    int between = ((i * 2) + 1);", "    if (i)"
    ),
    "a store between sums": kernel(PLACES["four"]).replace(
        "    int between = ((i * 2) + 1);", "    y[0] = 1.0f;"
    ),
    "a call between sums": kernel(PLACES["four"]).replace("((i * 2) + 1)", "next(i)"),
    "a name that means something else between sums": kernel(PLACES["four"]).replace(
        "int between", "int i"
    ),
    "an index that changes": kernel(["i++", "(i + 1)", "(i + 2)", "(i + 3)"]),
    "a product of itself": kernel(PLACES["four"]).replace("b[", "sums["),
    "another function's array of that name": kernel(PLACES["four"])
    + "\n__device__ void g(float* sums) { sums[0] = 1; }",
}


@pytest.mark.parametrize("why", LEFT_ALONE)
def test_other_arrays_are_left_alone(why):
    assert with_vectors(LEFT_ALONE[why]) == LEFT_ALONE[why]
