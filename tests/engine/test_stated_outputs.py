"""What a workload can declare for its outputs: bounds, steps, masks, infinities, no dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from python_kernels import KERNEL, Body, PythonDevice

from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Contract, ErrorBound, Tensor

ROWS, COLUMNS = 16, 64
Values = Mapping[str, Any]


def fault_of(body: Body, workload: Contract) -> str | None:
    """Return why a kernel is wrong; None if it passes."""
    try:
        verify_on_device(PythonDevice(body), KERNEL, workload)
    except KernelFault as fault:
        return str(fault)
    return None


def tensors(shape: tuple[int, ...], dtype: str = "float32") -> tuple[Tensor, Tensor]:
    return Tensor("x", shape, "float32", "input"), Tensor("y", shape, dtype, "output")


def quantized(inputs: Values) -> Values:
    scale = np.abs(inputs["x"]).max(axis=1) / 127
    safe = np.where(scale > 0, scale, 1.0)
    return {"q": np.clip(np.rint(inputs["x"] / safe[:, None]), -127, 127), "scale": scale}


QUANTIZE = Contract(
    "quantize",
    (
        Tensor("x", (ROWS, COLUMNS), "float32", "input"),
        Tensor("q", (ROWS, COLUMNS), "int8", "output", bound=ErrorBound(steps=1)),
        Tensor("scale", (ROWS,), "float32", "output", bound=2e-6),
    ),
    quantized,
)


def quantizer(
    *, rounding: Any = np.rint, factor: float = 1.0, shift: int = 0, reciprocal: bool = False
) -> Body:
    def body(x: Any, q: Any, scale: Any) -> None:
        found = np.abs(x).max(axis=1) / np.float32(127)
        safe = np.where(found > 0, found, np.float32(1))[:, None]
        scaled = x * (np.float32(1) / safe) if reciprocal else x / safe
        q[:] = np.clip(rounding(scaled) + shift, -127, 127)
        scale[:] = found * np.float32(factor)

    return body


@pytest.mark.parametrize("reciprocal", [False, True])
def test_an_integer_may_be_off_by_the_steps_of_its_bound(reciprocal):
    assert fault_of(quantizer(reciprocal=reciprocal), QUANTIZE) is None


def test_the_bound_of_one_output_is_not_that_of_another():
    assert "elements of scale" in str(fault_of(quantizer(factor=1.0009), QUANTIZE))


@pytest.mark.parametrize("rounding", [np.trunc, np.floor, np.ceil])
def test_one_step_off_in_half_of_all_elements_is_wrong(rounding):
    assert "only 0.125 of all may be" in str(fault_of(quantizer(rounding=rounding), QUANTIZE))


def test_more_than_the_steps_is_wrong():
    assert "elements of q" in str(fault_of(quantizer(shift=2), QUANTIZE))


def test_what_steps_allow_is_not_reported_as_an_error():
    found = verify_on_device(PythonDevice(quantizer(reciprocal=True)), KERNEL, QUANTIZE)
    assert found.max_relative_error < 2e-6


@pytest.mark.parametrize("factor", [1.0, 1.0009])
def test_a_plain_number_bounds_an_output(factor):
    workload = Contract("plain", tensors((COLUMNS,)), lambda i: {"y": 2 * i["x"]}, bound=2e-6)

    def body(x: Any, y: Any) -> None:
        y[:] = 2 * x * np.float32(factor)

    assert (fault_of(body, workload) is None) == (factor == 1.0)


def with_mask(inputs: Values) -> Values:
    """Write the positive elements to the front; leave the rest as it was."""
    flat = inputs["x"].reshape(-1)
    kept = flat[flat > 0]
    found = np.ma.masked_all(flat.shape)
    found[: kept.size] = kept
    return {"y": found}


COMPACT = Contract("compact", tensors((COLUMNS,)), with_mask)


def compacting(count: int) -> Body:
    """A kernel that writes ``count`` elements too many, or too few if that is negative."""

    def body(x: Any, y: Any) -> None:
        kept = x[x > 0]
        end = max(0, min(kept.size + count, y.size))
        y[:end] = np.resize(np.append(kept, np.float32(7)), y.size)[:end]

    return body


def test_a_masked_part_of_an_output_is_not_written():
    assert fault_of(compacting(0), COMPACT) is None


def test_writing_what_the_reference_masks_is_wrong():
    said = str(fault_of(compacting(1), COMPACT))
    assert "1 of 64 elements of y" in said
    assert "although the reference masks" in said


def test_leaving_out_what_the_reference_does_not_mask_is_wrong():
    assert "never written or NaN" in str(fault_of(compacting(-1), COMPACT))


def masked_logits(inputs: Values) -> Values:
    x = inputs["x"]
    return {"y": np.where(np.tri(*x.shape, dtype=bool), x, -np.inf)}


LOGITS = Contract("logits", tensors((ROWS, ROWS)), masked_logits)


@pytest.mark.parametrize("value", [-math.inf, -1e30, math.inf, math.nan, 0.0])
def test_infinite_outputs_must_be_equal(value):
    def body(x: Any, y: Any) -> None:
        y[:] = np.where(np.tri(ROWS, dtype=bool), x, np.float32(value))

    assert (fault_of(body, LOGITS) is None) == (value == -math.inf)


def test_finite_elements_beside_infinite_ones_are_compared_as_ever():
    def body(x: Any, y: Any) -> None:
        y[:] = np.where(np.tri(ROWS, dtype=bool), x * np.float32(1.001), -np.inf)

    assert "wrong" in str(fault_of(body, LOGITS))


def test_a_reference_that_is_nan_where_nothing_is_masked_is_refused():
    workload = Contract("log", tensors((COLUMNS,)), lambda i: {"y": np.log(i["x"])})
    with (
        pytest.raises(InputError, match=r"NaN or infinite, first at y\["),
        pytest.warns(RuntimeWarning),
    ):
        verify_on_device(PythonDevice(lambda **_: None), KERNEL, workload)


def test_infinities_that_an_overflow_of_the_reference_makes_are_not_asked_for():
    workload = Contract("big", tensors((COLUMNS,)), lambda i: {"y": np.exp(i["x"] * abs(i["x"]))})

    def body(x: Any, y: Any) -> None:
        y[:] = np.exp(x.astype(np.float64) * abs(x))

    assert fault_of(body, workload) is None


SUM = Contract(
    "sum",
    (Tensor("x", (COLUMNS,), "float32", "input"), Tensor("y", (), "float32", "output")),
    lambda i: {"y": i["x"].sum()},
    reduction_length=COLUMNS,
)
SCALED = Contract(
    "scaled",
    (
        Tensor("x", (COLUMNS,), "float32", "input"),
        Tensor("a", (), "float32", "input"),
        Tensor("y", (COLUMNS,), "float32", "output"),
    ),
    lambda i: {"y": i["a"] * i["x"]},
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_tensors_without_dimensions_are_inputs_and_outputs(dtype):
    one = (Tensor("x", (), dtype, "input"), Tensor("y", (), dtype, "output"))

    def body(x: Any, y: Any) -> None:
        y[...] = x

    assert fault_of(body, Contract("copy", one, lambda i: {"y": i["x"]})) is None


@pytest.mark.parametrize(("missing", "outcome"), [(0, None), (1, "elements of y (first y) is")])
def test_an_output_without_dimensions_is_compared(missing, outcome):
    def body(x: Any, y: Any) -> None:
        y[...] = x[missing:].sum(dtype=np.float64)

    found = fault_of(body, SUM)
    assert found is None if outcome is None else outcome in str(found)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_an_input_without_dimensions_is_drawn(factor):
    def body(x: Any, a: Any, y: Any) -> None:
        y[:] = a * x * np.float32(factor)

    assert (fault_of(body, SCALED) is None) == (factor == 1.0)


def is_positive(inputs: Values) -> Values:
    return {"y": inputs["x"] > 0}


@pytest.mark.parametrize("byte", [0, 1, 2, 0x80, 0xFF])
def test_the_bytes_of_a_bool_are_0_and_1(byte):
    def body(x: Any, y: Any) -> None:
        y.view(np.uint8)[:] = np.where(x > 0, np.uint8(max(byte, 1)), np.uint8(0))

    fault = fault_of(body, Contract("positive", tensors((50,), "bool"), is_positive))
    assert fault is None if byte < 2 else fault is not None and "neither 0 nor 1" in fault


def test_a_bool_that_must_be_left_as_it_was_may_be_anything():
    def masked(inputs: Values) -> Values:
        return {"y": np.ma.masked_array(inputs["x"] > 0, mask=np.arange(50) % 2 == 1)}

    def body(x: Any, y: Any) -> None:
        y[::2] = x[::2] > 0

    assert fault_of(body, Contract("masked", tensors((50,), "bool"), masked)) is None
