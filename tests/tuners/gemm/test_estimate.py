"""The estimate offers parameters that fit the card, and knows what cannot be fast."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from points import nightly

from pytest_gpuenergy.emulator import PROFILES, EmulatedDevice
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import (
    MmaParameters,
    SimtParameters,
    best_parameters,
    estimated_cycles,
    fitted,
    rank_kernels,
)
from pytest_gpuenergy.tuning import CardResources, card_resources
from pytest_gpuenergy.workloads import Gemm

H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
V100 = CardResources(70, 80, 64, 2048, 96 << 10, 96 << 10)
LARGE = Gemm("g", 4096, 4096, 4096)


@pytest.fixture(scope="module")
def offered() -> list[Any]:
    """What is offered for the large product."""
    return rank_kernels(LARGE, H200)


@pytest.mark.slow
@settings(max_examples=2)
@given(st.tuples(*[st.integers(1, 5000)] * 3), st.sampled_from([H200, V100]))
def test_all_offered_parameters_fit(sizes, card):
    gemm = Gemm("g", *sizes)
    for chosen in rank_kernels(gemm, card)[:50]:
        assert chosen.shared_bytes(gemm) <= card.shared_bytes_of_block
        assert chosen.threads <= 1024
        assert chosen.registers(gemm) * chosen.threads <= 1 << 16
        assert chosen.asynchronous is (card.capability >= 80)


@pytest.mark.slow
def test_the_most_promising_come_first_and_none_is_beyond_the_peak(offered):
    assert len(offered) > 1000
    cycles = estimated_cycles(LARGE, H200, offered[::20], fitted())
    assert cycles == sorted(cycles)
    assert cycles[0] >= LARGE.flops / 2 / (H200.multiprocessors * H200.cores)


@pytest.mark.slow
@pytest.mark.parametrize("mode", nightly(["float32", "bfloat16"], ["float32"]))
def test_the_best_parameters_are_the_first(mode):
    gemm = Gemm("small", 200, 136, 640, "nn", mode=mode)
    assert best_parameters(gemm, H200) == rank_kernels(gemm, H200)[0]


@pytest.mark.slow
def test_more_blocks_than_a_parameter_can_be_are_not_offered():
    large = Gemm("large", 46000, 46000, 300, mode="bfloat16")
    assert max(one.blocks for one in rank_kernels(large, H200)) <= 1 << 20


@pytest.mark.slow
def test_tiles_of_small_products_are_shared_by_slices_or_blocks():
    small, deep = Gemm("g", 512, 256, 640), Gemm("g", 64, 64, 8192)
    first = best_parameters(small, H200)
    assert isinstance(first, SimtParameters)
    assert first.slices > 1
    assert best_parameters(deep, H200).shares_tiles(deep)


@pytest.mark.slow
def test_large_products_have_large_tiles(offered):
    assert offered[0].tile_m * offered[0].tile_n >= 128 * 128


def test_large_products_take_longer_where_more_is_loaded():
    large = SimtParameters(tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8)
    small = replace(large, tile_m=64, tile_n=64)
    product = replace(LARGE, layout="nt")
    assert small.cycles(product, H200) > 1.01 * large.cycles(product, H200)


def test_slices_are_worth_while_only_where_warps_are_missing():
    chosen = SimtParameters(tile_m=64, tile_n=128, tile_k=32, thread_m=8, thread_n=8)
    sliced = replace(chosen, slices=2)
    few, many = Gemm("g", 1024, 1024, 1024), Gemm("g", 8192, 8192, 1024)
    assert sliced.cycles(few, H200) < chosen.cycles(few, H200)
    assert sliced.cycles(many, H200) > chosen.cycles(many, H200)


def test_rows_of_a_are_transposed_where_multiplications_would_wait_for_registers():
    rows = SimtParameters(tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8)
    columns = replace(rows, transpose_a=8)
    assert columns.cycles(LARGE, H200) < rows.cycles(LARGE, H200)
    assert columns.cycles(LARGE, V100) > rows.cycles(LARGE, V100)  # issues one every other cycle


@pytest.mark.slow
def test_an_a_that_is_stored_by_columns_is_not_transposed():
    offered = rank_kernels(Gemm("g", 64, 64, 64, "nt"), H200)
    assert not any(isinstance(one, SimtParameters) and one.transpose_a for one in offered)
    stored = SimtParameters(tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8)
    product = Gemm("g", 300, 200, 100, "nt")
    assert replace(stored, transpose_a=8).cycles(product, H200) == stored.cycles(product, H200)


def test_a_transposed_b_takes_time_to_be_turned():
    stored = SimtParameters(tile_m=32, tile_n=32, tile_k=32, thread_m=4, thread_n=4)
    times = [stored.cycles(Gemm("g", 512, 512, 512, one), H200) for one in ("nt", "tt")]
    assert times[0] < times[1]


def test_elements_of_two_bytes_are_waited_for():
    """Rows of an odd number of them cannot be copied asynchronously, four bytes at a time."""
    odd, even = (Gemm("g", 512, 512, depth, "tn", "bfloat16") for depth in (509, 510))
    chosen = MmaParameters(tile_m=64, tile_n=64)
    assert chosen.cycles(odd, H200) > 1.1 * chosen.cycles(even, H200)


def test_a_wave_of_one_block_more_takes_another_turn():
    chosen = SimtParameters(tile_m=128, tile_n=128, tile_k=8, thread_m=8, thread_n=8, stages=3)
    full, more = (Gemm("g", 128 * tiles, 128, 4096) for tiles in (132 * 8, 132 * 8 + 1))
    assert chosen.cycles(more, H200) > 1.05 * chosen.cycles(full, H200)


@pytest.mark.slow
@pytest.mark.parametrize("mode", nightly(["bfloat16", "float32"], ["float32"]))
def test_a_batch_takes_as_long_as_its_tiles_do(mode):
    one = Gemm("g", 512, 512, 512, mode=mode)
    batch, tall = replace(one, B=64), replace(one, M=64 * 512)
    found = rank_kernels(batch, H200)[0]
    assert found.cycles(batch, H200) == found.cycles(tall, H200)
    assert found.cycles(batch, H200) > 3 * rank_kernels(one, H200)[0].cycles(one, H200)


def test_groups_that_do_not_fill_their_tiles_take_longer():
    full, partial = (Gemm("g", 4096, 512, 512, groups=g) for g in ((128,) * 32, (127, 129) * 16))
    chosen = SimtParameters(tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8)
    assert chosen.tiles(partial) == 1.5 * chosen.tiles(full)
    assert chosen.cycles(partial, H200) > 1.2 * chosen.cycles(full, H200)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_resources_of_emulated_cards_are_known(profile):
    with EmulatedDevice(profile) as device:
        if profile.architecture == "sm_60":
            with pytest.raises(InputError, match="do not know the resources of"):
                card_resources(device)
            return
        card = card_resources(device)
        assert card.multiprocessors == profile.sm_count
        assert card.shared_bytes_of_block == profile.shared_per_block


def test_a_card_that_is_too_small_is_told():
    with pytest.raises(InputError, match="No parameters of the templates fit g on this GPU"):
        rank_kernels(replace(LARGE, mode="tf32"), replace(H200, shared_bytes_of_block=100))


def test_an_unknown_architecture_is_told():
    device: Any = SimpleNamespace(name="NVIDIA X", architecture="sm_999")
    with pytest.raises(InputError, match=r"of NVIDIA X \(sm_999\): choose a GPU of sm_70"):
        card_resources(device)
