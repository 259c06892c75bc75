"""Inputs with edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from pytest_gpuenergy.workloads import Contract, Edges, Tensor, is_floating, numbers

TYPES = st.sampled_from(
    ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint64", "bool"]
)
SHAPES = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
EDGES = st.builds(
    Edges, st.sampled_from([-1, 1]), st.sampled_from([2.0, 128.0]), st.booleans(), st.booleans()
)
OUTPUT = Tensor("y", (1,), "float32", "output")


def drawn(tensor: Tensor, seed: int, edges: Edges, **options: Any) -> Any:
    workload = Contract("w", (tensor, OUTPUT), dict, **options)
    return workload.draw_inputs(seed, edges)["x"]


@given(SHAPES, TYPES, st.integers(0, 2**32), EDGES)
def test_they_are_of_the_tensors_type_and_the_same_for_a_seed(shape, dtype, seed, edges):
    tensor = Tensor("x", shape, dtype, "input")
    values = drawn(tensor, seed, edges)
    assert values.shape == shape
    assert values.dtype == (np.uint16 if dtype == "bfloat16" else np.dtype(dtype))
    np.testing.assert_array_equal(values, drawn(tensor, seed, edges))
    if is_floating(dtype):
        assert (np.abs(numbers(values, dtype).astype(np.float64)) <= 129).all()


@given(SHAPES, st.sampled_from(["float32", "bfloat16", "int8", "int64"]), st.integers(0), EDGES)
def test_the_first_tensor_has_one_sign(shape, dtype, seed, edges):
    values = numbers(drawn(Tensor("x", shape, dtype, "input"), seed, edges), dtype)
    assert ((values <= 0) if edges.sign < 0 else (values >= 0)).all()


@given(
    st.sampled_from(["float32", "int16", "uint8"]),
    st.integers(0, 2**32),
    EDGES,
    st.integers(0, 100),
    st.integers(1, 100),
)
def test_they_keep_to_the_range_of_their_workload(dtype, seed, edges, low, width):
    init = {"x": (low, low + width)}
    values = drawn(Tensor("x", (40,), dtype, "input"), seed, edges, init=init)
    assert (values >= low).all()
    assert (values <= low + width).all()
    assert np.dtype(dtype).kind == "f" or (values < low + width).all()


def test_without_zeros_there_is_none():
    tensor = Tensor("x", (10_000,), "float32", "input")
    assert (drawn(tensor, 0, Edges(1, 128.0, True)) == 0).any()
    assert (drawn(tensor, 0, Edges(1, 128.0, False)) != 0).all()


def test_values_are_large_tiny_and_repeated():
    values = drawn(Tensor("x", (1000,), "float32", "input"), 0, Edges(1, 128.0, False))
    assert values.max() > 120
    assert values.min() < 1e-3
    assert np.unique(values, return_counts=True)[1].max() > 20


def test_some_rows_and_columns_are_large_throughout():
    values = drawn(Tensor("x", (40, 50), "float32", "input"), 0, Edges(-1, 128.0, False))
    assert (values <= -64).all(axis=0).any()
    assert (values <= -64).all(axis=1).any()
    assert (values > -3).any()


def test_integers_reach_the_ends_of_their_type():
    tensors = (Tensor("a", (4,), "bool", "input"), Tensor("x", (500,), "int32", "input"))
    values = Contract("w", (*tensors, OUTPUT), dict).draw_inputs(0, Edges(1, 2.0, True))["x"]
    assert {-(2**31), 2**31 - 1, 0, 1, -1} <= set(values.tolist())
