"""CUDA's arithmetic on the host: shifts, divisions and conversions, against models in Python.

The models are what an H200 gives (nvcc of CUDA 13, 2026-11-23), and PTX ISA 8.5 describes for
"shl", "shr" and "cvt".
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st
from points import each_once

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

INTEGERS = {
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
}
Run = Callable[..., np.ndarray]


def bits_of(dtype: str) -> int:
    return np.dtype(dtype).itemsize * 8


def wrapped(value: int, dtype: str) -> int:
    bits = bits_of(dtype)
    low = value % 2**bits
    return low - 2**bits if dtype[0] == "i" and low >= 2 ** (bits - 1) else low


def promoted(dtype: str) -> str:
    return "int32" if bits_of(dtype) < 32 else dtype


def shifted(value: int, count: int, dtype: str, operator: str) -> int:
    """Return the promoted result of a shift, whose count is its low 32 bits."""
    wide, count = promoted(dtype), min(count % 2**32, 64)
    if operator == "<<":
        return wrapped(value << count, wide) if count < bits_of(wide) else 0
    return value >> count  # Python's shift fills with the sign


def converted(value: float, source: str, dtype: str) -> int:
    """Convert a value; narrow types are converted through 32 bits."""
    wide = dtype if bits_of(dtype) >= 32 else dtype.rstrip("0123456789") + "32"
    info = np.iinfo(wide)
    if math.isnan(value):
        undefined = 2 ** (bits_of(wide) - 1)
        return wrapped(wrapped(undefined if "64" in source + wide else 0, wide), dtype)
    whole = info.max if value == math.inf else info.min if value == -math.inf else int(value)
    return wrapped(min(max(whole, int(info.min)), int(info.max)), dtype)


SHIFTS = """
template <class T, class N> __device__ void both(T x, N n, long long* y) {
  y[0] = (long long)(x << n);
  y[1] = (long long)(x >> n);
  T left = x; left <<= n; y[2] = (long long)left;
  T right = x; right >>= n; y[3] = (long long)right;
}
__global__ void k(const long long* x, const long long* n, long long* y) {
  for (int i = 0; i < 20; ++i) {
CALLS  }
}
"""
counts = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.sampled_from([31, 32, 63, 64])
wholes = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.tuples(wholes, counts), min_size=20, max_size=20))
def test_shifts_clamp_their_count(computed, pairs):
    ways = [(kind, count) for kind in INTEGERS for count in ("int", "long long")]
    calls = "".join(f"    both(({kind})x[i], ({count})n[i], y); y += 4;\n" for kind, count in ways)
    values, by = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    y = computed(SHIFTS.replace("CALLS", calls), values, by, size=80 * len(ways), dtype="int64")
    expected = []
    for value, count in pairs:
        for kind, _ in ways:
            dtype = INTEGERS[kind]
            left, right = (shifted(wrapped(value, dtype), count, dtype, op) for op in ("<<", ">>"))
            kept = [wrapped(left, dtype), wrapped(right, dtype)]
            expected.append([wrapped(one, "int64") for one in (left, right, *kept)])
    assert y.reshape(-1, 4).tolist() == expected


CAST = """
template <class T> struct Holder { T kept; };
template <class T> __device__ T returned(FLOAT f) { return f; }
template <class T> __device__ T passed(T value) { return value; }
__global__ void k(const FLOAT* x, INTEGER* y) {
  for (int i = 0; i < SIZE; ++i, y += 9) {
    FLOAT f = x[i];
    y[0] = (INTEGER)x[i];
    y[1] = static_cast<INTEGER>(f);
    typedef INTEGER whole;
    y[2] = whole(f);
    y[3] = f;
    INTEGER assigned, initialized = f;
    y[4] = initialized + (assigned = f) - initialized;
    y[5] = returned<INTEGER>(f);
    y[6] = passed<INTEGER>(f);
    Holder<INTEGER> holder = {0};
    holder.kept += f;
    y[7] = holder.kept;
    y[8] = f > 0 ? (f) : x[i];
  }
}
"""
SPECIAL = [0.0, -0.5, 1.9, -1.9, 127.5, 128.0, 255.5, 256.0, 300.0, -128.9, -129.0, 32768.0,
           65536.0, 70000.0, -70000.0, 2147483520.0, 2147483648.0, -2147483648.0, 3e9, -3e9,
           4294967040.0, 4294967296.0, 5e9, 9.2e18, 1e19, -1e19, 1.8446744073709552e19, 2e20,
           math.nan, math.inf,
           -math.inf]  # fmt: skip


@pytest.mark.parametrize(("kind", "integer"), each_once(["float", "double"], list(INTEGERS)))
def test_conversions_to_integers_saturate(computed, integer, kind):
    source = {"float": "float32", "double": "float64"}[kind]
    rng = np.random.default_rng(3)
    random = (rng.standard_normal(200) * 10.0 ** rng.integers(0, 22, 200)).tolist()
    x = np.array(SPECIAL + random, source)
    text = CAST.replace("INTEGER", integer).replace("FLOAT", kind).replace("SIZE", str(len(x)))
    y = computed(text, x, size=9 * len(x), dtype=INTEGERS[integer]).reshape(-1, 9)
    expected = [converted(float(value), source, INTEGERS[integer]) for value in x]
    for way in range(9):
        assert [int(v) for v in y[:, way]] == expected, way


DIVIDE = """
template <class T> __device__ void both(const long long* x, long long* y) {
  T a = (T)x[0], b = (T)x[1];
  y[0] = a / b;
  y[1] = a % b;
  T q = a; q /= b; y[2] = q;
  T r = a; r %= b; y[3] = r;
}
__global__ void k(const long long* x, long long* y) {
  for (int i = 0; i < 20; ++i, x += 2, y += 32) {
CALLS  }
}
"""
divisors = st.sampled_from([0, -1, 1, -(2**31), -(2**63), 2**32]) | st.integers(-9, 9) | wholes


def divided(a: int, b: int, dtype: str) -> tuple[int, int]:
    wide = promoted(dtype)
    if not b:
        short = bits_of(wide) == 64 and 0 <= a < 2**32
        return wrapped(2**32 - 1 if short else -1, wide), a
    quotient = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
    return wrapped(quotient, wide), a - b * quotient


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.tuples(divisors | wholes, divisors), min_size=20, max_size=20))
def test_division_never_traps(computed, pairs):
    calls = "".join(f"    both<{kind}>(x, y + {4 * k});\n" for k, kind in enumerate(INTEGERS))
    y = computed(
        DIVIDE.replace("CALLS", calls), np.array(pairs, np.int64).ravel(), size=640, dtype="int64"
    )
    expected = []
    for a, b in pairs:
        for dtype in INTEGERS.values():
            quotient, rest = divided(wrapped(a, dtype), wrapped(b, dtype), dtype)
            kept = [wrapped(quotient, dtype), wrapped(rest, dtype)]
            expected.append([wrapped(v, "int64") for v in (quotient, rest, *kept)])
    assert y.reshape(-1, 4).tolist() == expected


MARKED = {
    "int a[8 >> 1]; y[0] = sizeof a / sizeof *a;": 4,
    "enum { half = LENGTH / TWO }; y[0] = half;": 3,
    "Box<Box<int, 2>, (8 >> TWO)> box; y[0] = sizeof box / sizeof(int);": 4,
    "Vec a = {6}, b = {x[2]}; y[0] = (a / b).v + (a >> TWO).v; a /= b; y[0] += a.v;": 5,
    "Flags f = {0}; f.low = x[3] / x[2]; f.low <<= x[1]; y[0] = f.low / x[1];": 8,
    "y[0] = THIRD(x[3]) + THREE;": 7,
    "int n = 5; if (x[0] < Ref(n).set(x[3])) y[0] = n + (int)Ref(n).at;": 24,
    "y[0] = x[1] - (int)2.5f * -(int)x[3] / x[2] % 7;": 2,
    "float f = x[3]; f /= x[2]; y[0] = f * 4 + (x[3] > (int)f && x[1] < x[2] >> 1);": 16,
    "auto f = [](int n) { return n << 2; }; int (*g)(int) = f; y[0] = g(x[2]);": 12,
    "int i = x[3]; i <<= i < 0 ? 1 : TWO; y[0] = i /= TWO;": 24,
    'y[0] = sizeof("a / b" "%") + (\'/\' % 10); /* x / y */': 14,
}


def test_marked_text_means_the_same(computed):
    bodies = "".join(f"{{ int* y = all + {k};\n{body} }}\n" for k, body in enumerate(MARKED))
    source = f"""
    #define LENGTH 7
    #define TWO 2
    #define THIRD(a) ((a) / (TWO + 1))
    #if LENGTH / TWO << TWO == 12 && LENGTH % TWO == 1 && THIRD(10) == 3 && (16 >> TWO) == 4
    #define THREE 3
    #endif
    template <class T, int N> struct Box {{ T v[N]; }};
    struct Vec {{
      int v;
      __device__ Vec operator/(Vec b) const {{ return {{v / b.v}}; }}
      __device__ Vec& operator/=(const Vec& b) {{ v /= b.v; return *this; }}
    }};
    struct Place {{
      int& at;
      __device__ explicit Place(int& n) : at(n) {{}}
      __device__ int set(int n) const {{ return at = n; }}
    }};
    using Ref = Place;
    __device__ Vec operator>>(Vec a, int n) {{ return {{a.v >> n}}; }}
    struct Flags {{ unsigned low : 9, high : 9; }};
    __global__ void k(const int* x, int* all) {{ {bodies} }}
    """
    x = np.array([0, 1, 3, 12], np.int32)
    found = computed(source, x, size=len(MARKED), dtype="int32")
    assert dict(zip(MARKED, found, strict=True)) == MARKED


def test_a_conversion_that_cannot_be_marked_is_refused_when_it_does_not_fit(computed):
    source = """
    __device__ int twice(int n) { return 2 * n; }
    __device__ int twice(int n, int, int = 0) { return n; }
    struct Only { __device__ Only(int n) : n(n) {} int n; };
    __global__ void k(const float* x, int* y) {
      Only a = x[0] > 0 ? Only(3) : Only(4);
      struct { int field : 20; } bits;
      bits.field += x[0];
      y[0] = a.n + bits.field;
    }
    """
    with pytest.raises(KernelFault, match=r"line 8: thread .* converts a floating-point number"):
        computed(source, np.array([3e10], np.float32), size=1, dtype="int32")


def test_an_assertion_is_quoted_as_it_was_written(computed):
    source = "__global__ void k(const int* x, int* y) { assert(x[0] / x[1] % x[1] == (int)2.0f); }"
    with pytest.raises(KernelFault) as told:
        computed(source, np.array([6, 2], np.int32), size=1, dtype="int32")
    assert "`x[0] / x[1] % x[1] == int(2.0f)`" in str(told.value)


WHOLES = {"int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}
ROUNDED = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


@pytest.mark.parametrize("kind", ["float", "double"])
def test_conversion_intrinsics_round_and_saturate(computed, kind):
    source = {"float": "float32", "double": "float64"}[kind]
    ways = [(whole, mode) for whole in WHOLES for mode in ROUNDED]
    calls = "".join(f"*y++ = __{kind}2{whole}_{mode}(x[i]);" for whole, mode in ways)
    text = f"""__global__ void k(const {kind}* x, long long* y) {{
      for (int i = 0; i < SIZE; ++i) {{ {calls} }}
    }}"""
    x = np.array([*SPECIAL, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-30, -2147483648.6, 4294967295.4], source)
    y = computed(text.replace("SIZE", str(len(x))), x, size=len(x) * 16, dtype="int64")
    expected = []
    for value in map(float, x):
        for whole, mode in ways:
            rounded = float(ROUNDED[mode](value)) if math.isfinite(value) else value
            expected.append(wrapped(converted(rounded, source, WHOLES[whole]), "int64"))
    assert y.tolist() == expected


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9),
    st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=2.0**-30, max_value=1e9),
)
@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
def test_directed_rounding_brackets_the_exact_result(computed, a, b):
    text = """__global__ void k(const float* x, float* y) {
      y[0] = __fadd_rd(x[0], x[1]); y[1] = __fadd_ru(x[0], x[1]); y[2] = __fadd_rz(x[0], x[1]);
      y[3] = __fmul_rd(x[0], x[1]); y[4] = __fmul_ru(x[0], x[1]); y[5] = __fmul_rz(x[0], x[1]);
      y[6] = __fdiv_rd(x[0], x[1]); y[7] = __fdiv_ru(x[0], x[1]); y[8] = __fdiv_rz(x[0], x[1]);
    }"""
    y = computed(text, np.array([a, b], np.float32), size=9, dtype="float32").astype(float)
    x, z = Fraction(a), Fraction(b)
    for k, exact in enumerate((x + z, x * z, x / z)):
        down, up, zero = (Fraction(v) for v in y[3 * k : 3 * k + 3])
        assert down <= exact <= up
        assert zero == (down if exact > 0 else up)
        assert down == up or np.nextafter(np.float32(y[3 * k]), np.float32(np.inf)) == y[3 * k + 1]


def test_an_error_is_told_in_the_words_of_the_text(computed):
    with pytest.raises(KernelFault, match=r"^line 2: .*missing") as told:
        computed("__global__ void k(int* y) {\n y[0] = y[1] / missing; }", size=2, dtype="int32")
    assert "cuhost" not in str(told.value)


def test_multiply_adds_are_fused_where_the_host_can(computed):
    """As nvcc does without ``-fmad=false``: the square of 1 + 2**-12 is not rounded."""
    source = """
    extern "C" __global__ void k(const float* x, float* y) { y[0] = x[0] * x[0] + x[1]; }
    """
    x = np.array([1 + 2**-12, -(1 + 2**-11)], np.float32)
    can_fuse = platform.machine() != "x86_64" or " fma " in Path("/proc/cpuinfo").read_text()
    assert computed(source, x, size=1, dtype="float32") == (2**-24 if can_fuse else 0)
