"""Matrix products of a warp: ``mma.sync`` in inline PTX, and <mma.h>."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from outcomes import raises
from points import each_once

from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shape:
    """The rows and the depth of a product, and the PTX types of A, B and C."""

    rows: int
    depth: int
    a: str
    b: str
    c: str

    @property
    def name(self):
        kinds = ".".join((self.c, self.a, self.b, self.c))
        return f"m{self.rows}n8k{self.depth}.row.col.{kinds}"


SHAPES = [
    *(Shape(16, depth, kind, kind, "f32") for kind in ("f16", "bf16") for depth in (8, 16)),
    *(Shape(16, depth, "f16", "f16", "f16") for depth in (8, 16)),
    *(Shape(16, depth, "tf32", "tf32", "f32") for depth in (4, 8)),
    *(Shape(16, depth, *kinds, "s32")
      for depth in (16, 32) for kinds in itertools.product(("s8", "u8"), repeat=2)
      if (depth, *kinds) != (32, "u8", "u8")),
    *(Shape(16, 32, *kinds) for kinds in
      (("e4m3", "e4m3", "f32"), ("e5m2", "e4m3", "f32"), ("e4m3", "e5m2", "f16"))),
    Shape(16, 32, "u8", "u8", "s32"),
    Shape(8, 4, "f64", "f64", "f64"),
]  # fmt: skip
BITS = {
    **dict.fromkeys(("e4m3", "e5m2", "s8", "u8"), 8),
    **dict.fromkeys(("f16", "bf16"), 16),
    **dict.fromkeys(("tf32", "f32", "s32"), 32),
    "f64": 64,
}
NUMPY = {"f16": "<f2", "s8": "i1", "u8": "u1", "f64": "<f8", "f32": "<f4", "s32": "<i4"}


def _places(shape):
    """Return row and column of each element that a lane holds of A, B and C (PTX ISA)."""
    lanes = np.arange(32)
    group, thread = lanes // 4, lanes % 4
    size = max(1, 32 // BITS[shape.a])  # elements of a register
    along = np.arange(shape.depth).reshape(-1, 4, size)
    a, b = [], []
    for part in along:
        for down in range(shape.rows // 8):
            a += [(group + 8 * down, part[thread, i]) for i in range(size)]
        b += [(part[thread, i], group) for i in range(size)]
    c = [(group + 8 * down, 2 * thread + i) for down in range(shape.rows // 8) for i in range(2)]
    return a, b, c


def _encoded(values, kind):
    """Return the bits of the elements as bytes."""
    if kind == "bf16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").view("u1")
    if kind == "e5m2":
        return (values.astype("<f2").view("<u2") >> 8).astype("u1")
    if kind == "e4m3":
        bits = (values * 2.0**-120).astype("<f4").view("<u4")
        return (bits >> 24 & 0x80 | bits >> 20 & 0x7F).astype("u1")
    return values.astype(NUMPY.get(kind, "<f4")).view("u1")


def _fragments(matrices, places, kind):
    """Return the registers of each lane of each warp as 32-bit words."""
    held = np.stack([matrices[:, row, column] for row, column in places], axis=-1)
    return _encoded(np.ascontiguousarray(held), kind).reshape(-1).view("<u4")


def _statement(shape, suffix=""):
    """Return C++ for one product with fragments a, b, c and d in arrays of registers."""
    wide = 64 if shape.a == "f64" else 32
    sizes = [shape.rows * 8 * BITS[shape.c], shape.rows * shape.depth * BITS[shape.a],
             8 * shape.depth * BITS[shape.b]]  # fmt: skip
    in_c, in_a, in_b = (size // 32 // wide for size in sizes)
    letter = {"f64": "d", "f32": "f"}.get(shape.c, "r")
    operand = {"f64": "d"}.get(shape.a, "r")
    kind = {"d": "double", "f": "float", "r": "unsigned"}
    vectors, first = [], 0
    for count in (in_c, in_a, in_b, in_c):
        vectors.append("{" + ",".join(f"%{first + k}" for k in range(count)) + "}")
        first += count
    outputs = ", ".join(f'"={letter}"((({kind[letter]}*)d)[{k}])' for k in range(in_c))
    inputs = ", ".join(
        f'"{one}"(((const {kind[one]}*){name})[{k}])'
        for name, count, one in (("a", in_a, operand), ("b", in_b, operand), ("c", in_c, letter))
        for k in range(count)
    )
    words = wide // 32
    copies = " ".join(
        f"{name} += {words * count} * at;"
        for name, count in (("a", in_a), ("b", in_b), ("c", in_c), ("d", in_c))
    )
    name = f"mma.sync.aligned.{shape.name.replace('col.', 'col' + suffix + '.')}"
    return f'{copies} asm volatile("{name} {", ".join(vectors)};" : {outputs} : {inputs});'


CASES = [*((shape, "") for shape in SHAPES), (SHAPES[-2], ".satfinite")]
SOURCE = (
    "__global__ void k(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* d,"
    "int n) {\nint at = 32 * blockIdx.x + threadIdx.x;\n switch (n) {\n"
    + "".join(f"case {k}: {{ {_statement(*case)} }} break;\n" for k, case in enumerate(CASES))
    + "}}"
)


@pytest.fixture
def multiply(run):
    """Make multiply(case, a, b, c): d of each warp, whose matrices are stacked."""

    def go(case, a, b, c):
        shape = case[0]
        places = _places(shape)
        names = ("a", "b", "c")
        words = {
            name: _fragments(matrix, place, kind)
            for name, matrix, place, kind in zip(
                names, (a, b, c), places, (shape.a, shape.b, shape.c), strict=True
            )
        }
        outputs = {"d": (words["c"].size, "uint32")}
        number = [Scalar("n", "int32", CASES.index(case))]
        got = run(SOURCE, words, outputs, scalars=number, grid=len(a), block=32)["d"]
        held = got.view(NUMPY[shape.c]).reshape(len(a), 32, -1)
        result = np.zeros((len(a), shape.rows, 8), NUMPY[shape.c])
        for k, (row, column) in enumerate(places[2]):
            result[:, row, column] = held[:, :, k]
        return result

    return go


def _whole(random, shape, warps=3):
    low = 0 if "u8" in (shape.a, shape.b) else -8
    sizes = [(warps, shape.rows, shape.depth), (warps, shape.depth, 8), (warps, shape.rows, 8)]
    return [random.integers(low, 9, size).astype(float) for size in sizes]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_small_whole_numbers_are_multiplied_exactly(multiply, shape):
    a, b, c = _whole(np.random.default_rng(7), shape)
    np.testing.assert_array_equal(multiply((shape, ""), a, b, c), a @ b + c)


def test_a_sum_of_integers_wraps_and_can_be_held_at_the_largest(multiply):
    shape = SHAPES[-2]
    a, b = np.full((1, 16, 32), 255.0), np.full((1, 32, 8), 255.0)
    c = np.full((1, 16, 8), 2.0**31 - 1)
    wrapped = np.full((1, 16, 8), 32 * 255**2 - 2**31 - 1)
    np.testing.assert_array_equal(multiply((shape, ""), a, b, c), wrapped)
    np.testing.assert_array_equal(multiply((shape, ".satfinite"), a, b, c), c)


FLOATS = [shape for shape in SHAPES if shape.c == "f32" and BITS[shape.a] > 8]


def _rounded(values, kind):
    """Round values to those that an operand of a type can hold."""
    if kind == "f16":
        return values.astype("<f2").astype(float)
    kept = {"bf16": 16, "tf32": 13}[kind]
    bits = values.astype("<f4").view("<u4") >> kept << kept
    return bits.view("<f4").astype(float)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**32 - 1),
    spread=st.integers(0, 6),
)
def test_a_product_is_as_exact_as_its_largest_term_allows(multiply, shape, seed, spread):
    random = np.random.default_rng(seed)
    sizes = [(2, 16, shape.depth), (2, shape.depth, 8), (2, 16, 8)]
    a, b, c = (random.standard_normal(size) * 2.0 ** random.integers(-spread, spread + 1, size)
               for size in sizes)  # fmt: skip
    a, b, c = _rounded(a, shape.a), _rounded(b, shape.b), c.astype("<f4").astype(float)
    terms = np.concatenate([a[:, :, :, None] * b[:, None], c[:, :, None]], axis=2)
    exact, largest = terms.sum(axis=2), np.abs(terms).max(axis=2)
    error = multiply((shape, ""), a, b, c) - exact
    # Each term is cut off two bits below the 24 of the largest, and the sum after 24 bits.
    bound = (shape.depth + 1) * largest * 2.0**-25 + np.abs(exact) * 2.0**-23 + largest * 2.0**-40
    assert (np.abs(error) <= bound).all()


@pytest.mark.parametrize(
    ("shape", "term", "result"),
    each_once(
        {shape.name: (shape,) for shape in FLOATS},
        [
            (0.25 * 2.0**-24, 1.0),  # lost, although all of them add up to more than the last bit
            (-0.25 * 2.0**-24, 1.0),
            (0.75 * 2.0**-22, 1 + 2.0**-23),  # rounded toward zero
            (-1.5 * 2.0**-24, 1 - 2.0**-23),
        ],
    ),
)
def test_terms_are_cut_off_beside_the_largest(multiply, shape, term, result):
    a, b, c = np.zeros((1, 16, shape.depth)), np.zeros((1, shape.depth, 8)), np.ones((1, 16, 8))
    count = shape.depth if abs(term) < 2.0**-25 else 1
    a[:, :, :count], b[:, :count] = term * 2.0**12, 2.0**-12
    np.testing.assert_array_equal(multiply((shape, ""), a, b, c), np.full((1, 16, 8), result))


@pytest.mark.parametrize("power", [60, -50])
def test_extreme_exponents_change_nothing_else(multiply, power):
    shape = next(one for one in SHAPES if (one.a, one.depth) == ("tf32", 8))
    random = np.random.default_rng(3)
    sizes = [(2, 16, 8), (2, 8, 8), (2, 16, 8)]
    a, b, c = (_rounded(random.standard_normal(size), "tf32") for size in sizes)
    scale = 2.0**power  # of the products and of what they are added to
    usual = multiply((shape, ""), a, b, c).astype(float)
    got = multiply((shape, ""), a * 2.0**-50, b * scale * 2.0**50, c * scale)
    np.testing.assert_array_equal(got, usual * scale)


def test_low_bits_of_tf32_operands_are_ignored(multiply):
    shape = next(one for one in SHAPES if one.a == "tf32")
    a, b, c = _whole(np.random.default_rng(1), shape)
    exact = a @ b + c
    np.testing.assert_array_equal(multiply((shape, ""), a * (1 + 2.0**-11), b, c), exact)


def test_products_of_8_bit_floats_keep_14_bits(multiply):
    shape = next(one for one in SHAPES if one.a == "e4m3")
    a, b, c = np.ones((1, 16, 32)), np.full((1, 32, 8), 2.0**-6), np.full((1, 16, 8), 2.0**8)
    np.testing.assert_array_equal(multiply((shape, ""), a, b, c), c)
    c /= 2
    np.testing.assert_array_equal(multiply((shape, ""), a, b, c), c + 0.5)


def test_16_bit_accumulators_are_rounded_to_the_nearest_even(multiply):
    shape = next(one for one in SHAPES if one.c == "f16")
    a, b, c = np.zeros((1, 16, shape.depth)), np.zeros((1, shape.depth, 8)), np.ones((1, 16, 8))
    a[:, :, 0], b[:, 0] = 2.0**-5, [3 * 2.0**-6, 2.0**-6, 1.25 * 2.0**-6, 60000, 0, 0, 0, 0]
    c[:, :, 3] = 65500
    expected = [1 + 2 * 2.0**-10, 1, 1 + 2.0**-10, np.inf, 1, 1, 1, 1]
    got = multiply((shape, ""), a, b, c)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, (1, 16, 8)))


@pytest.mark.parametrize("shape", [*FLOATS, SHAPES[-1]], ids=lambda s: s.name)
def test_infinity_and_nan_reach_only_their_own_rows_and_columns(multiply, shape):
    a, b, c = _whole(np.random.default_rng(2), shape, warps=1)
    a[0, 0, 1], a[0, 1, 0], b[0, 2, 3], c[0, 5, 5] = np.inf, np.nan, -np.inf, np.inf
    b[0, 1] = 1
    a[0, 2:, 2], a[0, 0, 2] = 1, 1
    with np.errstate(invalid="ignore"):
        expected = a @ b + c
    np.testing.assert_array_equal(multiply((shape, ""), a, b, c), expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_doubles_are_multiplied_with_one_rounding_a_step(multiply, seed):
    random = np.random.default_rng(seed)
    a, b, c = (random.standard_normal(size) for size in ((1, 8, 4), (1, 4, 8), (1, 8, 8)))
    exact = (a.astype(np.longdouble) @ b.astype(np.longdouble) + c).astype(float)
    np.testing.assert_allclose(multiply((SHAPES[-1], ""), a, b, c), exact, rtol=0, atol=1e-14)


DIVERGED = """__shared__ float s[64];
float d[4] = {0, 0, 0, 0}; unsigned a = 0;
#define PRODUCT asm volatile("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}," \
  "{%4,%4}, {%4}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a))
CODE
y[t] = d[0];"""


@pytest.mark.parametrize(
    ("code", "block", "pattern"),
    [
        ("if (t < 20) PRODUCT;", 32, "takes all 32 lanes of a warp, and 20 are there"),
        ("if (t % 2) PRODUCT;\nelse PRODUCT;", 32, "mma.sync in line .* mma.sync in line"),
        ("if (t % 2) PRODUCT; else __syncwarp();", 32, "calls __syncwarp and .* calls mma.sync"),
        ("PRODUCT;", 48, "takes all 32 lanes of a warp, and 16 are there"),
        ("if (t % 2) PRODUCT; __syncthreads();", 32, "lanes that never call it"),
    ],
)
def test_a_product_needs_every_lane_of_its_warp(run_orders, code, block, pattern):
    with raises("runtime", pattern):
        run_orders(DIVERGED.replace("CODE", code), block=block)


def test_a_product_orders_no_memory(wrong):
    wrong(
        "race on shared memory",
        DIVERGED.replace("CODE", "s[t] = t; PRODUCT; y[0] = s[t ^ 1];"),
        block=32,
    )


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
FRAGMENTS = [(*one[:3], shape) for one in TYPES for shape in one[3]]
FRAGMENT_DTYPES = {"float": "<f4", "half": "<f2", "int": "<i4", "double": "<f8"}
IN_MEMORY = {"<f2": "half", "bf16": "__nv_bfloat16", "<f4": "float", "<f8": "double",
             "i1": "signed char", "u1": "unsigned char"}  # fmt: skip


def _leading(size):
    return size + 16 + -size % 16


def _source(kind, element, accumulator, shape, layouts):
    """Return the text of d = 2 (a b + c) by one warp, with a in shared memory."""
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
    """Return each case once, with layouts of A, B and C that differ from the case before."""
    for number, case in enumerate(FRAGMENTS):
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
        "c": _stored(c, layout[2], FRAGMENT_DTYPES[accumulator]),
    }
    source = _source(kind, element, accumulator, (m, n, k), layout)
    outputs = {"d": (inputs["c"].size, np.dtype(FRAGMENT_DTYPES[accumulator]).name)}
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
def test_warp_matrix_functions_are_checked(fault_of, body, bodies, pattern):
    with pytest.raises(KernelFault, match=pattern):
        raise fault_of(body, block=32, before=BEFORE, among=bodies)


def test_numbers_are_rounded_to_tf32_away_from_zero(run):
    source = """#include <mma.h>
    __global__ void k(const float* x, float* y) {
      y[threadIdx.x] = nvcuda::wmma::__float_to_tf32(x[threadIdx.x]);
    }"""
    x = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf], np.float32)
    got = run(source, {"x": x}, {"y": (4, "float32")}, block=4)["y"]
    np.testing.assert_array_equal(got, [1 + 2.0**-10, -1 - 2.0**-10, 1, np.inf])
