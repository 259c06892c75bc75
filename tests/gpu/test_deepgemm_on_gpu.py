"""Products of 8-bit numbers by DeepGEMM on a real GPU, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from gemm_products import with_longer_rows

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import verify_on_device, verify_timed
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.tuners import CONTENDERS, ContenderSetup, KernelStore
from pytest_gpuenergy.workloads import Gemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("deep_gemm") is None, reason="needs the module deep_gemm"),
]
SIZES = [(1, 264, 512), (16, 1024, 4096), (64, 512, 7168), (129, 328, 272), (2048, 1536, 1024)]
"""Where M is no multiple of 4, or K none of 512, scales are copied before the product."""


@pytest.fixture(scope="module")
def kernels(gpu: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContenderSetup]:
    """What the contender needs, with an empty folder for the kernels that DeepGEMM compiles."""
    with pytest.MonkeyPatch.context() as patch, KernelStore() as store:
        patch.setenv("DG_JIT_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield ContenderSetup(gpu, Path("none"), store)


def kernel(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
    return CONTENDERS["deepgemm"](gemm, setup)


@pytest.mark.parametrize("between", [0, 16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_multiplies_8_bit_numbers_with_scales_by_block(gpu, kernels, sizes, between):
    gemm = with_longer_rows(Gemm("g", *sizes, "tn", "e4m3", scaling="block"), between)
    verified = verify_on_device(gpu, kernel(gemm, kernels), gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.parametrize("sizes", SIZES[1:4], ids=str)
def test_it_stays_right_in_graphs(gpu, kernels, sizes):
    gemm = Gemm("g", *sizes, "tn", "e4m3", scaling="block")
    verify_timed(gpu, kernel(gemm, kernels), gemm)
