"""Kernels that take structs by value on the emulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from points import MORE

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch, load_kernel
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

pytestmark = pytest.mark.slow

N = 1000
PARAMS = """
struct Params { int n; float alpha; const float* x; bool up; double w[3]; };
struct Twice { __device__ float operator()(float v) const { return 2 * v; } };
__global__ void k(const Params p, float* y, Twice twice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) y[i] = p.alpha * twice(p.x[i]) + (float)p.w[2] + (p.up ? 1.f : 0.f);
}
"""
P = ["n", "alpha", "x", "up", ["w0", "w0", "w2"]]
CONTRACT = Contract(
    "params",
    (Tensor("x", (N,), "float32", "input"), Tensor("y", (N,), "float32", "output")),
    lambda inputs: {"y": 6 * inputs["x"] + 8.5},
    values=(
        Scalar("n", "int32", N),
        Scalar("alpha", "float32", 3.0),
        Scalar("up", "bool", True),
        Scalar("w0", "float64", 1.5),
        Scalar("w2", "float64", 7.5),
    ),
)


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def verified(text: str = PARAMS, arguments: Any = (P, "y", [])) -> Correctness:
    kernel = load_kernel(text, entry="k", grid=8, block=128, arguments=arguments)
    with EmulatedDevice() as device:
        return verify_on_device(device, kernel, CONTRACT)


def test_a_kernel_with_a_struct_is_verified():
    assert verified().max_relative_error < 1e-6


@pytest.mark.parametrize(
    ("right", "wrong", "outcome", "why"),
    [
        MORE("p.up ?", "!p.up ?", "correctness", "1000 of 1000 elements of y"),
        ("p.w[2]", "p.w[1]", "correctness", "1000 of 1000 elements of y"),
        ("p.x[i]", "p.x[i + 1]", "correctness", r"reads x\[1000\], past its end of 1000 elements"),
        MORE(
            "i < p.n", "i <= p.n", "correctness", r"reads x\[1000\], past its end of 1000 elements"
        ),
        (
            "y[i] =",
            "const_cast<float*>(p.x)[i] = y[i] =",
            "correctness",
            r"writes the input x\[0\]",
        ),
    ],
)
def test_a_wrong_kernel_with_a_struct_is_found(right, wrong, outcome, why):
    assert right in PARAMS
    with pytest.raises(KernelFault, match=why) as caught:
        verified(PARAMS.replace(right, wrong))
    assert caught.value.outcome == outcome


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["n", "y", []], "parameter 1 of k is a struct of 48 bytes: give a list of its members in"),
        (["x", "y", []], "parameter 1 of k is a struct of 48 bytes: give a list of its members in"),
        ([P, ["y"], []], "parameter 2 of k is a pointer but the launch gives the struct {y}"),
        ([P[:-1], "y", []], "parameter 1 of k has 48 bytes, but the struct {n,alpha,x,up} of the"),
        ([P, "y", ["n"]], "parameter 3 of k has 1 bytes, but the struct {n} of the launch has 4"),
        ([P, "y"], "k takes 3 parameters but the launch gives 2 arguments"),
        ([[*P, "z"], "y", []], "k takes an argument 'z', which is not a tensor, workspace or"),
    ],
)
def test_members_that_do_not_fit_are_told(arguments, why):
    with pytest.raises(KernelFault, match=why) as caught:
        verified(arguments=arguments)
    assert caught.value.outcome == "constraints"


def test_each_type_of_member_keeps_its_value(run):
    scalars = [
        Scalar("half", "float16", 1.5),
        Scalar("brain", "bfloat16", -2.5),
        Scalar("byte", "int8", -3),
        Scalar("word", "uint16", 65535),
        Scalar("long", "int64", -(2**62)),
        Scalar("most", "uint64", 2**64 - 1),
        Scalar("f", "float32", 0.25),
    ]
    text = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Row { signed char byte; __half half; };
struct All { Row rows[2]; __nv_bfloat16 brain; unsigned short word; long long l; size_t most; };
__global__ void k(All all, float4 v, const long long* in, long long* y) {
  y[0] = (long long)(__half2float(all.rows[1].half) * 2);
  y[1] = (long long)(__bfloat162float(all.brain) * 2);
  y[2] = all.rows[1].byte;
  y[3] = all.word;
  y[4] = all.l;
  y[5] = all.most == ~0ull;
  y[6] = (long long)(4 * (v.x + v.y + v.z + v.w));
  y[7] = in[0];
}"""
    row = ["byte", "half"]
    out = run(
        text,
        {"x": np.array([7], np.int64)},
        {"y": (8, "int64")},
        scalars=scalars,
        arguments=([[row, row], "brain", "word", "long", "most"], ["f"] * 4, "x", "y"),
    )
    np.testing.assert_array_equal(out["y"], [3, -5, -3, 65535, -(2**62), 1, 4, 7])


TABLE = """
struct Table { const float* from[MANY]; int sizes[MANY]; };
__global__ void k(Table table, float* y) {
  for (int t = 0; t < MANY; ++t)
    if (threadIdx.x < table.sizes[t]) y[t * 4 + threadIdx.x] = table.from[t][threadIdx.x];
}"""


@pytest.mark.parametrize("many", [3, 200])
def test_a_struct_may_be_large(run, many):
    a, b = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    names = ["b" if t == many - 1 else "a" for t in range(many)]
    out = run(
        TABLE.replace("MANY", str(many)),
        {"a": a, "b": b},
        {"y": (4 * many, "float32")},
        block=4,
        scalars=[Scalar("size", "int32", 4)],
        arguments=([names, ["size"] * many], "y"),
    )
    expected = np.tile(a, many)
    expected[-4:] = b
    np.testing.assert_array_equal(out["y"], expected)


def test_a_struct_with_the_size_of_a_tensor_map_is_none(run):
    text = """
struct alignas(64) Block { float v[32]; };
__global__ void k(Block block, float* y) { y[threadIdx.x] = block.v[threadIdx.x]; }"""
    scalars = [Scalar(f"v{k}", "float32", float(k)) for k in range(32)]
    names = [scalar.name for scalar in scalars]
    out = run(text, {}, {"y": (32, "float32")}, block=32, scalars=scalars, arguments=(names, "y"))
    np.testing.assert_array_equal(out["y"], np.arange(32))


def test_two_structs_of_a_workspace_and_several_launches_are_checked(gpu):
    text = """
struct Stage { const float* from; float* to; };
__global__ void first(Stage s) { s.to[threadIdx.x] = s.from[threadIdx.x] + 1; }
__global__ void second(Stage s) { s.to[threadIdx.x] = 2 * s.from[threadIdx.x]; }"""
    kernel = Kernel(
        text,
        (
            Launch("first", (1, 1, 1), (64, 1, 1), (("x", "space"),)),
            Launch("second", (1, 1, 1), (64, 1, 1), (("space", "y"),)),
        ),
        workspaces=(Tensor("space", (64,), "float32", "workspace"),),
    )
    contract = Contract(
        "stages",
        (Tensor("x", (64,), "float32", "input"), Tensor("y", (64,), "float32", "output")),
        lambda inputs: {"y": 2 * (inputs["x"] + 1)},
    )
    assert verify_on_device(gpu, kernel, contract).max_relative_error < 1e-6
