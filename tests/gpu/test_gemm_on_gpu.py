"""The templates of matrix products on a real GPU, in all modes that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from offered_kernels import verify_offered

from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import (
    TEMPLATES,
    grouped_call,
    rank_kernels,
)
from pytest_gpuenergy.tuning import card_resources
from pytest_gpuenergy.workloads import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu

MODES: Any = ["float32", "3xtf32", "tf32", "float16", "bfloat16"]
SIZES = [(7, 13, 5), (129, 257, 4099), (136, 264, 4104), (512, 384, 1024)]
LONGER = {(7, 13, 5): 14, (129, 257, 4099): 264, (136, 264, 4104): 272}
"""Leading dimensions of C, where they are not N."""
INSTRUCTIONS = {
    "simt": set(),
    "mma": {"HMMA"},
    **{template: {"HGMMA"} for template in ("wgmma", "wgmma_tf32", "skinny")},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_offered_parameters_are_right(gpu, sizes, mode, layout):
    verify_offered(gpu, Gemm("g", *sizes, layout, mode, ldc=LONGER.get(sizes, 0)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
def test_what_lies_between_rows_is_neither_read_nor_written(gpu, mode, layout):
    gemm = Gemm("g", 129, 257, 515, layout, mode)
    lengths = {"lda": gemm.row_of_a, "ldb": gemm.row_of_b, "ldc": gemm.N}
    apart = {name: -(-length // 16) * 16 for name, length in lengths.items()}
    verify_offered(gpu, replace(gemm, **apart))


FLOAT8: list[dict[str, Any]] = [
    {"accumulation": "fast"},
    {"scaling": "row"},
    {"scaling": "block", "bias": True, "residual": True},
    {"scaling": "row", "quantize": True},
    {"scaling": "block", "quantize": True},
]


@pytest.mark.parametrize("options", FLOAT8, ids=str)
@pytest.mark.parametrize(("mode", "layout"), [("e4m3", "nn"), ("e4m3", "tn"), ("e5m2", "tn")])
@pytest.mark.parametrize("sizes", [(7, 13, 5), (13, 264, 4112), (129, 257, 4099)], ids=str)
def test_offered_parameters_multiply_8_bit_numbers(gpu, sizes, layout, mode, options):
    verify_offered(gpu, Gemm("g", *sizes, layout, mode, **options))


ENDS: list[dict[str, Any]] = [
    {"bias": True, "activation": "gelu", "residual": True},
    {"bias": True, "activation": "gelu_tanh"},
    {"activation": "silu", "residual": True},
    {"bias": True, "activation": "relu"},
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: "-".join(map(str, end.values())))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(129, 257, 515), (136, 264, 4104)], ids=str)
def test_offered_parameters_apply_an_end(gpu, sizes, mode, end):
    verify_offered(gpu, Gemm("g", *sizes, "tn", mode, ldc=LONGER.get(sizes, 0), **end))


SEVERAL: list[dict[str, Any]] = [{"B": 3}, {"groups": (100, 0, 33, 7, 201, 0)}]


@pytest.mark.parametrize("layout", ["nn", "tt"])  # each operand is stored both ways
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(341, 257, 515), (341, 264, 520)], ids=str)
@pytest.mark.parametrize("several", SEVERAL, ids=str)
def test_offered_parameters_compute_batches_and_groups(gpu, several, sizes, mode, layout):
    verify_offered(gpu, Gemm("g", *sizes, layout, mode, bias=True, **several))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["float32", "tf32", "float16", "bfloat16"])
def test_cublas_multiplies_all_groups_by_one_call(gpu, mode, layout):
    gemm = Gemm("g", 341, 264, 520, layout, mode, **SEVERAL[1])
    call = grouped_call(gemm)
    assert call is not None
    verified = verify_on_device(gpu, call, gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.parametrize(
    ("template", "gemm"),
    [
        pytest.param(template, gemm, id=f"{template}-{gemm.mode}")
        for template in INSTRUCTIONS
        for gemm in (Gemm("g", 64, 64, 64, "tn", mode) for mode in MODES)
        if TEMPLATES[template].computes(gemm)
    ],
)
def test_machine_code_shows_whether_tensor_cores_are_used(gpu, template, gemm):
    kind = TEMPLATES[template]
    if not kind.suits(card_resources(gpu)):
        pytest.skip(f"the template {template} has no kernels for this card")
    kernel = next(kind.fitting(gemm, card_resources(gpu))).kernel(gemm)
    found = gpu.tensor_core_instructions(Job.of(kernel, gemm))
    assert {name.split(".")[0] for name in found} == INSTRUCTIONS[template]


def test_tensor_cores_are_refused_in_float32(gpu):
    split, float32 = Gemm("g", 64, 64, 64, mode="3xtf32"), Gemm("g", 64, 64, 64)
    kernel = rank_kernels(split, card_resources(gpu))[0].kernel(split)
    with pytest.raises(
        KernelFault, match=r"tensor cores \(HG?MMA\..*\), but g is declared as float32"
    ):
        verify_on_device(gpu, kernel, float32)
