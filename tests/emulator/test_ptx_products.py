"""``mma.sync`` in inline PTX: which lane holds what, and how products are added."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from points import each_once

from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shape:
    """A product's rows, depth and the PTX types of A, B, and C."""

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
    "e4m3": 8,
    "e5m2": 8,
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "s8": 8,
    "u8": 8,
    "f64": 64,
    "f32": 32,
    "s32": 32,
}
NUMPY = {"f16": "<f2", "s8": "i1", "u8": "u1", "f64": "<f8", "f32": "<f4", "s32": "<i4"}


def _places(shape):
    """By the PTX ISA: row and column of each element that a lane holds of A, B and C, in order."""
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
    """Bits of the elements, as bytes."""
    if kind == "bf16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").view("u1")
    if kind == "e5m2":
        return (values.astype("<f2").view("<u2") >> 8).astype("u1")
    if kind == "e4m3":
        bits = (values * 2.0**-120).astype("<f4").view("<u4")
        return (bits >> 24 & 0x80 | bits >> 20 & 0x7F).astype("u1")
    return values.astype(NUMPY.get(kind, "<f4")).view("u1")


def _fragments(matrices, places, kind):
    """Registers of each lane of each warp, as 32-bit words."""
    held = np.stack([matrices[:, row, column] for row, column in places], axis=-1)
    return _encoded(np.ascontiguousarray(held), kind).reshape(-1).view("<u4")


def _statement(shape, suffix=""):
    """C++ for one product with fragments a, b, c and d in arrays of registers."""
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
    """multiply(case, a, b, c): d of each of the warps, whose matrices are stacked."""

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
    """The values that an operand of a type can hold."""
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
    with pytest.raises(KernelFault, match=pattern, check=lambda fault: fault.outcome == "runtime"):
        run_orders(DIVERGED.replace("CODE", code), block=block)


def test_a_product_orders_no_memory(fault_of):
    fault = fault_of(DIVERGED.replace("CODE", "s[t] = t; PRODUCT; y[0] = s[t ^ 1];"), block=32)
    assert "race on shared memory" in str(fault)
