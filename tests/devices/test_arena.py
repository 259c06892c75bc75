"""Arenas: a tensor between two guard bands, in a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from pytest_gpuenergy.devices import GUARD_BYTES, Arena, Device
from pytest_gpuenergy.workloads import Tensor

X = Tensor("x", (3, 5), "float32", "input")
TYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, max_side=6)


@given(st.data(), st.sampled_from(TYPES), SHAPES)
def test_a_value_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    dtype: str,
    shape: tuple[int, ...],
) -> None:
    value = data.draw(hnp.arrays(dtype, shape))
    path = tmp_path_factory.getbasetemp() / "arena"
    arena = Arena.create(path, Tensor("x", shape, dtype, "input"), value)
    assert arena.value().tobytes() == value.tobytes()
    assert (arena.value().shape, arena.value().dtype) == (value.shape, value.dtype)


@given(SHAPES, st.sampled_from(TYPES))
def test_guards_surround_the_tensor(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], dtype: str
) -> None:
    tensor = Tensor("x", shape, dtype, "input")
    path = tmp_path_factory.getbasetemp() / "arena"
    arena = Arena.create(path, tensor, np.zeros(shape, dtype))
    image = arena.image()
    assert len(image) % 256 == 0
    end = GUARD_BYTES + tensor.nbytes
    assert not image[GUARD_BYTES:end].any()
    for band in (image[:GUARD_BYTES], image[end:]):
        assert not np.isin(band, (0, 0xFF)).any()
    for floats in ("float16", "float32", "float64"):
        assert np.isnan(image[:GUARD_BYTES].view(floats)).all()
    assert len(image) - end >= GUARD_BYTES


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_without_a_value_a_tensor_is_nan_everywhere(tmp_path: Path, dtype: str) -> None:
    arena = Arena.create(tmp_path / "x", Tensor("x", (4, 4), dtype, "output"))
    assert np.isnan(arena.value()).all()


def test_a_value_is_stored_row_major(tmp_path: Path) -> None:
    value = np.arange(15, dtype=np.float32).reshape(5, 3).T
    assert (Arena.create(tmp_path / "x", X, value).value() == value).all()


@pytest.mark.parametrize("value", [np.zeros((5, 3), np.float32), np.zeros((3, 5))], ids=repr)
def test_a_value_of_another_shape_or_type_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^(\(5, 3\) is not the beginning of \(3, 5\)|x is float32, not float64)$"
    ):
        Arena.create(tmp_path / "x", X, value)


def test_the_value_is_a_copy(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "x", X, np.ones(X.shape, np.float32))
    arena.value()[:] = 5
    assert (arena.value() == 1).all()


def test_the_image_can_be_read_only(tmp_path: Path) -> None:
    image = Arena.create(tmp_path / "x", X).image()
    with pytest.raises(ValueError, match="read-only"):
        image[0] = 0


def test_a_writable_image_changes_the_tensor(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "x", X, np.ones(X.shape, np.float32))
    arena.image(writable=True)[GUARD_BYTES : GUARD_BYTES + 4] = 0
    assert arena.value()[0, 0] == 0


def test_leaving_a_device_closes_it() -> None:
    closed: list[bool] = []
    device = cast(Device, SimpleNamespace(close=lambda: closed.append(True)))
    Device.__exit__(Device.__enter__(device), None, None, None)
    assert closed == [True]
