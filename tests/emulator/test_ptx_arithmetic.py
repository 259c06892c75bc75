"""Arithmetic, conversions and moves of inline PTX, by each thread with its own registers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from pytest_gpuenergy.workloads import rounded_to

pytestmark = pytest.mark.slow

ALL = 2**32 - 1


def _signed(v, bits=32):
    return (v & (2**bits - 1)) - (2**bits if v >> (bits - 1) & 1 else 0)


def _bytes(v):
    return [v >> shift & 255 for shift in (0, 8, 16, 24)]


def _prmt(x, y, z):
    given = _bytes(x) + _bytes(y)
    picked = [(given[z >> shift & 7], z >> shift & 8) for shift in (0, 4, 8, 12)]
    return sum((255 * (b >> 7) if sign else b) << 8 * k for k, (b, sign) in enumerate(picked))


def _extracted(x, y, z, signed):
    place, length = y & 255, z & 255
    value = _signed(x) if signed else x
    if length == 0:
        return 0
    if place + length >= 32:
        return value >> min(place, 31 if signed else 32)
    field = x >> place & (2**length - 1)
    return _signed(field, length) if signed else field


def _limited(x):
    return min(max(_signed(x), -128), 127)


def _carried(low, carry):
    """What `low + carry` leaves in a word, plus the carry out of it."""
    return (low + carry & ALL) + (low + carry >> 32)


def _inserted(x, y, z):
    place, length = z & 255, z >> 8 & 255
    field = (2**length - 1 << place) & ALL
    return (y & ~field) | (x << place & field)


# Of 32-bit integers x, y, z.
WHOLE = {
    "add.u32 %0, %1, %2;": lambda v: v.x + v.y,
    "sub.s32 %0, %1, %2;": lambda v: v.x - v.y,
    "mul.lo.u32 %0, %1, %2;": lambda v: v.x * v.y,
    "mul.hi.u32 %0, %1, %2;": lambda v: v.x * v.y >> 32,
    "mul.hi.s32 %0, %1, %2;": lambda v: _signed(v.x) * _signed(v.y) >> 32,
    "mad.lo.s32 %0, %1, %2, %3;": lambda v: v.x * v.y + v.z,
    "mad.hi.u32 %0, %1, %2, %3;": lambda v: (v.x * v.y >> 32) + v.z,
    "min.s32 %0, %1, %2;": lambda v: min(_signed(v.x), _signed(v.y)),
    "max.u32 %0, %1, %2;": lambda v: max(v.x, v.y),
    "and.b32 %0, %1, %2;": lambda v: v.x & v.y,
    "or.b32 %0, %1, %2;": lambda v: v.x | v.y,
    "xor.b32 %0, %1, 0xff;": lambda v: v.x ^ 255,
    "not.b32 %0, %1;": lambda v: ~v.x,
    "neg.s32 %0, %1;": lambda v: -v.x,
    "abs.s32 %0, %1;": lambda v: abs(_signed(v.x)),
    "shl.b32 %0, %1, %2;": lambda v: v.x << v.y if v.y < 32 else 0,
    "shr.u32 %0, %1, %2;": lambda v: v.x >> v.y if v.y < 32 else 0,
    "shr.s32 %0, %1, %2;": lambda v: _signed(v.x) >> min(v.y, 31),
    "shf.l.wrap.b32 %0, %1, %2, %3;": lambda v: (v.y << 32 | v.x) << (v.z & 31) >> 32,
    "shf.r.clamp.b32 %0, %1, %2, %3;": lambda v: (v.y << 32 | v.x) >> min(v.z, 32),
    "prmt.b32 %0, %1, %2, %3;": lambda v: _prmt(v.x, v.y, v.z),
    "lop3.b32 %0, %1, %2, %3, 0xe8;": lambda v: (v.x & v.y) | (v.x & v.z) | (v.y & v.z),
    "lop3.b32 %0, %1, %2, %3, 0xea;": lambda v: (v.x & v.y) | v.z,
    "bfe.u32 %0, %1, %2, %3;": lambda v: _extracted(v.x, v.y, v.z, False),
    "bfe.s32 %0, %1, %2, %3;": lambda v: _extracted(v.x, v.y, v.z, True),
    "{ .reg .b32 n; shr.b32 n, %3, 8; bfi.b32 %0, %1, %2, %3, n; }": (
        lambda v: _inserted(v.x, v.y, v.z)
    ),
    "popc.b32 %0, %1;": lambda v: v.x.bit_count(),
    "clz.b32 %0, %1;": lambda v: 32 - v.x.bit_length(),
    "brev.b32 %0, %1;": lambda v: int(f"{v.x:032b}"[::-1], 2),
    "dp4a.u32.u32 %0, %1, %2, %3;": lambda v: v.z + sum(
        a * b for a, b in zip(_bytes(v.x), _bytes(v.y), strict=True)
    ),
    "sad.u32 %0, %1, %2, %3;": lambda v: v.z + abs(v.x - v.y),
    "mul24.lo.u32 %0, %1, %2;": lambda v: (v.x & 0xFFFFFF) * (v.y & 0xFFFFFF),
    "mad24.lo.s32 %0, %1, %2, %3;": lambda v: _signed(v.x, 24) * _signed(v.y, 24) + v.z,
    "slct.b32.s32 %0, %1, %2, %3;": lambda v: v.x if _signed(v.z) >= 0 else v.y,
    "cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;": lambda v: (
        v.z << 16 | (_limited(v.x) & 255) << 8 | _limited(v.y) & 255
    ),
    # The upper words of sums and products of 64 bits, by the carry flag.
    "{ .reg .u32 l; add.cc.u32 l, %1, %2; addc.u32 %0, %3, 0; }": (
        lambda v: v.z + (v.x + v.y >> 32)
    ),
    "{ .reg .u32 l; sub.cc.u32 l, %1, %2; subc.u32 %0, %3, 5; }": (
        lambda v: v.z - 5 - (v.x < v.y)
    ),
    "{ .reg .u32 l, m; add.cc.u32 l, %1, %2; addc.cc.u32 m, %2, %3; addc.u32 %0, 0, 7; }": (
        lambda v: 7 + (v.y + v.z + (v.x + v.y >> 32) >> 32)
    ),
    "{ .reg .u32 l; mad.lo.cc.u32 l, %1, %2, %3; madc.hi.u32 %0, %1, %2, 3; }": (
        lambda v: (v.x * v.y + v.z >> 32) + 3
    ),
    "{ .reg .u32 l, h; mad.hi.cc.u32 h, %1, %2, %3; madc.lo.cc.u32 l, %1, %1, 0;"
    " addc.u32 %0, l, 0; }": (
        lambda v: _carried(v.x * v.x & ALL, (v.x * v.y >> 32) + v.z >> 32)
    ),
    "div.u32 %0, %1, %2;": lambda v: v.x // v.y if v.y else ALL,
    "rem.u32 %0, %1, %2;": lambda v: v.x % v.y if v.y else v.x,
    "{ .reg .u64 w; mul.wide.u32 w, %1, %2; shr.u64 w, w, 16; cvt.u32.u64 %0, w; }": (
        lambda v: v.x * v.y >> 16
    ),
    "{ .reg .u64 w; cvt.u64.u32 w, %1; shl.b64 w, w, %2; shr.u64 w, w, 16; cvt.u32.u64 %0, w; }": (
        lambda v: (v.x << v.y & 2**64 - 1) >> 16 if v.y < 64 else 0
    ),
    "{ .reg .u64 w; cvt.u64.u32 w, %1; bfe.u64 w, w, 8, 16; cvt.u32.u64 %0, w; }": (
        lambda v: v.x >> 8 & 0xFFFF
    ),
    "{ .reg .b64 w; mov.b64 w, {%1, %2}; mov.b64 {_, %0}, w; }": lambda v: v.y,
    "{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }": (
        lambda v: v.x << 16 | v.x >> 16
    ),
    "cvt.s32.s8 %0, %1;": lambda v: _signed(v.x, 8),
    "cvt.u32.u16 %0, %1;": lambda v: v.x & 65535,
    "{ .reg .u64 w; cvt.u64.u32 w, %1; cvt.sat.s32.u64 %0, w; }": (
        lambda v: min(v.x, 2**31 - 1)
    ),
    "{ .reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, 1, %3, p; }": (
        lambda v: 1 if _signed(v.x) < _signed(v.y) else v.z
    ),
    "{ .reg .pred p, q; setp.ge.u32 p|q, %1, %2; selp.u32 %0, 7, 8, q; }": (
        lambda v: 7 if v.x < v.y else 8
    ),
    "{ .reg .pred p<2>; setp.eq.u32 p0, %1, 0; setp.ne.and.u32 p1, %2, 0, p0;"
    " mov.u32 %0, 3; @p1 mov.u32 %0, 4; @!p0 mov.u32 %0, 5; }": (
        lambda v: 5 if v.x else 4 if v.y else 3
    ),
    "{ .reg .b32 a; mov.b32 a, %1; { .reg .b32 a; mov.b32 a, 9; } mov.b32 %0, a; }": (
        lambda v: v.x
    ),
    "add.u32 %0, %1, 1; // one more\n { .reg .u32 n; mov.u32 n, %%ntid.x; /* and more */"
    " add.u32 %0, %0, n; }": (
        lambda v: v.x + 2
    ),
}  # fmt: skip
WHOLE_SOURCE = (
    "__global__ void k(const unsigned* in, unsigned* y) {"
    "\nunsigned a = in[0], b = in[1], c = in[2];\n"
    + "".join(
        'asm volatile("{}" : "=r"(y[{}]) : "r"(a), "r"(b), "r"(c));\n'.format(
            text.replace("\n", "\\n"), k
        )
        for k, text in enumerate(WHOLE)
    )
    + "}"
)

words = st.integers(0, ALL) | st.integers(0, 40) | st.integers(ALL - 40, ALL)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(x=words, y=words, z=words)
@example(x=0, y=0, z=0)
@example(x=2**31, y=ALL, z=33)
def test_integers_are_computed_as_the_isa_says(run, x, y, z):
    inputs = {"in": np.array([x, y, z], np.uint32)}
    got = run(WHOLE_SOURCE, inputs, {"y": (len(WHOLE), "uint32")}, block=1)["y"]
    expected = {text: f(SimpleNamespace(x=x, y=y, z=z)) & ALL for text, f in WHOLE.items()}
    assert dict(zip(WHOLE, got.tolist(), strict=True)) == expected


# Of float32 numbers x, y, z.
REAL = {
    "add.f32 %0, %1, %2;": lambda v: v.x + v.y,
    "sub.rn.f32 %0, %1, %2;": lambda v: v.x - v.y,
    "mul.f32 %0, %1, 0f40000000;": lambda v: v.x * np.float32(2),
    "mul.f32 %0, %1, 0.5;": lambda v: v.x * np.float32(0.5),
    "fma.rn.f32 %0, %1, %2, %3;": lambda v: np.float32(
        np.longdouble(v.x) * np.longdouble(v.y) + np.longdouble(v.z)
    ),
    "div.full.f32 %0, %1, %2;": lambda v: v.x / v.y,
    "max.f32 %0, %1, %2;": lambda v: np.fmax(v.x, v.y),
    "min.NaN.f32 %0, %1, %2;": lambda v: np.minimum(v.x, v.y),
    "neg.f32 %0, %1;": lambda v: -v.x,
    "abs.f32 %0, %1;": lambda v: abs(v.x),
    "rcp.approx.ftz.f32 %0, %1;": lambda v: np.float32(1) / _flushed(v.x),
    "ex2.approx.ftz.f32 %0, %1;": lambda v: np.exp2(_flushed(v.x)),
    "add.sat.f32 %0, %1, %2;": lambda v: np.float32(
        min(max(v.x + v.y, 0), 1) if v.x == v.x and v.y == v.y else 0
    ),
    "cvt.rzi.f32.f32 %0, %1;": lambda v: np.trunc(v.x),
    "{ .reg .s32 i; cvt.rni.s32.f32 i, %1; cvt.rn.f32.s32 %0, i; }": lambda v: np.float32(
        np.int32(np.clip(np.rint(np.nan_to_num(np.float64(v.x))), -(2.0**31), 2.0**31 - 1))
    ),
    "{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h; }": lambda v: np.float32(
        np.float16(v.x)
    ),
    "{ .reg .b16 h; cvt.rn.bf16.f32 h, %1; mov.b32 %0, {0, h}; }": lambda v: _kept(v.x, 16, "even"),
    "{ .reg .b32 w; cvt.rna.tf32.f32 w, %1; mov.b32 %0, w; }": lambda v: _kept(v.x, 13, "away"),
    "{ .reg .b32 w; cvt.rn.tf32.f32 w, %1; mov.b32 %0, w; }": lambda v: _kept(v.x, 13, "even"),
    "{ .reg .b32 w; cvt.rn.relu.bf16x2.f32 w, %1, %2; mov.b32 %0, w; }": lambda v: _pair(
        _kept(np.where(v.x <= 0, np.float32(0), v.x), 16, "even"),
        _kept(np.where(v.y <= 0, np.float32(0), v.y), 16, "even"),
    ),
    "{ .reg .b32 w; cvt.rn.f16x2.f32 w, %1, %2; mov.b32 %0, w; }": lambda v: (
        np.where(np.isnan([v.y, v.x]), 0x7FFF, np.array([v.y, v.x]).astype("<f2").view("<u2"))
        .astype("<u2").view("<f4")[0]
    ),
    "{ .reg .b32 w; cvt.rn.satfinite.f16x2.f32 w, %1, %1; mov.b32 %0, w; }": lambda v: _twice(
        np.where(np.isnan(v.x), np.nan, np.clip(v.x, np.float32(-65504), np.float32(65504)))
    ),
    "{ .reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, %1, %2; mov.b32 %0, {h, h}; }": lambda v: (
        _small_pair(v.x, v.y, "float8_e4m3fn")
    ),
    "{ .reg .b16 h; cvt.rn.satfinite.e5m2x2.f32 h, %1, %2; mov.b32 %0, {h, h}; }": lambda v: (
        _small_pair(v.x, v.y, "float8_e5m2")
    ),
    "{ .reg .f16 h; .reg .f16x2 w; cvt.rn.f16.f32 h, %1; mov.b32 w, {h, h};"
    " add.f16x2 w, w, w; mov.b32 %0, w; }": lambda v: _twice(np.float16(v.x) * np.float16(2)),
    "{ .reg .b16 h; cvt.rn.f16.f32 h, %1; add.ftz.f16 h, h, h; cvt.f32.f16 %0, h; }": lambda v: (
        np.float32(_half_flushed(v.x) * np.float16(2))
    ),
    "{ .reg .pred p; .reg .b16 h, z; cvt.rn.f16.f32 h, %1; mov.b16 z, 0; setp.gt.ftz.f16 p, h, z;"
    " selp.f32 %0, 1.0, 2.0, p; }": lambda v: np.float32(1 if _half_flushed(v.x) > 0 else 2),
}  # fmt: skip
REAL_SOURCE = (
    "__global__ void k(const float* in, float* y) {\nfloat a = in[0], b = in[1], c = in[2];\n"
    + "".join(
        f'asm("{text}" : "=f"(y[{k}]) : "f"(a), "f"(b), "f"(c));\n' for k, text in enumerate(REAL)
    )
    + "}"
)


# Statements that approximate, by the units in the last place that PTX allows them to be off.
APPROXIMATE = {
    "div.full.f32 %0, %1, %2;": 2,
    "rcp.approx.ftz.f32 %0, %1;": 1,
    "ex2.approx.ftz.f32 %0, %1;": 2,
}


def _limits(text, value):
    """Return the least and the greatest result that a statement may have for an exact value."""
    if not np.isfinite(value):
        return value, value
    spread = APPROXIMATE.get(text, 0) * np.spacing(np.abs(value))
    ends = (value - spread, value + spread)
    return tuple(map(_flushed, ends)) if ".ftz" in text and text in APPROXIMATE else ends


def _flushed(value):
    """Replace subnormal numbers by zero."""
    tiny = np.abs(value) < np.finfo(np.float32).tiny
    return np.copysign(np.float32(0), value) if tiny else np.float32(value)


def _half_flushed(value):
    half = np.float16(value)
    tiny = np.abs(half) < np.finfo(np.float16).tiny
    return np.copysign(np.float16(0), half) if tiny else half


def _kept(value, dropped, ties):
    """Round a value to a float32 number without its low bits."""
    bits = int(np.float32(value).view(np.uint32))
    if not np.isfinite(value):
        return np.uint32(0x7FFFFFFF if np.isnan(value) else bits).view(np.float32)
    half = 1 << (dropped - 1)
    bits += half if ties == "away" else half - 1 + (bits >> dropped & 1)
    return np.uint32(bits >> dropped << dropped).view(np.float32)


def _twice(value):
    """Return two float16 numbers in the bits of a float32."""
    bits = int(np.float16(value).view(np.uint16)) if not np.isnan(value) else 0x7FFF
    return np.uint32(bits | bits << 16).view(np.float32)


def _pair(high, low):
    words = np.array([low, high], np.float32).view(np.uint32) >> 16
    return np.uint32(int(words[0]) | int(words[1]) << 16).view(np.float32)


def _small_pair(high, low, dtype):
    """Return two 8-bit numbers, twice, in the bits of a float32."""
    upper, lower = (int(bits) for bits in rounded_to(np.array([high, low], np.float64), dtype))
    both = (upper & 0xFF if high == high else 0x7F) << 8 | (lower if low == low else 0x7F)
    return np.uint32(both | both << 16).view(np.float32)


reals = (
    st.floats(width=32, allow_nan=False)
    | st.floats(-4, 4, width=32)
    | st.floats(-(2.0**-120), 2.0**-120, width=32)
    | st.just(np.nan)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(x=reals, y=reals, z=reals)
@example(x=1 + 2.0**-11, y=1 + 3 * 2.0**-8, z=-(1 + 2.0**-8))
@example(x=1e-40, y=-0.0, z=0.0)
@example(x=-5e-5, y=1.0, z=0.0)
@example(x=5e-5, y=1.0, z=0.0)
@example(x=4.088867235143195e-28, y=252712124416.0, z=0.0)  # a subnormal quotient
@example(x=2.0**126 * (1 - 2.0**-24), y=1.0, z=0.0)  # whose reciprocal may or may not be subnormal
def test_floating_point_numbers_are_computed_as_the_isa_says(run, x, y, z):
    given_values = np.array([x, y, z], np.float32)
    got = run(REAL_SOURCE, {"in": given_values}, {"y": (len(REAL), "float32")}, block=1)["y"]
    v = SimpleNamespace(x=given_values[0], y=given_values[1], z=given_values[2])
    with np.errstate(all="ignore"):
        expected = np.array([np.float32(f(v)) for f in REAL.values()])
        limits = np.array([_limits(*both) for both in zip(REAL, expected, strict=True)])
    close = np.isclose(got, expected, rtol=3e-7, atol=0, equal_nan=True)
    within = (limits[:, 0] <= got) & (got <= limits[:, 1])
    # As integers: a packed pair may look like NaN.
    same = got.view(np.uint32) == expected.view(np.uint32)
    fine = close | within | same
    assert [text for text, right in zip(REAL, fine, strict=True) if not right] == []
