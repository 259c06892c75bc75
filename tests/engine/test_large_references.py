"""References of large workloads are computed in the device's memory, as with CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strict_arrays import StrictArrays

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import Drawing, case_of, compare, references, verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor

DRAWINGS = [Drawing(0), Drawing(1, -1), Drawing(2, 1)]
SIZE = 4096


def contract(
    compute: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    out: str = "float32",
    shape: tuple[int, ...] = (SIZE,),
    of: str = "float32",
) -> Contract:
    tensors = (Tensor("x", shape, of, "input"), Tensor("y", shape, out, "output"))
    return Contract("large", tensors, compute, reduction_length=4)


DOUBLE = contract(lambda inputs: {"y": 2 * inputs["x"]})
WORKLOADS = {
    "doubled": DOUBLE,
    "of wide range": contract(lambda inputs: {"y": np.exp(inputs["x"])}),
    "softmax": contract(lambda inputs: {"y": softmax(inputs["x"])}, shape=(64, 64)),
    "few outputs": Contract(
        "sum",
        (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (1,), "float32", "output")),
        lambda inputs: {"y": np.sum(inputs["x"]).reshape(1)},
        reduction_length=SIZE,
    ),
    "half": contract(lambda inputs: {"y": inputs["x"] + 1}, "float16", of="float16"),
    "bfloat16": contract(lambda inputs: {"y": np.abs(inputs["x"])}, "bfloat16", of="bfloat16"),
    "integers": contract(lambda inputs: {"y": inputs["x"] // 2}, "int32", of="int32"),
    "conv2d": Conv2d.of("conv", 2, 13, 11, 8, 6, 3, 3, 2, 1, 1, 2),
}


def softmax(x: Any) -> Any:
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


@pytest.fixture
def arrays() -> StrictArrays:
    return StrictArrays()


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)


@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_they_equal_those_of_the_host(workload, drawing, arrays):
    there, here = case_of(workload, drawing, arrays), case_of(workload, drawing)
    assert there.reference.arrays is arrays
    for name, expected in here.reference.items():
        found: Any = there.reference[name]
        np.testing.assert_array_equal(found.values, expected)
        np.testing.assert_array_equal(
            there.inputs["x" if name == "y" else "data"],
            here.inputs["x" if name == "y" else "data"],
        )


@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_what_errors_are_measured_against_is_the_same(workload, drawing, arrays):
    there = case_of(workload, drawing, arrays).reference.conditions
    here = case_of(workload, drawing).reference.conditions
    assert {name: one.scale for name, one in there.items()} == {
        name: one.scale for name, one in here.items()
    }
    owns = {name: getattr(one.own, "values", None) for name, one in there.items()}
    for name, one in here.items():
        np.testing.assert_array_equal(owns[name], one.own)


@pytest.mark.parametrize("name", ["doubled", "of wide range", "integers", "conv2d"])
@pytest.mark.parametrize("wrong", [0, 1, -1])
def test_outputs_are_judged_as_on_the_host(name, wrong, arrays):
    workload = WORKLOADS[name]

    def judged(where: StrictArrays | None) -> str:
        reference = case_of(workload, DRAWINGS[0], where).reference
        outputs = {
            tensor.name: np.asarray(right[tensor.name]).astype(tensor.dtype)
            for tensor in workload.outputs
        }
        for output in outputs.values():
            output.reshape(-1)[wrong] += 3 * bool(wrong)
        try:
            return str(compare(outputs, reference, workload.io.bounds, 0))
        except KernelFault as fault:
            return str(fault)

    right = case_of(workload, DRAWINGS[0]).reference
    assert judged(arrays) == judged(None)
    assert ("wrong" in judged(arrays)) is bool(wrong)


@pytest.mark.parametrize(("factor", "good"), [(1.0, True), (1.01, False)])
def test_terms_are_estimated_on_the_device(factor, good, arrays):
    workload = contract(lambda inputs: {"y": np.sqrt(inputs["x"] ** 2 + 1) - inputs["x"]})
    drawing = Drawing(20, 1)
    x = case_of(workload, drawing).inputs["x"]
    output = np.float32(factor) * (np.sqrt(x * x + np.float32(1)) - x)
    found = []
    for where in (None, arrays):
        reference = case_of(workload, drawing, where).reference
        try:
            found.append(str(compare({"y": output}, reference, workload.io.bounds, 20)))
        except KernelFault as fault:
            found.append(str(fault))
    assert found[0] == found[1]
    assert ("wrong" not in found[0]) is good


def test_an_output_that_was_not_written_is_told(arrays):
    reference = case_of(DOUBLE, DRAWINGS[0], arrays).reference
    unset = {"y": np.full(SIZE, np.nan, np.float32)}
    with pytest.raises(KernelFault, match=r"4096 of 4096 elements of y .* never written or NaN"):
        compare(unset, reference, DOUBLE.io.bounds, 0)


def test_a_reference_that_is_not_finite_is_refused(arrays):
    workload = contract(lambda inputs: {"y": (inputs["x"] * 0) / (inputs["x"] * 0)})
    with np.errstate(all="ignore"):
        reference = case_of(workload, DRAWINGS[0], arrays).reference
    with pytest.raises(InputError, match=r"not finite|NaN or infinite, first at y\[0\]"):
        compare({"y": np.zeros(SIZE, np.float32)}, reference, workload.io.bounds, 0)


def by_loop(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": np.array([2 * float(x) for x in np.asarray(inputs["x"])])}


def on_the_host(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": np.multiply(inputs["x"], np.full(SIZE, 2.0))}


def back_to_the_host(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": np.array([2 * float(inputs["x"][i]) for i in range(SIZE)])}


@pytest.mark.parametrize("compute", [by_loop, on_the_host, back_to_the_host])
def test_a_function_that_needs_the_hosts_arrays_gets_them(compute, arrays):
    reference = case_of(contract(compute), DRAWINGS[0], arrays).reference
    assert reference.arrays is None
    np.testing.assert_array_equal(reference["y"], case_of(DOUBLE, DRAWINGS[0]).reference["y"])


def test_memory_that_is_short_there_is_taken_from_the_host(arrays, monkeypatch):
    def fails(_: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(arrays, "put", fails)
    assert case_of(DOUBLE, DRAWINGS[0], arrays).reference.arrays is None


def test_the_first_is_computed_alone_and_others_at_the_same_time(arrays):
    together, second_began, calls = threading.Barrier(2, timeout=10), threading.Event(), []

    class First(Contract):
        """A kind of workloads of its own."""

    def compute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(None)
        if len(calls) == 1:
            assert not second_began.wait(0.05)
        else:
            second_began.set()
            if len(calls) <= 3:
                together.wait()
        return {"y": 2 * inputs["x"]}

    workload = First("large", DOUBLE.tensors, compute, reduction_length=4)
    with ThreadPoolExecutor(3) as pool:
        cases = [pool.submit(case_of, workload, Drawing(seed), arrays) for seed in range(3)]
    assert [case.result().reference.arrays for case in cases] == 3 * [arrays]


def test_small_ones_stay_on_the_host(arrays, monkeypatch):
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 2 * SIZE + 1)
    assert case_of(DOUBLE, DRAWINGS[0], arrays).reference.arrays is None
    assert not arrays.puts


def test_those_of_many_operations_are_large(arrays, monkeypatch):
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 2 * SIZE + 1)
    case = case_of(replace(DOUBLE, flops=10**10), DRAWINGS[0], arrays)
    assert case.reference.arrays is arrays


def kernel(line: str) -> Kernel:
    source = f"""
extern "C" __global__ void k(const float* x, float* y) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  {line}
}}
"""
    return Kernel(source, (Launch("k", (SIZE // 256, 1, 1), (256, 1, 1), ("x", "y")),))


@pytest.fixture
def with_arrays(arrays: StrictArrays, monkeypatch: pytest.MonkeyPatch) -> StrictArrays:
    monkeypatch.setattr(EmulatedDevice, "arrays", arrays)
    return arrays


@pytest.mark.slow
def test_a_right_kernel_is_verified_with_them(with_arrays):
    with EmulatedDevice() as device:
        assert (
            verify_on_device(device, kernel("y[i] = 2 * x[i];"), DOUBLE).max_relative_error < 1e-6
        )
    assert with_arrays.puts >= 3


@pytest.mark.slow
@pytest.mark.usefixtures("with_arrays")
def test_a_wrong_kernel_is_found_with_them():
    wrong = kernel("y[i] = 2 * x[i == 77 ? 78 : i];")
    with EmulatedDevice() as device, pytest.raises(KernelFault, match=r"worst is y\[77\]"):
        verify_on_device(device, wrong, DOUBLE)
