"""The template of float32 matrices for Hopper is right for any sizes, layouts and parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gemm_products import aligned_products
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import WgmmaTf32Parameters, rank_kernels
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import Gemm

SMALL = WgmmaTf32Parameters(tile_m=64, tile_n=64, stages=2, consumers=1)
PRODUCT = Gemm("g", M=72, N=68, K=100, layout="nt", mode="3xtf32")
H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
MODES: Any = st.sampled_from(["tf32", "3xtf32"])


@st.composite
def parameters(draw: st.DrawFn) -> WgmmaTf32Parameters:
    consumers = draw(st.sampled_from([1, 2]))
    return WgmmaTf32Parameters(
        tile_m=draw(st.sampled_from([64, 128])),
        tile_n=64 * consumers,
        stages=draw(st.integers(2, 3)),
        consumers=consumers,
        blocks=draw(st.sampled_from([0, 1, 3])),
        whole_tiles=draw(st.booleans()),
        **draw(st.sampled_from([{}, {"cluster_m": 2}, {"cluster_n": 2}])),
        in_turn=consumers > 1 and draw(st.booleans()),
    )


@pytest.mark.slow
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(aligned_products(MODES, 140), parameters())
def test_it_is_right_for_any_sizes_and_parameters(
    device: EmulatedDevice, gemm: Gemm, chosen: WgmmaTf32Parameters
) -> None:
    assume(not WgmmaTf32Parameters.refusal(gemm))
    verified = verify_on_device(device, chosen.kernel(gemm), gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.slow
def test_split_operands_are_as_exact_as_float32_in_long_sums(device: EmulatedDevice) -> None:
    gemm = Gemm("g", 32, 64, 8192, mode="3xtf32")
    kernel = replace(SMALL, tile_m=32).kernel(gemm)
    error = verify_on_device(device, kernel, gemm).max_relative_error
    assert error < 0.25 * gemm.error_bound.max_relative


@pytest.mark.slow
def test_tf32_alone_is_not_as_exact_as_float32(device: EmulatedDevice) -> None:
    kernel = SMALL.kernel(Gemm("g", 64, 64, 64, mode="tf32"))
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong"):
        verify_on_device(device, kernel, Gemm("g", 64, 64, 64, mode="3xtf32"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "if (PREPARED) wait(ready[ring.stage], ring.parity);",
        "wait(empty[ring.stage], ring.parity ^ 1);",
        "written_for_async();",
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
    ],
)
def test_a_missing_wait_is_found(device: EmulatedDevice, line: str) -> None:
    kernel = SMALL.kernel(PRODUCT)
    assert kernel.source.count(line) == 1
    with pytest.raises(KernelFault):
        verify_on_device(device, replace(kernel, source=kernel.source.replace(line, "")), PRODUCT)


@pytest.mark.parametrize("change", [{"tile_m": 48}, {"tile_n": 128}, {"tile_k": 64}])
def test_a_tile_that_consumers_do_not_fill_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="64 columns for each of 1 consumers"):
        replace(SMALL, **change)


def test_float32_is_refused() -> None:
    with pytest.raises(InputError, match="computes in tf32, 3xtf32, not in mode float32"):
        SMALL.kernel(Gemm("g", 64, 64, 64))


def test_short_sums_in_3xtf32_are_left_to_the_template_that_rounds() -> None:
    short = replace(PRODUCT, K=31)
    assert {one.template for one in rank_kernels(short, H200)} == {"mma"}
    with pytest.raises(InputError, match="wgmma_tf32 needs K to be at least 32 in mode 3xtf32"):
        SMALL.kernel(short)
    for gemm in (replace(PRODUCT, K=32), replace(short, mode="tf32")):
        assert "wgmma_tf32" in {one.template for one in rank_kernels(gemm, H200)}


def test_cutting_off_loses_more_than_the_bound_of_a_product_allows() -> None:
    """One and all 13 bits of a float32 number that TF32 ignores, of the smaller part two again."""
    exact, cut = (1 + 8191 * 2.0**-23) ** 2, 1 + 2 * 8188 * 2.0**-23
    lost = 1 - cut / exact
    assert lost > replace(PRODUCT, K=1).error_bound.max_relative
    assert lost < replace(PRODUCT, K=32).error_bound.max_relative


@pytest.mark.parametrize("mode", ["tf32", "3xtf32"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_all_offered_parameters_fit(mode: Any, layout: Any) -> None:
    gemm = Gemm("g", 4096, 4096, 4096, layout, mode)
    offered = list(WgmmaTf32Parameters.fitting(gemm, H200))
    for chosen in offered[::20]:
        assert chosen.shared_bytes(gemm) <= H200.shared_bytes_of_block
        assert chosen.registers(gemm) * chosen.threads <= 1 << 16
        assert chosen.cycles(gemm, H200) >= gemm.flops / 2 / (H200.multiprocessors * 1024)
    assert rank_kernels(gemm, H200)[0].template == "wgmma_tf32"
