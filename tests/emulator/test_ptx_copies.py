"""Asynchronous copies and shared memory in inline PTX: ``cp.async``, ``ldmatrix``, ``stmatrix``."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytestmark = pytest.mark.slow

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
    """y after the body, which knows its thread t, with x = 1, 2, ..."""
    source = (
        f"{before}\n__global__ void k(const float* x, float* y) {{ int t = threadIdx.x;\n{body}\n}}"
    )
    x = np.arange(1, size + 1, dtype=np.float32)
    outputs = {"y": (size, "float32")}
    return run(source, {"x": x}, outputs, block=block, shared_bytes=shared_bytes)["y"]


@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize("where", ["__shared__ __align__(16) float s[256];",
                                   "extern __shared__ __align__(16) float s[];"])  # fmt: skip
def test_a_copy_of_each_size_arrives_when_it_is_waited_for(run, words, where):
    body = f"""{where}
    copy<{4 * words}>(s + {words} * t, x + {words} * t); COMMIT; wait<0>();
    for (int k = 0; k < {words}; ++k) y[{words} * t + k] = s[{words} * t + k];"""
    got = _run(run, body, shared_bytes=1024 if "extern" in where else 0)
    np.testing.assert_array_equal(got[: 32 * words], np.arange(1, 32 * words + 1))


@pytest.mark.parametrize("read", [0, 4, 8, 12, 16])
def test_what_is_not_read_of_the_source_becomes_zero(run, read):
    body = f"""__shared__ float4 s[32]; unsigned read = {read};
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\\n" ::
        "r"(shared_address(s + t)), "l"(x + 4 * t), "r"(read));
    asm volatile("cp.async.wait_all;\\n" ::);
    ((float4*)y)[t] = s[t];"""
    expected = np.arange(1, 129).reshape(-1, 4) * (np.arange(4) < read // 4)
    np.testing.assert_array_equal(_run(run, body)[:128].reshape(-1, 4), expected)


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


@pytest.mark.parametrize(
    "body",
    [_pipeline(wait="wait<2>();"), _pipeline(barrier="")],
    ids=["waits for too few", "without a barrier"],
)
def test_reading_before_a_copy_has_arrived_for_all_is_a_race(fault_of, body):
    assert "race on shared memory" in str(fault_of(body, before=BEFORE))


def test_what_was_not_waited_for_is_not_there(run):
    body = "__shared__ float s[32]; copy<4>(s + t, x + t); COMMIT; wait<1>(); y[t] = s[t];"
    assert np.isnan(_run(run, body)[:32]).all()


@pytest.mark.parametrize(
    ("body", "outcome", "pattern"),
    [
        ("copy<16>((float*)(s + t), x + t);", "runtime", "misaligned"),
        ("copy<16>((float*)(s + t) + 1, x + 4 * t);", "runtime", "misaligned"),
        ("copy<16>((float*)(s + t + 1), x + 4 * t);", "correctness", r"writes s\[32\]"),
        ("copy<4>((float*)(s + t), x + t + (1 << 14));", "correctness", r"reads x\[16384\]"),
        ("copy<12>((float*)(s + t), x + 4 * t);", "runtime", "size that it does not have"),
    ],
)
def test_a_copy_is_checked_as_other_accesses_are(fault_of, body, outcome, pattern):
    fault = fault_of(f"__shared__ float4 s[32];\n{body}", block=32, before=BEFORE)
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
    """Lane, register and half: elements 2 p and 2 p + 1 of row r in lane 4 r + p."""
    return matrices.reshape(len(matrices), 32, 2).transpose(1, 0, 2)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_are_loaded_as_lanes_need_them(run, count, trans):
    x = MATRICES.astype(np.uint16).ravel()
    source = _rows_body(count, trans, store=False)
    got = run(source, {"x": x}, {"out": (64 * count, "uint16")}, block=32)["out"]
    matrices = MATRICES[:count].transpose(0, 2, 1) if trans else MATRICES[:count]
    np.testing.assert_array_equal(got.reshape(32, count, 2), _held(matrices))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
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


@pytest.mark.parametrize(
    ("sync", "place", "pattern"),
    [
        ("", "8 * t", "race on shared memory"),
        ("__syncwarp();", "16 * t + 16", r"reads s\[512\]"),
        ("__syncwarp();", "8 * t + 4", "misaligned address"),
    ],
)
def test_loading_matrices_is_checked_as_other_accesses_are(fault_of, sync, place, pattern):
    body = LOAD.replace("SYNC", sync).replace("PLACE", place)
    assert re.search(pattern, str(fault_of(body, block=32, before=BEFORE)))


def test_what_is_loaded_of_each_matrix_is_counted_once(check_races):
    body = LOAD.replace("SYNC", "__syncwarp();").replace("PLACE", "8 * t")
    profile = check_races(body, block=32, before=BEFORE)
    assert profile.launches[0].traffic.shared_read_bytes == 512


def _traffic(check_races, body):
    return check_races(body, block=32, before=BEFORE).launches[0].traffic


@pytest.mark.parametrize("words", [1, 2, 4])
def test_a_copy_counts_as_one_load_and_one_store(check_races, words):
    body = f"""__shared__ __align__(16) float s[128];
    copy<{4 * words}>(s + {words} * t, x + {words} * t); COMMIT; wait<0>();"""
    traffic = _traffic(check_races, body)
    size = 128 * words
    assert (traffic.global_read_bytes, traffic.shared_write_bytes) == (size, size)
    assert (traffic.global_loads, traffic.global_sectors) == (1, size / 32)
    assert (traffic.shared_accesses, traffic.shared_wavefronts) == (1, words)


@pytest.mark.parametrize(("stride", "wavefronts"), [(40, 4), (8, 4), (32, 16), (64, 32)])
def test_bank_conflicts_of_matrices_are_those_of_their_rows(check_races, stride, wavefronts):
    """Also after a warp function, from which the lanes go on in another order."""
    body = f"""__shared__ __align__(16) unsigned short s[2048]; unsigned w[4];
    for (int k = 0; k < 64; ++k) s[k * 32 + t] = 0;
    __syncthreads();
    __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
      : "r"(shared_address(s + t % 16 * {stride} + t / 16 * 8)));
    y[t] = w[0] + w[1] + w[2] + w[3];"""
    traffic = _traffic(check_races, body)
    assert (traffic.shared_accesses - 64, traffic.shared_wavefronts - 64) == (1, wavefronts)
