"""Kernels that are correct on ordinary inputs only, and kernels that are correct on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from python_kernels import KERNEL, Body, PythonDevice

from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Contract, Gemm, Tensor

Function = Callable[..., Any]
ROWS, COLUMNS = 16, 64
DRAWN = [
    pytest.param(seed, marks=pytest.mark.thorough if seed > 101 else []) for seed in range(100, 108)
]


def contract(function: Function, shape: tuple[int, ...], dtype: str, **options: Any) -> Contract:
    """y = function(x), with x of ROWS x COLUMNS."""
    out = options.pop("out", dtype)
    tensors = (
        Tensor("x", (ROWS, COLUMNS), dtype, "input"),
        Tensor("y", shape, out, "output"),
    )
    return Contract("mine", tensors, lambda inputs: {"y": function(inputs["x"])}, **options)


def by(function: Function) -> Body:
    """A kernel that computes y = function(x) in the type of x."""

    def body(x: Any, y: Any) -> None:
        y[...] = function(x)

    return body


def verified(workload: Contract, function: Function, drawn: int | None = None) -> Correctness:
    return verify_on_device(PythonDevice(by(function)), KERNEL, workload, drawn=drawn)


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def gelu(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.float64(0.7978845608) * (x + 0.044715 * x**3))).astype(x.dtype)


def layer_norm(x: Any) -> Any:
    off = x - x.mean(axis=1, keepdims=True)
    return off / np.sqrt((off * off).mean(axis=1, keepdims=True) + x.dtype.type(1e-5))


SAME = (ROWS, COLUMNS)
RIGHT: dict[str, tuple[Function, Function, Any, str, dict[str, Any]]] = {
    "exp": (np.exp, np.exp, SAME, "float32", {}),
    "softmax": (softmax, softmax, SAME, "float32", {}),
    "row maximum": (*2 * (lambda x: x.max(axis=1),), (ROWS,), "float32", {}),
    "column minimum": (*2 * (lambda x: x.min(axis=0),), (COLUMNS,), "float32", {}),
    "reciprocal": (*2 * (lambda x: 1 / x,), SAME, "float32", {}),
    "logarithm": (*2 * (lambda x: np.log(np.abs(x)),), SAME, "float32", {}),
    "within a range": (np.log, np.log, SAME, "float32", {"init": {"x": (0.0, 1.0)}}),
    "root": (np.sqrt, np.sqrt, SAME, "float32", {"init": {"x": (0.1, 4.0)}}),
    "gelu": (gelu, gelu, SAME, "float32", {}),
    "layer norm": (layer_norm, layer_norm, SAME, "float32", {"reduction_length": COLUMNS}),
    "power": (*2 * (lambda x: x**7,), SAME, "float32", {"reduction_length": 7}),
    "sum": (*2 * (lambda x: x.sum(axis=1),), (ROWS,), "float32", {"reduction_length": COLUMNS}),
    "half": (*2 * (lambda x: x + x,), SAME, "float16", {}),
    "cube of halves": (
        lambda x: x**3,
        lambda x: x.astype(np.float32) ** 3,
        SAME,
        "float16",
        {"reduction_length": 3},
    ),
    "argmax": (*2 * (lambda x: x.argmax(axis=1),), (ROWS,), "float32", {"out": "int32"}),
    "relu of bytes": (*2 * (lambda x: np.maximum(x, 0),), SAME, "int8", {}),
    "sum that wraps around": (*2 * (lambda x: x + x,), SAME, "int32", {}),
    "not": (*2 * (lambda x: ~x,), SAME, "bool", {}),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("drawn", DRAWN)
def test_a_right_kernel_is_right_whatever_is_drawn(name, drawn):
    function, single, shape, dtype, options = RIGHT[name]
    workload = contract(function, shape, dtype, **options)
    assert verified(workload, single, drawn).seeds == (0, 1, drawn)


def naive_softmax(x: Any) -> Any:
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)


WRONG: dict[str, tuple[Function, Function, Any, str]] = {
    "softmax without its maximum": (softmax, naive_softmax, SAME, "float32"),
    "row maximum from 0": (
        lambda x: x.max(axis=1),
        lambda x: np.maximum(x.max(axis=1), 0),
        (ROWS,),
        "float32",
    ),
    "row maximum from -100": (
        lambda x: x.max(axis=1),
        lambda x: np.maximum(x.max(axis=1), -100),
        (ROWS,),
        "float32",
    ),
    "maximum of all from 0": (
        lambda x: x.max(keepdims=True)[0],
        lambda x: np.maximum(x.max(keepdims=True)[0], 0),
        (1,),
        "float32",
    ),
    "minimum of all from 0": (
        lambda x: x.min(keepdims=True)[0],
        lambda x: np.minimum(x.min(keepdims=True)[0], 0),
        (1,),
        "float32",
    ),
    "column minimum from 0": (
        lambda x: x.min(axis=0),
        lambda x: np.minimum(x.min(axis=0), 0),
        (COLUMNS,),
        "float32",
    ),
    "inputs clamped above": (lambda x: 2 * x, lambda x: 2 * np.minimum(x, 6), SAME, "float32"),
    "inputs clamped below": (lambda x: 2 * x, lambda x: 2 * np.maximum(x, -10), SAME, "float32"),
    "tiny inputs flushed": (
        lambda x: 1 / x,
        lambda x: np.where(np.abs(x) < 1e-4, 0, 1 / x),
        SAME,
        "float32",
    ),
    "bytes read as unsigned": (
        lambda x: x.astype(np.int32),
        lambda x: x.view(np.uint8),
        SAME,
        "int8",
    ),
    "relu without clamp": (lambda x: np.maximum(x, 0), lambda x: x, SAME, "int8"),
    "integer maximum from 0": (
        lambda x: x.max(axis=1),
        lambda x: np.maximum(x.max(axis=1), 0),
        (ROWS,),
        "int32",
    ),
    "unsigned maximum read as signed": (
        lambda x: x.max(axis=1),
        lambda x: x.view(np.int32).max(axis=1).view(np.uint32),
        (ROWS,),
        "uint32",
    ),
    "shorts added up in a short": (
        lambda x: x.astype(np.int32).sum(axis=1),
        lambda x: x.sum(axis=1, dtype=np.int16),
        (ROWS,),
        "int16",
    ),
    "argmax of the absolute": (
        lambda x: x.argmax(axis=1),
        lambda x: np.abs(x).argmax(axis=1),
        (ROWS,),
        "int32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_is_right_on_small_positive_inputs_only_is_wrong(name):
    function, wrong, shape, dtype = WRONG[name]
    out = "int32" if name in ("bytes read as unsigned", "shorts added up in a short") else dtype
    with pytest.raises(KernelFault, match=r"of y .*(wrong|NaN)"):
        verified(contract(function, shape, dtype, out=out), wrong)


def test_a_kernel_made_for_the_fixed_seeds_is_wrong():
    workload = contract(lambda x: 2 * x, SAME, "float32")
    device = PythonDevice(by(lambda x: 2 * x))
    seen: list[Any] = []

    def remembers(x: Any, y: Any) -> None:
        seen.append(x.copy())
        y[...] = 2 * x

    verify_on_device(PythonDevice(remembers), KERNEL, workload)
    fixed = [x.tobytes() for x in seen[:2]]

    def made_for_them(x: Any, y: Any) -> None:
        y[...] = 2 * x if x.tobytes() in fixed else 0

    assert verify_on_device(device, KERNEL, workload).seeds[:2] == (0, 1)
    with pytest.raises(KernelFault, match=r"wrong \(seed [0-9]{3,}\)"):
        verify_on_device(PythonDevice(made_for_them), KERNEL, workload)


def test_a_seed_that_was_drawn_can_be_repeated():
    workload = contract(lambda x: 2 * x, SAME, "float32")
    inputs: list[bytes] = []

    def body(x: Any, y: Any) -> None:
        inputs.append(x.tobytes())
        y[...] = 2 * x

    first = verify_on_device(PythonDevice(body), KERNEL, workload)
    again = verify_on_device(PythonDevice(body), KERNEL, workload, drawn=first.seeds[-1])
    assert first.seeds == again.seeds
    half = len(inputs) // 2
    assert inputs[:half] == inputs[half:]


def test_a_contract_is_drawn_for_anew_each_time():
    workload = contract(lambda x: 2 * x, SAME, "float32")
    found = {verified(workload, lambda x: 2 * x).seeds[-1] for _ in range(4)}
    assert len(found) == 4


def test_a_reference_that_an_integer_cannot_hold_is_refused():
    def total(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": inputs["x"].sum(axis=1)}  # int64, as NumPy has it

    tensors = (Tensor("x", SAME, "int32", "input"), Tensor("y", (ROWS,), "int32", "output"))
    workload = Contract("mine", tensors, total)
    with pytest.raises(InputError, match=r"reference of y goes up to .*which no int32 is: give in"):
        verified(workload, lambda x: x.sum(axis=1, dtype=np.int32))


def test_a_reference_that_half_precision_cannot_hold_is_refused():
    workload = Gemm("g", 1, 2, 70_000, mode="float16", distribution="ones")

    def product(**tensors: Any) -> None:
        a, b = (tensors[name].astype(np.float32) for name in "AB")
        tensors["C"][...] = a @ b  # right: it overflows

    with pytest.raises(InputError, match=r"reference of C goes up to 70000 .*which no float16 is"):
        verify_on_device(PythonDevice(product), KERNEL, workload)


def test_inputs_that_a_reference_does_not_take_are_left_out():
    def picky(x: Any) -> Any:
        if np.abs(x).max() > 20:
            raise ValueError("too large")
        return 3 * x

    assert verified(contract(picky, SAME, "float32"), lambda x: 3 * x).max_relative_error < 1e-6
