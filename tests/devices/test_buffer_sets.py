"""Where the sets of buffers lie."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from pytest_gpuenergy.devices import (
    GUARD_BYTES,
    MAX_PLACEMENTS,
    MAX_SETS,
    PAGE_BYTES,
    Arena,
    Device,
    Work,
    placements,
    pool_bytes,
    scattered_offsets,
    set_layout,
    sets_needed,
)
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, Traffic, kernel_demand
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

MIB = 1 << 20
SIZES = st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=24)


@given(st.integers(0, 1 << 36))
def test_small_buffers_take_many_places_and_large_ones_little_memory(set_bytes):
    sets = placements(set_bytes)
    assert 1 <= sets <= MAX_PLACEMENTS
    assert sets == 1 or sets * set_bytes <= 1024 * MIB
    assert sets == MAX_PLACEMENTS or (sets + 1) * set_bytes > 1024 * MIB


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 4 * MIB), max_size=6))
def test_buffers_of_a_piece_do_not_overlap_and_large_ones_have_their_own(sizes):
    found = set_layout(sizes)
    assert sorted(name for piece in found for name in piece) == sorted(sizes)
    for piece in found:
        assert len(piece) == 1 or all(sizes[name] < MIB for name in piece)
        spans = sorted((at, at + sizes[name]) for name, at in piece.items())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert all(at % 512 == 0 for at in piece.values())
    assert len(found) <= 1 + sum(size >= MIB for size in sizes.values())


@given(SIZES, st.integers(0, 1 << 38), st.integers(0))
def test_scattered_pieces_lie_in_the_pool_on_pages_of_their_own(sizes, free_bytes, seed):
    pool = pool_bytes(sizes, free_bytes)
    found = scattered_offsets(sizes, pool, np.random.default_rng(seed))
    spans = sorted((at, at + size) for at, size in zip(found, sizes, strict=True))
    assert all(at % PAGE_BYTES == 0 for at in found)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[0][0] >= 0
    assert spans[-1][1] <= pool


@given(SIZES, st.integers(0, 1 << 38))
def test_a_pool_leaves_memory_to_others(sizes, free_bytes):
    needed = sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)
    more = pool_bytes(sizes, free_bytes) - needed
    assert 0 <= more <= max(0, free_bytes - needed) / 4
    assert more <= 3 << 30


def test_places_are_anywhere_and_differ_from_process_to_process():
    sizes = [3 * MIB] * MAX_PLACEMENTS
    pool = pool_bytes(sizes, 1 << 37)
    found = [scattered_offsets(sizes, pool, np.random.default_rng(seed)) for seed in range(200)]
    assert len({tuple(places) for places in found}) == 200
    first = np.array([places[0] for places in found]) / pool
    assert abs(first.mean() - 0.5) < 0.1
    assert abs(first.std() - 12**-0.5) < 0.05


def test_nothing_takes_no_memory():
    assert pool_bytes([], 1 << 37) == 0
    assert scattered_offsets([], 0, np.random.default_rng(0)) == []


@given(st.integers(13_000, 1 << 36), st.integers(MIB, 50 * MIB))
def test_what_comes_between_two_uses_of_a_set_fills_the_cache_twice(set_bytes, l2_bytes):
    sets = sets_needed(set_bytes, l2_bytes)
    assert 2 <= sets <= MAX_SETS
    assert (sets - 1) * set_bytes >= 2 * l2_bytes
    assert (sets - 2) * set_bytes < 2 * l2_bytes


@pytest.mark.parametrize("set_bytes", [0, 1, 4096])
def test_buffers_too_small_are_refused(set_bytes):
    with pytest.raises(KernelFault, match="use --gpuenergy-cache hot, or a larger") as raised:
        sets_needed(set_bytes, 50 * MIB)
    assert raised.value.outcome == "constraints"


LAUNCH = Launch("f", (1000, 1, 1), (128, 1, 1), ())
TRAFFIC = Traffic(
    global_read_bytes=1e4, global_loads=80, global_sectors=320, l2_sectors=320, private_words=1
)


def test_modelled_memory_serves_a_cold_cache_and_not_a_hot_one():
    kernel, work = Kernel('extern "C" __global__ void f() {}', (LAUNCH,)), Work(10**6, 10 * MIB)
    hot, cold = (
        kernel_demand(kernel, work, [TRAFFIC], DEFAULT_PROFILE, cache=state)
        for state in ("hot", "cold")
    )
    assert (hot.memory_power, cold.memory_power > 0) == (0.0, True)
    assert cold.power_w * cold.time_s > hot.power_w * hot.time_s


def test_figures_recorded_hot_say_nothing_of_a_cold_cache():
    recorded = RecordedFigures(DEFAULT_PROFILE.name, 700.0, 5.0, 400.0, 2000.0)
    kernel = Kernel('extern "C" __global__ void f() {}', (LAUNCH,), recorded=(recorded,))
    work = Work(10**6, 10 * MIB)
    cold = kernel_demand(kernel, work, [TRAFFIC], DEFAULT_PROFILE, cache="cold")
    assert kernel_demand(kernel, work, None, DEFAULT_PROFILE).time_s == 5e-3
    assert cold.time_s < 1e-3


X = Tensor("x", (3, 5), "float32", "input")
TYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, max_side=6)


@given(st.data(), st.sampled_from(TYPES), SHAPES)
def test_a_value_comes_back(tmp_path_factory, data, dtype, shape):
    value = data.draw(hnp.arrays(dtype, shape))
    path = tmp_path_factory.getbasetemp() / "arena"
    arena = Arena.create(path, Tensor("x", shape, dtype, "input"), value)
    assert arena.value().tobytes() == value.tobytes()
    assert (arena.value().shape, arena.value().dtype) == (value.shape, value.dtype)


@given(SHAPES, st.sampled_from(TYPES))
def test_guards_surround_the_tensor(tmp_path_factory, shape, dtype):
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
def test_without_a_value_a_tensor_is_nan_everywhere(tmp_path, dtype):
    arena = Arena.create(tmp_path / "x", Tensor("x", (4, 4), dtype, "output"))
    assert np.isnan(arena.value()).all()


def test_a_value_is_stored_row_major(tmp_path):
    value = np.arange(15, dtype=np.float32).reshape(5, 3).T
    assert (Arena.create(tmp_path / "x", X, value).value() == value).all()


@pytest.mark.parametrize("value", [np.zeros((5, 3), np.float32), np.zeros((3, 5))], ids=repr)
def test_a_value_of_another_shape_or_type_is_refused(tmp_path, value):
    with pytest.raises(
        ValueError, match=r"^(\(5, 3\) is not the beginning of \(3, 5\)|x is float32, not float64)$"
    ):
        Arena.create(tmp_path / "x", X, value)


def test_the_value_is_a_copy(tmp_path):
    arena = Arena.create(tmp_path / "x", X, np.ones(X.shape, np.float32))
    arena.value()[:] = 5
    assert (arena.value() == 1).all()


def test_the_image_can_be_read_only(tmp_path):
    image = Arena.create(tmp_path / "x", X).image()
    with pytest.raises(ValueError, match="read-only"):
        image[0] = 0


def test_a_writable_image_changes_the_tensor(tmp_path):
    arena = Arena.create(tmp_path / "x", X, np.ones(X.shape, np.float32))
    arena.image(writable=True)[GUARD_BYTES : GUARD_BYTES + 4] = 0
    assert arena.value()[0, 0] == 0


def test_leaving_a_device_closes_it():
    closed: list[bool] = []
    device = cast(Device, SimpleNamespace(close=lambda: closed.append(True)))
    Device.__exit__(Device.__enter__(device), None, None, None)
    assert closed == [True]
