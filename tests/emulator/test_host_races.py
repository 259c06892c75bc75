"""The race detector and memory checker of the emulated GPU."""

import numpy as np
import pytest
from points import each_once

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow


@pytest.fixture
def check(runner, tmp_path):
    """check(body of k(const float* x, float* y), ...) -> AccessProfile; x, y have 64 elements."""

    def go(body, *, block=64, grid=1, shared_bytes=0, before=""):
        x, y = (Tensor(n, (64,), "float32", r) for n, r in (("x", "input"), ("y", "output")))
        arenas = {
            "x": Arena.create(tmp_path / "x", x, np.ones(64, np.float32)),
            "y": Arena.create(tmp_path / "y", y),
        }
        head = "__global__ void k(const float* x, float* y) { int t = threadIdx.x;"
        source = f"{before}\n{head}\n{body}\n}}"
        kernel = Kernel(
            source, (Launch("k", (grid, 1, 1), (block, 1, 1), ("x", "y"), shared_bytes),)
        )
        untouched = arenas["y"].image().tobytes()
        try:
            return runner.check_races(kernel, arenas, {}, timeout_s=20.0)
        finally:
            assert arenas["y"].image().tobytes() == untouched

    return go


def is_wrong(fault):
    return fault.outcome == "correctness"


REVERSE = "__shared__ float tile[64]; tile[t] = x[t]; __syncthreads(); y[t] = tile[63 - t];"


def test_a_clean_kernel_has_its_accesses_counted(check):
    (launch,) = check(REVERSE).launches
    assert (launch.entry, launch.blocks, launch.blocks_run) == ("k", 1, 1)
    traffic = launch.traffic
    assert (traffic.global_read_bytes, traffic.global_write_bytes) == (256, 256)
    assert (traffic.shared_read_bytes, traffic.shared_write_bytes) == (256, 256)
    assert (traffic.barriers, traffic.static_shared_bytes) == (1, 256)


def test_a_dropped_barrier_is_a_race_with_both_threads_and_the_element(check):
    pattern = (
        r"race on shared memory: threads \(\d+,0,0\) and \(\d+,0,0\) of block \(0,0,0\) of k "
        r"access tile\[\d+\], the first (reads and the second writes|writes and the second reads), "
        "without a barrier between"
    )
    with pytest.raises(KernelFault, match=pattern, check=is_wrong):
        check(REVERSE.replace("__syncthreads();", ""))


def test_two_values_written_to_one_place_race(check):
    with pytest.raises(
        KernelFault,
        match=r"access cell\[0\], the first writes and the second writes another value",
        check=is_wrong,
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
def test_ordered_and_harmless_accesses_are_no_race(check, body):
    assert check(body).launches[0].blocks_run == 1


def test_synchronizing_the_warp_does_not_order_other_warps(check):
    with pytest.raises(KernelFault, match=r"race on shared memory: threads", check=is_wrong):
        check("__shared__ float s[64]; s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 32];")


def test_the_second_barrier_of_a_loop_is_missed(check):
    with pytest.raises(
        KernelFault, match=r"race on shared memory: threads .* access s\[", check=is_wrong
    ):
        check(
            "__shared__ float s[64]; for (int i = 0; i < 3; ++i) { s[t] = i; __syncthreads();"
            " y[t] = s[63 - t]; }"
        )


def test_bytes_race_by_the_byte(check):
    with pytest.raises(KernelFault, match=r"access b\[\d+\]", check=is_wrong):
        check("__shared__ unsigned char b[65]; b[t] = t; y[t] = b[t + 1 & 63];")


def test_dynamic_shared_memory_is_checked(check):
    before = "extern __shared__ float s[];"
    with pytest.raises(
        KernelFault, match=r"access byte \d+ of the dynamic shared memory", check=is_wrong
    ):
        check("s[t] = x[t]; y[t] = s[63 - t];", shared_bytes=256, before=before)
    with pytest.raises(
        KernelFault,
        match=r"the dynamic shared memory\[256\], past its end of 256 bytes",
        check=is_wrong,
    ):
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
def test_an_access_outside_the_elements_is_told_with_its_place(check, body, pattern):
    with pytest.raises(KernelFault, match=pattern, check=is_wrong):
        check(body)


@pytest.mark.parametrize(
    ("offset", "before", "variable"),
    each_once(
        [1, 4, 8, 32, 512, 4096],
        [("", "__shared__ float s[64];"), ("__device__ float s[64];", "")],
    ),
)
def test_a_write_past_a_variable_is_told_with_its_place(check, before, variable, offset):
    pattern = r"thread \(\d+,0,0\) .* of k writes s\[\d+\], past its end of 64 elements"
    with pytest.raises(KernelFault, match=pattern, check=is_wrong):
        check(f"{variable} s[t + {offset}] = x[t];", before=before)


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
    with pytest.raises(KernelFault, match=pattern, check=is_wrong):
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
    assert check(body, before=before).launches[0].blocks_run == 1


def test_shared_variables_of_a_template_race_too(check):
    before = "template <int N> __device__ float at(int t) { __shared__ float s[N]; s[t] = t;"
    with pytest.raises(KernelFault, match=r"race on shared memory: .* access s\[", check=is_wrong):
        check("y[t] = at<64>(t);", before=before + " return s[N - 1 - t]; }")


def test_instances_of_a_template_have_shared_variables_of_their_own(check):
    before = "template <class T> __device__ float f(int t) { __shared__ T s[64]; return s[t] = t; }"
    profile = check("y[t] = f<float>(t) + f<int>(t);", before=before)
    assert profile.traffic[0].static_shared_bytes == 512


def test_blocks_that_write_one_place_race(check):
    pattern = r"race on global memory: thread \(\d+,0,0\) of block \(\d,0,0\) writes and .*y\[0\]"
    with pytest.raises(KernelFault, match=pattern, check=is_wrong):
        check("y[0] = blockIdx.x;", grid=4, block=1)


def test_a_fence_alone_orders_no_blocks(check):
    body = "y[blockIdx.x] = 1; __threadfence(); if (blockIdx.x == 3) y[4] = y[0] + y[1];"
    with pytest.raises(
        KernelFault,
        match=r"race on global memory: .* y\[\d\], and nothing orders blocks",
        check=is_wrong,
    ):
        check(body, grid=4, block=1)


def test_a_fence_of_the_block_does_not_order_blocks(check):
    body = "y[blockIdx.x] = 1; __threadfence_block(); if (blockIdx.x == 3) y[4] = y[0] + y[1];"
    with pytest.raises(
        KernelFault,
        match=r"race on global memory: .* y\[\d\], and nothing orders blocks",
        check=is_wrong,
    ):
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
    assert [launch.entry for launch in profile.launches] == ["first", "second"]
    assert profile.traffic[1].global_read_bytes == 8
