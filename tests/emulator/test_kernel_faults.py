"""Kernels that fail on the host or that no GPU can launch, and what is reported about them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from outcomes import raises

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import PROFILES, HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow
TIMEOUT_S = 20.0


@pytest.mark.parametrize(("index", "place"), [("64", "256"), ("1 << 16", "262144")])
def test_writing_past_dynamic_shared_memory_is_a_fault(run, index, place):
    source = f"extern __shared__ int words[]; __global__ void k() {{ words[{index}] = 1; }}"
    with raises("runtime", rf"the dynamic shared memory\[{place}\], past its end of 256 bytes"):
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
    with raises(outcome, rf"{place}, past its end of 64 elements"):
        run(source, grid=100)


def test_a_fault_in_a_later_run_is_told(runner, built):
    source = "__device__ int calls; __global__ void k(int* y) { if (calls++) __trap(); y[0] = 1; }"
    kernel, arenas = built(source, outputs={"y": (1, "int32")})
    with (
        raises("runtime", "reached __trap"),
        runner.open(kernel, arenas, {}, timeout_s=TIMEOUT_S) as program,
    ):
        [program.run() for _ in range(2)]


def test_writing_beside_a_workspace_is_told(runner):
    kernel = Kernel(
        "__global__ void k(double* t) { t[10] = 1; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("t",)),),
        workspaces=(Tensor("t", (10,), "float64", "workspace"),),
    )
    with raises("correctness", r"wrote t\[10\], past its end of 10 elements"):
        runner.run(kernel, {}, {}, timeout_s=TIMEOUT_S)


def test_a_far_write_is_an_illegal_address_with_its_place(run):
    source = "__global__ void k(float* y) { if (threadIdx.x == 3) y[1 << 20] = 0; }"
    pattern = r"illegal address: thread \(3,0,0\) of block \(0,0,0\) of k \w+ y\[1048576\], past"
    with raises("runtime", pattern):
        run(source, outputs={"y": (16, "float32")}, block=8)


def test_a_null_pointer_is_an_illegal_address(run):
    with raises("runtime", r"illegal address: .* far from every tensor"):
        run("__global__ void k() { *(volatile int*)8 = 1; }")


def test_writing_to_an_input_is_wrong(run):
    with raises("correctness", r"the input x\[2\]"):
        run("__global__ void k(float* x) { x[2] = 0; }", {"x": np.arange(4, dtype=np.float32)})


def test_endless_recursion_is_a_stack_overflow(run):
    source = """
    __device__ __noinline__ int deep(volatile int* p) {
      volatile int a[64];
      a[*p & 63] = 1;
      return deep(p) + a[0];
    }
    __global__ void k(int* y) { y[0] = deep(y); }"""
    with raises("runtime", "stack overflow: thread"):
        run(source, outputs={"y": (1, "int32")})


def test_an_endless_loop_is_a_timeout(run):
    source = "__global__ void k(volatile int* y) { while (true) y[0] = 1; }"
    with raises("timeout", r"k did not finish within 0\.5 s"):
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
    with raises("runtime", pattern):
        run(source, outputs={"y": (1, "int32")})


def test_threads_that_wait_for_one_another_are_a_fault(run):
    pattern = (
        r"divergence: thread \(1,0,0\) of block \(0,0,0\) of k waits in a warp function whose mask "
        "0xffffffff names lanes that never call it"
    )
    body = "if (threadIdx.x) __syncwarp(); else __syncthreads();"
    with raises("runtime", pattern):
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
    with raises("runtime", pattern):
        run(source, outputs={"y": (64, "int32")}, block=64, order_seed=order_seed)


def test_a_barrier_that_a_thread_never_leads_to_is_a_timeout(run):
    body = "volatile bool on = true; if (threadIdx.x) __syncthreads(); else while (on) {}"
    with raises("timeout", r"k did not finish within 0\.3 s"):
        run(f"__global__ void k() {{ {body} }}", block=8, timeout_s=0.3)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("float4 v = *(float4*)(y + 1); y[9] = v.x + v.w;", "reads at .* multiple of 16 bytes"),
        ("*(float4*)(y + 2) = make_float4(1, 2, 3, 4);", "writes at .* multiple of 16 bytes"),
        ("float2 v = *(float2*)(y + 3); y[9] = v.x;", "reads at .* multiple of 8 bytes"),
        ("if (*(int*)((char*)y + 2) == 7) y[9] = 1;", "reads at .* multiple of 4 bytes"),
    ],
)
def test_a_misaligned_address_is_a_fault(run, statement, said):
    with raises("runtime", rf"misaligned address: thread \(0,0,0\) of block .* {said}"):
        source = f"__global__ void k(float* y) {{ {statement} }}"
        run(source, outputs={"y": (64, "float32")}, checked=True)


def test_closing_the_device_ends_the_kernel_of_another_thread_at_once(tmp_path, host_cache):
    host = HostRunner(host_cache)
    text = "__global__ void k(volatile int* y) { y[1] = 7; while (y[0] != 1) {} }"
    kernel = Kernel(text, (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),))
    arenas = {"y": Arena.create(tmp_path / "y", Tensor("y", (2,), "int32", "output"))}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(host.run, kernel, arenas, {}, timeout_s=10 * TIMEOUT_S)
        while arenas["y"].value()[1] != 7 and not run.done():
            time.sleep(0.01)
        host.close()
        with raises("runtime", "SIGKILL"):
            run.result(TIMEOUT_S)


def test_a_kernel_is_not_begun_once_the_device_is_closed(tmp_path, host_cache):
    """A thread may go on after an interrupt has ended everything else."""
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
    with raises("constraints", pattern):
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
    with raises("constraints", "k has 64 threads a block; its __launch_bounds__ allow 32"):
        run(source, entry=entry, block=64)


def test_static_shared_memory_is_limited_per_kernel(run):
    source = """
    __global__ void other() { __shared__ volatile char a[40000]; a[0] = 1; }
    __global__ void k() { __shared__ volatile char a[%d]; a[0] = 1; }"""
    run(source % 49152)
    with raises("constraints", "49153 bytes of static shared memory"):
        run(source % 49153)


@pytest.mark.parametrize(
    ("parameter", "dtype", "said"),
    [
        ("int", "float32", "an integer number of 4 bytes but the scalar n is float32"),
        ("int", "int64", "an integer number of 4 bytes but the scalar n is int64"),
        ("float", "float64", "a floating number of 4 bytes but the scalar n is float64"),
        ("const double", "int64", "a floating number of 8 bytes but the scalar n is int64"),
        ("__half", "bfloat16", "a floating number of 2 bytes but the scalar n is bfloat16"),
        ("__nv_bfloat16", "float16", "a bfloat16 number of 2 bytes but the scalar n is float16"),
        ("__nv_bfloat16", "uint16", "a bfloat16 number of 2 bytes but the scalar n is uint16"),
        ("unsigned short", "float16", "an integer number of 2 bytes but the scalar n is float16"),
    ],
)
def test_a_scalar_of_another_type_breaks_a_constraint(run, parameter, dtype, said):
    includes = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" if "_" in parameter else ""
    with raises("constraints", f"parameter 1 of k is {said}"):
        run(f"{includes}__global__ void k({parameter} n) {{}}", scalars=[Scalar("n", dtype, 2)])


def test_a_tensor_for_a_number_breaks_a_constraint(run):
    with raises("constraints", "parameter 1 of k is a number but the launch gives a tensor"):
        run("__global__ void k(int n) {}", outputs={"y": (1, "int32")})


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
    with raises("constraints", problem):
        runner.run(kernel, arenas, {"n": Scalar("n", "int32", 1)}, timeout_s=TIMEOUT_S)


TAKEN = [
    "float* p = new float[8]; p[t % 8] = t; y[t] = p[t % 8]; delete[] p;",
    "float* p = (float*)malloc(32); p[7] = t; y[t] = p[7]; free(p);",
    "struct S { float a = 1; }; S* p = new S; y[t] = p->a + t - 1; delete p;",
    "__shared__ float* p; if (!t) p = new float[64]; __syncthreads(); p[t] = t; __syncthreads();"
    " y[t] = p[t]; __syncthreads(); if (!t) delete[] p;",
    "for (int k = 0; k < 100; ++k) { char* p = (char*)malloc(4096); p[0] = k; free(p); } y[t] = t;",
    "void* p = malloc(9 << 20); y[t] = p ? -1 : t; free(p);",
    "int free = t; y[t] = free;",
]


@pytest.mark.parametrize("body", TAKEN)
def test_a_kernel_may_take_memory(right, small_kernel, body, bodies):
    assert right(*small_kernel(body, grid=3, among=bodies), "y", range(64)) == 3


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("float* p = new float[8]; p[8] = x[t]; __syncthreads(); y[t] = p[8];", "correctness"),
        ("float* p = new float[8]; y[t] = p[-1];", "correctness"),
        ("float* p = new float[8]; delete[] p; y[t] = p[0];", "correctness"),
        ("float* p = (float*)malloc(6); y[t] = p[1];", "correctness"),
        ("void* p = malloc(8); free(p); free(p); y[t] = 1;", "runtime"),
        ("free(y);", "runtime"),
    ],
)
def test_it_must_not_leave_that_memory(fault_of, body, outcome, bodies):
    assert fault_of(body, among=bodies).outcome == outcome


def test_a_heap_that_is_used_up_gives_null(run_orders):
    with pytest.raises(KernelFault, match="illegal address"):
        run_orders("volatile float* p = new float[1 << 20]; p[t] = x[t]; y[t] = p[t];")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("__global__ void\n__block_size__((32, 1, 1)) k() {}", "__block_size__; __cluster_dims__"),
        ("template <int n> __global__ void __cluster_dims__(n) k() {}",
         "__cluster_dims__ that depends on a template"),
        ("__global__ void __cluster_dims__(2) k();\n__global__ void k() {}",
         "__cluster_dims__ that depends on a template, or is not at the definition"),
        ("\ntexture<float, 2> t; __global__ void k() { t; }", "textures and surfaces"),
        ("__global__ void k(cudaTextureObject_t t, float* y) {\n y[0] = tex2D<float>(t, 0, 1); }",
         "textures and surfaces"),
        ("__global__ void k(cudaSurfaceObject_t s) {\n surf2Dwrite(1.0f, s, 0, 0); }",
         "textures and surfaces"),
        ("__global__ void c() {} __global__ void k() {\n c<<<1, 2>>>(); }", "launches by a kernel"),
        ("#define TILE(n) __shared__ float n[2]\n__global__ void k() { TILE(s); s[0] = 1; }",
         "__shared__ in a macro"),
    ],
)  # fmt: skip
def test_what_only_a_card_has_is_refused_with_its_line(run, source, reason):
    with raises("compile", f"^line [12]: cannot run on the emulated GPU: {reason}"):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        "__global__ void __cluster_dims__(2) c(int*) {} __global__ void k(int* y) { y[0] = 7; }",
        "#define KERNEL(name) __global__ void name(int* y)\n"
        "KERNEL(k) { __shared__ int s[2]; s[1] = 7; y[0] = s[1]; }",
        '#define KERNEL(name) extern "C" __global__ void name\nKERNEL(k)(int* y) { y[0] = 7; }',
        "__device__ float f(cudaTextureObject_t t) { return tex2D<float>(t, 0, 1); }\n"
        "__global__ void k(int* y) { y[0] = 7; }",
        "__global__ void k(int* y) { int texture = 3, surface = 4; y[0] = texture + surface; }",
        "__global__ void k(int* y) { __builtin_assume(y != 0); y[0] = 7; }",
    ],
)  # fmt: skip
def test_what_is_not_launched_or_only_named_alike_is_not_refused(run, source):
    assert run(source, outputs={"y": (1, "int32")})["y"][0] == 7


@pytest.mark.parametrize(
    "declared",
    [
        "__constant__ float a[16385];",
        "__constant__ float a[16000]; __device__ __constant__ int b[400];",
        "__constant__ const float a[16385] = {1};",
        "namespace n { __constant__ double a[8193], b; } using n::a;",
    ],
)
def test_more_constant_memory_than_a_program_may_have_is_refused(run, declared):
    source = f"{declared} __global__ void k(float* y) {{ y[0] = a[1]; int b = 0; }}"
    with raises("constraints", r"k has 6\d{4} bytes of __constant__ variables; .* 65536"):
        run(source, outputs={"y": (1, "float32")})


def test_constant_memory_may_be_filled(run):
    source = """__constant__ float a[16380] = {1, 2}; __constant__ const int b[2] = {3, 4};
    __global__ void k(float* y) { y[0] = a[1] + b[1]; }"""
    assert run(source, outputs={"y": (1, "float32")})["y"][0] == 6


SHARED = """
__global__ void k() {
  __shared__ float fixed[8192]; extern __shared__ float more[];
  fixed[threadIdx.x] = 1; more[threadIdx.x] = 2;
}
"""


@pytest.mark.parametrize(("name", "fits_kib"), [("h200", 227), ("rtx4090", 99), ("p100", 48)])
def test_static_and_dynamic_shared_memory_count_together(host_cache, name, fits_kib):
    profile = PROFILES[name]
    runner = HostRunner(host_cache, jobs=2, profile=profile)
    most = (fits_kib - 32) * 1024
    for dynamic in (most, most + 4):
        launch = Launch("k", (1, 1, 1), (32, 1, 1), (), dynamic)
        kernel = Kernel(SHARED, (launch,))
        if dynamic == most:
            runner.run(kernel, {}, {}, timeout_s=20.0)
        else:
            needs = f"needs {most + 4 + 32768} bytes of shared memory, 32768 static"
            with raises("constraints", needs):
                runner.run(kernel, {}, {}, timeout_s=20.0)
    runner.close()


SUMS = """
#define N 96
__global__ void BOUNDS k(const float* x, float* y, int n) {
  float acc[N] = {};
  for (int i = 0; i < n; ++i) {
    #pragma unroll
    for (int j = 0; j < N; ++j) UPDATE;
  }
  float sum = 0;
  #pragma unroll
  for (int j = 0; j < N; ++j) sum += acc[j];
  y[threadIdx.x] = sum;
}
"""


def _sums(run, threads, bounds="", update="acc[j] += x[i]"):
    """Return y after one turn of the loop, with x = 3."""
    source = SUMS.replace("BOUNDS", bounds).replace("UPDATE", update)
    inputs, outputs = {"x": np.full(1024, 3, np.float32)}, {"y": (1024, "float32")}
    once = (Scalar("n", "int32", 1),)
    return run(source, inputs, outputs, block=threads, scalars=once)["y"][:threads]


@pytest.mark.parametrize("update", ["acc[j] += x[i]", "acc[j] = fmaf(x[i], x[j], acc[j])"])
def test_more_registers_than_a_block_may_have_are_refused(run, update):
    told = r"keeps at least 96 values .* 1024 threads; a block may have 65536"
    with raises("constraints", told):
        _sums(run, 1024, update=update)


@pytest.mark.parametrize(
    "changed",
    [{"threads": 512}, {"threads": 1024, "bounds": "__launch_bounds__(1024)"},
     {"threads": 1024, "update": "acc[(j + n) % N] += x[i]"}],
)  # fmt: skip
def test_sums_that_fit_or_need_not_be_in_registers_are_not_refused(run, changed):
    np.testing.assert_array_equal(_sums(run, **changed), np.full(changed["threads"], 96 * 3))
