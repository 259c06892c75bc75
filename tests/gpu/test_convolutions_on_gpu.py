"""The template for convolutions on a real GPU of sm_90, in all its modes and layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import ImplicitParameters, rank_kernels
from pytest_gpuenergy.tuning import card_resources
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d

pytestmark = pytest.mark.gpu

SHAPES = {
    "one": (1, 1, 1, 1, 1, 1, 1, 1, 0),
    "pixels": (2, 5, 7, 48, 3, 1, 1, 1, 0),
    "odd": (3, 13, 11, 7, 5, 3, 2, 2, 1),
    "first": (1, 65, 63, 40, 3, 7, 7, 2, 3),
    "dilated": (1, 30, 29, 24, 16, 3, 3, 1, 2, 2),
    "grouped": (2, 28, 27, 96, 64, 3, 3, 1, 1, 1, 4),
    "odd-groups": (1, 17, 9, 33, 21, 3, 5, 3, 2, 1, 3),
    "depthwise": (1, 20, 21, 32, 32, 3, 3, 2, 1, 1, 32),
    "window": (1, 27, 27, 96, 48, 5, 5, 1, 2),
    "deep": (1, 9, 9, 72, 456, 3, 3, 1, 1),
    "wide": (1, 5, 1921, 32, 8, 3, 3, 3, 1),
    "padded": (1, 6, 6, 16, 32, 3, 3, 2, 40),
}
TRIED = 3
"""The kernels of each convolution that are verified: those that a search tries first."""


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with open_device("auto") as device:
        if not ImplicitParameters.suits(card_resources(device)):
            pytest.skip("the template implicit needs a GPU of sm_90")
        yield device


def tried(gpu: Device, conv: Conv2d) -> list[ImplicitParameters]:
    return rank_kernels(conv, card_resources(gpu))[:TRIED]


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("mode", ImplicitParameters.modes)
def test_the_first_kernels_are_right(gpu, mode, layout):
    options = {"mode": mode, "layout": layout}
    convs = [
        Conv2d.of(name, *sizes, **options, bias=number % 2 == 1, relu=number % 3 == 1)
        for number, (name, sizes) in enumerate(SHAPES.items())
    ]
    kernels = [(conv, one.kernel(conv)) for conv in convs for one in tried(gpu, conv)]
    gpu.prepare([kernel for _, kernel in kernels])  # compiled at once
    for conv, kernel in kernels:
        verified = verify_on_device(gpu, kernel, conv)
        assert verified.max_relative_error <= conv.error_bound.max_relative, conv.name


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("mode", ImplicitParameters.modes)
def test_machine_code_shows_the_tensor_cores_of_hopper(gpu, mode, layout):
    conv = Conv2d.of("dilated", *SHAPES["dilated"], mode=mode, layout=layout)
    kernel = tried(gpu, conv)[0].kernel(conv)
    assert gpu.tensor_core_instructions(Job.of(kernel, conv)) == {"HGMMA"}


def test_tensor_cores_are_refused_in_float32(gpu):
    conv = Conv2d.of("odd", *SHAPES["odd"], mode="3xtf32")
    kernel = tried(gpu, conv)[0].kernel(conv)
    with pytest.raises(
        KernelFault, match=r"tensor cores \(HGMMA\), but odd is declared as float32"
    ):
        verify_on_device(gpu, kernel, conv.varied(mode="float32"))
