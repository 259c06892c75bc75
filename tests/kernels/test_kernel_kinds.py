"""Triton functions and library calls as data."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from pytest_gpuenergy.kernels import (
    CudaProgram,
    Headers,
    Kernel,
    Launch,
    LibraryCall,
    Origin,
    TritonKernel,
    read_kernel,
    write_kernel,
)
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Tensor

TRITON = TritonKernel(
    "import triton\n",
    "add",
    (4, 1, 1),
    ("x", "y", "n"),
    {"BLOCK": 64, "SCALE": 0.5, "EVEN": True},
    num_warps=8,
    workspaces=(Tensor("w", (4,), "float32", "workspace"),),
    origin=Origin("autotuner", 2, {"trials": 9}),
)
CALL = LibraryCall("torch.matmul", {"input": "a", "other": "b", "out": "c"}, {"allow_tf32": True})
PROGRAM = CudaProgram(
    "#include <cutlass/cutlass.h>",
    "sgemm",
    ("a", "d", "w"),
    (4, -3),
    Headers("CUTLASS 4.2.0", "0" * 64, "/opt/cutlass/include"),
    workspaces=(Tensor("w", (4,), "float32", "workspace"),),
)
CUDA = Kernel("__global__ void f() {}", (Launch("f", (1, 1, 1), (1, 1, 1), ()),))


@pytest.mark.parametrize("kernel", [TRITON, CALL, CUDA, PROGRAM, replace(PROGRAM, headers=None)])
def test_a_kernel_comes_back_from_its_folder_and_from_a_pickle(tmp_path, kernel):
    write_kernel(tmp_path, kernel)
    for found in (read_kernel(tmp_path), pickle.loads(pickle.dumps(kernel))):
        assert found == kernel
        assert (found.digest, found.origin) == (kernel.digest, kernel.origin)
        if isinstance(found, CudaProgram) and found.headers:
            assert found.headers.folder == "/opt/cutlass/include"


def test_a_digest_is_of_what_is_executed():
    assert replace(TRITON, origin=Origin("other")).digest == TRITON.digest
    others = [
        replace(TRITON, num_stages=4),
        replace(TRITON, constants={}),
        replace(TRITON, workspaces=()),
        replace(CALL, options={}),
        TRITON,
        CALL,
        PROGRAM,
        replace(PROGRAM, numbers=(4, 3)),
        replace(PROGRAM, headers=Headers("CUTLASS 4.2.0", "1" * 64, "/opt/cutlass/include")),
    ]
    elsewhere = Headers("CUTLASS 4.2.0", "0" * 64, "/usr/include")
    assert replace(PROGRAM, headers=elsewhere).digest == PROGRAM.digest
    assert len({kernel.digest for kernel in others}) == len(others)
    assert replace(CALL, options={}).digest == replace(CALL, options={"allow_tf32": False}).digest


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: replace(TRITON, source=" "), "needs source text"),
        (lambda: replace(TRITON, function="a.b"), "function name 'a.b'"),
        (lambda: replace(TRITON, grid=(0, 1, 1)), "three positive integers"),
        (lambda: replace(TRITON, num_warps=3), "power of two up to 32, not 3"),
        (lambda: replace(TRITON, num_stages=0), "positive integer, not 0"),
        (lambda: replace(TRITON, constants={"F": print}), "a number or string"),
        (lambda: replace(CALL, entry="os.system"), "no library entry 'os.system'"),
        (lambda: replace(CALL, tensors={"input": "a"}), "takes the tensors input, other, out"),
        (lambda: replace(CALL, options={"allow_tf32": 1}), "does not take allow_tf32=1"),
        (lambda: replace(CALL, options={"alpha": 1.0}), "does not take alpha=1.0"),
    ],
)
def test_a_kernel_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("kernel", "changes", "words"),
    [
        (TRITON, {"kind": "opencl"}, "kind is 'opencl'"),
        (TRITON, {"num_stages": 5}, "does not match its sha256"),
        (TRITON, {"grid": [1]}, "grid"),
        (CALL, {"entry": "os.system"}, "no library entry"),
        (CALL, {"tensors": 1}, "tensors is an integer"),
        (PROGRAM, {"numbers": [1]}, "does not match its sha256"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, kernel, changes, words):
    write_kernel(tmp_path, kernel)
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=words):
        read_kernel(tmp_path)


@pytest.mark.parametrize("kernel", [TRITON, CALL, PROGRAM])
def test_a_name_that_the_workload_does_not_have_is_a_fault(kernel):
    with pytest.raises(KernelFault, match="which is not a tensor, workspace or scalar"):
        kernel.check_arguments(["x", "a", "b"], ["y"])
