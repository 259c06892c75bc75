"""The detector of races and of accesses outside tensors."""

from __future__ import annotations

import numpy as np
import pytest
from outcomes import in_blocks, raises
from points import each_once

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow


X = np.ones(64, np.float32)


@pytest.fixture
def check(built, runner):
    """Make check(body, ...): the profile of k(const float* x, float* y) with 64 elements each."""

    def go(body, *, before="", block=64, among=(), **described):
        among = list(among) or [body]
        head = "__global__ void k(const float* x, float* y, const int* body) { int t = threadIdx.x;"
        chosen = in_blocks(among, "*body") if len(among) > 1 else body
        source = f"{before}\n{head}\n{chosen}\n}}"
        inputs = {"x": X, "body": np.array([among.index(body)], np.int32)}
        described["arguments"] = ("x", "y", "body")
        kernel, arenas = built(source, inputs, {"y": (64, "float32")}, block=block, **described)
        untouched = arenas["y"].image().tobytes()
        try:
            return runner.check_races(kernel, arenas, {}, timeout_s=20.0)
        finally:
            assert arenas["y"].image().tobytes() == untouched

    return go


REVERSE = "__shared__ float tile[64]; tile[t] = x[t]; __syncthreads(); y[t] = tile[63 - t];"


OWN = "float w[2][3]; for (int k = 0; k < 6; ++k) w[k / 3][k % 3] = x[k]; float s = 0;"
BESIDE = {
    "reads": f"{OWN} for (int k = 0; k < 7; ++k) s += w[1][k - 3]; y[t] = s;",
    "writes": f"{OWN} w[1][3 + (t == 9)] = 2; y[t] = w[0][t % 3];",
}


@pytest.mark.parametrize("verb", BESIDE)
def test_a_thread_may_not_reach_beside_its_own_array(check, verb):
    with raises("correctness", rf"thread \(\d+,0,0\) .* {verb} beside a variable of its own"):
        check(BESIDE[verb], among=BESIDE.values())


def test_rows_of_a_threads_own_array_may_run_into_one_another(check):
    assert check(f"{OWN} for (int k = 0; k < 6; ++k) s += w[0][k]; y[t] = s;")[0].blocks_run


def test_a_clean_kernel_has_its_accesses_counted(check):
    (launch,) = check(REVERSE)
    assert (launch.entry, launch.blocks, launch.blocks_run) == ("k", 1, 1)
    traffic = launch.traffic
    assert (traffic.global_read_bytes, traffic.global_write_bytes) == (256, 256)
    assert (traffic.shared_read_bytes, traffic.shared_write_bytes) == (256, 256)
    assert (traffic.barriers, traffic.static_shared_bytes) == (1, 256)


TILE = "__shared__ float tile[64]; %s tile[t] = x[t]; __syncthreads(); y[t] = %s;"
STATIC = [
    TILE % ("auto at = [](int i) { return tile[i]; };", "at(t)"),
    TILE % ("struct Of { __device__ static float at(int i) { return tile[i]; } };", "Of::at(t)"),
    "if (t > 99) goto end; " + TILE % ("", "tile[t]") + " end: ;",
]
COPYING = TILE % ("auto at = [=](int i) { return tile[i]; };", "at(t)")


@pytest.mark.parametrize(
    ("body", "among"),
    [*((body, STATIC) for body in STATIC), (COPYING, [COPYING])],
    ids=["lambda", "class", "jump", "copies"],
)
def test_a_shared_variable_is_static_where_the_text_needs_that(check, body, among):
    traffic = check(body, among=among)[0].traffic
    assert (traffic.shared_read_bytes, traffic.shared_write_bytes) == (256, 256)


def test_a_dropped_barrier_is_a_race_with_both_threads_and_the_element(check):
    pattern = (
        r"race on shared memory: threads \(\d+,0,0\) and \(\d+,0,0\) of block \(0,0,0\) of k "
        r"access tile\[\d+\], the first (reads and the second writes|writes and the second reads), "
        "without a barrier between"
    )
    with raises("correctness", pattern):
        check(REVERSE.replace("__syncthreads();", ""))


def test_two_values_written_to_one_place_race(check):
    with raises(
        "correctness", r"access cell\[0\], the first writes and the second writes another value"
    ):
        check("__shared__ int cell[2]; cell[t / 64] = t; __syncthreads(); y[t] = cell[0];")


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ int flag; flag = 1; __syncthreads(); y[t] = flag;",
        "__shared__ int n; if (!t) n = 0; __syncthreads(); atomicAdd(&n, 1);"
        " __syncthreads(); y[t] = n;",
        "__shared__ float s[64]; s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1];",
        "__shared__ unsigned char b[64]; b[t] = t; __syncthreads(); y[t] = b[63 - t];",
        "__shared__ float s[64]; for (int i = 0; i < 3; ++i) { s[t] = i; __syncthreads();"
        " y[t] = s[63 - t]; __syncthreads(); }",
        "float local[8]; for (int i = 0; i < 8; ++i) local[(i + t) % 8] = i; y[t] = local[t % 8];",
    ],
)  # fmt: skip
def test_ordered_and_harmless_accesses_are_no_race(check, body, bodies):
    assert check(body, among=bodies)[0].blocks_run == 1


def test_synchronizing_the_warp_does_not_order_other_warps(check):
    with raises("correctness", r"race on shared memory: threads"):
        check("__shared__ float s[64]; s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 32];")


def test_the_second_barrier_of_a_loop_is_missed(check):
    with raises("correctness", r"race on shared memory: threads .* access s\["):
        check(
            "__shared__ float s[64]; for (int i = 0; i < 3; ++i) { s[t] = i; __syncthreads();"
            " y[t] = s[63 - t]; }"
        )


def test_bytes_race_by_the_byte(check):
    with raises("correctness", r"access b\[\d+\]"):
        check("__shared__ unsigned char b[65]; b[t] = t; y[t] = b[t + 1 & 63];")


def test_dynamic_shared_memory_is_checked(check):
    before = "extern __shared__ float s[];"
    with raises("correctness", r"access byte \d+ of the dynamic shared memory"):
        check("s[t] = x[t]; y[t] = s[63 - t];", shared_bytes=256, before=before)
    with raises("correctness", r"the dynamic shared memory\[256\], past its end of 256 bytes"):
        check("s[t + 1] = x[t];", shared_bytes=256, before=before)


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("y[t] = x[t - 3];",
         r"thread \(0,0,0\) of block \(0,0,0\) of k reads x\[-3\], 3 elements before its start"),
        ("y[t] = x[t + 1];", r"thread \(63,0,0\) .* reads x\[64\], past its end of 64 elements"),
        ("y[t + 1] = x[t];", r"writes y\[64\], past its end of 64 elements"),
        ("y[t] = *(const float*)((size_t)x + (1ull << 40) + 4 * t);", "outside every tensor"),
        ("memcpy(y + t, x + t, 8);", r"reads x\[64\]"),
    ],
)  # fmt: skip
def test_an_access_outside_the_elements_is_told_with_its_place(check, body, bodies, pattern):
    with raises("correctness", pattern):
        check(body, among=bodies)


OFFSETS = (1, 4, 8, 32, 512, 4096)


@pytest.mark.parametrize(
    ("offset", "before", "variable"),
    each_once(
        OFFSETS,
        [("", "__shared__ float s[64];"), ("__device__ float s[64];", "")],
    ),
)
def test_a_write_past_a_variable_is_told_with_its_place(check, before, variable, offset):
    pattern = r"thread \(\d+,0,0\) .* of k writes s\[\d+\], past its end of 64 elements"
    with raises("correctness", pattern):
        bodies = {at: f"{variable} s[t + {at}] = x[t];" for at in OFFSETS}
        check(bodies[offset], before=before, among=bodies.values())


@pytest.mark.parametrize(
    ("before", "body", "pattern"),
    [
        ("", "__shared__ float a[64], b[64]; a[t] = b[t] = 1; y[t] = b[t - 64];",
         r"reads b\[-64\], 64 elements before its start"),
        ("", "__shared__ float a[4][16], b[64]; b[t] = 1; y[t] = a[t / 16 + 1][t % 16];",
         r"reads a\[64\], past its end of 64 elements"),
        ("", "__shared__ float4 a[16]; ((float2*)a)[t] = make_float2(1, 1);",
         r"writes a\[16\], past its end of 16 elements"),
        ("", "__shared__ int n[2]; atomicAdd(&n[t], 1);", r"writes n\[2\], past its end of 2"),
        ("template <int N> __device__ float last(int t) { __shared__ float s[N]; return s[t]; }",
         "y[t] = last<32>(t);", r"reads s\[32\], past its end of 32 elements"),
        ("__constant__ int c[] = {1, 2, 3};", "y[t] = c[t];", r"reads c\[3\], past its end of 3"),
        ('extern "C" { __device__ int d[4]; }', "d[t] = 1;", r"writes d\[4\], past its end of 4"),
        ("#include <cstdint>\n/* -> */ // >\n__device__ int d[4];", "d[t] = 1;",
         r"writes d\[4\], past its end of 4"),
    ],
)  # fmt: skip
def test_an_access_beside_a_variable_is_told(check, before, body, pattern):
    with raises("correctness", pattern):
        check(body, before=before)


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("", "volatile __shared__ float s[64]; s[t] = 1; y[t] = s[t];"),
        ("", "__shared__ struct { int a, b[64]; } s; s.b[t] = t; y[t] = s.b[t];"),
        ("", "__shared__ float s[64], *p; p = s; __syncthreads(); p[t] = 1; y[t] = s[t];"),
        ("", "__shared__ float s[64]; s[t] = t; auto f = [=] { return s[t]; }; y[t] = f();"),
        ("__shared__ float s[64];", "s[t] = 1; y[t] = s[t];"),
        ("__device__ const int n = 64; __device__ float d[n];", "d[t] = 1; y[t] = d[t];"),
        ("struct S { static constexpr int n[] = {1, 2}; };", "y[t] = S::n[t % 2];"),
        ("struct S { static __device__ int n; }; __device__ int S::n;", "y[t] = S::n;"),
        ("template <class T> __device__ T pi = 3;", "y[t] = pi<float>;"),
        ("extern __device__ int n; __device__ int n = 3;", "y[t] = n;"),
        ("", "static const float table[] = {1, 2, 3}; y[t] = table[t % 3];"),
    ],
)  # fmt: skip
def test_variables_may_be_declared_in_many_ways(check, before, body):
    assert check(body, before=before)[0].blocks_run == 1


def test_shared_variables_of_a_template_race_too(check):
    before = "template <int N> __device__ float at(int t) { __shared__ float s[N]; s[t] = t;"
    with raises("correctness", r"race on shared memory: .* access s\["):
        check("y[t] = at<64>(t);", before=before + " return s[N - 1 - t]; }")


def test_instances_of_a_template_have_shared_variables_of_their_own(check):
    before = "template <class T> __device__ float f(int t) { __shared__ T s[64]; return s[t] = t; }"
    profile = check("y[t] = f<float>(t) + f<int>(t);", before=before)
    assert profile[0].traffic.static_shared_bytes == 512


def test_blocks_that_write_one_place_race(check):
    pattern = r"race on global memory: thread \(\d+,0,0\) of block \(\d,0,0\) writes and .*y\[0\]"
    with raises("correctness", pattern):
        check("y[0] = blockIdx.x;", grid=4, block=1)


@pytest.mark.parametrize("fence", ["__threadfence()", "__threadfence_block()"])
def test_a_fence_alone_orders_no_blocks(check, fence):
    body = f"y[blockIdx.x] = 1; {fence}; if (blockIdx.x == 3) y[4] = y[0] + y[1];"
    with raises("correctness", r"race on global memory: .* y\[\d\], and nothing orders blocks"):
        check(body, grid=4, block=1)


def test_a_later_launch_sees_all_blocks_of_an_earlier_one(runner, tmp_path):
    source = """
    __global__ void first(int* t) { t[blockIdx.x] = blockIdx.x; }
    __global__ void second(const int* t, int* y) { y[blockIdx.x] = t[t[blockIdx.x]]; }"""
    y = Arena.create(tmp_path / "y", Tensor("y", (50,), "int32", "output"))
    kernel = Kernel(
        source,
        (
            Launch("first", (50, 1, 1), (1, 1, 1), ("t",)),
            Launch("second", (50, 1, 1), (1, 1, 1), ("t", "y")),
        ),
        workspaces=(Tensor("t", (50,), "int32", "workspace"),),
    )
    profile = runner.check_races(kernel, {"y": y}, {}, timeout_s=20.0)
    assert [launch.entry for launch in profile] == ["first", "second"]
    assert profile[1].traffic.global_read_bytes == 8


def test_all_blocks_of_a_small_grid_are_checked(check_races):
    assert check_races("y[i] = x[i];", grid=256)[0].blocks_run == 256


def test_the_budget_bounds_the_sample(check_races):
    body = "float sum = 0; for (int k = 0; k < 4096; ++k) sum += x[k]; y[i % 16384] = sum;"
    (launch,) = check_races(body, grid=100_000)
    assert 8_000_000 <= launch.blocks_run * 64 * 4096 <= 9_000_000


def test_blocks_without_accesses_count_too(check_races):
    (launch,) = check_races("if (b == gridDim.x - 1 && !t) y[0] = 1;", grid=1 << 20)
    assert 10_000 < launch.blocks_run < 200_000


def test_the_profile_is_that_of_the_first_blocks(check_races):
    (launch,) = check_races("if (!t && b == gridDim.x - 1) y[0] = 1;", grid=1000)
    assert launch.blocks_run == 1000
    assert launch.traffic.global_write_bytes == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    ("body", "block", "grid"),
    [
        ("n[(b * 37) % 100] += 1;", 1, 1000),  # a histogram with one thread a block
        ("atomicAdd(&n[0], 1); if (!t) y[b / 2] += x[b];", 32, 600),  # split-K without atomics
        ("if (b >= 300 && b < 302 && !t) y[7] = b;", 32, 600),
        ("if (!t) { int old = n[0]; n[0] = old + 1; }", 32, 64),
        ("y[b + t] = b;", 2, 500),  # neighbours overlap
    ],
)
def test_races_between_blocks_in_the_middle_are_found(wrong, body, bodies, block, grid):
    wrong("race on global memory", body, block=block, grid=grid, among=bodies)


def test_neighbours_in_a_large_grid_are_checked_together(wrong):
    body = (
        "float sum = 0; for (int k = 0; k < 1024; ++k) sum += x[k];"
        " if (!t) y[(b + 1) / 2 % 16384] = sum + b;"
    )
    wrong("race on global memory", body, grid=20_000)


@pytest.mark.parametrize("parts", [3, 4, 10])
def test_parts_of_a_tile_in_a_large_grid_are_checked_together(wrong, parts):
    body = (
        "float sum = 0; for (int k = 0; k < 4096; ++k) sum += x[k];"
        f" if (!t) y[b % (gridDim.x / {parts})] += sum;"
    )
    wrong("race on global memory", body, grid=6000)


@pytest.mark.parametrize(
    ("body", "outcome", "words"),
    [
        ("y[i] = x[i + (b == 100 ? 16384 : 0)];", "correctness", r"reads x[22784], past its end"),
        ("y[i] = x[i - (b == 100 ? 16384 : 0)];", "correctness", r"before its start"),
        ("if (b == 77) n[-1 - t] = t; y[i] = 1;", "correctness", r"before its start"),
        ("y[i] = b == 77 ? *(const double*)(x + 2 * t + 1) : 0;", "runtime", "misaligned address"),
    ],
)
def test_bad_addresses_in_the_middle_are_found(fault_of, body, bodies, outcome, words):
    fault = fault_of(body, grid=200, among=bodies)
    assert fault.outcome == outcome
    assert words in str(fault)


VALUES = ("-1", "0", "0x7f7f7f7f", "__float_as_int(NAN)")


@pytest.mark.parametrize(
    ("value", "before", "body"),
    each_once(
        VALUES,
        [
            ("", "__shared__ int s[63]; if (!t) s[63] = {}; __syncthreads(); n[i] = 0;"),
            ("extern __shared__ int s[];", "if (!t) s[25] = {}; n[i] = 0;"),
            ("__device__ int d[5];", "if (!t) d[5] = {}; n[i] = 0;"),
        ],
    ),
)
def test_what_a_kernel_writes_beside_a_variable_is_seen(run_orders, before, body, value):
    among = map(body.format, VALUES)
    with pytest.raises(KernelFault, match=r"wrote .*, past its end"):
        run_orders(body.format(value), before=before, shared_bytes=100, among=among)


BEFORE = """
__device__ double add(double* at, double v) {
  unsigned long long *bits = (unsigned long long*)at, old = *bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(bits, assumed, __double_as_longlong(v + __longlong_as_double(assumed)));
  } while (assumed != old);
  return __longlong_as_double(old);
}
__device__ void raise(float* at, float v) {
  int* bits = (int*)at;
  int old = *bits, assumed;
  do {
    assumed = old;
    if (__int_as_float(assumed) >= v) return;
    old = atomicCAS(bits, assumed, __float_as_int(v));
  } while (assumed != old);
}"""
SHARED = """
  __shared__ double sum; __shared__ float largest; __shared__ int first, seen[4], kinds;
  __shared__ volatile int turn;
  if (t < 4) seen[t] = 0;
  if (!t) { sum = 0; largest = -1; first = 1000; kinds = turn = 0; }
  __syncthreads();"""
GUESSES = """
  add(&sum, t + 0.5);
  raise(&largest, t * 37 % 64);
  if (63 - t < first) atomicMin(&first, 63 - t);
  if (!seen[t % 4] && !atomicExch(&seen[t % 4], 1)) atomicAdd(&kinds, 1);
  __syncthreads();
  if (!t) { y[4 * b] = sum; y[4 * b + 1] = largest; y[4 * b + 2] = first; y[4 * b + 3] = kinds; }"""
# One text for all, so that it is built once: the number of blocks chooses.
LOST = """
  switch (gridDim.x) {
    case 1: if (t % 32 == 0) turn = turn + 1; break;
    case 2: { int old = turn; __threadfence_block(); atomicCAS((int*)&turn, old, old + 1); break; }
    case 3: { int old = turn; atomicExch((int*)&turn, old + 2); break; }
    case 4: { int mine = turn; atomicAdd((int*)&turn, 1); n[64 * b + mine] = 1; break; }
    case 5: { int old = first; atomicCAS(&first, old, old + 1); break; }
  }
  __syncthreads();
  if (!t) n[1000 + b] = turn + first;"""
NEVER_CORRECTED = """
  add(&sum, t);
  if (gridDim.x == 2) __syncthreads();
  if (t == 40) y[b] = sum;"""


def test_an_atomic_may_correct_a_guess(right, small_kernel):
    kernel, arenas = small_kernel(SHARED + GUESSES, grid=3, before=BEFORE)
    assert right(kernel, arenas, "y", 3 * [2048, 63, 0, 4]) == 3


@pytest.mark.parametrize("grid", [1, 2, 3, 4, 5])
def test_an_update_of_what_others_have_changed_is_lost(wrong, grid):
    wrong("depends on the order of threads", SHARED + LOST, grid=grid)


def test_reading_a_sum_before_it_is_complete_is_a_race(wrong, check_races):
    wrong(
        "the first atomically updates and the second reads", SHARED + NEVER_CORRECTED, before=BEFORE
    )
    check_races(SHARED + NEVER_CORRECTED, grid=2, before=BEFORE)
