"""The template for CUDA cores is right for any sizes, layouts and parameters."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from gemm_products import products
from hypothesis import HealthCheck, given, settings, strategies as st
from points import each_once

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import SimtParameters
from pytest_gpuenergy.workloads import Gemm

TINY = SimtParameters(tile_m=16, tile_n=32, tile_k=4, thread_m=4, thread_n=4, stages=2)


@st.composite
def parameters(draw: st.DrawFn) -> SimtParameters:
    thread_m, thread_n = draw(st.sampled_from([4, 8])), draw(st.sampled_from([4, 8, 12]))
    warps_m, warps_n, slices = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 4)]))
    return SimtParameters(
        tile_m=4 * thread_m * warps_m,
        tile_n=8 * thread_n * warps_n,
        tile_k=4 * slices * draw(st.sampled_from([1, 2])),
        thread_m=thread_m,
        thread_n=thread_n,
        slices=slices,
        stages=draw(st.integers(2, 4)),
        blocks=draw(st.sampled_from([0, 1, 3, 7, 16])),
        group=draw(st.sampled_from([1, 2, 8])),
        transpose_a=draw(st.sampled_from([0, 8])),
        asynchronous=draw(st.booleans()),
    )


@pytest.mark.slow
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(products(st.just("float32"), 70), parameters())
def test_it_is_right_for_any_sizes_and_parameters(
    device: EmulatedDevice, gemm: Gemm, chosen: SimtParameters
) -> None:
    assert verify_on_device(device, chosen.kernel(gemm), gemm).max_relative_error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "layout"), each_once([0, 5], ["nn", "nt"]))
def test_tiles_may_be_shared_by_blocks(device: EmulatedDevice, layout: Any, blocks: int) -> None:
    gemm = Gemm("g", 33, 65, 40, layout)
    chosen = SimtParameters(**{**vars(TINY), "blocks": blocks})
    kernel = chosen.kernel(gemm)
    assert verify_on_device(device, kernel, gemm).max_relative_error < 1e-5
    assert bool(kernel.workspaces) is bool(blocks)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nn", pytest.param("nt", marks=pytest.mark.thorough)])
def test_warps_may_share_the_steps_of_a_tile(device: EmulatedDevice, layout: Any) -> None:
    gemm = Gemm("g", 33, 65, 40, layout)
    chosen = SimtParameters(**{**vars(TINY), "tile_k": 16, "slices": 4})
    assert chosen.threads == 4 * TINY.threads
    assert verify_on_device(device, chosen.kernel(gemm), gemm).max_relative_error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [True, False])
def test_rows_of_a_may_be_transposed(device: EmulatedDevice, asynchronous: bool) -> None:
    gemm = Gemm("g", 21, 70, 27, "nn", lda=30)
    changes = {"tile_n": 96, "tile_k": 8, "transpose_a": 8, "asynchronous": asynchronous}
    chosen = SimtParameters(**{**vars(TINY), **changes})
    assert chosen.tile_m % (chosen.threads // 8) > 0  # the last rows are those of some threads only
    assert verify_on_device(device, chosen.kernel(gemm), gemm).max_relative_error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("along", "slices"), [pytest.param(16, 2, marks=pytest.mark.thorough), (32, 2)]
)
def test_longer_parts_of_rows_of_a_may_be_transposed(
    device: EmulatedDevice, along: int, slices: int
) -> None:
    gemm = Gemm("g", 38, 40, 69, "nn", lda=73)
    chosen = SimtParameters(
        tile_m=32,
        tile_n=64,
        tile_k=along * slices,
        thread_m=4,
        thread_n=4,
        slices=slices,
        stages=2,
        transpose_a=along,
    )
    assert verify_on_device(device, chosen.kernel(gemm), gemm).max_relative_error < 1e-5


@pytest.mark.parametrize(
    "changes", [{"transpose_a": 12}, {"transpose_a": 32}, {"tile_k": 32, "transpose_a": 32}]
)
def test_parts_of_rows_that_cannot_be_transposed_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="transpose_a is"):
        SimtParameters(**{**vars(TINY), **changes})


@pytest.mark.slow
def test_a_slice_that_is_not_added_is_found(device: EmulatedDevice) -> None:
    gemm = Gemm("g", 32, 32, 40)
    kernel = SimtParameters(**{**vars(TINY), "tile_k": 8, "slices": 2}).kernel(gemm)
    text = kernel.source.replace("other = 1;", "other = 2;")
    with pytest.raises(KernelFault, match="wrong"):
        verify_on_device(device, type(kernel)(text, kernel.launches), gemm)


@pytest.mark.slow
def test_a_part_that_is_not_added_is_found(device: EmulatedDevice) -> None:
    gemm = Gemm("g", 32, 32, 40)
    kernel = SimtParameters(**{**vars(TINY), "blocks": 7}).kernel(gemm)
    text = kernel.source.replace("block <= last", "block < last")
    wrong = type(kernel)(text, kernel.launches, workspaces=kernel.workspaces)
    with pytest.raises(KernelFault, match="wrong"):
        verify_on_device(device, wrong, gemm)


@pytest.mark.slow
def test_a_stage_that_is_overwritten_too_early_is_found(device: EmulatedDevice) -> None:
    gemm = Gemm("g", 32, 32, 40)
    kernel = TINY.kernel(gemm)
    text = kernel.source.replace("wait<STAGES - 2>();", "wait<STAGES - 1>();")
    wrong = type(kernel)(text, kernel.launches)
    with pytest.raises(KernelFault):
        verify_on_device(device, wrong, gemm)


@given(products(st.just("float32"), 70), parameters())
def test_every_step_of_every_tile_has_one_block(gemm: Gemm, chosen: SimtParameters) -> None:
    blocks, every = chosen.blocks_of(gemm), chosen.tiles(gemm) * chosen.steps(gemm)
    first = [every * block // blocks for block in range(blocks + 1)]
    assert first[0] == 0
    assert first[-1] == every
    assert all(one < other for one, other in itertools.pairwise(first))
    assert chosen.shares_tiles(gemm) is any(step % chosen.steps(gemm) for step in first)
    owners = [((step + 1) * blocks - 1) // every for step in range(every)]
    assert all(first[owner] <= step < first[owner + 1] for step, owner in enumerate(owners))


@pytest.mark.parametrize("mode", ["tf32", "3xtf32", "float16", "bfloat16"])
def test_other_modes_are_refused(mode: Any) -> None:
    with pytest.raises(InputError, match=f"computes in float32, not in mode {mode}"):
        TINY.kernel(Gemm("g", 8, 8, 8, mode=mode))


@pytest.mark.parametrize(
    "change",
    [{"tile_m": 24}, {"tile_n": 48}, {"thread_m": 6}, {"thread_n": 0}],
)
def test_a_tile_that_warps_do_not_fill_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cannot be divided among warps"):
        SimtParameters(**{**vars(TINY), **change})


@pytest.mark.parametrize(
    "change", [{"slices": 0}, {"slices": 2}, {"tile_k": 2}, {"tile_k": 24, "slices": 3}]
)
def test_a_step_that_slices_do_not_divide_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cannot be divided into"):
        SimtParameters(**{**vars(TINY), **change})


@pytest.mark.parametrize(
    "change", [{"tile_m": 0}, {"tile_k": 0}, {"stages": 1}, {"blocks": -1}, {"group": 0}]
)
def test_numbers_out_of_range_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="The template simt needs"):
        SimtParameters(**{**vars(TINY), **change})


def test_the_text_is_told_where_it_comes_from() -> None:
    origin = TINY.kernel(Gemm("g", 8, 8, 8)).origin
    assert (origin.kind, origin.details["template"], origin.details["tile_n"]) == (
        "template",
        "simt",
        32,
    )
