"""Memory in inline PTX: loads, stores, atomics and asynchronous copies, and warp functions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from outcomes import in_blocks
from points import each_once

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


def _moved(run, bodies):
    """Return y of each body; y and a shared s of its own have four elements for each of 32 lanes.

    In the bodies, ``t`` is the lane, and v has four zeros.
    """
    source = f"""__global__ void k(const float* x, float* y) {{
      __shared__ __align__(16) float s[128];
      int t = threadIdx.x; float v[4] = {{0, 0, 0, 0}};
      y += 128 * blockIdx.x;
      {in_blocks(bodies)}
    }}"""
    count = len(bodies)
    got = run(source, {"x": X}, {"y": (128 * count, "float32")}, block=32, grid=count)["y"]
    return got.reshape(count, 32, 4)


def _load(name, count, place):
    outputs = ", ".join(f'"=f"(v[{k}])' for k in range(count))
    return f"""for (int k = 0; k < 4; ++k) s[4 * t + k] = x[4 * t + k];
    asm volatile("{name} {_vector(count)}, [%{count}+0];" : {outputs} : {place} : "memory");
    for (int k = 0; k < 4; ++k) y[4 * t + k] = v[k];"""


def _store(name, count, place):
    inputs = ", ".join(f'"f"(x[4 * t + {k}])' for k in range(count))
    to = "s" if "shared" in name else "y"
    return f"""for (int k = 0; k < 4; ++k) {to}[4 * t + k] = 0;
    asm volatile("{name} [%0], {_vector(count, 1)};" :: {place}, {inputs} : "memory");
    for (int k = 0; k < 4; ++k) y[4 * t + k] = {to}[4 * t + k];"""


@pytest.mark.parametrize(("moved", "names"), [(_load, LOADS), (_store, STORES)])
def test_loads_and_stores_move_as_many_words_as_they_say(run, moved, names):
    got = _moved(run, [moved(*one) for one in names])
    for (name, count, _), found in zip(names, got, strict=True):
        expected = X.reshape(32, 4) * (np.arange(4) < count)
        np.testing.assert_array_equal(found, expected, name)


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


BESIDE = [
        ('asm("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(x + (1 << 14)));', r"reads x\[16384\]"),
        ('asm("ld.global.v4.f32 {%0,%0,%0,%0}, [%1];" : "=f"(v) : "l"(x + 1));', "misaligned"),
        ('asm("st.global.f32 [%0], %1;" :: "l"(x + t), "f"(v));', r"writes the input x\["),
        ('asm("st.shared.f32 [%0], %1;" :: "r"(a), "f"(v));', r"writes s\[64\]"),
        ('asm("st.shared.f32 [%0+-4], %1;" :: "r"(a), "f"(v)); y[t] = s[t ^ 1];', "race on shared"),
        ('asm("st.global.f32 [%0], %1;" :: "l"(y), "f"((float)t));', "race on global memory"),
        ('asm("red.global.add.f32 [%0], %1;" :: "l"(y + (1 << 14)), "f"(v));', r"y\[16384\]"),
]  # fmt: skip


def _beside(statement):
    return f"""__shared__ float s[64]; float v = t;
    unsigned a = (unsigned)__cvta_generic_to_shared(s + t + 1);
    {statement}
    y[t + 64] = v;"""


@pytest.mark.parametrize(("statement", "pattern"), BESIDE)
def test_accesses_are_checked_as_those_of_c_are(fault_of, statement, pattern):
    among = [_beside(one) for one, _ in BESIDE]
    assert re.search(pattern, str(fault_of(_beside(statement), among=among)))


def test_accesses_are_counted_as_those_of_c_are(check_races):
    inline = """float v;
    asm("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(x + 3 * i));
    asm volatile("st.global.f32 [%0], %1;" :: "l"(y + 2 * i), "f"(v));"""
    plain = "y[2 * i] = x[3 * i];"
    assert check_races(inline, 64, 4) == check_races(plain, 64, 4)


def test_a_vector_counts_as_one_access(check_races):
    body = """float v0, v1, v2, v3;
    asm("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v0), "=f"(v1), "=f"(v2), "=f"(v3) : "l"(x + 4 * i));
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(y + 2 * i), "f"(v0 + v1), "f"(v2 + v3));
    """
    traffic = check_races(body, 64, 4)[0].traffic
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


def test_atomics_return_what_was_there(run):
    bodies = [
        f'asm volatile("{ptx}" : "+r"(old) : "l"(n), "r"(1) : "memory");' for ptx, *_ in ATOMICS
    ]
    source = f"""__global__ void k(int* y, int* n) {{
      int old = -1, t = threadIdx.x;
      n += blockIdx.x;
      if (!t) n[0] = 0;
      __syncthreads();
      {in_blocks(bodies)}
      y[32 * blockIdx.x + t] = old;
    }}"""
    count = len(ATOMICS)
    outputs = {"y": (32 * count, "int32"), "n": (count, "int32")}
    got = run(source, outputs=outputs, block=32, grid=count)
    assert got["n"].tolist() == [total for _, total, _ in ATOMICS]
    for (ptx, _, returned), found in zip(ATOMICS, got["y"].reshape(count, 32), strict=True):
        assert sorted(found.tolist()) == sorted(returned or [-1] * 32), ptx


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
    "shfl.sync.up.b32 %0, %1, 2, 0, 0xffffffff;": [0, 1, *range(30)],
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


def test_lanes_exchange_values(run):
    bodies = [f'asm volatile("{ptx}" : "=r"(y[t]) : "r"(t));' for ptx in SHUFFLES]
    source = f"""__global__ void k(int* y) {{
      int t = threadIdx.x; y += 32 * blockIdx.x; {in_blocks(bodies)} }}"""
    count = len(SHUFFLES)
    got = run(source, outputs={"y": (32 * count, "int32")}, block=32, grid=count)["y"]
    for (ptx, expected), found in zip(SHUFFLES.items(), got.reshape(count, 32), strict=True):
        np.testing.assert_array_equal(found, expected, ptx)


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


BEFORE = """
__device__ __forceinline__ unsigned shared_address(const void* p) {
  unsigned address;
  asm volatile("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }\\n"
               : "=r"(address) : "l"(p));
  return address;
}
#define COMMIT asm volatile("cp.async.commit_group;\\n" ::: "memory")
template <int left> __device__ void wait() {
  asm volatile("cp.async.wait_group %0;\\n" :: "n"(left) : "memory");
}
template <int bytes> __device__ __forceinline__ void copy(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::
      "r"(shared_address(to)), "l"(from), "n"(bytes));
}
"""


def _run(run, body, *, before=BEFORE, block=32, size=256, shared_bytes=0):
    """Return y after the body of thread t has run with x = 1, 2, ..."""
    source = (
        f"{before}\n__global__ void k(const float* x, float* y) {{ int t = threadIdx.x;\n{body}\n}}"
    )
    x = np.arange(1, size + 1, dtype=np.float32)
    outputs = {"y": (size, "float32")}
    return run(source, {"x": x}, outputs, block=block, shared_bytes=shared_bytes)["y"]


@pytest.mark.parametrize("where", ["__shared__ __align__(16) float s[256];",
                                   "extern __shared__ __align__(16) float s[];"])  # fmt: skip
def test_a_copy_of_each_size_arrives_when_it_is_waited_for(run, where):
    sizes = "".join(
        f"""copy<{4 * words}>(s + {words} * t, x + {words} * t); COMMIT; wait<0>();
        for (int k = 0; k < {words}; ++k) y[128 * ({words} / 2) + {words} * t + k] =
          s[{words} * t + k];
        __syncwarp();"""
        for words in (1, 2, 4)
    )
    got = _run(run, where + sizes, size=512, shared_bytes=1024 if "extern" in where else 0)
    for words in (1, 2, 4):
        found = got[128 * (words // 2) :][: 32 * words]
        np.testing.assert_array_equal(found, np.arange(1, 32 * words + 1), f"{words} words")


def test_what_is_not_read_of_the_source_becomes_zero(run):
    body = """__shared__ float4 s[32];
    for (unsigned read = 0; read <= 16; read += 4) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\\n" ::
          "r"(shared_address(s + t)), "l"(x + 4 * t), "r"(read));
      asm volatile("cp.async.wait_all;\\n" ::);
      ((float4*)y)[8 * read + t] = s[t];
    }"""
    got = _run(run, body, size=1024)[:640].reshape(5, 32, 4)
    for words in range(5):
        expected = np.arange(1, 129).reshape(-1, 4) * (np.arange(4) < words)
        np.testing.assert_array_equal(got[words], expected, f"{words} words are read")


def test_a_source_that_is_not_read_may_lie_anywhere(run, check_races):
    body = """__shared__ float4 s[64];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\\n" ::
        "r"(shared_address(s + t)), "l"(x + (t < 32 ? 4 * t : 1 << 20)), "r"(t < 32 ? 16 : 0));
    COMMIT; wait<0>(); y[t] = s[t].x;"""
    got = _run(run, body, block=64)[:64]
    np.testing.assert_array_equal(got, [*range(1, 129, 4), *[0] * 32])
    assert check_races(body, before=BEFORE) is not None  # addresses are checked there


def test_a_predicate_decides_whether_a_copy_is_made(run):
    body = """__shared__ float4 s[32];
    asm volatile("{\\n .reg .pred p;\\n setp.ne.b32 p, %0, 0;\\n"
                 " @p cp.async.cg.shared.global.L2::256B [%1], [%2], %3;\\n"
                 " @!p st.shared.v4.u32 [%1], {0, 0, 0, 0};\\n}\\n" ::
                 "r"((int)(t % 2)), "r"(shared_address(s + t)), "l"(x + 4 * t), "n"(16));
    COMMIT; wait<0>();
    ((float4*)y)[t] = s[t];"""
    expected = np.arange(1, 129).reshape(-1, 4) * (np.arange(32)[:, None] % 2)
    np.testing.assert_array_equal(_run(run, body)[:128].reshape(-1, 4), expected)


PIPELINE = """__shared__ float s[3][64];
float sum = 0;
copy<4>(&s[0][t], x + t); COMMIT;
copy<4>(&s[1][t], x + 64 + t); COMMIT;
for (int k = 0; k < 8; ++k) {
  WAIT
  BARRIER
  sum += s[k % 3][63 - t];
  if (k < 6) copy<4>(&s[(k + 2) % 3][t], x + 64 * (k + 2) + t);
  COMMIT;
}
y[t] = sum;"""


def _pipeline(wait="wait<1>();", barrier="__syncthreads();"):
    return PIPELINE.replace("WAIT", wait).replace("BARRIER", barrier)


def test_stages_of_copies_follow_one_another(run, check_races):
    got = _run(run, _pipeline(), block=64, size=512)
    expected = np.arange(1, 513).reshape(8, 64)[:, ::-1].sum(axis=0)
    np.testing.assert_array_equal(got[:64], expected)
    assert check_races(_pipeline(), before=BEFORE) is not None


@pytest.mark.parametrize("apart", [0, 2, 4])
def test_a_copy_may_arrive_before_an_earlier_one_to_the_same_place_is_read(run, apart):
    body = f"""__shared__ __align__(16) float s[256];
    copy<16>(s + 8 * t, x + 8 * t); COMMIT;
    copy<8>(s + 8 * t + {apart}, x); COMMIT;
    wait<1>();
    for (int k = 0; k < 4; ++k) y[4 * t + k] = s[8 * t + k];
    wait<0>();"""
    got = _run(run, body)[:128].reshape(32, 4)
    expected = np.arange(1, 257.0).reshape(32, 8)[:, :4]
    expected[:, apart : apart + 2] = np.nan
    np.testing.assert_array_equal(got, expected)


EARLY = {"too few": _pipeline(wait="wait<2>();"), "without a barrier": _pipeline(barrier="")}


@pytest.mark.parametrize("body", EARLY.values(), ids=EARLY)
def test_reading_before_a_copy_has_arrived_for_all_is_a_race(wrong, body):
    wrong("race on shared memory", body, before=BEFORE, among=EARLY.values())


def test_what_was_not_waited_for_is_not_there(run):
    body = "__shared__ float s[32]; copy<4>(s + t, x + t); COMMIT; wait<1>(); y[t] = s[t];"
    assert np.isnan(_run(run, body)[:32]).all()


COPIES = [
    ("copy<16>((float*)(s + t), x + t);", "runtime", "misaligned"),
    ("copy<16>((float*)(s + t) + 1, x + 4 * t);", "runtime", "misaligned"),
    ("copy<16>((float*)(s + t + 1), x + 4 * t);", "correctness", r"writes s\[32\]"),
    ("copy<4>((float*)(s + t), x + t + (1 << 14));", "correctness", r"reads x\[16384\]"),
    ("copy<12>((float*)(s + t), x + 4 * t);", "runtime", "size that it does not have"),
]


@pytest.mark.parametrize(("body", "outcome", "pattern"), COPIES)
def test_a_copy_is_checked_as_other_accesses_are(fault_of, body, outcome, pattern):
    to = "__shared__ float4 s[32];\n"
    among = [to + one for one, *_ in COPIES]
    fault = fault_of(to + body, block=32, before=BEFORE, among=among)
    assert (fault.outcome, re.search(pattern, str(fault)) is not None) == (outcome, True)


MATRICES = np.arange(4 * 64).reshape(4, 8, 8)


def _rows_body(count, trans, store):
    registers = ", ".join(f"%{k + (1 if store else 0)}" for k in range(count))
    address = "%0" if store else f"%{count}"
    place = '"r"(shared_address(s + 8 * t))'
    words = ", ".join(f'"{"r" if store else "=r"}"(w[{k}])' for k in range(count))
    name = f"{'st' if store else 'ld'}matrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
    if store:
        code = f'asm volatile("{name} [{address}], {{{registers}}};" :: {place}, {words});'
        before = f"for (int k = 0; k < {count}; ++k) w[k] = ((const unsigned*)x)[{count} * t + k];"
        after = "__syncwarp(); for (int k = 0; k < 8; ++k) out[8 * t + k] = s[8 * t + k];"
    else:
        code = f'asm volatile("{name} {{{registers}}}, [{address}];" : {words} : {place});'
        before = "for (int k = 0; k < 8; ++k) s[8 * t + k] = x[8 * t + k]; __syncwarp();"
        after = f"for (int k = 0; k < {count}; ++k) ((unsigned*)out)[{count} * t + k] = w[k];"
    return f"""{BEFORE}
    __global__ void k(const unsigned short* x, unsigned short* out) {{
      int t = threadIdx.x; unsigned w[4];
      __shared__ __align__(16) unsigned short s[256];
      {before}
      {code}
      {after}
    }}"""


def _held(matrices):
    """Return lane, register and half of an element: 2 p and 2 p + 1 of row r in lane 4 r + p."""
    return matrices.reshape(len(matrices), 32, 2).transpose(1, 0, 2)


@pytest.mark.parametrize(("count", "trans"), each_once([1, 2, 4], ["", ".trans"]))
def test_matrices_are_loaded_as_lanes_need_them(run, count, trans):
    x = MATRICES.astype(np.uint16).ravel()
    source = _rows_body(count, trans, store=False)
    got = run(source, {"x": x}, {"out": (64 * count, "uint16")}, block=32)["out"]
    matrices = MATRICES[:count].transpose(0, 2, 1) if trans else MATRICES[:count]
    np.testing.assert_array_equal(got.reshape(32, count, 2), _held(matrices))


@pytest.mark.parametrize(("count", "trans"), each_once([1, 2, 4], ["", ".trans"]))
def test_matrices_are_stored_from_where_lanes_have_them(run, count, trans):
    matrices = MATRICES[:count].transpose(0, 2, 1) if trans else MATRICES[:count]
    x = np.ascontiguousarray(_held(matrices)).astype(np.uint16).ravel()
    source = _rows_body(count, trans, store=True)
    got = run(source, {"x": x}, {"out": (256, "uint16")}, block=32)["out"]
    np.testing.assert_array_equal(got[: 64 * count].reshape(count, 8, 8), MATRICES[:count])


LOAD = """__shared__ __align__(16) unsigned short s[512];
for (int k = t; k < 512; k += 32) s[k] = k;
SYNC
unsigned w[4];
asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
  : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(shared_address(s + PLACE)));
y[t] = w[0] + w[1] + w[2] + w[3];"""


LOADED = [
    ("", "8 * t", "race on shared memory"),
    ("__syncwarp();", "16 * t + 16", r"reads s\[512\]"),
    ("__syncwarp();", "8 * t + 4", "misaligned address"),
]


@pytest.mark.parametrize("number", range(len(LOADED)))
def test_loading_matrices_is_checked_as_other_accesses_are(fault_of, number):
    bodies = [LOAD.replace("SYNC", sync).replace("PLACE", place) for sync, place, _ in LOADED]
    fault = fault_of(bodies[number], block=32, before=BEFORE, among=bodies)
    assert re.search(LOADED[number][-1], str(fault))


def test_what_is_loaded_of_each_matrix_is_counted_once(check_races):
    body = LOAD.replace("SYNC", "__syncwarp();").replace("PLACE", "8 * t")
    profile = check_races(body, block=32, before=BEFORE)
    assert profile[0].traffic.shared_read_bytes == 512


def _traffic(check_races, body, among=()):
    return check_races(body, block=32, before=BEFORE, among=among)[0].traffic


@pytest.mark.parametrize("words", [1, 2, 4])
def test_a_copy_counts_as_one_load_and_one_store(check_races, words):
    body = f"""__shared__ __align__(16) float s[128];
    copy<{4 * words}>(s + {words} * t, x + {words} * t); COMMIT; wait<0>();"""
    traffic = _traffic(check_races, body)
    size = 128 * words
    assert (traffic.global_read_bytes, traffic.shared_write_bytes) == (size, size)
    assert (traffic.global_loads, traffic.global_sectors) == (1, size / 32)
    assert (traffic.shared_accesses, traffic.shared_wavefronts) == (1, words)


STRIDES = [(40, 4), (8, 4), (32, 16), (64, 32)]


@pytest.mark.parametrize(("stride", "wavefronts"), STRIDES)
def test_bank_conflicts_of_matrices_are_those_of_their_rows(check_races, stride, wavefronts):
    """Lanes may go on in another order after a warp function."""
    body = """__shared__ __align__(16) unsigned short s[2048]; unsigned w[4];
    for (int k = 0; k < 64; ++k) s[k * 32 + t] = 0;
    __syncthreads();
    __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
      : "r"(shared_address(s + t % 16 * STRIDE + t / 16 * 8)));
    y[t] = w[0] + w[1] + w[2] + w[3];"""
    bodies = {one: body.replace("STRIDE", str(one)) for one, _ in STRIDES}
    traffic = _traffic(check_races, bodies[stride], bodies.values())
    assert (traffic.shared_accesses - 64, traffic.shared_wavefronts - 64) == (1, wavefronts)
