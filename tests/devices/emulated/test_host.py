"""Running CUDA text on the host CPU."""

import re
from pathlib import Path

import numpy as np
import pytest

from pytest_gpuenergy.devices.device import Arena
from pytest_gpuenergy.devices.emulated.compiler import find_compiler
from pytest_gpuenergy.devices.emulated.host import HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support.errors import DeviceError, KernelFault
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def runner(host_cache):
    host = HostRunner(host_cache, jobs=2)
    yield host
    host.close()


@pytest.fixture
def run(runner, tmp_path):
    """run(source, inputs, outputs={name: (shape, dtype)}, ...) -> outputs, by name."""

    def go(
        source,
        inputs=None,
        outputs=None,
        *,
        grid=1,
        block=1,
        arguments=None,
        shared_bytes=0,
        scalars=(),
        order_seed=0,
        timeout_s=TIMEOUT_S,
        entry="k",
    ):
        inputs, outputs = inputs or {}, outputs or {}
        arenas = {}
        for name, value in inputs.items():
            tensor = Tensor(name, value.shape, str(value.dtype), "input")
            arenas[name] = Arena.create(tmp_path / name, tensor, value)
        for name, (size, dtype) in outputs.items():
            arenas[name] = Arena.create(tmp_path / name, Tensor(name, (size,), dtype, "output"))
        names = arguments or (*inputs, *outputs, *(scalar.name for scalar in scalars))
        launch = Launch(entry, _dims(grid), _dims(block), tuple(names), shared_bytes)
        kernel = Kernel(source, (launch,))
        values = {scalar.name: scalar for scalar in scalars}
        runner.run(kernel, arenas, values, timeout_s=timeout_s, order_seed=order_seed)
        return {name: arenas[name].value() for name in outputs}

    return go


def _dims(size):
    return size if isinstance(size, tuple) else (size, 1, 1)


def _ramp(size, dtype="float32"):
    return np.arange(size).astype(dtype)


def _fault(outcome, pattern):
    return pytest.raises(KernelFault, match=pattern, check=lambda e: e.outcome == outcome)


VECTOR_ADD = """
extern "C" __global__ void __launch_bounds__(64) k(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 100) c[i] = a[i] + b[i];
}
"""


@pytest.mark.parametrize("order_seed", [0, 1, 5])
def test_every_order_of_threads_adds_vectors(run, order_seed):
    a, b = _ramp(100), np.full(100, 0.5, np.float32)
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
    out = run(REVERSE, {"x": _ramp(128)}, {"y": (128, "float32")}, block=128, order_seed=order_seed)
    np.testing.assert_array_equal(out["y"], _ramp(128)[::-1])


def test_a_dropped_barrier_meets_poison_and_not_the_data(run):
    source = REVERSE.replace("__syncthreads();", "")
    out = run(source, {"x": _ramp(128)}, {"y": (128, "float32")}, block=128)
    assert np.isnan(out["y"]).any()


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("float", "__shared__ float s[2]; v = {0}(v, s[i]);"),
        ("int", "__shared__ int s[2]; v = {0}(v, s[i]);"),
        ("float", "extern __shared__ float s[]; v = {0}(v, s[i]);"),
        ("float", "v = {0}(v, {0}(w[i], w[i + 1]));"),
        ("int", "v = {0}(v, {0}(__float_as_int(w[i]), __float_as_int(w[i + 1])));"),
    ],
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


@pytest.mark.parametrize(("index", "place"), [("64", "256"), ("1 << 16", "262144")])
def test_writing_past_dynamic_shared_memory_is_a_fault(run, index, place):
    source = f"extern __shared__ int words[]; __global__ void k() {{ words[{index}] = 1; }}"
    with _fault("runtime", rf"the dynamic shared memory\[{place}\], past its end of 256 bytes"):
        run(source, shared_bytes=256)


@pytest.mark.parametrize(
    ("source", "outcome", "place"),
    [
        ("__global__ void k() { __shared__ float s[64]; if (blockIdx.x == 77) s[64] = 1; }",
         "runtime", r"block \(77,0,0\) of k wrote s\[64\]"),
        ("__device__ float s[64]; __global__ void k() { if (blockIdx.x == 77) s[64] = 1; }",
         "correctness", r"k wrote s\[64\]"),
    ],
)  # fmt: skip
def test_writing_past_a_variable_is_a_fault_in_whichever_block(run, source, outcome, place):
    with _fault(outcome, rf"{place}, past its end of 64 elements"):
        run(source, grid=100)


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


def test_the_language_of_kernels_is_understood(run):
    source = r"""
    #include <cuda_runtime.h>
    #include <cstdint>
    #define TILE 4
    __constant__ float weights[2] = {2.0f, 0.25f};
    template <int N> __device__ __forceinline__ float scaled(float v) { return v * N; }
    struct __align__(8) Pair { float a, b; };
    // a comment with __shared__ and asm("trap;") and a ' quote
    __global__ void k(const float* __restrict__ in, float* __restrict__ out) {
      const char* text = "__shared__ asm { }";
      float4 v = *(const float4*)in;
      alignas(16) float local[TILE];
    #pragma unroll
      for (int i = 0; i < TILE; ++i) local[i] = scaled<3>(__ldg(in + i));
      Pair p = {local[1], fmaf(v.y, v.z, v.w)};
      out[0] = p.a; out[1] = p.b; out[2] = weights[0] * weights[1]; out[3] = max(v.x, 1.0f);
      out[4] = __int_as_float(__float_as_int(v.z)); out[5] = rsqrtf(4.0f);
      out[6] = __fdividef(1.0f, 4.0f); out[7] = min(3, 1'000) + warpSize + text[0] * 0;
      out[8] = make_float2(1.0f, 6.0f).y; out[9] = __expf(0.0f) + __powf(2.0f, 3.0f);
      dim3 d(2, 3); out[10] = d.x + d.y + d.z; out[11] = __popc(255u) + __clz(1);
    }"""
    out = run(source, {"x": _ramp(4)}, {"y": (12, "float32")})
    expected = [3, 5, 0.5, 1, 2, 0.5, 0.25, 35, 6, 9, 6, 39]
    np.testing.assert_array_equal(out["y"], np.float32(expected))


def test_a_template_instance_can_be_launched(run):
    source = "template <typename T, int N> __global__ void fill(T* y) { y[threadIdx.x] = N; }"
    out = run(source, outputs={"y": (8, "int16")}, block=8, entry="fill<short, 7>")
    np.testing.assert_array_equal(out["y"], np.full(8, 7))


@pytest.mark.parametrize("entry", ["a::b::k", "a::many<float, 4>"])
def test_a_kernel_in_a_namespace_can_be_launched(run, entry):
    source = """
    namespace a {
    namespace b {
    __global__ void __launch_bounds__(4) k(float* y) {
      __shared__ float s[4];
      s[threadIdx.x] = threadIdx.x;
      y[threadIdx.x] = s[threadIdx.x];
    }
    }  // namespace b
    template <class T, int N> __global__ void many(T* y) { b::k(y); }
    }  // namespace a"""
    out = run(source, outputs={"y": (4, "float32")}, entry=entry, block=4)
    np.testing.assert_array_equal(out["y"], np.arange(4))


def test_launches_pass_data_through_a_workspace(runner, tmp_path):
    source = """
    __global__ void square(const float* x, float* t) {
      t[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
    }
    __global__ void sum(const float* t, float* y) {
      y[threadIdx.x] = 0;
      for (int i = 0; i <= threadIdx.x; ++i) y[threadIdx.x] += t[i];
    }"""
    x = Arena.create(tmp_path / "x", Tensor("x", (16,), "float32", "input"), _ramp(16))
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
    np.testing.assert_array_equal(y.value(), np.cumsum(_ramp(16) ** 2))


def test_what_a_kernel_leaves_is_there_in_the_next_run_of_its_process(runner, tmp_path):
    kernel = Kernel(
        "__device__ int n; __global__ void k(int* y, int* w) { y[0] = n++; y[1] = w[0]++; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("y", "w")),),
        workspaces=(Tensor("w", (1,), "int32", "workspace"),),
    )
    y = Arena.create(tmp_path / "y", Tensor("y", (2,), "int32", "output"))
    seen = []
    with runner.open(kernel, {"y": y}, {}, timeout_s=TIMEOUT_S) as program:
        for fresh, most in ((True, 1), (False, 1), (False, 5), (True, 1)):
            count, _ = program.run(fresh=fresh, most=most, budget_s=1e9)
            assert count == most
            seen.append(y.value().tolist())
    assert seen == [[0, -1], [1, 0], [6, 5], [7, -1]]


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


def test_a_fault_in_a_later_run_is_told(runner, tmp_path):
    kernel = Kernel(
        "__device__ int calls; __global__ void k(int* y) { if (calls++) __trap(); y[0] = 1; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),),
    )
    y = Arena.create(tmp_path / "y", Tensor("y", (1,), "int32", "output"))
    with (
        _fault("runtime", "reached __trap"),
        runner.open(kernel, {"y": y}, {}, timeout_s=TIMEOUT_S) as program,
    ):
        program.run()
        program.run()


def test_writing_beside_a_workspace_is_told(runner):
    kernel = Kernel(
        "__global__ void k(double* t) { t[10] = 1; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("t",)),),
        workspaces=(Tensor("t", (10,), "float64", "workspace"),),
    )
    with _fault("correctness", r"wrote t\[10\], past its end of 10 elements"):
        runner.run(kernel, {}, {}, timeout_s=TIMEOUT_S)


def test_a_far_write_is_an_illegal_address_with_its_place(run):
    source = "__global__ void k(float* y) { if (threadIdx.x == 3) y[1 << 20] = 0; }"
    pattern = r"illegal address: thread \(3,0,0\) of block \(0,0,0\) of k \w+ y\[1048576\], past"
    with _fault("runtime", pattern):
        run(source, outputs={"y": (16, "float32")}, block=8)


def test_a_null_pointer_is_an_illegal_address(run):
    with _fault("runtime", "illegal address: .* far from every tensor"):
        run("__global__ void k() { *(volatile int*)8 = 1; }")


def test_writing_to_an_input_is_wrong(run):
    with _fault("correctness", r"the input x\[2\]"):
        run("__global__ void k(float* x) { x[2] = 0; }", {"x": _ramp(4)})


def test_endless_recursion_is_a_stack_overflow(run):
    source = """
    __device__ __noinline__ int deep(volatile int* p) {
      volatile int a[64];
      a[*p & 63] = 1;
      return deep(p) + a[0];
    }
    __global__ void k(int* y) { y[0] = deep(y); }"""
    with _fault("runtime", "stack overflow: thread"):
        run(source, outputs={"y": (1, "int32")})


def test_an_endless_loop_is_a_timeout(run):
    source = "__global__ void k(volatile int* y) { while (true) y[0] = 1; }"
    with _fault("timeout", "k did not finish within 0.5 s"):
        run(source, outputs={"y": (1, "int32")}, timeout_s=0.5)


@pytest.mark.parametrize(
    ("statement", "pattern"),
    [
        ("__trap();", r"thread \(0,0,0\) of block \(0,0,0\) of k reached __trap"),
        ("assert(y[0] > 0);", r"assertion `y\[0\] > 0` failed in line 1: thread"),
        ("exit(3);", "ended its process with exit code 3"),
        ("exit(0);", "ended its process with exit code 0"),
        ("__shfl_sync(2, 1, 0);", "mask 0x00000002 does not name it"),
    ],
)
def test_a_crash_is_a_runtime_fault(run, statement, pattern):
    source = f"__global__ void k(int* y) {{ {statement} }}"
    with _fault("runtime", pattern):
        run(source, outputs={"y": (1, "int32")})


def test_threads_that_wait_for_one_another_are_a_fault(run):
    pattern = (
        r"divergence: thread \(1,0,0\) of block \(0,0,0\) of k waits in a warp function whose mask "
        "0xffffffff names lanes that never call it"
    )
    body = "if (threadIdx.x) __syncwarp(); else __syncthreads();"
    with _fault("runtime", pattern):
        run(f"__global__ void k() {{ {body} }}", block=8)


@pytest.mark.parametrize("order_seed", [0, 1, 5])
@pytest.mark.parametrize("wait", ["__syncthreads()", "__syncthreads_or(1)"])
def test_threads_that_meet_at_different_barriers_are_a_fault(run, wait, order_seed):
    source = f"""__global__ void k(int* y) {{
      if (threadIdx.x < 32)
        {wait};
      for (int h = 0; h < 3; ++h)
        {wait};
      y[threadIdx.x] = 1;
    }}"""
    pattern = (
        r"barrier divergence: thread \(\d+,0,0\) of block \(0,0,0\) of k waits in line [35] and "
        r"thread \(\d+,0,0\) of block \(0,0,0\) of k in line [35]: all threads"
    )
    with _fault("runtime", pattern):
        run(source, outputs={"y": (64, "int32")}, block=64, order_seed=order_seed)


def test_a_barrier_that_a_thread_never_leads_to_is_a_timeout(run):
    body = "volatile bool on = true; if (threadIdx.x) __syncthreads(); else while (on) {}"
    with _fault("timeout", r"k did not finish within 1 s"):
        run(f"__global__ void k() {{ {body} }}", block=8, timeout_s=1.0)


@pytest.mark.parametrize("order_seed", [0, 1, 7])
@pytest.mark.parametrize(
    ("barrier", "expected"),
    [
        ("__syncthreads(); y[t] = s[42 - t];", np.arange(43)[::-1] + 1),
        ("y[t] = __syncthreads_count(t % 2);", 21),
        ("y[t] = __syncthreads_and(t < 43);", 1),
        ("y[t] = __syncthreads_or(t >= 43);", 0),
    ],
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
    ("source", "pattern"),
    [
        ("__global__ void k() {\n  int x = ;\n}", r"^line 2: expected"),
        ('__global__ void k() {\n asm volatile("cp.async.ca.shared.global [%0];" :: "r"(1)); }',
         r"^line 2: cannot run on the emulated GPU: inline PTX 'cp.async.ca"),
        ('#define STOP asm("trap;")\n__global__ void k() { STOP; }', "line 2: .*inline PTX"),
        ("#include <mma.h>\n__global__ void k() {}",
         "^line 1: cannot run on the emulated GPU: #include <mma.h>"),
        ("__global__ void other() {}", "the launch does not fit the text: .*k"),
        ("__global__ void k() { threadIdx.x = 1; }", "line 1"),
        ("__global__ void k() { extern __shared__ int one; }", "array without bounds"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_compiled_is_a_compile_fault(run, source, pattern):
    with _fault("compile", pattern):
        run(source)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("y[0] = __ldcs(y);", "__ldcs"),
        ("__stcg(y, 1);", "__stcg"),
        ("y[0] = clock64();", "clock64"),
        ("y[0] = __vadd4(1, 2);", "__vadd4"),
        ("y[0] = __reduce_add_sync(~0u, 1);", "__reduce_add_sync"),
        ("y[0] = __match_any_sync(~0u, 1);", "__match_any_sync"),
        ("__nanosleep(10);", "__nanosleep"),
        ("__builtin_assume(y);", "__builtin_assume"),
    ],
)
def test_functions_of_cuda_that_are_not_emulated_are_refused_by_name(run, statement, name):
    with _fault("compile", f"line 2: cannot run on the emulated GPU: {name}$"):
        run(f"__global__ void k(int* y) {{\n{statement} }}", outputs={"y": (1, "int32")})


@pytest.mark.parametrize("header", ["cuda_fp16.h", "cooperative_groups.h"])
def test_headers_of_cuda_that_are_not_there_are_refused_by_name(run, header):
    with _fault("compile", f"line 1: cannot run on the emulated GPU: #include <{header}>"):
        run(f"#include <{header}>\n__global__ void k() {{}}")


def test_waiting_for_copies_and_unused_ptx_are_no_hindrance(run):
    source = """
    __device__ void unused() { asm volatile("mma.sync.aligned;" : : : "memory"); }
    __global__ void k(int* y) {
      asm volatile("cp.async.commit_group;" : : );
      __asm__ __volatile__("cp.async.wait_group 0;" ::: "memory");
      y[0] = 1;
    }"""
    assert run(source, outputs={"y": (1, "int32")})["y"] == [1]


@pytest.mark.parametrize(
    ("launch", "pattern"),
    [
        ({"block": (32, 33, 1)}, "1056 threads per block"),
        ({"block": (1, 1, 65)}, r"block \(1, 1, 65\) of k is larger"),
        ({"grid": (1, 65536, 1)}, r"grid \(1, 65536, 1\) of k is larger"),
        ({"shared_bytes": 232449}, "232449 bytes of shared memory"),
        ({"shared_bytes": 232448}, "236544 bytes of shared memory"),
        ({"scalars": [Scalar("n", "int32", 1)]}, "k takes 0 parameters but the launch gives 1"),
        ({"arguments": ("nothing",)}, "'nothing', which is not a tensor"),
    ],
)
def test_a_launch_that_no_gpu_takes_breaks_a_constraint(run, launch, pattern):
    source = "__global__ void k() { __shared__ volatile int a[1024]; a[0] = 1; }"
    with _fault("constraints", pattern):
        run(source, **launch)


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        ("__global__ void __launch_bounds__(32) k() {}", "k"),
        ("#define WARP 32\n__global__ void __launch_bounds__(WARP, 2) k() {}", "k"),
        ("template <int N> __global__ __launch_bounds__(32) void k() { if (N) {} }", "k<3>"),
    ],
)
def test_more_threads_than_the_launch_bounds_break_a_constraint(run, source, entry):
    run(source, entry=entry, block=32)
    with _fault("constraints", "k has 64 threads a block; its __launch_bounds__ allow 32"):
        run(source, entry=entry, block=64)


def test_launch_bounds_that_only_an_instance_knows_are_no_hindrance(run):
    source = (
        "template <int N> __global__ void __launch_bounds__(N) k(int* y) { y[threadIdx.x] = N; }"
    )
    out = run(source, outputs={"y": (64, "int32")}, entry="k<32>", block=64)
    assert set(out["y"].tolist()) == {32}


def test_a_function_that_is_no_kernel_cannot_be_launched(run):
    with _fault("compile", "the launch does not fit the text: k is not a __global__ function"):
        run("__device__ void k() {}")


def test_a_macro_may_declare_a_kernel(run):
    source = "#define KERNEL extern __global__ void\nKERNEL k(int* y) { y[0] = 7; }"
    assert run(source, outputs={"y": (1, "int32")})["y"].tolist() == [7]


def test_static_shared_memory_is_limited_per_kernel(run):
    source = """
    __global__ void other() { __shared__ volatile char a[40000]; a[0] = 1; }
    __global__ void k() { __shared__ volatile char a[%d]; a[0] = 1; }"""
    run(source % 49152)
    with _fault("constraints", "49153 bytes of static shared memory"):
        run(source % 49153)


@pytest.mark.parametrize(
    ("parameter", "dtype", "said"),
    [
        ("int", "float32", "an integer number of 4 bytes but the scalar n is float32"),
        ("int", "int64", "an integer number of 4 bytes but the scalar n is int64"),
        ("float", "float64", "a floating number of 4 bytes but the scalar n is float64"),
        ("const double", "int64", "a floating number of 8 bytes but the scalar n is int64"),
    ],
)
def test_a_scalar_of_another_type_breaks_a_constraint(run, parameter, dtype, said):
    with _fault("constraints", f"parameter 1 of k is {said}"):
        run(f"__global__ void k({parameter} n) {{}}", scalars=[Scalar("n", dtype, 2)])


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


def test_a_tensor_for_a_number_breaks_a_constraint(run):
    with _fault("constraints", "parameter 1 of k is a number but the launch gives a tensor"):
        run("__global__ void k(int n) {}", outputs={"y": (1, "int32")})


def test_hostile_text_starts_no_process_and_writes_no_file(run, tmp_path):
    source = f"""
    #include <stdlib.h>
    #include <stdio.h>
    __global__ void k(int* y) {{
      y[0] = system("touch {tmp_path}/started");
      y[1] = fopen("{tmp_path}/written", "w") != nullptr;
    }}"""
    out = run(source, outputs={"y": (2, "int32")})
    could_not_be_executed = 127 << 8  # what system() says when no process can be made
    assert out["y"].tolist() == [could_not_be_executed, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y"]


def test_a_flood_of_text_is_cut(run, capsys):
    run(r'__global__ void k() { for (int i = 0; i < 300000; ++i) printf("0123456789\n"); }')
    assert len(capsys.readouterr().err) == 1 << 20


def test_compiled_programs_are_found_again(runner):
    kernel = Kernel(VECTOR_ADD, (Launch("k", (1, 1, 1), (1, 1, 1), ("a", "b", "c")),))
    program = runner.compile(kernel)
    made = program.stat().st_mtime_ns
    other = HostRunner(program.parent)
    assert other.compile(kernel) == program
    assert program.stat().st_mtime_ns == made
    other.close()


def test_faults_of_prepared_kernels_surface_when_they_are_compiled(runner):
    good = Kernel("__global__ void k() { int a = 1; }", (Launch("k", (1, 1, 1), (1, 1, 1), ()),))
    bad = Kernel("__global__ void k() { return 1; }", good.launches)
    runner.prepare([good, bad, good])
    assert runner.compile(good).is_file()
    with _fault("compile", "line 1: return-statement with a value"):
        runner.compile(bad)


def test_the_compiler_named_by_cxx_comes_first(monkeypatch, tmp_path):
    mine = tmp_path / "my-g++"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert find_compiler() == str(mine)


@pytest.mark.parametrize("cxx", ["", "no-such-compiler"])
def test_a_missing_compiler_is_one_sentence(monkeypatch, tmp_path, cxx):
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"^The emulated GPU .*C\+\+ compiler[^.]*\.$"):
        find_compiler()


def test_a_program_that_is_no_compiler_is_named(tmp_path):
    host = HostRunner(tmp_path / "cache", compiler="/bin/false")
    kernel = Kernel("__global__ void k() {}", (Launch("k", (1, 1, 1), (1, 1, 1), ()),))
    with pytest.raises(DeviceError, match=re.escape("/bin/false is not a working C++ compiler")):
        host.compile(kernel)
    assert not list(Path(tmp_path / "cache").glob("host-*"))


def test_a_compiler_that_cannot_build_the_runtime_is_named(tmp_path):
    fake = tmp_path / "fake-g++"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo fake 1 && exit 0\n'
        'echo "kernel.h:1:1: error: too old" >&2\nexit 1\n'
    )
    fake.chmod(0o755)
    host = HostRunner(tmp_path / "cache", compiler=str(fake))
    kernel = Kernel("__global__ void k() {}", (Launch("k", (1, 1, 1), (1, 1, 1), ()),))
    with pytest.raises(DeviceError, match=r"fake-g\+\+ cannot build .* \(too old\): set \$CXX"):
        host.compile(kernel)
    assert not list((tmp_path / "cache").iterdir())


def test_text_that_cannot_be_linked_is_a_compile_fault(run):
    source = "extern int nowhere(); } } int nowhere(); namespace cuda_device { namespace {"
    with _fault("compile", "undefined reference to .*nowhere"):
        run(
            f"{source} __global__ void k(int* y) {{ y[0] = ::nowhere(); }}",
            outputs={"y": (1, "int32")},
        )


DECLARED = """
extern "C" __global__ void k(float* x);
extern "C" __global__ void k(float* x) { x[threadIdx.x] = 2.f; }
"""
IN_A_BLOCK = """
extern "C" {
__device__ float two();
__global__ void k(float* x) { x[threadIdx.x] = two(); }
__device__ float two() { return 2.f; }
}
"""


@pytest.mark.parametrize("source", [DECLARED, IN_A_BLOCK], ids=["declared", "block"])
def test_c_linkage_is_no_obstacle(run, source):
    outputs = run(source, outputs={"x": (32, "float32")}, block=32)
    assert (outputs["x"] == 2).all()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("float4 v = *(float4*)(y + 1); y[9] = v.x + v.w;", "reads at .* multiple of 16 bytes"),
        ("*(float4*)(y + 2) = make_float4(1, 2, 3, 4);", "writes at .* multiple of 16 bytes"),
        ("float2 v = *(float2*)(y + 3); y[9] = v.x;", "reads at .* multiple of 8 bytes"),
        ("if (*(int*)((char*)y + 2) == 7) y[9] = 1;", "reads at .* multiple of 4 bytes"),
    ],
)
def test_a_misaligned_address_is_a_fault(runner, tmp_path, statement, said):
    arena = Arena.create(tmp_path / "y", Tensor("y", (64,), "float32", "output"))
    launch = Launch("k", (1, 1, 1), (1, 1, 1), ("y",))
    kernel = Kernel(f"__global__ void k(float* y) {{ {statement} }}", (launch,))
    with _fault("runtime", rf"misaligned address: thread \(0,0,0\) of block .* {said}"):
        runner.check_races(kernel, {"y": arena}, {}, timeout_s=60)


def test_a_kernel_is_not_begun_once_the_device_is_closed(tmp_path, host_cache):
    """By a thread that goes on when an interrupt has ended everything else."""
    host = HostRunner(host_cache)
    kernel = Kernel(
        'extern "C" __global__ void k(float* y) { y[0] = 1; }',
        (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),),
    )
    host.compile(kernel)
    host.close()
    arenas = {"y": Arena.create(tmp_path / "y", Tensor("y", (1,), "float32", "output"))}
    with pytest.raises(DeviceError, match="was closed before the kernel had run"):
        host.run(kernel, arenas, {}, timeout_s=TIMEOUT_S)


def test_an_argument_that_there_is_not_is_told_with_all_there_are(tmp_path, runner):
    kernel = Kernel(
        'extern "C" __global__ void k(float* y, int n) {}',
        (Launch("k", (1, 1, 1), (1, 1, 1), ("y", "z")),),
        workspaces=(Tensor("space", (4,), "float32", "workspace"),),
    )
    arenas = {
        name: Arena.create(tmp_path / name, Tensor(name, (1,), "float32", "output"))
        for name in ("x", "y")
    }
    problem = r"k takes an argument 'z', .* \(there are x, y, space, n\)"
    with pytest.raises(KernelFault, match=problem) as caught:
        runner.run(kernel, arenas, {"n": Scalar("n", "int32", 1)}, timeout_s=TIMEOUT_S)
    assert caught.value.outcome == "constraints"
