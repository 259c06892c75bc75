"""The templates for convolutions on tensor cores, on a real GPU, in all modes that it has."""

from __future__ import annotations

import pytest
from offered_kernels import verify_offered

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import TEMPLATES, rank_kernels
from pytest_gpuenergy.tuning import TemplateParameters, card_resources
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d

pytestmark = pytest.mark.gpu

CONV_MODES = ("3xtf32", "tf32", "float16", "bfloat16")
SIZES = [
    pytest.param((1, 56, 56, 64, 64, 3, 3, 1, 1), id="3x3"),
    pytest.param((2, 27, 31, 40, 24, 5, 3, 2, 2, 1, 4), id="groups-stride-2"),
    pytest.param((1, 61, 43, 33, 3, 7, 7, 2, 3), id="first-layer"),
    pytest.param((1, 7, 7, 256, 4104, 1, 1, 1, 0), id="long-sums"),
    pytest.param((3, 19, 17, 30, 15, 2, 3, 1, 4, 3, 5), id="odd-dilation-3"),
]
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
    "narrow": (2, 23, 25, 5, 70, 3, 3, 2, 1, 2),
    "wide": (1, 5, 1921, 32, 8, 3, 3, 3, 1),
    "padded": (1, 6, 6, 16, 32, 3, 3, 2, 40),
    "one-of-nine": (2, 40, 37, 24, 33, 1, 1, 3, 1),
    "one-of-four": (2, 31, 30, 24, 36, 3, 3, 2, 3, 2),
    "two-of-five": (1, 61, 62, 40, 20, 2, 2, 5, 0),
    "tall": (2, 40, 37, 72, 4, 7, 1, 1, 7, 2),
}
TRIED = 3
"""The kernels of each convolution that are verified: those that a search tries first."""
INSTRUCTIONS = {"implicit": "HGMMA", "implicit_mma": "HMMA"}
TYPES = {"3xtf32": "TF32", "tf32": "TF32", "float16": "F16", "bfloat16": "BF16"}


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("mode", CONV_MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_offered_parameters_are_right(gpu, sizes, mode, layout):
    options = {"mode": mode, "layout": layout, "bias": True, "relu": True}
    verify_offered(gpu, Conv2d.of("c", *sizes, **options))


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("mode", CONV_MODES)
@pytest.mark.parametrize("template", INSTRUCTIONS)
def test_machine_code_shows_which_tensor_cores_are_used(gpu, template, mode, layout):
    conv, kind = (
        Conv2d.of("c", 1, 9, 9, 32, 32, 3, 3, 1, 1, mode=mode, layout=layout),
        TEMPLATES[template],
    )
    if not kind.suits(card_resources(gpu)):
        pytest.skip(f"the template {template} has no kernels for this card")
    kernel = next(iter(kind.fitting(conv, card_resources(gpu)))).kernel(conv)
    (found,) = gpu.tensor_core_instructions(Job.of(kernel, conv))
    assert found == f"{INSTRUCTIONS[template]}.F32.{TYPES[mode]}"


def test_other_types_than_the_mode_declares_are_refused(gpu):
    conv = Conv2d.of("odd", *SHAPES["odd"], mode="float16")
    kernel = on_tensor_cores(gpu, conv).kernel(conv)
    with pytest.raises(KernelFault, match="other types than odd_bfloat16 declares"):
        verify_on_device(gpu, kernel, conv.varied(mode="bfloat16"))


def tried(gpu: Device, conv: Conv2d) -> list[TemplateParameters[Conv2d]]:
    """The first kernels of all, and the first one of each template."""
    ranked = rank_kernels(conv, card_resources(gpu))
    first = {one.template: one for one in reversed(ranked)}
    return list(dict.fromkeys([*ranked[:TRIED], *first.values()]))


def on_tensor_cores(gpu: Device, conv: Conv2d) -> TemplateParameters[Conv2d]:
    ranked = rank_kernels(conv, card_resources(gpu))
    return next(one for one in ranked if one.template in INSTRUCTIONS)


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("mode", CONV_MODES)
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


def test_tensor_cores_are_refused_in_float32(gpu):
    conv = Conv2d.of("odd", *SHAPES["odd"], mode="3xtf32")
    kernel = on_tensor_cores(gpu, conv).kernel(conv)
    with pytest.raises(
        KernelFault, match=r"tensor cores \(HG?MMA\..*\), but odd is declared as float32"
    ):
        verify_on_device(gpu, kernel, conv.varied(mode="float32"))
