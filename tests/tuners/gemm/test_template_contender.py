"""Which kernel our templates send into a contest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuenergy.kernels import AnyKernel, Kernel
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS, ContenderSetup, contenders, rank_kernels
from pytest_gpuenergy.tuning import card_resources
from pytest_gpuenergy.workloads import Conv2d, Gemm

RECORDS = Path(__file__).parents[3] / "bench" / "records" / "nvidia-h200"
PRODUCT = Gemm("g", 2048, 2048, 2048, mode="bfloat16")


def bench(tmp_path: Path, architecture: str = "sm_90", **options: Any) -> ContenderSetup:
    nvml = SimpleNamespace(nvmlDeviceGetNumGpuCores=lambda _: 132 * 128)
    gpu: Any = SimpleNamespace(
        architecture=architecture, name="NVIDIA H200", nvml=nvml, handle=None, emulated=False
    )
    store: Any = None
    return ContenderSetup(gpu, tmp_path, store, **options)


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[AnyKernel]:
    """What was compared."""
    found: list[AnyKernel] = []

    def best_of(candidates: Sequence[AnyKernel], *_: object) -> AnyKernel:
        found.extend(candidates)
        return candidates[-1]

    monkeypatch.setattr(contenders, "best_of", best_of)
    return found


@pytest.mark.slow
def test_without_records_the_most_promising_kernel_is_taken(tried, tmp_path):
    setup = bench(tmp_path)
    first = rank_kernels(PRODUCT, card_resources(setup.gpu))[0]
    assert CONTENDERS["template"](PRODUCT, setup) == first.kernel(PRODUCT)
    assert not tried  # a choice that compiled several kernels would take seconds


def test_float16_takes_the_parameters_of_records_for_bfloat16(tmp_path):
    for path in RECORDS.glob("*_mode_bfloat16.template.json"):
        if "2048x2048x2048_nn" in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    recorded = CONTENDERS["template"](PRODUCT, bench(tmp_path))
    kernel = CONTENDERS["template"](replace(PRODUCT, mode="float16"), bench(tmp_path))
    assert isinstance(kernel, Kernel)
    assert isinstance(recorded, Kernel)
    assert kernel.origin.details == recorded.origin.details
    assert kernel.source != recorded.source


@pytest.mark.parametrize(
    ("mode", "card"),
    [pytest.param("float32", "sm_70", marks=pytest.mark.slow), ("bfloat16", "sm_100")],
)
def test_records_whose_instructions_a_card_lacks_are_not_used(tmp_path, mode, card):
    """Asynchronous copies came with sm_80, and wgmma went after sm_90."""
    for path in RECORDS.glob(f"gemm_2048x2048x2048_nn_*mode_{mode}.template.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    product = replace(PRODUCT, mode=mode)
    assert CONTENDERS["template"](product, bench(tmp_path)).origin.rank == 1
    chosen = CONTENDERS["template"](product, bench(tmp_path, card)).origin
    assert chosen.rank is None
    if mode == "float32":
        assert chosen.details["asynchronous"] == 0
    else:
        assert chosen.details["template"] == "mma"


@pytest.mark.slow
def test_convolutions_have_tiles_too(tried, tmp_path):
    layer = Conv2d.of("layer", 1, 56, 56, 64, 64, 3, 3, 1, 1)
    assert CONTENDERS["template"](layer, bench(tmp_path)) == tried[-1]
    assert len(tried) == 8


@pytest.mark.slow
def test_nothing_is_timed_on_a_gpu_that_nobody_has_claimed(tried, tmp_path):
    layer = Conv2d.of("layer", 1, 56, 56, 64, 64, 3, 3, 1, 1)
    assert CONTENDERS["template"](layer, replace(bench(tmp_path), claimed=False))
    assert not tried


def test_a_convolution_that_no_template_fits_has_no_contender(tmp_path):
    window = Conv2d.of("wide", 1, 40, 40, 4, 4, 31, 31, 1, 0)
    with pytest.raises(UnavailableError, match="wide has a window of 31 x 31, which does not fit"):
        CONTENDERS["template"](window, bench(tmp_path))
