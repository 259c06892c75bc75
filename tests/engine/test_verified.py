"""A kernel that was verified under one cap is not verified again under another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.engine import Verifier, drawings_of
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

TENSORS = (Tensor("x", (64,), "float32", "input"), Tensor("y", (64,), "float32", "output"))


def double(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": 2 * inputs["x"]}


def right(x: Any, y: Any) -> None:
    y[...] = 2 * x


DOUBLE = Contract("double", TENSORS, double)
EACH = len(drawings_of((0, 1, 2), DOUBLE))


def verifier(
    body: Callable[..., None] = right, *, emulated: bool = True
) -> tuple[Verifier, PythonDevice]:
    device = PythonDevice(body, emulated=emulated)
    return Verifier(device, 60.0, None), device


def test_a_workload_that_is_a_function_is_verified_once_on_an_emulated_gpu() -> None:
    found, device = verifier()
    results = [found.verify(KERNEL, DOUBLE) for _ in range(5)]
    assert device.runs == EACH
    assert len(set(results)) == 1


def test_a_real_gpu_verifies_every_time() -> None:
    found, device = verifier(emulated=False)
    for _ in range(2):
        found.verify(KERNEL, DOUBLE)
    assert device.runs == 2 * EACH


@pytest.mark.parametrize(
    ("kernel", "workload"),
    [
        (replace(KERNEL, source="__global__ void f() { /* other */ }"), DOUBLE),
        (KERNEL, replace(DOUBLE, compute=lambda inputs: {"y": 2 * inputs["x"]})),
        (KERNEL, replace(DOUBLE, init={"x": (0.0, 1.0)})),
    ],
    ids=["text", "function", "range"],
)
def test_what_was_known_of_another_pair_does_not_count(kernel: Any, workload: Contract) -> None:
    found, device = verifier()
    found.verify(KERNEL, DOUBLE)
    found.verify(kernel, workload)
    assert device.runs == 2 * EACH


def test_a_wrong_kernel_is_never_known() -> None:
    found, device = verifier(lambda x, y: None)  # noqa: ARG005 -- it does nothing
    for _ in range(2):
        with pytest.raises(KernelFault):
            found.verify(KERNEL, DOUBLE)
    assert device.runs == 2 * 2  # a wrong one runs once more, on other outputs


def test_a_workload_without_a_hash_is_verified_every_time() -> None:
    class Unhashable(Contract):
        __hash__ = None  # type: ignore[assignment]

    found, device = verifier()
    for _ in range(2):
        found.verify(KERNEL, Unhashable("double", TENSORS, double))
    assert device.runs == 2 * EACH
