"""The template for convolutions by mma.sync is right for any geometry, mode and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from drawn_convolutions import convolutions
from hypothesis import HealthCheck, assume, example, given, settings, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice, find_profile
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import TEMPLATE_FORM, ImplicitMmaParameters, rank_kernels
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d

A100 = CardResources(80, 108, 64, 2048, 164 << 10, 163 << 10)
RTX4090 = CardResources(89, 128, 128, 1536, 100 << 10, 99 << 10)
H100 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
MODES = ImplicitMmaParameters.modes
DRAWN = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
THOROUGH = [pytest.mark.thorough]
SMALL = ImplicitMmaParameters(tile_c=16, warp_p=32, warp_c=16)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(find_profile("a100")) as device:
        yield device


@st.composite
def parameters(draw: st.DrawFn) -> ImplicitMmaParameters:
    warp_p, along_p = draw(st.sampled_from([(16, 4), (32, 2), (32, 4), (64, 1), (64, 2)]))
    warp_c, along_c = draw(st.sampled_from([(16, 1), (16, 2), (32, 2), (48, 1)]))
    assume(along_p * along_c > 1)
    return ImplicitMmaParameters(
        tile_p=warp_p * along_p,
        tile_c=warp_c * along_c,
        warp_p=warp_p,
        warp_c=warp_c,
        stages=draw(st.integers(2, 4)),
        splits=draw(st.integers(1, 3)),
    )


@pytest.mark.thorough
@DRAWN
@given(convolutions(), parameters())
def test_it_is_right_for_any_geometry(device, conv, chosen):
    chosen = replace(chosen, splits=min(chosen.splits, chosen.steps(conv)))
    verify_on_device(device, chosen.kernel(conv), conv)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        pytest.param(*one, marks=[] if one == ("3xtf32", "nchw") else THOROUGH)
        for one in product(MODES, CONV_LAYOUTS)
    ],
)
def test_what_a_search_begins_with_is_right_in_each_mode(device, mode, layout):
    conv = Conv2d.of("c", 1, 9, 8, 24, 40, 3, 3, 1, 1, mode=mode, layout=layout, bias=True)
    verify_on_device(device, rank_kernels(conv, A100)[0].kernel(conv), conv)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "mode"),
    [
        pytest.param(*one, marks=[] if one in {(8, "bfloat16"), (5, "tf32")} else THOROUGH)
        for one in product([8, 6, 2, 5], ["bfloat16", "tf32"])
    ],
)
def test_neighbouring_pixels_are_copied_at_once(device, mode, columns):
    conv = Conv2d.of("c", 2, 5, columns, 12, 70, 1, 1, 1, 0, 1, 2, mode=mode)
    verify_on_device(device, SMALL.kernel(conv), conv)


@pytest.mark.slow
def test_long_sums_in_3xtf32_are_as_exact_as_in_float32(device):
    conv = Conv2d.of("c", 1, 2, 2, 8, 1024, 1, 1, 1, 0, mode="3xtf32", layout="nhwc")
    found = verify_on_device(device, replace(SMALL, splits=2).kernel(conv), conv)
    assert found.normwise_error < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("__syncthreads();  // all have copied", "// all have copied", marks=THOROUGH),
        ("bool exists = any && is_inside(corner, tap);", "bool exists = any;"),
    ],
)
def test_a_missing_condition_is_found(device, right, wrong):
    conv = Conv2d.of("c", 1, 6, 6, 8, 48, 3, 3, 1, 1, mode="tf32", layout="nhwc")
    kernel = SMALL.kernel(conv)
    assert right in kernel.source
    with pytest.raises(KernelFault):
        verify_on_device(
            device, type(kernel)(kernel.source.replace(right, wrong), kernel.launches), conv
        )


@settings(max_examples=5)
@given(convolutions(), st.sampled_from([A100, RTX4090]))
@example(Conv2d.of("c", 1, 7, 7, 512, 2048, 1, 1, 1, 0, mode="tf32"), A100)
def test_each_convolution_has_kernels_that_fit_the_card(conv, card):
    offered = list(ImplicitMmaParameters.fitting(conv, card))
    assert offered
    for chosen in offered:
        assert chosen.shared_bytes(conv) <= card.shared_bytes_of_block
        assert chosen.registers(conv) * chosen.threads <= card.registers
        assert chosen.splits <= chosen.steps(conv)
    best = min(offered, key=lambda one: one.cycles(conv, card))
    launches = best.kernel(conv).launches
    assert len(launches) == (2 if best.splits > 1 else 1)
    assert all(launch.grid[0] % best.tiles(conv) == 0 for launch in launches)


def test_blocks_share_tiles_where_the_map_is_small():
    small = Conv2d.of("c", 1, 7, 7, 512, 512, 3, 3, 1, 1, mode="tf32", layout="nhwc")
    first = min(ImplicitMmaParameters.fitting(small, A100), key=lambda one: one.cycles(small, A100))
    assert first.splits > 1
    large = Conv2d.of("c", 8, 112, 112, 64, 64, 3, 3, 1, 1, mode="tf32", layout="nhwc")
    assert {one.splits for one in ImplicitMmaParameters.fitting(large, A100)} == {1}


def test_cards_before_sm_80_have_none():
    assert not ImplicitMmaParameters.suits(replace(A100, capability=75))
    assert ImplicitMmaParameters.suits(H100)


def test_what_is_stored_is_read_again():
    chosen = replace(SMALL, stages=4, splits=2)
    assert TEMPLATE_FORM.parameters(TEMPLATE_FORM.recipe(chosen)) == chosen


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SMALL, tile_p=96), "a multiple of 64 pixels"),
        (lambda: replace(SMALL, tile_p=64, warp_p=64), "cannot be divided among warps of 64 x 16"),
        (lambda: replace(SMALL, tile_c=24, warp_c=24), "multiples of 16"),
        (lambda: replace(SMALL, warp_c=32), "64 pixels and 16 channels cannot"),
        (lambda: replace(SMALL, warp_p=0), "needs warp_p to be a whole number from 16"),
        (lambda: replace(SMALL, stages=1), "needs stages to be a whole number from 2"),
        (
            lambda: SMALL.kernel(Conv2d.of("c", 1, 5, 5, 4, 4, 3, 3, 1, 1)),
            "in 3xtf32, tf32, float16, bfloat16, not in mode float32",
        ),
        (
            lambda: replace(SMALL, splits=3).kernel(
                Conv2d.of("c", 1, 5, 5, 4, 4, 3, 3, 1, 1, mode="tf32")
            ),
            "c has 2 steps of a tile, which 3 blocks cannot share: choose fewer splits",
        ),
    ],
)
def test_parameters_without_a_kernel_are_told(make, message):
    with pytest.raises(InputError, match=message):
        make()
