"""A real GPU loads by im2col what the PTX ISA says, as the emulated one does."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from im2col_loads import Im2colLoad, im2col_loads

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.workloads import Array, Contract, Tensor

pytestmark = pytest.mark.gpu
OTHERS_EACH_TIME = settings(derandomize=False, database=None)
"""A card has few runs, so that each of them draws other loads."""


def verify(gpu: Device, load: Im2colLoad) -> None:
    def box(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": load.box(inputs["T"])}

    given_map = load.tensor_map
    count = given_map.nbytes // given_map.itemsize
    workload = Contract(
        "im2col",
        (
            Tensor("T", (count,), given_map.dtype, "input"),
            Tensor("y", (math.prod(given_map.box),), given_map.dtype, "output"),
        ),
        box,
        values=tuple(load.scalars.values()),
    )
    verify_on_device(gpu, load.kernel, workload)


@settings(OTHERS_EACH_TIME, max_examples=25)
@given(load=im2col_loads())
def test_pixels_of_a_convolution_are_loaded(gpu, load):
    verify(gpu, load)


@settings(OTHERS_EACH_TIME, max_examples=10)
@given(load=im2col_loads(on_stride=False))
def test_a_load_may_begin_anywhere_in_the_bounding_box(gpu, load):
    verify(gpu, load)
