"""What kernels compute on the host CPU, and in which order their threads run."""

import numpy as np
import pytest
from points import each_once

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow
TIMEOUT_S = 20.0


VECTOR_ADD = """
extern "C" __global__ void __launch_bounds__(64) k(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 100) c[i] = a[i] + b[i];
}
"""


@pytest.mark.parametrize("order_seed", [0, 1, 5])
def test_every_order_of_threads_adds_vectors(run, order_seed):
    a, b = np.arange(100, dtype=np.float32), np.full(100, 0.5, np.float32)
    out = run(
        VECTOR_ADD, {"a": a, "b": b}, {"c": (100, "float32")}, grid=2, block=64,
        order_seed=order_seed,
    )  # fmt: skip
    np.testing.assert_array_equal(out["c"], a + b)


REVERSE = """
__global__ void k(const float* in, float* out) {
  __shared__ float tile[128];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[127 - threadIdx.x];
}
"""


@pytest.mark.parametrize("order_seed", [0, 1, 9])
def test_a_barrier_lets_threads_exchange_through_shared_memory(run, order_seed):
    out = run(
        REVERSE,
        {"x": np.arange(128, dtype=np.float32)},
        {"y": (128, "float32")},
        block=128,
        order_seed=order_seed,
    )
    np.testing.assert_array_equal(out["y"], np.arange(128, dtype=np.float32)[::-1])


def test_a_dropped_barrier_meets_poison_and_not_the_data(run):
    source = REVERSE.replace("__syncthreads();", "")
    out = run(source, {"x": np.arange(128, dtype=np.float32)}, {"y": (128, "float32")}, block=128)
    assert np.isnan(out["y"]).any()


@pytest.mark.parametrize(
    ("reduce", "kind", "read"),
    each_once(
        ["max", "min"],
        [
            ("float", "__shared__ float s[2]; v = {0}(v, s[i]);"),
            ("int", "__shared__ int s[2]; v = {0}(v, s[i]);"),
            ("float", "extern __shared__ float s[]; v = {0}(v, s[i]);"),
            ("float", "v = {0}(v, {0}(w[i], w[i + 1]));"),
            ("int", "v = {0}(v, {0}(__float_as_int(w[i]), __float_as_int(w[i + 1])));"),
        ],
    ),
)
@pytest.mark.parametrize("i", [0, 1])
def test_a_maximum_of_memory_that_nobody_wrote_is_wrong_with_one_of_two_seeds(
    runner, tmp_path, reduce, kind, read, i
):
    body = f"{kind} v = 1; int i = {i}; {read.format(reduce)} y[blockIdx.x] = v;"
    kernel = Kernel(
        f"__global__ void k({kind}* y, const float* w) {{ {body} }}",
        (Launch("k", (2, 1, 1), (1, 1, 1), ("y", "w"), 8),),
        workspaces=(Tensor("w", (3,), "float32", "workspace"),),
    )
    y = Arena.create(tmp_path / "y", Tensor("y", (2,), f"{kind}32", "output"))
    values = []
    for seed in (0, 1):
        runner.run(kernel, {"y": y}, {}, timeout_s=TIMEOUT_S, order_seed=seed)
        values.extend(y.value())
    assert any(value != 1 for value in values)


def test_dynamic_shared_memory_has_the_bytes_of_the_launch(run):
    source = """
    __global__ void k(int* out, int n) {
      extern __shared__ __align__(16) unsigned char buffer[];
      int* words = (int*)buffer;
      words[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = words[n - 1 - threadIdx.x];
    }"""
    out = run(
        source, outputs={"y": (64, "int32")}, block=64, shared_bytes=256,
        scalars=[Scalar("n", "int32", 64)],
    )  # fmt: skip
    np.testing.assert_array_equal(out["y"], np.arange(64)[::-1])


def test_the_largest_instance_of_a_kernel_tells_its_static_shared_memory(run):
    source = """
    template <int N> __global__ void k(int* y) { __shared__ int s[N]; s[0] = N; y[0] = s[0]; }
    __device__ auto other = k<8000>;"""
    out = run(source, outputs={"y": (1, "int32")}, entry="k<10000>")
    assert out["y"][0] == 10000


def test_scalars_arrive_in_the_type_of_the_parameter(run):
    source = """
    __global__ void k(double* out, float f, long long l, unsigned char c, double d) {
      out[0] = f; out[1] = (double)l; out[2] = c; out[3] = d;
    }"""
    scalars = [
        Scalar("f", "float32", 0.5),
        Scalar("l", "int64", -(2**40)),
        Scalar("c", "uint8", 200),
        Scalar("d", "float64", 1e-300),
    ]
    out = run(source, outputs={"y": (4, "float64")}, scalars=scalars)
    np.testing.assert_array_equal(out["y"], [0.5, -(2**40), 200, 1e-300])


def test_scalars_of_sixteen_bits_arrive_rounded_to_their_type(run):
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void k(float* out, const __half h, nv_bfloat16 b, half tiny, __nv_bfloat16 huge) {
      out[0] = __half2float(h); out[1] = __bfloat162float(b); out[2] = (float)tiny;
      out[3] = (float)huge;
    }"""
    scalars = [
        Scalar("h", "float16", 0.1),
        Scalar("b", "bfloat16", 0.1),
        Scalar("tiny", "float16", np.float16(6e-8)),
        Scalar("huge", "bfloat16", -3.3e38),
    ]
    out = run(source, outputs={"y": (4, "float32")}, scalars=scalars)
    # The distances to the neighbours of these numbers are 2**-14, 2**-11, 2**-24 and 2**120.
    expected = [1638 * 2.0**-14, 205 * 2.0**-11, 2.0**-24, -248 * 2.0**120]
    np.testing.assert_array_equal(out["y"], expected)


def test_grid_and_block_have_three_dimensions(run):
    source = """
    __global__ void k(unsigned* out) {
      unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
      out[i] = i;
    }"""
    out = run(source, outputs={"y": (576, "uint32")}, grid=(2, 3, 4), block=(4, 3, 2), order_seed=3)
    np.testing.assert_array_equal(out["y"], np.arange(576))


def test_atomics_count_every_thread(run):
    source = """
    __device__ float total;
    __global__ void k(int* out) {
      __shared__ int count;
      if (threadIdx.x == 0) count = 0;
      __syncthreads();
      atomicAdd(&count, 1);
      atomicMax(&out[1], (int)threadIdx.x);
      atomicAdd(&total, 0.5f);
      atomicCAS(&out[2], -1, 7);
      __syncthreads();
      if (threadIdx.x == 0) { out[0] = count; out[3] = (int)total; }
    }"""
    out = run(source, outputs={"y": (4, "int32")}, block=100)
    np.testing.assert_array_equal(out["y"], [100, 99, 7, 50])


@pytest.mark.parametrize("order_seed", [0, 1, 4])
def test_warp_functions_reduce_and_vote(run, order_seed):
    source = """
    __global__ void k(int* out) {
      int v = threadIdx.x;
      for (int offset = 16; offset; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
      int all = __shfl_sync(0xffffffff, v, 0);
      unsigned odd = __ballot_sync(0xffffffff, threadIdx.x & 1);
      int any = __any_sync(0xffffffff, threadIdx.x == 40), most = __all_sync(~0u, all > 0);
      int butterfly = __shfl_xor_sync(~0u, (int)threadIdx.x, 1);
      int below = __shfl_up_sync(~0u, (int)threadIdx.x, 1);
      int block = __syncthreads_count(threadIdx.x < 10);
      int* mine = out + 8 * threadIdx.x;
      mine[0] = all; mine[1] = odd; mine[2] = any; mine[3] = most;
      mine[4] = butterfly; mine[5] = below; mine[6] = block; mine[7] = __activemask();
    }"""
    out = run(source, outputs={"y": (512, "int32")}, block=64, order_seed=order_seed)
    rows = out["y"].reshape(64, 8)
    thread = np.arange(64)
    np.testing.assert_array_equal(rows[:, 0], np.where(thread < 32, 496, 1520))
    np.testing.assert_array_equal(rows[:, 1].view(np.uint32), np.full(64, 0xAAAAAAAA))
    np.testing.assert_array_equal(rows[:, 2], thread >= 32)
    np.testing.assert_array_equal(rows[:, 3], np.ones(64))
    np.testing.assert_array_equal(rows[:, 4], thread ^ 1)
    np.testing.assert_array_equal(rows[:, 5], np.where(thread % 32, thread - 1, thread))
    np.testing.assert_array_equal(rows[:, 6], np.full(64, 10))


def test_launches_pass_data_through_a_workspace(runner, tmp_path):
    source = """
    __global__ void square(const float* x, float* t) {
      t[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
    }
    __global__ void sum(const float* t, float* y) {
      y[threadIdx.x] = 0;
      for (int i = 0; i <= threadIdx.x; ++i) y[threadIdx.x] += t[i];
    }"""
    x = Arena.create(
        tmp_path / "x", Tensor("x", (16,), "float32", "input"), np.arange(16, dtype=np.float32)
    )
    y = Arena.create(tmp_path / "y", Tensor("y", (16,), "float32", "output"))
    kernel = Kernel(
        source,
        (
            Launch("square", (1, 1, 1), (16, 1, 1), ("x", "t")),
            Launch("sum", (1, 1, 1), (16, 1, 1), ("t", "y")),
        ),
        workspaces=(Tensor("t", (16,), "float32", "workspace"),),
    )
    runner.run(kernel, {"x": x, "y": y}, {}, timeout_s=TIMEOUT_S)
    np.testing.assert_array_equal(y.value(), np.cumsum(np.arange(16, dtype=np.float32) ** 2))


def test_what_a_kernel_leaves_is_there_in_the_next_run_of_its_process(runner, tmp_path):
    kernel = Kernel(
        "__device__ int n; __global__ void k(int* y, int* w) { y[0] = n++; y[1] = w[0]++; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("y", "w")),),
        workspaces=(Tensor("w", (1,), "int32", "workspace"),),
    )
    y = Arena.create(tmp_path / "y", Tensor("y", (2,), "int32", "output"))
    seen = []
    with runner.open(kernel, {"y": y}, {}, timeout_s=TIMEOUT_S) as program:
        for fresh in (True, False, False, True):
            program.run(fresh=fresh)
            seen.append(y.value().tolist())
    assert seen == [[0, -1], [1, 0], [2, 1], [3, -1]]


def test_a_run_ends_when_its_time_is_up(runner, tmp_path):
    kernel = Kernel(VECTOR_ADD, (Launch("k", (1, 1, 1), (1, 1, 1), ("a", "b", "c")),))
    arenas = {
        name: Arena.create(tmp_path / name, Tensor(name, (1,), "float32", role))
        for name, role in (("a", "input"), ("b", "input"), ("c", "output"))
    }
    with runner.open(kernel, arenas, {}, timeout_s=TIMEOUT_S) as program:
        count, spent_s = program.run(most=10**9, budget_s=0.02)
    assert count > 1
    assert spent_s >= 0.02


@pytest.mark.parametrize(
    ("order_seed", "barrier", "expected"),
    each_once(
        [0, 1, 7],
        [
            ("__syncthreads(); y[t] = s[42 - t];", np.arange(43)[::-1] + 1),
            ("y[t] = __syncthreads_count(t % 2);", 21),
            ("y[t] = __syncthreads_and(t < 43);", 1),
            ("y[t] = __syncthreads_or(t >= 43);", 0),
        ],
    ),
)
def test_a_barrier_does_not_wait_for_threads_that_have_returned(run, barrier, expected, order_seed):
    body = f"""
    __shared__ int s[43]; int t = threadIdx.x;
    if (t >= 43) return;
    s[t] = t + 1; {barrier} __syncthreads();"""
    outputs = {"y": (43, "int32")}
    source = f"__global__ void k(int* y) {{ {body} }}"
    out = run(source, outputs=outputs, block=64, order_seed=order_seed)
    np.testing.assert_array_equal(out["y"], expected)


def test_printf_goes_to_standard_error(run, capsys):
    run(r'__global__ void k() { printf("%d of %s\n", 42, "k"); }')
    assert capsys.readouterr().err == "42 of k\n"


@pytest.mark.parametrize(
    ("parameter", "dtype", "value", "seen"),
    [
        ("unsigned", "int32", -1, 2**32 - 1),
        ("bool", "uint8", 1, 1),
        ("const size_t", "int64", -1, 2**64 - 1),
    ],
)
def test_a_scalar_may_differ_in_its_sign(run, parameter, dtype, value, seen):
    source = f"__global__ void k(unsigned long long* y, {parameter} n) {{ y[0] = n; }}"
    out = run(source, outputs={"y": (1, "uint64")}, scalars=[Scalar("n", dtype, value)])
    assert out["y"].tolist() == [seen]


def test_a_flood_of_text_is_cut(run, capsys):
    run(r'__global__ void k() { for (int i = 0; i < 300000; ++i) printf("0123456789\n"); }')
    assert len(capsys.readouterr().err) == 1 << 20
