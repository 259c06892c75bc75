"""Tensor maps: what CUDA allows, and what their kernels need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.kernels import Kernel, Launch, TensorMap
from pytest_gpuenergy.support.errors import InputError, KernelFault

TILES = TensorMap("tiles", "A", "bfloat16", (100, 30), (208,), (64, 32), 128)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float128"}, "has type 'float128'"),
        ({"dims": ()}, "0 dimensions and a box of 2"),
        ({"box": (64, 32, 1)}, "2 dimensions and a box of 3"),
        ({"strides": ()}, "has 0 strides: give one for each of 2 dimensions but one"),
        ({"dims": (100.0, 30)}, "no integer"),
        ({"dims": (100, 0)}, "give 1 to 2^32 elements"),
        ({"box": (64, 257)}, "give 1 to 256 elements"),
        ({"strides": (200,)}, "multiples of 16 bytes below 2^40"),
        ({"strides": (2**40,)}, "multiples of 16 bytes below 2^40"),
        ({"strides": (192,)}, "less than a row's 200 bytes"),
        ({"box": (63, 32), "swizzle": 0}, "rows have 126 bytes: give a multiple of 16"),
        ({"swizzle": 96}, "has swizzle 96"),
        ({"swizzle": 64}, "swizzle=64 needs as many"),
    ],
)
def test_a_map_that_cuda_does_not_allow_is_refused(change, reason):
    with pytest.raises(InputError) as caught:
        replace(TILES, **change)
    assert "The tensor map 'tiles'" in str(caught.value)
    assert reason in str(caught.value)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    gap=st.integers(0, 2),
    dtype=st.sampled_from(["int8", "float16", "bfloat16", "float64"]),
)
def test_a_map_ends_with_its_last_element(rows, columns, gap, dtype):
    itemsize = TensorMap("m", "A", dtype, (1,), (), (16,)).itemsize
    pitch = -(-columns * itemsize // 16) * 16 + 16 * gap
    given_map = TensorMap("m", "A", dtype, (columns, rows), (pitch,), (16, 3))
    ends = np.arange(rows)[:, None] * pitch + (np.arange(columns) + 1) * itemsize
    assert given_map.nbytes == ends.max()
    assert given_map.box_bytes == 48 * itemsize


def test_a_kernels_identity_covers_its_maps():
    launch = Launch("k", (1, 1, 1), (1, 1, 1), ("tiles",))
    without = Kernel("void k();", (launch,))
    kernels = [replace(without, tensor_maps=(one,)) for one in (TILES, replace(TILES, box=(64, 8)))]
    assert len({kernel.digest for kernel in (without, *kernels)}) == 3


def test_a_launch_takes_a_map_of_a_tensor_that_is_there():
    launch = Launch("k", (1, 1, 1), (1, 1, 1), ("tiles", "C"))
    kernel = Kernel("void k();", (launch,), tensor_maps=(TILES,))
    kernel.check_arguments(["A", "C"], [])
    with pytest.raises(KernelFault, match="'tiles' is of 'A', which is not a tensor"):
        kernel.check_arguments(["C"], [])
