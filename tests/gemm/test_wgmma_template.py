"""The template for Hopper is right on the emulated GPU, which runs its very instructions."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.devices.emulated.device import EmulatedDevice
from pytest_gpuenergy.engine.verification import verify
from pytest_gpuenergy.gemm.wgmma import WgmmaParameters
from pytest_gpuenergy.workloads import Gemm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gemm", "chosen"),
    [
        (Gemm("g", 200, 136, 264, mode="bfloat16"),
         WgmmaParameters(tile_m=128, tile_n=64, stages=3, consumers=2)),
        (Gemm("g", 72, 200, 200, mode="float16", layout="nt"),
         WgmmaParameters(tile_m=64, tile_n=128, stages=2, consumers=1, blocks=3)),
    ],
    ids=["nn", "nt"],
)  # fmt: skip
def test_it_is_right_beyond_whole_tiles(
    device: EmulatedDevice, gemm: Gemm, chosen: WgmmaParameters
) -> None:
    verified = verify(device, chosen.kernel(gemm), gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative
