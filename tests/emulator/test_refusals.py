"""What a card lacks, or the emulated GPU cannot do, is refused with its true reason."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.emulator import PROFILES, HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("__global__ void\n__block_size__((32, 1, 1)) k() {}", "__block_size__; __cluster_dims__"),
        ("template <int n> __global__ void __cluster_dims__(n) k() {}",
         "__cluster_dims__ that depends on a template"),
        ("__global__ void __cluster_dims__(2) k();\n__global__ void k() {}",
         "__cluster_dims__ that depends on a template, or is not at the definition"),
        ("__global__\nvoid __maxnreg__(32) k() {}", "__maxnreg__, a limit of registers"),
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
    with pytest.raises(
        KernelFault, match=f"^line [12]: cannot run on the emulated GPU: {reason}"
    ) as fault:
        run(source)
    assert fault.value.outcome == "compile"


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
    with pytest.raises(
        KernelFault, match=r"k has 6\d{4} bytes of __constant__ variables; .* 65536"
    ) as fault:
        run(source, outputs={"y": (1, "float32")})
    assert fault.value.outcome == "constraints"


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
            with pytest.raises(KernelFault, match=needs) as fault:
                runner.run(kernel, {}, {}, timeout_s=20.0)
            assert fault.value.outcome == "constraints"
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
    """y after one turn of the loop, with x = 3."""
    source = SUMS.replace("BOUNDS", bounds).replace("UPDATE", update)
    inputs, outputs = {"x": np.full(1024, 3, np.float32)}, {"y": (1024, "float32")}
    once = (Scalar("n", "int32", 1),)
    return run(source, inputs, outputs, block=threads, scalars=once)["y"][:threads]


@pytest.mark.parametrize("update", ["acc[j] += x[i]", "acc[j] = fmaf(x[i], x[j], acc[j])"])
def test_more_registers_than_a_block_may_have_are_refused(run, update):
    told = r"keeps at least 96 values .* 1024 threads; a block may have 65536"
    with pytest.raises(KernelFault, match=told) as fault:
        _sums(run, 1024, update=update)
    assert fault.value.outcome == "constraints"


@pytest.mark.parametrize(
    "changed",
    [{"threads": 512}, {"threads": 1024, "bounds": "__launch_bounds__(1024)"},
     {"threads": 1024, "update": "acc[(j + n) % N] += x[i]"}],
)  # fmt: skip
def test_sums_that_fit_or_need_not_be_in_registers_are_not_refused(run, changed):
    np.testing.assert_array_equal(_sums(run, **changed), np.full(changed["threads"], 96 * 3))
