"""The template for Hopper is right for any sizes, layouts, types and parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gemm_products import aligned_products
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import WgmmaParameters, rank_kernels
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import Gemm

SMALL = WgmmaParameters(tile_m=64, tile_n=64, stages=2, consumers=1)
PRODUCT = Gemm("g", M=72, N=136, K=200, mode="bfloat16")
H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
MODES: Any = st.sampled_from(["float16", "bfloat16"])
B200 = replace(H200, capability=100)


@st.composite
def parameters(draw: st.DrawFn) -> WgmmaParameters:
    consumers = draw(st.sampled_from([1, 2]))
    cluster_m, cluster_n = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    return WgmmaParameters(
        tile_m=64 * max(consumers, cluster_n),
        tile_n=64 * cluster_m,
        tile_k=draw(st.sampled_from([64, 128])),
        stages=draw(st.integers(2, 3)),
        consumers=consumers,
        blocks=draw(st.sampled_from([0, 1, 3])),
        whole_tiles=draw(st.booleans()),
        cluster_m=cluster_m,
        cluster_n=cluster_n,
    )


@pytest.mark.slow
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(aligned_products(MODES, 140), parameters())
def test_it_is_right_for_any_sizes_and_parameters(
    device: EmulatedDevice, gemm: Gemm, chosen: WgmmaParameters
) -> None:
    verified = verify_on_device(device, chosen.kernel(gemm), gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.slow
@pytest.mark.parametrize("whole_tiles", [True, False])
def test_blocks_compute_whole_or_shared_tiles(device: EmulatedDevice, whole_tiles: bool) -> None:
    chosen = replace(SMALL, blocks=2, whole_tiles=whole_tiles)
    gemm = Gemm("g", 136, 136, 72, mode="bfloat16")
    assert chosen.shares_tiles(gemm) is not whole_tiles
    assert chosen.whole_tiles_of(gemm) == (9 if whole_tiles else 6)
    verify_on_device(device, chosen.kernel(gemm), gemm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster_m", "cluster_n", "layout"),
    [
        (2, 1, "nn"),
        (1, 2, "nt"),
        pytest.param(2, 2, "nn", marks=pytest.mark.thorough),
    ],
)
def test_blocks_of_a_cluster_copy_for_one_another(
    device: EmulatedDevice, cluster_m: int, cluster_n: int, layout: Any
) -> None:
    chosen = WgmmaParameters(
        tile_m=64 * cluster_n,
        tile_n=64 * cluster_m,
        stages=2,
        consumers=1,
        blocks=1,
        whole_tiles=True,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
    )
    gemm = Gemm("g", 136, 136, 200, layout, "bfloat16")
    assert "__cluster_dims__" in chosen.kernel(gemm).source
    verify_on_device(device, chosen.kernel(gemm), gemm)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "wait(full[ring.stage], ring.parity);",
        "wait(empty[ring.stage], ring.parity ^ 1);",
        "finish<0>(sums);",
        'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        "written_for_async();",
    ],
)
def test_a_missing_wait_is_found(device: EmulatedDevice, line: str) -> None:
    kernel = SMALL.kernel(PRODUCT)
    assert kernel.source.count(line) == 1
    with pytest.raises(KernelFault):
        verify_on_device(device, replace(kernel, source=kernel.source.replace(line, "")), PRODUCT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "shorter"),
    [
        ("finish<1>(sums);", "finish<2>(sums);"),
        ("wait_for_boxes<C_BOXES - 1>();", "wait_for_boxes<C_BOXES>();"),
    ],
    ids=["stage", "box of C"],
)
def test_what_is_free_too_early_is_found(device: EmulatedDevice, wait: str, shorter: str) -> None:
    kernel = replace(SMALL, blocks=1, whole_tiles=True).kernel(PRODUCT)
    assert kernel.source.count(wait) == 1
    with pytest.raises(KernelFault):
        verify_on_device(
            device, replace(kernel, source=kernel.source.replace(wait, shorter)), PRODUCT
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tile_m": 96}, "cannot be divided among 1 warpgroups"),
        ({"tile_n": 320}, "cannot be divided among 1 warpgroups"),
        ({"tile_k": 32}, "cannot be divided among 1 warpgroups"),
        ({"consumers": 2}, "cannot be divided among 2 warpgroups"),
        ({"consumers": 4}, "1 to 3 consumers, not 4"),
        ({"tile_m": 192, "tile_n": 256, "consumers": 3}, "tiles of 192 x 256 with 3 consumers"),
    ],
)
def test_a_tile_that_warpgroups_do_not_fill_is_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(SMALL, **change)


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="computes in float16, bfloat16, not in mode tf32"):
        SMALL.kernel(Gemm("g", 64, 64, 64, mode="tf32"))


def test_rows_that_tensor_maps_cannot_describe_are_left_to_other_templates() -> None:
    gemm = Gemm("g", 64, 64, 60, mode="bfloat16")
    with pytest.raises(InputError, match="multiple of 16 bytes apart, which those of g are not"):
        SMALL.kernel(gemm)
    assert {one.template for one in rank_kernels(gemm, H200)} == {"mma"}


def test_it_is_for_hopper_only() -> None:
    gemm = Gemm("g", 4096, 4096, 4096, mode="bfloat16")
    assert rank_kernels(gemm, H200)[0].template == "wgmma"
    assert {one.template for one in rank_kernels(gemm, B200)} == {"mma"}


@settings(max_examples=10)
@given(aligned_products(MODES, 140), st.sampled_from([1, 8, 64]))
def test_all_offered_parameters_fit(gemm: Gemm, factor: int) -> None:
    larger = Gemm("g", gemm.M * factor, gemm.N * factor, gemm.K * factor, gemm.layout, gemm.mode)
    for chosen in list(WgmmaParameters.fitting(larger, H200))[::50]:
        assert chosen.shared_bytes(larger) <= H200.shared_bytes_of_block
        assert chosen.registers(larger) * chosen.threads <= 1 << 16
        assert chosen.cycles(larger, H200) >= larger.flops / 2 / (H200.multiprocessors * 2048)
