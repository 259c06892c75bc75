"""A Triton function and a library call on a real GPU, in the worker process."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.gpu
ITEMS = """
from pytest_gpuenergy.kernels import LibraryCall, TritonKernel
from pytest_gpuenergy.workloads import Contract, Tensor

N = 1 << 20
SOURCE = '''
import triton
import triton.language as tl

@triton.jit
def add(x, y, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(total + i, tl.load(x + i, inside) {sign} tl.load(y + i, inside), inside)
'''
NAMES = (("x", "input"), ("y", "input"), ("total", "output"))
ADD = Contract(
    "add",
    tuple(Tensor(name, (N,), "float32", role) for name, role in NAMES),
    lambda inputs: {{"total": inputs["x"] + inputs["y"]}},
)
MATMUL = Contract(
    "matmul",
    tuple(Tensor(name, (512, 512), "float32", role) for name, role in NAMES),
    lambda inputs: {{"total": inputs["x"] @ inputs["y"]}},
    flops=2 * 512**3,
    reduction_length=512,
)

def test_triton(energy_benchmark):
    arguments = ("x", "y", "total")
    kernel = TritonKernel(SOURCE, "add", (N // 1024, 1, 1), arguments, {{"n": N, "BLOCK": 1024}})
    measured = energy_benchmark(kernel, workload=ADD)
    assert measured.energy_mj > 0
    assert measured.in_process is False
    assert "host_gaps" not in measured.validity

def test_library(energy_benchmark):
    call = LibraryCall("torch.matmul", {{"input": "x", "other": "y", "out": "total"}})
    measured = energy_benchmark(call, workload=MATMUL)
    assert measured.energy_mj > 0
    assert "host_gaps" not in measured.validity
"""


def require_triton() -> None:
    # Not imported: pytester makes the process forget its modules, and torch loads only once.
    for module in ("torch", "triton"):
        if find_spec(module) is None:
            pytest.skip(f"needs the module {module}")


def test_each_kind_is_measured(pytester):
    require_triton()
    pytester.makepyfile(ITEMS.format(sign="+"))
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_triton_function_that_is_wrong_fails(pytester):
    require_triton()
    pytester.makepyfile(ITEMS.format(sign="-"))
    result = pytester.runpytest_subprocess("-k", "test_triton")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*correctness: *elements of total*"])
