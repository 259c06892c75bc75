"""The memory of arrays of several libraries, with NumPy in their place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaInterface, Cupy, CupyArray, Tensor
from hypothesis import given, strategies as st

from pytest_gpuenergy.engine import overlap, overwrite

KINDS: dict[str, Callable[[Any], Any]] = {
    "NumPy": lambda data: data,
    "PyTorch": Tensor,
    "PyTorch, bfloat16": lambda data: Tensor(data, bfloat16=True),
    "CuPy": CupyArray,
    "CUDA array interface": CudaInterface,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_is_overwritten_where_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    whole = np.zeros((4, 6), np.float32)
    overwrite(KINDS[kind](whole[::2, 1:4]), np.ones((2, 3), np.float32))
    assert whole[::2, 1:4].all()
    assert whole.sum() == 6


SLICES = st.builds(slice, st.integers(0, 9), st.integers(10, 20), st.integers(1, 3))


@given(SLICES, SLICES, st.booleans(), st.booleans())
def test_slices_overlap_where_their_bounds_do(
    rows: slice, others: slice, back: bool, apart: bool
) -> None:
    whole = np.zeros((20, 4), np.float32)
    one = whole[rows][:: -1 if back else 1, 1:]
    other = (whole.copy() if apart else whole)[others, :2]
    assert overlap(CupyArray(one), CupyArray(other)) == np.may_share_memory(one, other)
    assert overlap(one, other) == np.may_share_memory(one, other)


def test_nothing_overlaps_an_empty_array() -> None:
    whole = np.zeros(5)
    assert not overlap(whole[2:2], whole)


def test_views_of_a_tensor_share_its_storage() -> None:
    whole = np.zeros((2, 3))
    assert overlap(Tensor(whole), Tensor(whole))
    assert not overlap(Tensor(whole), Tensor(whole.copy()))
