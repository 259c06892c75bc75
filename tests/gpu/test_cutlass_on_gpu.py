"""Kernels of CUTLASS on a real GPU, in all modes: some of the list, which nvcc compiles first."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence

import pytest
from gemm_products import with_longer_rows

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import verify_on_device, verify_timed
from pytest_gpuenergy.kernels import CudaProgram, Headers, Job
from pytest_gpuenergy.support import KernelFault, UnavailableError
from pytest_gpuenergy.tuners import cutlass_candidates, find_headers
from pytest_gpuenergy.tuning import CardResources, card_resources
from pytest_gpuenergy.workloads import CONV_MODES, LAYOUTS, Gemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH"),
]

PRODUCTS = [
    with_longer_rows(Gemm(f"{layout}-{mode}-{sizes[0]}", *sizes, layout, mode), apart)
    for (sizes, apart), mode, layout in itertools.product(
        [((129, 67, 257), 3), ((512, 384, 640), 0)], CONV_MODES, LAYOUTS
    )
]
"""Some have longer rows than they need."""
TRIED = 3
"""Compiled texts of each product, spread over all."""
DEEP = Gemm("deep", 128, 128, 4096)
SHARED = Gemm("shared", 512, 512, 512, "nn", "tf32")


def some(gemm: Gemm, card: CardResources, headers: Headers) -> Sequence[CudaProgram]:
    """A few candidates of different texts, each unsplit and as often split as offered."""
    by_text: dict[str, list[CudaProgram]] = {}
    for one in cutlass_candidates(gemm, card, headers):
        by_text.setdefault(one.source, []).append(one)
    groups = [*by_text.values()]
    return [one for group in groups[:: -(-len(groups) // TRIED)] for one in group]


@pytest.fixture(scope="module")
def headers() -> Headers:
    try:
        return find_headers(None)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def gpu(gpu: Device, headers: Headers, request: pytest.FixtureRequest) -> Device:
    """The GPU, while the programs that the chosen tests verify are compiled."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    products = [one["gemm"] for one in params if one.get("gemm") in PRODUCTS]
    card = card_resources(gpu)
    gpu.prepare([one for gemm in products for one in some(gemm, card, headers)])
    return gpu


@pytest.mark.parametrize("gemm", PRODUCTS, ids=lambda gemm: gemm.name)
def test_candidates_are_right(gpu, headers, gemm):
    for one in some(gemm, card_resources(gpu), headers):
        verified = verify_on_device(gpu, one, gemm)
        assert verified.max_relative_error <= gemm.error_bound.max_relative, one.label


@pytest.mark.parametrize("mode", CONV_MODES)
def test_machine_code_shows_whether_tensor_cores_are_used(gpu, headers, mode):
    gemm = Gemm("g", 512, 512, 512, mode=mode)
    for one in some(gemm, card_resources(gpu), headers):
        found = gpu.tensor_core_instructions(Job.of(one, gemm))
        assert bool(found) == (mode != "float32"), one.label
        assert {name.split(".")[0] for name in found} <= {"HMMA", "HGMMA"}


def test_tensor_cores_are_refused_in_float32(gpu, headers):
    split = Gemm("g", 512, 512, 512, mode="3xtf32")
    with pytest.raises(
        KernelFault, match=r"tensor cores \(HMMA\..*\), but g is declared as float32"
    ):
        verify_on_device(
            gpu, some(split, card_resources(gpu), headers)[0], Gemm("g", 512, 512, 512)
        )


@pytest.mark.parametrize("gemm", [DEEP, SHARED], ids=["split", "stream_k"])
def test_products_whose_blocks_wait_for_another_stay_right_in_graphs(gpu, headers, gemm):
    found = cutlass_candidates(gemm, card_resources(gpu), headers)
    shared = [one for one in found if one.numbers[-1] > 1 or "stream_k" in one.label]
    assert shared, "the list has no kernel whose blocks wait for another"
    gpu.prepare(shared[:2])
    for one in shared[:2]:
        verify_timed(gpu, one, gemm)
