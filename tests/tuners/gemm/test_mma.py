"""The template for tensor cores is right for any sizes, layouts, modes and parameters."""

from __future__ import annotations

from typing import Any

import pytest
from gemm_products import products
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import MmaParameters, rank_kernels
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import Gemm

TINY = MmaParameters(tile_m=32, tile_n=32, tile_k=16, warp_m=16, warp_n=16, stages=2)
MODES: Any = st.sampled_from(["tf32", "3xtf32", "float16", "bfloat16"])
H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
V100 = CardResources(70, 80, 64, 2048, 96 << 10, 96 << 10, 0)


@st.composite
def parameters(draw: st.DrawFn) -> MmaParameters:
    warp_m, warp_n = draw(st.sampled_from([16, 32])), draw(st.sampled_from([16, 32]))
    return MmaParameters(
        tile_m=warp_m * draw(st.sampled_from([1, 2])),
        tile_n=warp_n * draw(st.sampled_from([1, 2])),
        tile_k=draw(st.sampled_from([16, 32])),
        warp_m=warp_m,
        warp_n=warp_n,
        stages=draw(st.integers(2, 4)),
        blocks=draw(st.sampled_from([0, 1, 3, 7, 16])),
        group=draw(st.sampled_from([1, 2, 8])),
    )


@pytest.mark.slow
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(products(MODES, 50), parameters())
def test_it_is_right_for_any_sizes_and_parameters(
    device: EmulatedDevice, gemm: Gemm, chosen: MmaParameters
) -> None:
    verified = verify_on_device(device, chosen.kernel(gemm), gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.slow
def test_split_operands_are_as_exact_as_float32_in_long_sums(device: EmulatedDevice) -> None:
    gemm = Gemm("g", 16, 16, 8192, mode="3xtf32")
    error = verify_on_device(device, TINY.kernel(gemm), gemm).max_relative_error
    assert error < 0.1 * gemm.error_bound.max_relative


@pytest.mark.slow
def test_long_sums_that_tensor_cores_cut_off_are_wrong(device: EmulatedDevice) -> None:
    gemm = Gemm("g", 16, 16, 8192, mode="3xtf32")
    kernel = TINY.kernel(gemm)
    text = kernel.source.replace("float part[PIECES_N][4] = {};", "auto& part = sums.of[i];")
    text = text.replace("sums.of[i][j][l] += part[j][l];", ";")
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong"):
        verify_on_device(device, type(kernel)(text, kernel.launches), gemm)


@pytest.mark.slow
def test_tf32_alone_is_not_as_exact_as_float32(device: EmulatedDevice) -> None:
    kernel = TINY.kernel(Gemm("g", 32, 32, 32, mode="tf32"))
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong"):
        verify_on_device(device, kernel, Gemm("g", 32, 32, 32, mode="3xtf32"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("tf32", marks=pytest.mark.thorough), "bfloat16"])
def test_a_stage_that_is_overwritten_too_early_is_found(device: EmulatedDevice, mode: Any) -> None:
    gemm = Gemm("g", 32, 32, 80, mode=mode)
    kernel = TINY.kernel(gemm)
    text = kernel.source.replace("wait<STAGES - 2>();", "wait<STAGES - 1>();")
    with pytest.raises(KernelFault):
        verify_on_device(device, type(kernel)(text, kernel.launches), gemm)


@pytest.mark.parametrize(
    "change", [{"tile_m": 24}, {"warp_n": 24}, {"warp_m": 0}, {"warp_m": 64}, {"tile_k": 8}]
)
def test_a_tile_that_warps_do_not_fill_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cannot be divided among warps"):
        MmaParameters(**{**vars(TINY), **change})


def test_float32_is_refused() -> None:
    with pytest.raises(InputError, match=r"computes in tf32, .* not in mode float32"):
        TINY.kernel(Gemm("g", 8, 8, 8))


@settings(max_examples=5)
@given(products(MODES, 50), st.integers(1, 64))
def test_all_offered_parameters_fit(gemm: Gemm, factor: int) -> None:
    larger = Gemm("g", gemm.M * factor, gemm.N * factor, gemm.K * factor, gemm.layout, gemm.mode)
    for chosen in list(MmaParameters.fitting(larger, H200))[::200]:
        assert chosen.shared_bytes(larger) <= H200.shared_bytes_of_block
        assert chosen.registers(larger) * chosen.threads <= 1 << 16
        assert chosen.cycles(larger, H200) >= larger.flops / 2 / (H200.multiprocessors * 1024)


def test_a_card_without_such_tensor_cores_is_told() -> None:
    with pytest.raises(
        InputError, match=r"mode tf32 takes a GPU of sm_80 or later, and this one is of sm_70"
    ):
        rank_kernels(Gemm("g", 8, 8, 8, mode="tf32"), V100)
