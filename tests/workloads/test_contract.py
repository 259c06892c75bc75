"""A workload given by its tensors and a function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import Array, Contract, ErrorBound, Scalar, Tensor

X = Tensor("x", (2, 3), "float32", "input")
Y = Tensor("y", (2, 3), "float32", "output")


def double(inputs: Mapping[str, Array]) -> Mapping[str, Any]:
    return {"y": 2.0 * inputs["x"]}


def contract(*tensors: Tensor, **options: Any) -> Contract:
    return Contract("mine", tensors or (X, Y), options.pop("compute", double), **options)


def test_reference_is_the_function_in_float64():
    inputs = contract().make_inputs(0)
    output = contract().reference(inputs)["y"]
    assert output.dtype == np.float64
    np.testing.assert_array_equal(output, 2 * inputs["x"].astype(np.float64))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_integer_inputs_take_up_their_whole_type(dtype):
    index = Tensor("i", (10_000,), dtype, "input")
    values = contract(index, Y).make_inputs(0)["i"]
    limits = np.iinfo(dtype)
    width = float(limits.max) - float(limits.min)
    assert values.dtype == np.dtype(dtype)
    assert float(values.min()) < limits.min + width / 100
    assert float(values.max()) > limits.max - width / 100


@pytest.mark.parametrize(
    ("dtype", "given"),
    [("float16", "float16"), ("bfloat16", "uint16"), ("int32", "int32")],
)
def test_floating_inputs_reach_the_function_as_float64(dtype, given):
    seen: dict[str, Array] = {}

    def compute(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        seen.update(inputs)
        return {"y": inputs["x"]}

    workload = contract(replace(X, dtype=dtype), Y, compute=compute)
    inputs = workload.make_inputs(0)
    workload.reference(inputs)
    assert (inputs["x"].dtype, seen["x"].dtype) == (given, dtype if dtype == "int32" else "float64")
    if dtype == "bfloat16":
        assert 0.1 < np.abs(seen["x"]).max() < 5.0


I8 = Tensor("i", (4,), "uint8", "input")
REFUSED: list[tuple[tuple[Tensor, ...], dict[str, Any], str]] = [
    ((X, X, Y), {}, "'mine' share a name"),
    ((X, Y), {"values": (Scalar("x", "int32", 1),)}, "share a name"),
    ((X,), {}, "'mine' needs a tensor with the role 'output'"),
    *(
        ((replace(X, dtype=dtype), Y), {}, r"'x' .*type")
        for dtype in ("float23", "", "str", "object", "complex64")
    ),
    *(
        ((replace(X, shape=shape), Y), {}, r"'x' .*shape")
        for shape in ((0,), (2, -1), (2.0,), (True,))
    ),
    *(
        ((X, Y), {"accumulator": accumulator}, r"has the accumulator .*: give float16, bf")
        for accumulator in ("int32", "tf32", "", 16)
    ),
    ((X, replace(Y, bound="tight")), {}, "'y' .* has the bound 'tight': give a number from 0"),
    ((X, replace(Y, bound=1)), {}, r"'y' .*ErrorBound\(steps=1\)"),
    ((X, replace(Y, bound=ErrorBound(steps=1))), {}, "'y' .* steps, which are for integers"),
    ((replace(X, bound=1e-3), Y), {}, "'x' .* is an input and has a bound"),
    ((X, Y), {"bound": -1e-3}, "'mine' has the bound -0.001"),
    ((X, Y), {"bound": 5}, "has the bound 5: give a number from 0"),
    ((X, Y), {"bound": ErrorBound(steps=2)}, "'mine' .* steps, .* give it to the tensor"),
    ((X, replace(Y, role="outputs")), {}, "'mine' needs a tensor with the role 'output'"),
    ((replace(X, role="read"), Y), {}, "'read': give input, output, inout, workspace"),
    ((X, I8, Y), {"init": {"y": (0, 1)}}, r"has 'y': give names of inputs \(x, i\)"),
    ((X, Y), {"init": {"x": (1.0, 1.0)}}, "numbers that float32 can represent, the smaller one"),
    *(
        ((X, Y), {"init": {"x": own}}, "the range")
        for own in ((0.0, math.inf), (0.0, math.nan), 1.0, ("a", "b"))
    ),
    *(
        ((X, I8, Y), {"init": {"i": own}}, "numbers that uint8 can represent")
        for own in ((0, 300), (-1, 3), (0.5, 3))
    ),
]


@pytest.mark.parametrize(("tensors", "options", "message"), REFUSED)
def test_a_contract_that_makes_no_sense_is_refused(tensors, options, message):
    with pytest.raises(InputError, match=message):
        contract(*tensors, **options)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returns NoneType instead of a mapping"),
        ({}, "does not return 'y'"),
        ({"y": np.zeros((3, 2))}, r"shape \(3, 2\) instead of \(2, 3\)"),
    ],
    ids=["none", "empty", "shape"],
)
def test_a_reference_of_another_form_is_refused(result, message):
    workload = contract(compute=lambda _: result)
    with pytest.raises(InputError, match=message):
        workload.reference(workload.make_inputs(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (partial(ErrorBound, **numbers), "An ErrorBound cannot have")
            for numbers in (
                {"steps": -1},
                {"steps": 0.5},
                {"max_relative": math.nan},
                {"share": "all"},
            )
        ),
        *(
            (partial(Scalar, "n", dtype, value), message)
            for dtype, value, message in (
                ("int33", 3, "has type 'int33': give one such as float32"),
                ("object", 3, "has type"),
                ("int32", 2**31, "has value 2147483648: give a number that int32 can represent"),
                ("uint8", -1, "give a number that uint8 can represent"),
                ("int32", 1.5, "give a number that int32 can represent"),
                ("float32", "abc", "has value 'abc': give a number that float32 can represent"),
                *(
                    ("bfloat16", value, "give a number that bfloat16 can represent")
                    for value in (3.4e38, -3.4e38, 1e39, 2**128)
                ),
            )
        ),
    ],
)
def test_a_bound_or_scalar_of_impossible_numbers_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_parameters_tell_types_and_scalars():
    workload = contract(values=(Scalar("alpha", "float32", 1.5),))
    assert workload.parameters == {
        "kind": "contract",
        "x": "float32[2,3]",
        "y": "float32[2,3]",
        "alpha": "1.5",
    }


def test_a_function_has_no_digest():
    assert contract().digest is None


def test_workspaces_are_neither_inputs_nor_outputs():
    workload = contract(X, Y, Tensor("space", (8,), "float32", "workspace"))
    assert [tensor.name for tensor in (*workload.inputs, *workload.outputs)] == ["x", "y"]


@pytest.mark.parametrize("inputs", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("output", ["float16", "bfloat16", "float32", "float64"])
def test_the_bound_of_an_output_does_not_depend_on_the_inputs_types(inputs, output):
    out = replace(Y, dtype=output)
    bound = contract(replace(X, dtype=inputs), out, reduction_length=64).bound_of(out)
    assert bound == ErrorBound.for_reduction(64, output)


def test_each_output_has_the_bound_of_its_own_type():
    half, double = replace(Y, name="h", dtype="float16"), replace(Y, name="d", dtype="float64")
    bounds = contract(X, half, double, reduction_length=64).io.bounds
    assert bounds["h"] == ErrorBound.for_reduction(64, "float16")
    assert bounds["d"] == ErrorBound.for_reduction(64, "float64")


def test_the_accumulator_can_be_declared():
    bound = contract(reduction_length=64, accumulator="float16").bound_of(Y)
    assert bound == ErrorBound.for_reduction(64, "float32", "float16")


def test_integer_outputs_of_floating_inputs_are_exact():
    count = Tensor("y", (4,), "int32", "output")
    workload = contract(X, count, reduction_length=1 << 20)
    assert workload.error_bound == workload.bound_of(count) == ErrorBound(0.0, 0.0)
    mixed = contract(X, Y, replace(count, name="n"), reduction_length=64)
    assert mixed.bound_of(replace(count, name="n")) == ErrorBound(0.0, 0.0)
    assert mixed.bound_of(Y) == mixed.error_bound == ErrorBound.for_reduction(64)


def test_a_bound_of_its_own_is_that_of_all_floating_point_outputs():
    own = ErrorBound(0.01, 0.001)
    count = Tensor("n", (4,), "int8", "output")
    workload = contract(X, Y, count, bound=own)
    assert [workload.error_bound, workload.bound_of(Y)] == [own] * 2
    assert workload.bound_of(count) == ErrorBound()


def test_a_tensors_bound_comes_before_that_of_all():
    scale = replace(Y, name="s", bound=ErrorBound(2e-6, 1e-6))
    workload = contract(X, Y, scale, bound=0.25)
    assert workload.bound_of(Y) == ErrorBound(0.25, 0.25)
    assert workload.bound_of(scale) == ErrorBound(2e-6, 1e-6)
    assert workload.io.bounds["s"] == ErrorBound(2e-6, 1e-6)


def test_inputs_can_have_a_range():
    indices = Tensor("i", (500,), "int32", "input")
    positive = Tensor("x", (500,), "float32", "input")
    workload = contract(positive, indices, Y, init={"x": (0.5, 2), "i": (3, 6)})
    inputs = workload.make_inputs(0)
    assert inputs["x"].dtype == np.float32
    assert (inputs["x"] >= 0.5).all()
    assert (inputs["x"] < 2).all()
    assert set(inputs["i"].tolist()) == {3, 4, 5}
    assert workload.parameters["x"] == "float32[500] in [0.5, 2)"


def test_booleans_are_either():
    workload = contract(Tensor("x", (100,), "bool", "input"), Y)
    assert 30 < workload.make_inputs(0)["x"].sum() < 70


@pytest.mark.parametrize("name", ["", "../up", "a" * 101, "two words", "-x"])
def test_a_name_that_cannot_be_part_of_a_file_name_is_refused(name):
    with pytest.raises(InputError, match="A workload cannot be called"):
        Contract(name, (X, Y), double)


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 2), ("float64", float("inf")), ("bool", True), ("int8", -128)]
)
def test_a_scalar_holds_what_its_type_holds(dtype, value):
    assert Scalar("n", dtype, value).value == value


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("float16", 1.01, 0x3C0A),
        ("bfloat16", 1.01, 0x3F81),
        ("bfloat16", np.float32(3.3e38), 0x7F78),
        ("bfloat16", float("-inf"), 0xFF80),
        ("uint16", np.uint16(0xFFFF), 0xFFFF),
    ],
)
def test_a_scalar_is_passed_as_the_bits_of_its_type(dtype, value, bits):
    assert int(Scalar("n", dtype, value).stored.view(np.uint16)) == bits


@pytest.mark.parametrize("shape", [[2, 3], np.array([2, 3]), (np.int64(2), np.uint8(3))], ids=repr)
def test_a_shape_is_a_tuple_of_ints_whatever_it_was_given_as(shape):
    workload = contract(
        Tensor("x", shape, "float32", "input"), Tensor("y", shape, "float32", "output")
    )
    assert [(t.shape, {*map(type, t.shape)}) for t in workload.tensors] == [((2, 3), {int})] * 2
    assert workload.reference(workload.make_inputs(0))["y"].shape == (2, 3)


@pytest.mark.parametrize("flops", [2_000_000, 2e6, np.int64(2_000_000), np.float32(2e6)])
def test_operations_are_counted_in_whole_numbers(flops):
    found = contract(flops=flops).flops
    assert (found, type(found)) == (2_000_000, int)


@pytest.mark.parametrize(
    "flops", [-1, 0.5, math.nan, math.inf, 10**400, "2e6", None, True, 2j, np.float64("nan")]
)
def test_other_numbers_of_operations_are_refused(flops):
    with pytest.raises(
        InputError, match=r"these flops .*: give the number of operations of one run"
    ):
        contract(flops=flops)
