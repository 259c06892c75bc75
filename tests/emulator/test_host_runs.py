"""What kernels compute on the host, from launch to launch and in any order of threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from points import MORE, each_once, nightly

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import seeded_arenas, verify_on_device
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

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
@pytest.mark.parametrize("i", [0, MORE(1)])
def test_a_maximum_of_memory_that_nobody_wrote_is_wrong_with_one_of_two_seeds(
    runner, built, reduce, kind, read, i
):
    body = f"{kind} v = 1; int i = {i}; {read.format(reduce)} y[blockIdx.x] = v;"
    kernel, arenas = built(
        f"__global__ void k({kind}* y, const float* w) {{ {body} }}",
        outputs={"y": (2, f"{kind}32")},
        grid=2,
        arguments=("y", "w"),
        shared_bytes=8,
        workspaces=(Tensor("w", (3,), "float32", "workspace"),),
    )
    values = []
    for seed in (0, 1):
        runner.run(kernel, arenas, {}, timeout_s=TIMEOUT_S, order_seed=seed)
        values.extend(arenas["y"].value())
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


def test_the_static_shared_memory_of_a_function_is_that_of_kernels_that_call_it(runner, built):
    function = "__device__ void %s(int* y) { __shared__ int s[10000]; s[0] = 7; y[0] += s[0]; }\n"
    source = (
        "".join(map(function.__mod__, ("put", "get")))
        + """
    __global__ void k(int* y) { y[0] = 0; put(y); }
    __global__ void other(int* y) { get(y); }"""
    )
    kernel, arenas = built(source, outputs={"y": (1, "int32")})
    (launch,) = kernel.launches
    kernel = replace(kernel, launches=(launch, replace(launch, entry="other")))
    runner.run(kernel, arenas, {}, timeout_s=20.0)
    assert arenas["y"].value()[0] == 14


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


def test_launches_pass_data_through_a_workspace(runner, built):
    source = """
    __global__ void square(const float* x, float* t) {
      t[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
    }
    __global__ void sum(const float* t, float* y) {
      y[threadIdx.x] = 0;
      for (int i = 0; i <= threadIdx.x; ++i) y[threadIdx.x] += t[i];
    }"""
    kernel, arenas = built(
        source,
        {"x": np.arange(16, dtype=np.float32)},
        {"y": (16, "float32")},
        workspaces=(Tensor("t", (16,), "float32", "workspace"),),
    )
    launches = tuple(
        Launch(entry, (1, 1, 1), (16, 1, 1), names)
        for entry, names in (("square", ("x", "t")), ("sum", ("t", "y")))
    )
    runner.run(replace(kernel, launches=launches), arenas, {}, timeout_s=TIMEOUT_S)
    sums = np.cumsum(np.arange(16, dtype=np.float32) ** 2)
    np.testing.assert_array_equal(arenas["y"].value(), sums)


def test_what_a_kernel_leaves_is_there_in_the_next_run_of_its_process(runner, built):
    kernel, arenas = built(
        "__device__ int n; __global__ void k(int* y, int* w) { y[0] = n++; y[1] = w[0]++; }",
        outputs={"y": (2, "int32")},
        arguments=("y", "w"),
        workspaces=(Tensor("w", (1,), "int32", "workspace"),),
    )
    seen = []
    with runner.open(kernel, arenas, {}, timeout_s=TIMEOUT_S) as program:
        for fresh in (True, False, False, True):
            program.run(fresh=fresh)
            seen.append(arenas["y"].value().tolist())
    assert seen == [[0, -1], [1, 0], [2, 1], [3, -1]]


def test_a_run_ends_when_its_time_is_up(runner, built):
    one = np.ones(1, np.float32)
    kernel, arenas = built(VECTOR_ADD, {"a": one, "b": one}, {"c": (1, "float32")})
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


COUNTED_SIZE = 1024
DOUBLE = Contract(
    "double",
    (
        Tensor("x", (COUNTED_SIZE,), "float32", "input"),
        Tensor("y", (COUNTED_SIZE,), "float32", "output"),
    ),
    lambda inputs: {"y": 2 * inputs["x"]},
)
DECLARED_TEXT = """
DECLARED
extern "C" __global__ void f(const float* x, float* y) {
  int i = blockIdx.x * 128 + threadIdx.x;
  BODY
}
"""
SLOW = "float v = 0; for (int k = 0; k < 40000; ++k) v = fmaf(v, 0.5f, x[i]); "
"""So that a launch takes the host too long to be repeated: v is 2 x."""


def verified(body: str, declared: str = "") -> Correctness:
    text = DECLARED_TEXT.replace("DECLARED", declared).replace("BODY", body)
    launch = Launch("f", (COUNTED_SIZE // 128, 1, 1), (128, 1, 1), ("x", "y"))
    with EmulatedDevice() as device:
        return verify_on_device(device, Kernel(text, (launch,)), DOUBLE)


STATE = {
    "finite": ("if (isfinite(y[i])) return; y[i] = 2 * x[i];", ""),
    "looks right": ("if (fabsf(y[i]) < 1000.0f) return; y[i] = 2 * x[i];", ""),
    "static counter": (
        "static int n[1024]; if (n[i]++ > 0) return; y[i] = 2 * x[i];",
        "",
    ),
    "device counter": (
        "if (runs[i]++ > 0) return; y[i] = 2 * x[i];",
        "__device__ int runs[1024];",
    ),
    "memo of a pointer": (
        "if (last[i] == x) { y[i] = known[i]; return; } "
        "last[i] = x; known[i] = 2 * x[i]; y[i] = known[i];",
        "__device__ const float* last[1024]; __device__ float known[1024];",
    ),
    "memo of an element": (
        "if (i > 0 && seen[i]) { y[i] = known[i]; return; } "
        "seen[i] = 1; known[i] = 2 * x[i]; y[i] = known[i];",
        "__device__ int seen[1024]; __device__ float known[1024];",
    ),
}


@pytest.mark.parametrize(
    "name", nightly(STATE, {"looks right", "device counter", "memo of an element"})
)
def test_a_kernel_with_state_is_wrong(name):
    body, declared = STATE[name]
    with pytest.raises(KernelFault, match=r"elements of y .* (wrong|never written)"):
        verified(body, declared)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (at > 0)) for at, name in enumerate(STATE)],
)
def test_it_is_wrong_too_if_its_launches_are_too_long_to_be_repeated(name):
    body, declared = STATE[name]
    with pytest.raises(KernelFault, match=r"elements of y .* (wrong|never written)"):
        verified(SLOW + body.replace("2 * x[i]", "v"), declared)


def test_a_ticket_that_is_never_reset_is_wrong():
    body = """
    __shared__ bool last;
    y[i] = 2 * x[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) y[0] = 2 * x[0];
    else if (i == 0) y[0] = 0;
    """
    with pytest.raises(KernelFault):
        verified(body, "__device__ unsigned ticket;")


def test_a_counter_that_is_reset_is_right():
    body = "if (threadIdx.x == 0) atomicExch(&runs, 0u); y[i] = 2 * x[i];"
    assert verified(body, "__device__ unsigned runs;").max_relative_error == 0


SIZE = 4096
TEXT = """
extern "C" __global__ void f(const float* x, float* y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  BODY
}
"""


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def kernel(body: str) -> Kernel:
    return Kernel(
        TEXT.replace("BODY", body), (Launch("f", (SIZE // 256, 1, 1), (256, 1, 1), ("x", "y")),)
    )


def workload(role: Any = "inout", dtype: str = "float32") -> Contract:
    return Contract(
        "axpy",
        (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), dtype, role)),
        lambda given: {"y": given["x"] + (given["y"] if role == "inout" else 0)},
    )


@pytest.mark.parametrize(
    "body", ["y[i] += x[i];", "y[i] = x[i] + y[i];", "atomicAdd(&y[i], x[i]);"]
)
def test_an_inout_is_restored_before_each_launch(gpu, body):
    assert verify_on_device(gpu, kernel(body), workload()).max_relative_error < 1e-6


@pytest.mark.parametrize(
    "body",
    [
        MORE("y[i] = x[i];"),
        MORE("y[i] += i == 77 ? 0.f : x[i];"),
        "y[i] += x[i]; if (i == 5) y[i] += x[i];",
        MORE("if (y[i] != 0.f) y[i] += 1.001f * x[i];"),
        "static __device__ int n; if (i == 0 && ++n > 6) y[i] = 0.f; else y[i] += x[i];",
        "",
    ],
)
def test_a_wrong_update_is_found(gpu, body):
    with pytest.raises(KernelFault, match=r"\by\b"):
        verify_on_device(gpu, kernel(body), workload())


@pytest.mark.parametrize(
    "body", ["y[i] += x[i];", "y[i] = x[i] + 0.f * y[i];", "atomicAdd(y + i, x[i]);"]
)
def test_a_kernel_that_reads_an_output_is_told_so(gpu, body):
    with pytest.raises(KernelFault, match=r"4096 elements .* computed from what y held before"):
        verify_on_device(gpu, kernel(body), workload("output"))


def test_an_output_that_is_not_written_is_told_so(gpu):
    with pytest.raises(KernelFault, match=r"1 of 4096 .* never written"):
        verify_on_device(gpu, kernel("if (i != 9) y[i] = x[i];"), workload("output"))


def test_the_copy_that_restores_an_inout_is_part_of_the_modelled_time(gpu):
    """Compare the modelled times of a kernel with an output and with an inout."""
    times = []
    for role in ("output", "inout"):
        job = Job.of(kernel("y[i] = x[i];"), workload(role))
        with seeded_arenas(workload(role), 0) as arenas, gpu.repeat(job, arenas) as repeater:
            repeater.start()
            gpu.clock.sleep_s(0.2)
            timeline = repeater.stop()
            times.append(timeline.busy_s.sum() / timeline.launches[-1])
    assert np.diff(times)[0] > 0.5e-6  # a node of a graph, at least


@pytest.mark.parametrize("body", ["if (x[i] > 0.f) y[i] = x[i];", "y[i] = x[i];"])
def test_a_masked_output_is_checked_after_many_launches(gpu, body):
    masked = Contract(
        "positive",
        workload("output").contract,
        lambda given: {"y": np.ma.masked_where(given["x"] <= 0, given["x"])},
    )
    if body.startswith("if"):
        verify_on_device(gpu, kernel(body), masked)
    else:
        with pytest.raises(KernelFault, match=r"written .* although the reference masks"):
            verify_on_device(gpu, kernel(body), masked)


@pytest.mark.parametrize("limit", ["0.f", "0.001f"])
def test_an_infinite_output_is_checked_after_many_launches(gpu, limit):
    logits = Contract(
        "logits",
        workload("output").contract,
        lambda given: {"y": np.where(given["x"] > 0, given["x"], -np.inf)},
    )
    body = f"y[i] = x[i] > {limit} ? x[i] : -INFINITY;"
    if limit == "0.f":
        verify_on_device(gpu, kernel(body), logits)
    else:
        with pytest.raises(KernelFault, match="-inf"):
            verify_on_device(gpu, kernel(body), logits)
