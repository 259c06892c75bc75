"""The 16-bit formats of cuda_fp16.h and cuda_bf16.h, against NumPy and exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

pytestmark = pytest.mark.slow

Run = Callable[..., np.ndarray]
FORMATS = {  # mantissa bits, exponent bits, header, type, names in conversions
    "half": (10, 5, "cuda_fp16.h", "__half", "half", "half2"),
    "bfloat16": (7, 8, "cuda_bf16.h", "__nv_bfloat16", "bfloat16", "bfloat162"),
}


def decoded(bits: int, name: str) -> float:
    mantissa, exponent = FORMATS[name][:2]
    power, low = bits >> mantissa & (2**exponent - 1), bits & (2**mantissa - 1)
    sign = -1.0 if bits >> 15 else 1.0
    if power == 2**exponent - 1:
        return math.nan if low else sign * math.inf
    bias = 2 ** (exponent - 1) - 1
    whole = low + (2**mantissa if power else 0)
    return sign * math.ldexp(whole, max(power, 1) - bias - mantissa)


def encoded(value: Fraction, name: str, mode: str = "rn") -> int:
    """Return the bits of the number nearest to a nonzero value, or the next in a direction."""
    mantissa, exponent = FORMATS[name][:2]
    bias = 2 ** (exponent - 1) - 1
    sign, size = (0x8000 if value < 0 else 0), abs(value)
    power = max(math.floor(math.log2(size)) if size else 0, 1 - bias)
    while size >= Fraction(2) ** (power + 1):
        power += 1
    while power > 1 - bias and size < Fraction(2) ** power:
        power -= 1
    scaled = size / Fraction(2) ** (power - mantissa)
    whole = math.floor(scaled)
    away = mode == ("rd" if sign else "ru")
    up = scaled - whole > Fraction(1, 2) or (scaled - whole == Fraction(1, 2) and whole % 2 == 1)
    whole += (up if mode == "rn" else away) and scaled != whole
    bits = whole + ((power + bias - 1) << mantissa)
    infinity = (2**exponent - 1) << mantissa
    if bits >= infinity:
        bits = infinity if mode == "rn" or away else infinity - 1
    return sign | bits


@pytest.mark.parametrize("name", FORMATS)
def test_every_number_is_read_and_written_exactly(computed, name):
    _, _, header, kind, one, _ = FORMATS[name]
    source = f"""#include <{header}>
    __global__ void k(const {kind}* x, float* y) {{
      for (int i = 0; i < 65536; ++i) {{
        y[2 * i] = x[i];
        y[2 * i + 1] = __{one}_as_ushort(__float2{one}(__{one}2float(x[i])));
      }}
    }}"""
    x = np.arange(65536).astype(np.uint16)
    y = computed(source, x, size=131072, dtype="float32").reshape(-1, 2)
    expected = np.array([decoded(k, name) for k in range(65536)])
    np.testing.assert_array_equal(y[:, 0], expected)
    np.testing.assert_array_equal(y[:, 1], np.where(np.isnan(expected), 0x7FFF, x))


MANY = 20
numbers = st.integers(0, 0xFFFF)
OPERATIONS = {
    "__hadd(a, b)": lambda a, b, _: a + b,
    "a - b": lambda a, b, _: a - b,
    "__hmul_rn(a, b)": lambda a, b, _: a * b,
    "a / b": lambda a, b, _: a / b if b else None,
    "__hfma(a, b, c)": lambda a, b, c: a * b + c,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=50, max_size=50))
def test_each_operation_rounds_once(computed, name, triples):
    _, _, header, kind, one, _ = FORMATS[name]
    results = "".join(f"*y++ = __{one}_as_ushort({text});" for text in OPERATIONS)
    source = f"""#include <{header}>
    __global__ void k(const {kind}* x, unsigned short* y) {{
      for (int i = 0; i < 50; ++i, x += 3) {{ {kind} a = x[0], b = x[1], c = x[2]; {results} }}
    }}"""
    x = np.array(triples, np.uint16)
    y = computed(source, x.ravel(), size=50 * len(OPERATIONS), dtype="uint16").reshape(50, -1)
    for triple, found in zip(triples, y.tolist(), strict=True):
        values = [decoded(bits, name) for bits in triple]
        if not all(map(math.isfinite, values)):
            continue
        for operation, bits in zip(OPERATIONS.values(), found, strict=True):
            exact = operation(*map(Fraction, values))
            if exact:
                assert bits == encoded(exact, name), (values, bits)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=MANY))
def test_conversions_round_as_they_are_told(computed, name, values):
    values = [*values, *[0.0] * (MANY - len(values))]  # so that the kernel is always the same
    _, _, header, _, one, _ = FORMATS[name]
    modes = ("rn", "rz", "rd", "ru")
    results = "".join(f"*y++ = __{one}_as_ushort(__float2{one}_{mode}(x[i]));" for mode in modes)
    source = f"""#include <{header}>
    __global__ void k(const float* x, unsigned short* y) {{
      for (int i = 0; i < {MANY}; ++i) {{ {results} }}
    }}"""
    x = np.array(values, np.float32)
    y = computed(source, x, size=4 * MANY, dtype="uint16").reshape(-1, 4)
    for value, found in zip(values, y.tolist(), strict=True):
        if value:
            assert found == [encoded(Fraction(value), name, mode) for mode in modes], value


def test_a_fused_sum_is_exact_at_a_tie(computed):
    triple = np.array([3, 30615, 1], np.uint16)  # a product halfway between two, and a tiny summand
    source = """#include <cuda_bf16.h>
    __global__ void k(const __nv_bfloat16* x, unsigned short* y) {
      y[0] = __bfloat16_as_ushort(__hfma(x[0], x[1], x[2]));
    }"""
    a, b, c = (Fraction(decoded(int(bits), "bfloat16")) for bits in triple)
    assert computed(source, triple, size=1, dtype="uint16")[0] == encoded(a * b + c, "bfloat16")


TYPICAL = [1.5, -2.25, 0.5, 3.0]


RESULTS = [
    ("a + b * c", 0.375),
    ("(a += b, a *= c, ++a, -a)", -0.625),
    ("T(2) * a + T(1.5)", 4.5),
    ("__hmax(a, b) + __hmin(a, b)", -0.75),
    ("__hmax(a, nan) + (__hisnan(__hmax_nan(a, nan)) ? T(1) : T(0))", 2.5),
    (
        "__hlt(b, a) + 2 * __hge(b, a) + 4 * (a == a) + 8 * (nan == nan) + 16 * __hneu(nan, a)",
        21,
    ),
    ("__habs(b) + hsqrt(c + c) + hexp(T(0)) + hfloor(b)", 1.25),
    ("(int)a + (int)b + __ONE2int_rn(a) + (int)__int2ONE_rn(7)", 8),
    ("(unsigned char)(a * T(1000))", 255),
    ("(float)a + sum(x)", 4.25),
    ("TWO(a, b).y", -2.25),
    ("__low2float(__hfma2(TWO(a, b), TWO(b, a), TWO(c, c)))", -2.875),
    ("__high2float(TWO(a, b) * TWO(a, b))", 5.0625),
    ("__hbeq2(TWO(a, b), TWO(a, b)) + __hbgt2(TWO(a, b), TWO(b, a))", 1),
    ("__shfl_sync(1u, a, 0)", 1.5),
    ("__ldg(x + 3)", 3.0),
    ("shared(x)", 2.75),
]


@pytest.mark.parametrize("name", FORMATS)
def test_operators_and_intrinsics_do_what_they_say(computed, name):
    _, _, header, kind, one, two = FORMATS[name]
    results = [text.replace("ONE", one).replace("TWO", f"make_{two}") for text, _ in RESULTS]
    written = "".join(f"{{ T a = x[0]; y[{k}] = {text}; }}\n" for k, text in enumerate(results))
    source = f"""#include <{header}>
    typedef {kind} T;
    __device__ float sum(const T* x) {{
      float total = 0;
      for (int i = 0; i < 4; ++i) total += __{one}2float(x[i]);
      return total;
    }}
    __device__ T shared(const T* x) {{
      __shared__ T s[4];
      for (int i = 0; i < 4; ++i) s[i] = x[i];
      atomicAdd(&s[0], s[1]);
      return s[0] + s[2] + s[3];
    }}
    __global__ void k(const T* x, float* y) {{
      T b = x[1], c = x[2], nan = __ushort_as_{one}(0x7fff);
      {written}
    }}"""
    shift = 16 if name == "bfloat16" else 0
    bits = np.array(TYPICAL, np.float32).view(np.uint32) >> 16
    x = bits.astype(np.uint16) if shift else np.array(TYPICAL, np.float16).view(np.uint16)
    y = computed(source, x, size=len(RESULTS), dtype="float32")
    for result, found, (_, expected) in zip(results, y, RESULTS, strict=True):
        assert found == expected, result
