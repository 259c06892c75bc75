"""Bulk copies by im2col: pixels that a convolution multiplies, loaded to shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from im2col_loads import Im2colLoad, im2col_loads
from outcomes import raises

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Im2col, TensorMap
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow

# 3x3 filter, padding 1, stride 2: the corner lies at -1, 1, 3, 5 of 8 columns.
IMAGES = TensorMap(
    "map", "T", "float32", (8, 8, 6, 2), (32, 256, 1536), (8, 16), 32,
    Im2col((-1, -1), (-1, -1), (2, 2)),
)  # fmt: skip
LOAD = Im2colLoad(IMAGES, (0, 3, 1, 0), (2, 1))


def _arenas(folder, load, tensor, *, count=None):
    given_map = load.tensor_map
    count = count or given_map.box[0] * given_map.box[1]
    arenas = {"y": Arena.create(folder / "y", Tensor("y", (count,), given_map.dtype, "output"))}
    described = Tensor("T", tensor.shape, given_map.dtype, "input")
    return arenas | {"T": Arena.create(folder / "T", described, tensor)}


def _tensor(load, seed=0):
    given_map = load.tensor_map
    count = given_map.nbytes // given_map.itemsize
    return np.random.default_rng(seed).integers(1, 1000, count).astype(given_map.dtype)


@pytest.mark.parametrize("checked", [False, True])
@settings(max_examples=20, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    load=st.booleans().flatmap(lambda on: im2col_loads(on_stride=on)), seed=st.integers(0, 2**32)
)
def test_pixels_are_loaded_as_ptx_says(runner, tmp_path, checked, load, seed):
    tensor = _tensor(load, seed)
    arenas = _arenas(tmp_path, load, tensor)
    if checked:
        runner.check_races(load.kernel, arenas, load.scalars, timeout_s=20.0)
    else:
        runner.run(load.kernel, arenas, load.scalars, timeout_s=20.0)
        np.testing.assert_array_equal(arenas["y"].value(), load.box(tensor))


def test_only_what_is_read_of_the_tensor_is_traffic(runner, tmp_path):
    load = replace(LOAD, offsets=(0, 0))  # rows and columns -1 are outside
    arenas = _arenas(tmp_path, load, _tensor(load))
    (profile,) = runner.check_races(load.kernel, arenas, load.scalars, timeout_s=20.0)
    inside = np.count_nonzero(load.box(np.ones(IMAGES.nbytes // 4, np.float32)))
    assert profile.traffic.global_read_bytes == 4 * inside
    assert 0 < inside < np.prod(IMAGES.box)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first": (0, 7, 1, 0)}, "pixels from 7 on in dimension 1, .* goes from -1 to 6"),
        ({"first": (0, 3, -2, 0)}, "pixels from -2 on in dimension 2, .* goes from -1 to 4"),
        ({"first": (2, 3, 1, 0)}, "begins 8 bytes into a row, which is no multiple of 16"),
        ({"first": (-3, 3, 1, 0)}, "begins -12 bytes into a row, which is no multiple of 16"),
        ({"offsets": (256, 0)}, "an offset of 256 in dimension 1: 0 to 255 are possible"),
        ({"offsets": (0, 65535)}, "an offset of 65535 in dimension 2: 0 to 255 are possible"),
        ({"tensor_map": replace(IMAGES, im2col=None, box=(8, 4, 4, 1))},
         "copies pixels with a tensor map that is not of im2col"),
        ({"first": (0, 0, 0), "offsets": (0,)}, "tiles of 3 dimensions with a tensor map of 4"),
        ({"tensor_map": replace(IMAGES, box=(16, 1024), swizzle_bytes=0)},
         "not all in shared memory"),
    ],
)  # fmt: skip
def test_a_load_that_cannot_be_made_is_a_fault_with_its_reason(runner, tmp_path, change, reason):
    load = replace(LOAD, **change)
    arenas = _arenas(tmp_path, load, _tensor(load), count=1 << 13)
    with raises("runtime" if "memory" not in reason else "correctness", reason):
        runner.run(load.kernel, arenas, load.scalars, timeout_s=20.0)
