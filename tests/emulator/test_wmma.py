"""Warp matrix functions of <mma.h>."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

# CUDA's type of A and B, its elements in memory, type of C, shapes.
SMALL = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
TYPES = [
    ("half", "<f2", "float", SMALL),
    ("half", "<f2", "half", SMALL),
    ("__nv_bfloat16", "bf16", "float", SMALL),
    ("signed char", "i1", "int", SMALL),
    ("unsigned char", "u1", "int", SMALL),
    ("wmma::precision::tf32", "<f4", "float", [(16, 16, 8)]),
    ("double", "<f8", "double", [(8, 8, 4)]),
]
CASES = [(*one[:3], shape) for one in TYPES for shape in one[3]]
NUMPY = {"float": "<f4", "half": "<f2", "int": "<i4", "double": "<f8"}
IN_MEMORY = {"<f2": "half", "bf16": "__nv_bfloat16", "<f4": "float", "<f8": "double",
             "i1": "signed char", "u1": "unsigned char"}  # fmt: skip


def _leading(size):
    return size + 16 + -size % 16


def _source(kind, element, accumulator, shape, layouts):
    """d = 2 (a b + c) by one warp, with a in shared memory and leading dimensions of `_leading`."""
    m, n, k = shape
    a, b, c = layouts
    leading = [k if a == "row" else m, n if b == "row" else k, n if c == "row" else m]
    t = IN_MEMORY[element]
    lda, ldb, ldc = (_leading(one) for one in leading)
    return f"""#include <mma.h>
    using namespace nvcuda;
    __global__ void k(const {t}* a, const {t}* b, const {accumulator}* c, {accumulator}* d) {{
      __shared__ __align__(32) {t} s[{k * lda if a != "row" else m * lda}];
      for (int e = threadIdx.x; e < sizeof s / sizeof *s; e += 32) s[e] = a[e];
      __syncwarp();
      wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {kind}, wmma::{a}_major> fa;
      wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {kind}, wmma::{b}_major> fb;
      wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {accumulator}> fc;
      wmma::load_matrix_sync(fa, s, {lda});
      wmma::load_matrix_sync(fb, b, {ldb});
      wmma::load_matrix_sync(fc, c, {ldc}, wmma::mem_{c}_major);
      wmma::mma_sync(fc, fa, fb, fc);
      for (int e = 0; e < fc.num_elements; ++e) fc.x[e] = fc.x[e] + fc.x[e];
      wmma::store_matrix_sync(d, fc, {ldc}, wmma::mem_{c}_major);
    }}"""


def _stored(matrix, layout, element):
    turned = matrix if layout == "row" else matrix.T
    columns = turned.shape[1]
    padded = np.pad(turned, ((0, 0), (0, _leading(columns) - columns)))
    if element == "bf16":
        return (padded.astype("<f4").view("<u4") >> 16).astype("<u2")
    return padded.astype(element)


def _in_each_layout():
    """Cases with layouts of A, B and C; each case once, in another layout than the one before."""
    for number, case in enumerate(CASES):
        layouts = list(itertools.product(("row", "col"), repeat=3))[
            :: 3 if case[0] == "half" else 5
        ]
        for at, layout in enumerate(layouts):
            yield pytest.param(
                case,
                layout,
                id=f"{case[0]}-{case[2]}-{case[3]}-{'-'.join(layout)}",
                marks=[pytest.mark.thorough] * (at != number % len(layouts)),
            )


@pytest.mark.parametrize(("case", "layout"), [*_in_each_layout()])
def test_products_have_the_right_elements_in_each_layout(run, case, layout):
    kind, element, accumulator, (m, n, k) = case
    random = np.random.default_rng(3)
    low = 0 if element == "u1" else -4
    a, b, c = (random.integers(low, 5, size).astype(float) for size in ((m, k), (k, n), (m, n)))
    inputs = {
        "a": _stored(a, layout[0], element),
        "b": _stored(b, layout[1], element),
        "c": _stored(c, layout[2], NUMPY[accumulator]),
    }
    source = _source(kind, element, accumulator, (m, n, k), layout)
    outputs = {"d": (inputs["c"].size, np.dtype(NUMPY[accumulator]).name)}
    got = run(source, inputs, outputs, block=32)["d"].reshape(inputs["c"].shape)
    got = got[:, : n if layout[2] == "row" else m]
    np.testing.assert_array_equal(got if layout[2] == "row" else got.T, 2 * (a @ b + c))


BEFORE = """#include <mma.h>
using namespace nvcuda;
typedef wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> A;
typedef wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> B;
typedef wmma::fragment<wmma::accumulator, 16, 16, 8, float> C;
"""


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("A a; wmma::load_matrix_sync(a, x + 1, 8);", "misaligned address"),
        ("A a; wmma::load_matrix_sync(a, x, 9);", "misaligned address"),
        ("A a; if (t < 16) wmma::load_matrix_sync(a, x, 8);", "load_matrix_sync, which"),
        ("C c; if (t < 16) wmma::fill_fragment(c, 0.f);\n"
         "else wmma::store_matrix_sync(y, c, 16, wmma::mem_row_major);", "store_matrix_sync"),
        ("A a; wmma::load_matrix_sync(a, x + (1 << 14) - 64, 8); y[t] = a.x[0] + a.x[3];",
         r"reads x\[16\d\d\d\], past its end"),
        ("__shared__ __align__(32) float s[256]; s[t] = t;\n"
         "B f; wmma::load_matrix_sync(f, s, 16); y[t] = f.x[0] + f.x[3];", "race on shared memory"),
    ],
)  # fmt: skip
def test_warp_matrix_functions_are_checked(fault_of, body, pattern):
    with pytest.raises(KernelFault, match=pattern):
        raise fault_of(f"{body}\n", block=32, before=BEFORE)


def test_numbers_are_rounded_to_tf32_away_from_zero(run):
    source = """#include <mma.h>
    __global__ void k(const float* x, float* y) {
      y[threadIdx.x] = nvcuda::wmma::__float_to_tf32(x[threadIdx.x]);
    }"""
    x = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf], np.float32)
    got = run(source, {"x": x}, {"y": (4, "float32")}, block=4)["y"]
    np.testing.assert_array_equal(got, [1 + 2.0**-10, -1 - 2.0**-10, 1, np.inf])
