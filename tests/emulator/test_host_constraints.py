"""Launches that no GPU takes are refused on the host CPU too."""

import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow
TIMEOUT_S = 20.0


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
    with pytest.raises(
        KernelFault, match=pattern, check=lambda fault: fault.outcome == "constraints"
    ):
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
    with pytest.raises(
        KernelFault,
        match="k has 64 threads a block; its __launch_bounds__ allow 32",
        check=lambda fault: fault.outcome == "constraints",
    ):
        run(source, entry=entry, block=64)


def test_static_shared_memory_is_limited_per_kernel(run):
    source = """
    __global__ void other() { __shared__ volatile char a[40000]; a[0] = 1; }
    __global__ void k() { __shared__ volatile char a[%d]; a[0] = 1; }"""
    run(source % 49152)
    with pytest.raises(
        KernelFault,
        match="49153 bytes of static shared memory",
        check=lambda fault: fault.outcome == "constraints",
    ):
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
    with pytest.raises(
        KernelFault,
        match=f"parameter 1 of k is {said}",
        check=lambda fault: fault.outcome == "constraints",
    ):
        run(f"{includes}__global__ void k({parameter} n) {{}}", scalars=[Scalar("n", dtype, 2)])


def test_a_tensor_for_a_number_breaks_a_constraint(run):
    with pytest.raises(
        KernelFault,
        match="parameter 1 of k is a number but the launch gives a tensor",
        check=lambda fault: fault.outcome == "constraints",
    ):
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
    with pytest.raises(KernelFault, match=problem) as caught:
        runner.run(kernel, arenas, {"n": Scalar("n", "int32", 1)}, timeout_s=TIMEOUT_S)
    assert caught.value.outcome == "constraints"
