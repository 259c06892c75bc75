"""The contenders in matrix products that are not ours, on a real GPU, in all modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gemm_products import with_longer_rows

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Rig, verify_on_device, verify_timed
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import (
    CONTENDERS,
    ContenderSetup,
    KernelStore,
    cublas_call,
    triton_candidates,
)
from pytest_gpuenergy.tuning import card_resources
from pytest_gpuenergy.workloads import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu

MODES: Any = ["float32", "3xtf32", "tf32", "float16", "bfloat16"]
SIZES = [((129, 67, 257), 3), ((512, 512, 512), 0)]
"""M, N and K, and by how much the leading dimensions exceed the rows."""
TRIED = 3
"""Candidates of each product, spread over all."""
NEEDS = {"triton": ("triton", "torch"), "cublas": ("nvmath",)}
OF_BOTH: list[dict[str, Any]] = [
    {"bias": True},
    {"bias": True, "residual": True},
    {"bias": True, "activation": "gelu_tanh"},
    {"bias": True, "activation": "relu"},
]
ENDS = {"triton": [*OF_BOTH, {"activation": "silu", "residual": True}], "cublas": OF_BOTH}
COMPUTED = [(one, mode) for one in NEEDS for mode in MODES if (one, mode) != ("cublas", "3xtf32")]


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Iterator[ContenderSetup]:
    with KernelStore() as store:
        yield ContenderSetup(gpu, Path("none"), store)


def require(contender: str) -> None:
    for module in NEEDS[contender]:
        if find_spec(module) is None:
            pytest.skip(f"needs the module {module}")


def candidates(contender: str, gemm: Gemm, gpu: Device) -> Sequence[AnyKernel]:
    require(contender)
    if contender == "triton":
        return triton_candidates(gemm, card_resources(gpu))
    return gpu.offered(cublas_call(gemm), gemm.io)


def verify_some(gpu: Device, contender: str, gemm: Gemm) -> None:
    found = candidates(contender, gemm, gpu)
    right = 0
    for one in found[:: -(-len(found) // TRIED)]:
        try:
            verified = verify_on_device(gpu, one, gemm)
        except KernelFault as fault:
            if fault.outcome != "constraints":  # it takes more shared memory than there is
                raise
        else:
            assert verified.max_relative_error <= gemm.error_bound.max_relative
            right += 1
    assert right


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("sizes", "apart"), SIZES)
@pytest.mark.parametrize(("contender", "mode"), COMPUTED)
def test_candidates_are_right(gpu, contender, sizes, apart, mode, layout):
    gemm = with_longer_rows(Gemm("g", *sizes, layout, mode), apart)
    verify_some(gpu, contender, gemm)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["float32", "float16"])
@pytest.mark.parametrize("several", [{"B": 3}, {"groups": (100, 0, 33, 7, 201, 0)}], ids=str)
@pytest.mark.parametrize("contender", NEEDS)
def test_batches_and_groups_are_right(gpu, contender, several, mode, layout):
    verify_some(gpu, contender, Gemm("g", 341, 264, 520, layout, mode, bias=True, **several))


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("contender", "end"), [(name, end) for name in NEEDS for end in ENDS[name]]
)
def test_ends_are_right(gpu, contender, end, mode):
    verify_some(gpu, contender, Gemm("g", 512, 384, 1024, "tn", mode, **end))


@pytest.mark.parametrize("mode", MODES)
def test_the_machine_code_of_triton_shows_whether_tensor_cores_are_used(gpu, mode):
    gemm = Gemm("g", 512, 512, 512, mode=mode)
    first = candidates("triton", gemm, gpu)[0]
    found = gpu.tensor_core_instructions(Job.of(first, gemm))
    assert bool(found) == (mode != "float32")
    assert {name.split(".")[0] for name in found} <= {"HMMA", "HGMMA"}


def test_tensor_cores_of_triton_are_refused_in_float32(gpu):
    first = candidates("triton", Gemm("g", 64, 64, 64, mode="tf32"), gpu)[0]
    with pytest.raises(KernelFault, match=r"tensor cores \(.*\), but g is declared as float32"):
        verify_on_device(gpu, first, Gemm("g", 64, 64, 64))


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
@pytest.mark.parametrize("contender", NEEDS)
def test_the_best_candidate_is_chosen_once_and_stays_right_in_graphs(
    bench, monkeypatch, tmp_path, contender, mode
):
    require(contender)
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    gemm = Gemm("g", 512, 512, 512, "nt", mode)
    chosen = CONTENDERS[contender](gemm, bench)
    monkeypatch.delattr(Rig, "evaluate")
    assert CONTENDERS[contender](gemm, bench) == chosen
    verify_timed(bench.gpu, chosen, gemm)
