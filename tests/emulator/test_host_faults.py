"""Kernels that fail on the host CPU, and how they are told."""

import numpy as np
import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow
TIMEOUT_S = 20.0


@pytest.mark.parametrize(("index", "place"), [("64", "256"), ("1 << 16", "262144")])
def test_writing_past_dynamic_shared_memory_is_a_fault(run, index, place):
    source = f"extern __shared__ int words[]; __global__ void k() {{ words[{index}] = 1; }}"
    with pytest.raises(
        KernelFault,
        match=rf"the dynamic shared memory\[{place}\], past its end of 256 bytes",
        check=lambda fault: fault.outcome == "runtime",
    ):
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
    with pytest.raises(
        KernelFault,
        match=rf"{place}, past its end of 64 elements",
        check=lambda fault: fault.outcome == outcome,
    ):
        run(source, grid=100)


def test_a_fault_in_a_later_run_is_told(runner, tmp_path):
    kernel = Kernel(
        "__device__ int calls; __global__ void k(int* y) { if (calls++) __trap(); y[0] = 1; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),),
    )
    y = Arena.create(tmp_path / "y", Tensor("y", (1,), "int32", "output"))
    with (
        pytest.raises(
            KernelFault, match="reached __trap", check=lambda fault: fault.outcome == "runtime"
        ),
        runner.open(kernel, {"y": y}, {}, timeout_s=TIMEOUT_S) as program,
    ):
        [program.run() for _ in range(2)]


def test_writing_beside_a_workspace_is_told(runner):
    kernel = Kernel(
        "__global__ void k(double* t) { t[10] = 1; }",
        (Launch("k", (1, 1, 1), (1, 1, 1), ("t",)),),
        workspaces=(Tensor("t", (10,), "float64", "workspace"),),
    )
    with pytest.raises(
        KernelFault,
        match=r"wrote t\[10\], past its end of 10 elements",
        check=lambda fault: fault.outcome == "correctness",
    ):
        runner.run(kernel, {}, {}, timeout_s=TIMEOUT_S)


def test_a_far_write_is_an_illegal_address_with_its_place(run):
    source = "__global__ void k(float* y) { if (threadIdx.x == 3) y[1 << 20] = 0; }"
    pattern = r"illegal address: thread \(3,0,0\) of block \(0,0,0\) of k \w+ y\[1048576\], past"
    with pytest.raises(KernelFault, match=pattern, check=lambda fault: fault.outcome == "runtime"):
        run(source, outputs={"y": (16, "float32")}, block=8)


def test_a_null_pointer_is_an_illegal_address(run):
    with pytest.raises(
        KernelFault,
        match=r"illegal address: .* far from every tensor",
        check=lambda fault: fault.outcome == "runtime",
    ):
        run("__global__ void k() { *(volatile int*)8 = 1; }")


def test_writing_to_an_input_is_wrong(run):
    with pytest.raises(
        KernelFault, match=r"the input x\[2\]", check=lambda fault: fault.outcome == "correctness"
    ):
        run("__global__ void k(float* x) { x[2] = 0; }", {"x": np.arange(4, dtype=np.float32)})


def test_endless_recursion_is_a_stack_overflow(run):
    source = """
    __device__ __noinline__ int deep(volatile int* p) {
      volatile int a[64];
      a[*p & 63] = 1;
      return deep(p) + a[0];
    }
    __global__ void k(int* y) { y[0] = deep(y); }"""
    with pytest.raises(
        KernelFault, match="stack overflow: thread", check=lambda fault: fault.outcome == "runtime"
    ):
        run(source, outputs={"y": (1, "int32")})


def test_an_endless_loop_is_a_timeout(run):
    source = "__global__ void k(volatile int* y) { while (true) y[0] = 1; }"
    with pytest.raises(
        KernelFault,
        match=r"k did not finish within 0\.5 s",
        check=lambda fault: fault.outcome == "timeout",
    ):
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
    with pytest.raises(KernelFault, match=pattern, check=lambda fault: fault.outcome == "runtime"):
        run(source, outputs={"y": (1, "int32")})


def test_threads_that_wait_for_one_another_are_a_fault(run):
    pattern = (
        r"divergence: thread \(1,0,0\) of block \(0,0,0\) of k waits in a warp function whose mask "
        "0xffffffff names lanes that never call it"
    )
    body = "if (threadIdx.x) __syncwarp(); else __syncthreads();"
    with pytest.raises(KernelFault, match=pattern, check=lambda fault: fault.outcome == "runtime"):
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
    with pytest.raises(KernelFault, match=pattern, check=lambda fault: fault.outcome == "runtime"):
        run(source, outputs={"y": (64, "int32")}, block=64, order_seed=order_seed)


def test_a_barrier_that_a_thread_never_leads_to_is_a_timeout(run):
    body = "volatile bool on = true; if (threadIdx.x) __syncthreads(); else while (on) {}"
    with pytest.raises(
        KernelFault,
        match=r"k did not finish within 1 s",
        check=lambda fault: fault.outcome == "timeout",
    ):
        run(f"__global__ void k() {{ {body} }}", block=8, timeout_s=1.0)


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
    with pytest.raises(
        KernelFault,
        match=rf"misaligned address: thread \(0,0,0\) of block .* {said}",
        check=lambda fault: fault.outcome == "runtime",
    ):
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
