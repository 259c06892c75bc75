"""The plugin on a real GPU: no other test of this module's process may have a context there."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu
N = 1 << 20
SCALE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 1048576) y[i] = factor * x[i];
}
"""


def test_a_callable_is_measured_in_this_process(pytester):
    pytester.makepyfile(
        """
        import cupy

        def test_add(energy_benchmark):
            a = cupy.arange(1 << 20, dtype=cupy.float32)
            out = cupy.empty_like(a)
            measured = energy_benchmark(lambda: cupy.add(a, a, out=out), flops=1 << 20)
            assert measured.energy_mj > 0
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_references_may_be_arrays_and_functions_of_the_gpu(pytester):
    pytester.makepyfile(
        """
        import cupy
        import pytest

        A = cupy.arange(1 << 20, dtype=cupy.float32)
        SUM, PRODUCT = cupy.empty_like(A), cupy.empty_like(A)

        def both(a):
            return cupy.add(a, a, out=SUM), cupy.multiply(a, a, out=PRODUCT)

        def in_place(a):
            total = a + a
            a *= a
            return total, a

        @pytest.mark.parametrize(
            "reference",
            [(2 * A, A * A), lambda a: (a + a, a * a), in_place],
            ids=["arrays", "function", "in-place"],
        )
        def test_right(reference, energy_benchmark):
            measured = energy_benchmark(both, A, reference=reference)
            assert measured.correctness.normwise_error < 1e-6

        def test_wrong(energy_benchmark):
            energy_benchmark(both, A, reference=(A, A * A))
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["* of 1048576 elements of result[[]0] * are wrong *"])


def test_kernels_and_callables_in_one_run_are_no_strangers_to_each_other(pytester):
    pytester.makepyfile(
        f"""
        import numpy as np
        import pytest
        from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

        @pytest.fixture
        def scale(load_kernel):
            arguments = ("x", "y", "factor")
            return load_kernel({SCALE!r}, entry="scale", grid={N // 256}, block=256,
                               arguments=arguments)

        WORK = Contract(
            "scale",
            (Tensor("x", ({N},), "float32", "input"), Tensor("y", ({N},), "float32", "output")),
            lambda inputs: {{"y": 2.0 * inputs["x"]}},
            flops={N},
            values=(Scalar("factor", "float32", 2.0),),
        )

        @pytest.mark.parametrize("number", range(4))
        def test_both(number, scale, energy_benchmark):
            if number % 2:
                import cupy

                a = cupy.arange(1 << 20, dtype=cupy.float32)
                out = cupy.empty_like(a)
                measured = energy_benchmark(lambda: cupy.add(a, a, out=out), flops=1 << 20)
            else:
                measured = energy_benchmark(scale, workload=WORK)
            assert "foreign_process" not in measured.validity
        """
    )
    pytester.runpytest_subprocess("--gpuenergy-order", "file").assert_outcomes(passed=4)


CALLABLES = """
import cupy
import numpy as np
import pytest

A = cupy.arange(1 << 20, dtype=cupy.float32)
RIGHT = 2 * A.get()
COUNTING = r'''
__device__ int calls;
extern "C" __global__ void twice(const float* a, float* out, int most) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (*(volatile int*)&calls > most) return;
  out[i] = 2 * a[i];
  if (i == 0) atomicAdd(&calls, 1);
}
'''
TWICE = cupy.RawKernel(COUNTING, "twice")
kept = {}

def counting(a, out, most):
    TWICE((4096,), (256,), (a, out, np.int32(most)))
    return out

def keeping(a):
    if "result" not in kept:
        kept["result"] = a + a
    return kept["result"]

def in_place(a):
    a *= 2
    return a

@pytest.mark.parametrize("run", [
    lambda a, out: a + a,
    lambda a, out: cupy.add(a, a, out),
    lambda a, out: (a + a).get(),
    lambda a, out: counting(a, out, 1 << 30),
], ids=["returns", "writes", "to the host", "counts"])
def test_right(run, energy_benchmark):
    assert energy_benchmark(run, A, cupy.empty_like(A), reference=RIGHT).measured

def test_stops(energy_benchmark):
    energy_benchmark(counting, A, cupy.empty_like(A), 2000, reference=RIGHT)

def test_keeps(energy_benchmark):
    energy_benchmark(keeping, A, reference=RIGHT)

def test_in_place(energy_benchmark):
    energy_benchmark(in_place, cupy.ones(1 << 20), reference=np.full(1 << 20, 2.0))
"""


def test_a_callable_is_checked_again_after_its_measurement(pytester):
    pytester.makepyfile(CALLABLES)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines(
        ["correctness: Correct at first, wrong after * calls: *"] * 3, consecutive=False
    )
