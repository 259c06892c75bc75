"""Loads, stores, atomics and warp functions of inline PTX."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytestmark = pytest.mark.slow

GLOBAL = '"l"(x + 4 * t)'
SHARED = '"r"((unsigned)__cvta_generic_to_shared(s + 4 * t))'


def _vector(count, first=0):
    names = ", ".join(f"%{first + k}" for k in range(count))
    return f"{{{names}}}" if count > 1 else names


LOADS = [
    ("ld.global.f32", 1, GLOBAL),
    ("ld.global.nc.v4.f32", 4, GLOBAL),
    ("ld.global.nc.L1::no_allocate.L2::128B.v4.f32", 4, GLOBAL),
    ("ld.global.L1::no_allocate.v2.f32", 2, GLOBAL),
    ("ld.cg.global.b32", 1, GLOBAL),
    ("ld.relaxed.gpu.global.f32", 1, GLOBAL),
    ("ld.global.acquire.gpu.b32", 1, GLOBAL),
    ("ld.volatile.global.f32", 1, GLOBAL),
    ("ld.f32", 1, GLOBAL),
    ("ld.shared.f32", 1, SHARED),
    ("ld.shared::cta.v4.b32", 4, SHARED),
    ("ld.volatile.shared.v2.f32", 2, SHARED),
]
STORES = [
    ("st.global.v4.f32", 4, '"l"(y + 4 * t)'),
    ("st.global.cs.v2.f32", 2, '"l"(y + 4 * t)'),
    ("st.global.wt.b32", 1, '"l"(y + 4 * t)'),
    ("st.release.gpu.global.f32", 1, '"l"(y + 4 * t)'),
    ("st.volatile.global.f32", 1, '"l"(y + 4 * t)'),
    ("st.global.L1::no_allocate.v4.f32", 4, '"l"(y + 4 * t)'),
    ("st.shared.v4.f32", 4, SHARED),
    ("st.shared.b32", 1, SHARED),
]
X = np.arange(1, 129, dtype=np.float32)


def _kernel(body):
    return f"""__global__ void k(const float* x, float* y) {{
      __shared__ __align__(16) float s[128];
      int t = threadIdx.x; float v[4] = {{0, 0, 0, 0}};
      {body}
    }}"""


@pytest.mark.parametrize(("name", "count", "place"), LOADS)
def test_loads_give_what_is_in_memory(run, name, count, place):
    outputs = ", ".join(f'"=f"(v[{k}])' for k in range(count))
    code = (
        f'asm volatile("{name} {_vector(count)}, [%{count}+0];" : {outputs} : {place} : "memory");'
    )
    body = f"""for (int k = 0; k < 4; ++k) s[4 * t + k] = x[4 * t + k];
    {code}
    for (int k = 0; k < 4; ++k) y[4 * t + k] = v[k];"""
    got = run(_kernel(body), {"x": X}, {"y": (128, "float32")}, block=32)["y"]
    np.testing.assert_array_equal(got.reshape(32, 4), X.reshape(32, 4) * (np.arange(4) < count))


@pytest.mark.parametrize(("name", "count", "place"), STORES)
def test_stores_change_what_is_in_memory(run, name, count, place):
    inputs = ", ".join(f'"f"(x[4 * t + {k}])' for k in range(count))
    code = f'asm volatile("{name} [%0], {_vector(count, 1)};" :: {place}, {inputs} : "memory");'
    to = "s" if "shared" in name else "y"
    body = f"""for (int k = 0; k < 4; ++k) {to}[4 * t + k] = 0;
    {code}
    for (int k = 0; k < 4; ++k) y[4 * t + k] = {to}[4 * t + k];"""
    got = run(_kernel(body), {"x": X}, {"y": (128, "float32")}, block=32)["y"]
    np.testing.assert_array_equal(got.reshape(32, 4), X.reshape(32, 4) * (np.arange(4) < count))


def test_narrow_loads_extend_the_sign_or_zeros(run):
    source = """__global__ void k(const signed char* x, int* y) {
      asm("ld.global.s8 %0, [%1];" : "=r"(y[0]) : "l"(x));
      asm("ld.global.u8 %0, [%1 + 1];" : "=r"(y[1]) : "l"(x));
      asm("ld.global.s16 %0, [%1 + 2];" : "=r"(y[2]) : "l"(x));
      asm("{ .reg .u64 w; cvta.to.global.u64 w, %1; ld.global.b16 %0, [w+-2]; }"
          : "=r"(y[3]) : "l"(x + 4));
    }"""
    x = np.array([-1, -1, -2, -1], np.int8)
    got = run(source, {"x": x}, {"y": (4, "int32")})["y"]
    assert got.tolist() == [-1, 255, -2, 65534]


@pytest.mark.parametrize(
    ("statement", "pattern"),
    [
        ('asm("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(x + (1 << 14)));', r"reads x\[16384\]"),
        ('asm("ld.global.v4.f32 {%0,%0,%0,%0}, [%1];" : "=f"(v) : "l"(x + 1));', "misaligned"),
        ('asm("st.global.f32 [%0], %1;" :: "l"(x + t), "f"(v));', r"writes the input x\["),
        ('asm("st.shared.f32 [%0], %1;" :: "r"(a), "f"(v));', r"writes s\[64\]"),
        ('asm("st.shared.f32 [%0+-4], %1;" :: "r"(a), "f"(v)); y[t] = s[t ^ 1];', "race on shared"),
        ('asm("st.global.f32 [%0], %1;" :: "l"(y), "f"((float)t));', "race on global memory"),
        ('asm("red.global.add.f32 [%0], %1;" :: "l"(y + (1 << 14)), "f"(v));', r"y\[16384\]"),
    ],
)  # fmt: skip
def test_accesses_are_checked_as_those_of_c_are(fault_of, statement, pattern):
    body = f"""__shared__ float s[64]; float v = t;
    unsigned a = (unsigned)__cvta_generic_to_shared(s + t + 1);
    {statement}
    y[t + 64] = v;"""
    assert re.search(pattern, str(fault_of(body)))


def test_accesses_are_counted_as_those_of_c_are(check_races):
    inline = """float v;
    asm("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(x + 3 * i));
    asm volatile("st.global.f32 [%0], %1;" :: "l"(y + 2 * i), "f"(v));"""
    plain = "y[2 * i] = x[3 * i];"
    assert check_races(inline, 64, 4).launches == check_races(plain, 64, 4).launches


def test_a_vector_counts_as_one_access(check_races):
    body = """float v0, v1, v2, v3;
    asm("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v0), "=f"(v1), "=f"(v2), "=f"(v3) : "l"(x + 4 * i));
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(y + 2 * i), "f"(v0 + v1), "f"(v2 + v3));
    """
    traffic = check_races(body, 64, 4).launches[0].traffic
    assert (traffic.global_loads, traffic.global_stores, traffic.global_sectors) == (2, 2, 48)


ATOMICS = [
    ("red.global.add.s32 [%1], %2;", 32, None),
    ("red.relaxed.gpu.global.add.u32 [%1], %2;", 32, None),
    ("atom.add.release.gpu.global.s32 %0, [%1], %2;", 32, range(32)),
    ("atom.global.max.s32 %0, [%1], %2;", 1, [0] + [1] * 31),
    ("atom.global.exch.b32 %0, [%1], %2;", 1, [0] + [1] * 31),
    ("atom.global.cas.b32 %0, [%1], 0, %2;", 1, [0] + [1] * 31),
    ("atom.global.inc.u32 %0, [%1], 3;", 0, [0, 1, 2, 3] * 8),
]


@pytest.mark.parametrize(("ptx", "total", "returned"), ATOMICS)
def test_atomics_return_what_was_there(run, ptx, total, returned):
    source = f"""__global__ void k(int* y, int* n) {{
      int old = -1, t = threadIdx.x;
      asm volatile("{ptx}" : "+r"(old) : "l"(n), "r"(1) : "memory");
      y[t] = old;
    }}"""
    source = source.replace(
        "int old = -1", "if (!threadIdx.x) n[0] = 0; __syncthreads(); int old = -1"
    )
    got = run(source, outputs={"y": (32, "int32"), "n": (1, "int32")}, block=32)
    assert got["n"] == [total]
    assert sorted(got["y"].tolist()) == sorted(returned or [-1] * 32)


def test_a_thread_may_wait_for_another_block_by_acquiring_what_it_released(check_races):
    body = """if (b == 0) {
      y[1] = 5;
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(n) : "memory");
    } else {
      int state = 0;
      while (!state)
        asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(state) : "l"(n) : "memory");
      y[0] = y[1];
    }"""
    assert check_races(body, 1, 2) is not None


SHUFFLES = {
    "shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;": np.arange(32) ^ 1,
    "shfl.sync.idx.b32 %0, %1, 3, 0x181f, 0xffffffff;": np.arange(32) // 8 * 8 + 3,
    "shfl.sync.up.b32 %0, %1, 2, 0, 0xffffffff;": np.maximum(np.arange(32) - 2, np.arange(32) % 2),
    "shfl.sync.down.b32 %0, %1, 4, 0x1f, 0xffffffff;": np.where(
        np.arange(32) < 28, np.arange(32) + 4, np.arange(32)
    ),
    "{ .reg .pred p; shfl.sync.down.b32 %0|p, %1, 4, 0x1f, 0xffffffff; selp.b32 %0, 1, 0, p; }":
        (np.arange(32) < 28).astype(int),
    "redux.sync.add.s32 %0, %1, 0xffffffff;": np.full(32, 31 * 16),
    "{ .reg .pred p; setp.lt.u32 p, %1, 4; vote.sync.ballot.b32 %0, p, 0xffffffff; }":
        np.full(32, 15),
    "{ .reg .pred p; setp.lt.u32 p, %1, 4; vote.sync.any.pred p, p, 0xffffffff;"
    " selp.b32 %0, 1, 0, p; }": np.ones(32),
}  # fmt: skip


@pytest.mark.parametrize("ptx", SHUFFLES)
def test_lanes_exchange_values(run, ptx):
    expected = SHUFFLES[ptx].copy()
    if ".up." in ptx:
        expected[:2] = [0, 1]
    source = f"""__global__ void k(int* y) {{
      int t = threadIdx.x; asm volatile("{ptx}" : "=r"(y[t]) : "r"(t)); }}"""
    got = run(source, outputs={"y": (32, "int32")}, block=32)["y"]
    np.testing.assert_array_equal(got, expected)


def test_spaces_of_addresses_are_known(run):
    source = """__device__ int d;
    __global__ void k(int* y) {
      __shared__ int s; extern __shared__ int e[]; int l = 0;
      const void* all[] = {&s, e, y, &d, &l};
      for (int k = 0; k < 5; ++k) y[k] = __isShared(all[k]) | __isGlobal(all[k]) << 1;
      y[5] = __cvta_shared_to_generic(__cvta_generic_to_shared(e)) == e;
    }"""
    got = run(source, outputs={"y": (6, "int32")}, shared_bytes=64)["y"]
    assert got.tolist() == [1, 1, 2, 2, 0, 1]
