"""The contender cuDNN in convolutions, on a real GPU, in all modes and layouts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Rig, verify_on_device, verify_timed
from pytest_gpuenergy.kernels import LibraryCall
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import CONTENDERS, ContenderSetup, KernelStore, cudnn_call
from pytest_gpuenergy.workloads import Conv2d

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs the module torch"),
]

CONV_MODES: Any = ["float32", "tf32", "float16", "bfloat16"]
SHAPES = {
    "one": (1, 1, 1, 1, 1, 1, 1, 1, 0),
    "odd": (2, 13, 11, 7, 5, 3, 2, 2, 1),
    "dilated": (1, 30, 29, 24, 16, 3, 3, 1, 2, 2),
    "grouped": (1, 28, 28, 64, 32, 3, 3, 1, 1, 1, 4),
    "depthwise": (1, 56, 56, 32, 32, 3, 3, 1, 1, 1, 32),
    "first": (1, 112, 112, 64, 3, 7, 7, 2, 3),
    "deep": (1, 17, 17, 256, 512, 3, 3, 1, 1),
}
TRIED = 4
"""Algorithms of each convolution, spread over all."""


def spread(gpu: Device, conv: Conv2d) -> tuple[LibraryCall, ...]:
    found = gpu.offered(cudnn_call(conv), conv.io)
    return found[:: -(-len(found) // TRIED)]


def verify_some(gpu: Device, conv: Conv2d) -> None:
    """Verify some algorithms: those that compute by transforms are not exact on integers."""
    right = 0
    for call in spread(gpu, conv):
        try:
            verified = verify_on_device(gpu, call, conv)
        except KernelFault as fault:
            transforms = {"fft", "winograd"} & {*str(call.origin.details.get("notes")).split()}
            if fault.outcome != "constraints" and not transforms:
                raise
        else:
            assert verified.max_relative_error <= conv.error_bound.max_relative
            right += 1
    assert right


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", CONV_MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_algorithms_are_right(gpu, shape, mode, layout):
    verify_some(gpu, Conv2d.of(shape, *SHAPES[shape]).varied(mode=mode, layout=layout))


@pytest.mark.parametrize("options", [{"bias": True}, {"relu": True}, {"bias": True, "relu": True}])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", CONV_MODES)
@pytest.mark.parametrize("shape", ["odd", "deep"])
def test_bias_and_relu_are_right_fused_or_not(gpu, shape, mode, layout, options):
    conv = Conv2d.of(shape, *SHAPES[shape]).varied(mode=mode, layout=layout, **options)
    verify_some(gpu, conv)


@pytest.mark.parametrize(("mode", "layout"), [("float32", "nchw"), ("float16", "nhwc")])
def test_the_best_algorithm_is_chosen_once_and_stays_right_in_graphs(
    gpu, monkeypatch, tmp_path, mode, layout
):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    conv = Conv2d.of("layer", 1, 28, 28, 128, 128, 3, 3, 1, 1)
    conv = conv.varied(mode=mode, layout=layout, bias=True, relu=True)
    with KernelStore() as store:
        setup = ContenderSetup(gpu, Path("none"), store)
        chosen = CONTENDERS["cudnn"](conv, setup)
        monkeypatch.delattr(Rig, "evaluate")
        assert CONTENDERS["cudnn"](conv, setup) == chosen
    verify_timed(gpu, chosen, conv)
