"""Large tensors are made of their beginning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.workloads import (
    Contract,
    Edges,
    Tensor,
    Workload,
    beginning,
    repeated,
    write_repeated,
)

LIMIT = 1000
SHAPES = (
    st.lists(st.integers(1, 12) | st.integers(13, 1500), min_size=1, max_size=4)
    .map(tuple)
    .filter(lambda shape: LIMIT < math.prod(shape) < 20 * LIMIT)
)


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuenergy.workloads.inputs.DRAWN_ELEMENTS", LIMIT)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)


def whole(shape: tuple[int, ...]) -> np.ndarray:
    return repeated(beginning(shape, numbered), shape)


def period_of(shape: tuple[int, ...]) -> int:
    return beginning(shape, numbered).size


@given(SHAPES)
def test_they_have_the_shape_asked_for(shape):
    assert whole(shape).shape == shape


@given(SHAPES)
def test_what_is_drawn_comes_first_and_then_only_its_rows(shape):
    first, row = beginning(shape, numbered), beginning(shape, numbered).shape[1:]
    values = whole(shape).reshape(-1, *row)
    np.testing.assert_array_equal(values[: first.shape[0]], first)
    rows = {one.tobytes() for one in first}
    assert {one.tobytes() for one in values} == rows


def filled(columns: int, seed: int) -> np.ndarray:
    """Rows of small numbers: enough to tell most of them apart."""
    draw = np.random.default_rng(seed)
    shape = (5000, columns)
    return repeated(beginning(shape, lambda part: draw.integers(0, 1 << 20, part)), shape)


@given(st.integers(2, 10), st.integers(0, 2**32))
def test_no_period_follows_from_the_shape(columns, seed):
    period = beginning((5000, columns), numbered).shape[0]
    values = filled(columns, seed)
    for copies in (1, 2, 4):
        same = (values[: -copies * period] == values[copies * period :]).all(axis=1)
        assert same.mean() < 0.75, f"most rows are those {copies} * {period} earlier"


def test_other_values_have_their_repetitions_elsewhere():
    period = beginning((5000, 2), numbered).shape[0]
    starts = set()
    for seed in range(8):
        values = filled(2, seed)
        starts.add(int((values[:period] == values[period]).all(axis=1).argmax()))
    assert len(starts) > 4


class CountedWrites(np.ndarray):
    """Counts how often elements are written, which takes a launch each in a GPU's memory."""

    writes = 0

    def __setitem__(self, where: Any, value: Any) -> None:
        CountedWrites.writes += 1
        super().__setitem__(where, value)


def test_a_beginning_of_two_numbers_takes_few_writes():
    values = np.zeros(100_001).view(CountedWrites)
    CountedWrites.writes = 0
    write_repeated(np.array([1.0, 2.0]), values)
    assert set(values.tolist()) == {1.0, 2.0}
    assert CountedWrites.writes < 40


@given(SHAPES)
def test_almost_as_much_is_drawn_as_may_be(shape):
    assert 0.8 * LIMIT < period_of(shape) <= LIMIT


@given(SHAPES, st.integers(1, 12))
def test_no_tile_or_power_of_two_is_a_period(shape, exponent):
    values = whole(shape).reshape(-1)
    assert (np.roll(values, 2**exponent % values.size or 1) != values).any()
    assert 2**exponent % period_of(shape)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple))
def test_small_ones_are_drawn_as_a_whole(shape):
    np.testing.assert_array_equal(whole(shape), numbered(shape))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("edges", [None, Edges(1, 8.0, zeros=True)])
def test_a_workload_draws_large_inputs_quickly(dtype, edges):
    tensors = (Tensor("x", (600, 5), dtype, "input"), Tensor("y", (1,), dtype, "output"))
    workload: Workload = Contract("large", tensors, dict)
    x = workload.make_inputs(0)["x"]
    if edges is not None:
        x = repeated(workload.draw_inputs(0, edges)["x"], x.shape)
    rows = 199  # the largest prime number of rows of 5 that make up no more than 1000
    assert {row.tobytes() for row in x[rows:]} <= {row.tobytes() for row in x[:rows]}


@pytest.mark.parametrize("first", [np.empty(0), np.ones(9), np.ones((2, 3))])
def test_what_is_no_beginning_is_refused(first):
    with pytest.raises(ValueError, match="is not the beginning of"):
        write_repeated(first, np.empty((4, 2)))
