"""Headers of CUDA beyond the language: cuda_fp8.h, CUB, cuRAND, complex numbers and others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from outcomes import each_of, one_after_another, raises

pytestmark = pytest.mark.slow


def _value(code, mantissa, bias, infinite):
    """The number of an 8-bit code; e4m3 has no infinity, and one NaN of each sign."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, rest = (code & 0x7F) >> mantissa, code & ((1 << mantissa) - 1)
    if infinite and exponent == 31:
        return math.nan if rest else sign * math.inf
    if not infinite and code & 0x7F == 0x7F:
        return math.nan
    lead = 1 if exponent else 0
    return sign * math.ldexp((lead << mantissa) + rest, max(exponent, 1) - bias - mantissa)


FORMATS = {
    "e4m3": [_value(code, 3, 7, False) for code in range(256)],
    "e5m2": [_value(code, 2, 15, True) for code in range(256)],
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_number_of_8_bits_has_its_value(run, name):
    source = f"""#include <cuda_fp8.h>
    __global__ void k(const __nv_fp8_{name}* x, float* y) {{
      int t = threadIdx.x;
      y[t] = float(x[t]);
      y[256 + t] = __half2float(__half(__nv_cvt_fp8_to_halfraw(x[t].__x, __NV_{name.upper()})));
      float4 all = float4(((const __nv_fp8x4_{name}*)x)[t / 4]);
      y[512 + t] = t % 4 == 0 ? all.x : t % 4 == 1 ? all.y : t % 4 == 2 ? all.z : all.w;
      unsigned pair;
      asm("cvt.rn.f16x2.{name}x2 %0, %1;" : "=r"(pair) : "h"(((const unsigned short*)x)[t / 2]));
      y[768 + t] = __half2float(__ushort_as_half((unsigned short)(t % 2 ? pair >> 16 : pair)));
    }}"""
    codes = np.arange(256, dtype=np.uint8)
    y = run(source, {"x": codes}, {"y": (1024, "float32")}, block=256)["y"]
    np.testing.assert_array_equal(y.reshape(4, 256), np.tile(FORMATS[name], (4, 1)))


CODES = """#include <cuda_fp8.h>
__global__ void k(const float* x, unsigned char* y) {
  float v = x[0];
  y[0] = __nv_fp8_e4m3(v).__x;
  y[1] = __nv_cvt_float_to_fp8(v, __NV_NOSAT, __NV_E4M3);
  y[2] = (unsigned char)(__nv_fp8x2_e4m3(make_float2(0.0f, v)).__x >> 8);
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(v), "f"(0.0f));
  y[3] = (unsigned char)(pair >> 8);
  y[4] = static_cast<__nv_fp8_e5m2>(v).__x;
  y[5] = __nv_cvt_float_to_fp8(v, __NV_NOSAT, __NV_E5M2);
}"""


def _nearest(value, name):
    """The code of the nearest finite number, of two the even one."""
    table = FORMATS[name]
    finite = [code for code in range(128) if math.isfinite(table[code])]
    best = min(finite, key=lambda code: (abs(table[code] - abs(value)), code & 1))
    return best | (0x80 if math.copysign(1, value) < 0 else 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(-500, 500, width=32) | st.floats(-(2.0**-6), 2.0**-6, width=32))
@example(464.0)
@example(-0.0)
@example(2.0**-10)
@example(3 * 2.0**-10)
@example(2.0**-17)
@example(17.0)
@example(19.0)
def test_numbers_are_rounded_to_8_bits(run, value):
    y = run(CODES, {"x": np.float32([value])}, {"y": (6, "uint8")}, block=1)["y"].tolist()
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    e4m3, e5m2 = _nearest(value, "e4m3"), _nearest(value, "e5m2")
    assert y == [e4m3, sign | 0x7F if abs(value) > 464 else e4m3, e4m3, e4m3, e5m2, e5m2]


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        (math.inf, [0x7E, 0x7F, 0x7E, 0x7E, 0x7B, 0x7C]),
        (-1e9, [0xFE, 0xFF, 0xFE, 0xFE, 0xFB, 0xFC]),
        (math.nan, [0x7F] * 6),
    ],
)
def test_what_is_too_large_for_8_bits_saturates_where_asked(run, value, codes):
    y = run(CODES, {"x": np.float32([value])}, {"y": (6, "uint8")}, block=1)["y"]
    assert y.tolist() == codes


CUB = """#include <cub/cub.cuh>
struct Running {
  int sum;
  __device__ int operator()(int all) { int old = sum; sum += all; return old; }
};
"""
COLLECTIVES = {
    "reduction": "using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage space;"
    " __shared__ int all; int sum = R(space).Sum(t + 1); if (t == 0) all = sum; __syncthreads();"
    " y[t] = all == 2080 ? 64 - t : -1;",
    "reduction of items": "using R = cub::BlockReduce<float, 64, cub::BLOCK_REDUCE_RAKING>;"
    " __shared__ R::TempStorage space; __shared__ float most; float own[2] = {(float)t, t + 1.0f};"
    " float m = R(space).Reduce(own, cub::Max()); if (!t) most = m; __syncthreads();"
    " y[t] = most - t;",
    "reduction of some": "using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage space;"
    " __shared__ int all; int sum = R(space).Sum(1, 10); if (t == 0) all = sum; __syncthreads();"
    " y[t] = all == 10 ? 64 - t : -1;",
    "where the largest is": "using P = cub::KeyValuePair<int, int>;"
    " using R = cub::BlockReduce<P, 64>; __shared__ R::TempStorage space; __shared__ int at;"
    " P best = R(space).Reduce(P(t, t / 32), cub::ArgMax()); if (t == 0) at = best.key;"
    " __syncthreads(); y[t] = at == 32 ? 64 - t : -1;",
    "sum before": "using S = cub::BlockScan<int, 64>; __shared__ S::TempStorage space;"
    " int out, all; S(space).ExclusiveSum(1, out, all); y[t] = all - out;",
    "sums with a prefix": "using S = cub::BlockScan<int, 64>; __shared__ S::TempStorage space;"
    " Running running{100}; int out; S(space).ExclusiveSum(1, out, running); y[t] = 164 - out;",
    "largest so far": "using S = cub::BlockScan<int, 64>; __shared__ S::TempStorage space;"
    " int own[2] = {t, 63 - t}, out[2]; S(space).InclusiveScan(own, out, cub::Max());"
    " int first; __syncthreads(); S(space).ExclusiveScan(t, first, -1, cub::Max());"
    " y[t] = out[0] == 63 - (t == 0) * 63 && first == t - 1 ? 64 - t : -1;",
    "warps": "using R = cub::WarpReduce<int, 16>; __shared__ R::TempStorage space[4];"
    " int sum = __shfl_sync(~0u, R(space[t / 16]).Sum(1), 0, 16);"
    " using S = cub::WarpScan<int>; __shared__ S::TempStorage other[2]; int out;"
    " S(other[t / 32]).InclusiveSum(1, out); y[t] = sum == 16 ? 65 - out - t / 32 * 32 : -1;",
    "pairs in order": "using S = cub::BlockRadixSort<float, 64, 2, int>;"
    " __shared__ S::TempStorage space; float keys[2]; int values[2];"
    " for (int k = 0; k < 2; ++k) { keys[k] = 50.0f - (2 * t + k) / 2; values[k] = 2 * t + k; }"
    " S(space).Sort(keys, values);"
    " bool stable = values[0] % 2 == 0 && values[1] == values[0] + 1 && keys[0] == t - 13;"
    " y[t] = stable ? 1 + values[0] / 2 : -1;",
    "descending": "using S = cub::BlockRadixSort<short, 64, 1>; __shared__ S::TempStorage space;"
    " short key[1] = {(short)(t * 37 % 64 + 1)}; S(space).SortDescending(key); y[t] = key[0];",
    "items": "__shared__ float from[128], to[128]; from[t] = t; from[64 + t] = 64 + t;"
    " __syncthreads(); float own[2];"
    " using L = cub::BlockLoad<float, 64, 2, cub::BLOCK_LOAD_DIRECT>;"
    " using S = cub::BlockStore<float, 64, 2, cub::BLOCK_STORE_STRIPED>;"
    " __shared__ L::TempStorage loads; __shared__ S::TempStorage stores;"
    " L(loads).Load(from, own, 127, -1.0f); S(stores).Store(to, own); __syncthreads();"
    " bool good = to[t] == 2 * t && to[64 + t] == (t == 63 ? -1 : 2 * t + 1);"
    " y[t] = good ? 64 - t : -1;",
}


def test_collectives_of_cub_compute_what_they_say(right, small_kernel):
    bodies = one_after_another(COLLECTIVES.values())
    kernel, arenas = small_kernel(bodies, before=CUB)
    right(kernel, arenas, "y", each_of(64 - np.arange(64), len(COLLECTIVES)))


@pytest.mark.parametrize(
    "body",
    [
        "using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage space;"
        " int a = R(space).Sum(1); int b = R(space).Sum(2); y[t] = a + b;",
        "using S = cub::BlockScan<int, 64>; __shared__ S::TempStorage space;"
        " int a; S(space).ExclusiveSum(1, a); S(space).ExclusiveSum(a, a); y[t] = a;",
    ],
)
def test_using_storage_of_cub_again_without_a_barrier_is_a_race(wrong, body, bodies):
    wrong("race on shared memory", body, before=CUB, among=bodies)


def test_a_collective_of_cub_needs_a_block_of_its_size(run_orders):
    body = """using R = cub::BlockReduce<int, 32>; __shared__ R::TempStorage space;
    y[t] = R(space).Sum(2);"""
    with raises("runtime", "a collective of CUB for another number of threads than the block has"):
        run_orders(body, before=CUB)


def test_only_the_first_thread_has_a_reduction(run_orders):
    body = """using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage space;
    y[t] = R(space).Sum(2);"""
    for result in run_orders(body, before=CUB):
        assert result["y"][0] == 128
        assert (result["y"][1:64] != 128).all()


# Known answers of Random123, "kat_vectors": philox4x32 with 10 rounds.
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        [0xFFFFFFFF] * 4,
        [0xFFFFFFFF] * 2,
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(run, counter, key, words):
    source = """#include <curand_kernel.h>
    __global__ void k(const unsigned* x, unsigned* y) {
      curandStatePhilox4_32_10_t s;
      unsigned long long key = x[4] | (unsigned long long)x[5] << 32;
      unsigned long long sequence = x[2] | (unsigned long long)x[3] << 32;
      unsigned long long place = x[0] | (unsigned long long)x[1] << 32;
      curand_init(key, sequence, 0, &s);
      skipahead(place, &s), skipahead(place, &s), skipahead(place, &s), skipahead(place, &s);
      for (int i = 0; i < 4; i++) y[i] = curand(&s);
      y[4] = x[0] == 0 ? curand4(&s).x : 0;
    }"""
    inputs = {"x": np.array([*counter, *key], np.uint32)}
    y = run(source, inputs, {"y": (5, "uint32")}, block=1)["y"].tolist()
    assert y[:4] == words


def test_numbers_of_philox_do_not_depend_on_how_they_are_taken(run):
    source = """#include <curand_kernel.h>
    __global__ void k(float* y) {
      curandStatePhilox4_32_10_t a, b, c;
      curand_init(1234, 5, 0, &a);
      curand_init(1234, 5, 6, &b);
      curand_init(1234, 5, 0, &c);
      for (int i = 0; i < 12; i++) y[i] = curand_uniform(&a);
      for (int i = 0; i < 6; i++) y[12 + i] = curand_uniform(&b);
      curand(&c), curand(&c);
      float4 four = curand_uniform4(&c);
      y[18] = four.x, y[19] = four.y, y[20] = four.z, y[21] = four.w, y[22] = curand_uniform(&c);
    }"""
    y = run(source, {}, {"y": (23, "float32")}, block=1)["y"]
    np.testing.assert_array_equal(y[12:18], y[6:12])
    np.testing.assert_array_equal(y[18:23], y[2:7])
    assert ((y > 0) & (y <= 1)).all()


def test_normal_numbers_have_the_mean_and_deviation_of_the_distribution(run):
    source = """#include <curand_kernel.h>
    __global__ void k(float* y) {
      curandStatePhilox4_32_10_t s;
      curand_init(7, threadIdx.x, 0, &s);
      for (int i = 0; i < 64; i++) y[64 * threadIdx.x + i] = curand_normal(&s);
    }"""
    y = run(source, {}, {"y": (64 * 64, "float32")}, block=64)["y"].astype(float)
    assert abs(y.mean()) < 0.06  # four standard errors
    assert abs(y.std() - 1) < 0.05


def test_other_generators_are_refused_by_name(run):
    source = """#include <curand_kernel.h>
    __global__ void k(float* y) {
      curandState s;
      curand_init(7, 0, 0, &s);
      y[0] = curand_uniform(&s);
    }"""
    with raises("compile", "^line 4: cannot run on the emulated GPU: a generator of cuRAND other"):
        run(source, {}, {"y": (1, "float32")}, block=1)


parts = st.floats(-100, 100, width=32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts, parts, parts, parts)
def test_complex_numbers_are_those_of_mathematics(run, a, b, c, d):
    source = """#include <cuComplex.h>
    #include <thrust/complex.h>
    #include <cuda/std/complex>
    __global__ void k(const double* x, double* y) {
      cuDoubleComplex p = make_cuDoubleComplex(x[0], x[1]), q = make_cuDoubleComplex(x[2], x[3]);
      cuDoubleComplex r[4] = {cuCadd(p, q), cuCsub(p, q), cuCmul(p, q), cuCfma(p, cuConj(q), p)};
      for (int i = 0; i < 4; i++) y[2 * i] = cuCreal(r[i]), y[2 * i + 1] = cuCimag(r[i]);
      thrust::complex<double> u(x[0], x[1]), v(x[2], x[3]), w = u * v - u + 2.0;
      cuda::std::complex<double> z = cuda::std::conj(w);
      y[8] = z.real(), y[9] = z.imag(), y[10] = thrust::abs(u);
    }"""
    p, q = complex(a, b), complex(c, d)
    y = run(source, {"x": np.array([a, b, c, d])}, {"y": (11, "float64")}, block=1)["y"]
    w = (p * q - p + 2).conjugate()
    expected = [
        z for v in (p + q, p - q, p * q, p * q.conjugate() + p, w) for z in (v.real, v.imag)
    ]
    np.testing.assert_allclose(y, [*expected, abs(p)], rtol=1e-12, atol=1e-9)


def test_a_text_chooses_by_target_and_uses_what_later_standards_have(run):
    source = """#include <nv/target>
    #include <cuda/functional>
    #include <cuda/std/bit>
    #include <cuda/std/span>
    template <class T> struct alignas(T) Aligned { char c; };
    __global__ void __maxnreg__(64) k(const float* x, float* y) {
      NV_IF_TARGET(NV_PROVIDES_SM_90, (y[0] = 1;), (y[0] = 2;))
      NV_IF_ELSE_TARGET(NV_IS_HOST, (y[1] = 1;), (y[1] = 2;))
      y[2] = cuda::maximum<>{}(x[0], 3.0f);
      y[3] = cuda::std::bit_cast<float>(0x40800000u) + cuda::std::popcount(1u);
      cuda::std::span<const float> all(x, 2);
      y[4] = all[1] + all.size();
      y[5] = alignof(Aligned<double>) - 2;
      y[6] = y[7] = 1;
      atomicAdd((float2*)(y + 6), make_float2(6, 7));
    }"""
    x = np.array([1, 3], np.float32)
    y = run(source, {"x": x}, {"y": (8, "float32")}, block=1)["y"]
    assert y.tolist() == [1, 2, 3, 5, 5, 6, 7, 8]
