"""Convolutions of the template for Hopper are right for any geometry, mode and parameters."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from drawn_convolutions import convolutions
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from points import nightly

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import (
    TEMPLATES,
    ImplicitParameters,
    input_blocks,
    rank_kernels,
    read_axis,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d, Conv2dShape, Mode, network

H100 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
A100 = replace(H100, capability=80)
SMALL_HOPPER = replace(H100, multiprocessors=2)
"""Its blocks compute several tiles of small convolutions, or share them."""
MODES: tuple[Mode, ...] = ImplicitParameters.modes
ONE = ImplicitParameters(tile_c=16, consumers=1, stages=3)
BOXED = replace(ONE, boxed=True)
PACKED = replace(BOXED, packed=True)
EARLY = replace(PACKED, early=True)
UNROLLED = replace(PACKED, unrolled=1, early=True)
WHOLE = replace(UNROLLED, unrolled=2)
SPLIT_BEFORE = replace(BOXED, split_before=True)
FEW = settings(max_examples=2, suppress_health_check=[*HealthCheck])


@st.composite
def parameters(draw: st.DrawFn, conv: Conv2d) -> ImplicitParameters:
    """Any parameters with a kernel that fits, also those that no search offers."""
    consumers, per_multiprocessor = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]))
    offered = ImplicitParameters.fitting(conv, H100)
    names = ("boxed", "packed", "unrolled", "line", "pitch", "split_before")
    ways = {(0,) * len(names), *(tuple(one.numbers[name] for name in names) for one in offered)}
    boxed, packed, unrolled, line, pitch, split_before = draw(st.sampled_from(sorted(ways)))
    splits = draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8]))
    chosen = ImplicitParameters(
        tile_c=draw(st.sampled_from([8, 16, 24, 32, 40, 64])),
        consumers=consumers,
        per_multiprocessor=per_multiprocessor,
        stages=draw(st.integers(2, 4)),
        splits=splits,
        blocks=0 if splits > 1 else draw(st.sampled_from([0, 1, 3, 5])),
        boxed=bool(boxed),
        deep=draw(st.sampled_from([1, 2])) if boxed else 1,
        packed=bool(packed),
        unrolled=unrolled,
        early=bool(packed or split_before) and draw(st.booleans()),
        line=line,
        pitch=pitch,
        split_before=bool(split_before),
    )
    assume(splits <= chosen.steps(conv))
    assume(chosen.shared_bytes(conv) <= H100.shared_bytes_of_block)
    return chosen


def verify(device: EmulatedDevice, chosen: ImplicitParameters, conv: Conv2d) -> float:
    """The error of a kernel, as a multiple of what the convolution allows."""
    error = verify_on_device(device, chosen.kernel(conv), conv).max_relative_error
    return error / conv.error_bound.max_relative


def conv_of(*sizes: int, **options: Any) -> Conv2d:
    return Conv2d.of("c", *sizes, **options)


FUSED = {"bias": True, "relu": True}
NHWC: dict[str, Any] = {"layout": "nhwc"}
ODD = {
    "boxes": (
        replace(BOXED, deep=2, consumers=2),
        conv_of(2, 9, 7, 21, 24, 3, 2, 2, 1, 2, mode="3xtf32", **NHWC, **FUSED),
    ),
    "boxes-of-halves": (
        replace(BOXED, tile_c=32, splits=3, line=64),
        conv_of(3, 5, 9, 40, 40, 2, 3, 1, 2, mode="bfloat16", **NHWC, **FUSED),
    ),
    "boxes-of-groups": (
        replace(BOXED, blocks=1),
        conv_of(1, 8, 9, 10, 16, 3, 3, 1, 1, 1, 2, mode="tf32", **NHWC, bias=True),
    ),
    "packed": (
        replace(PACKED, consumers=2, blocks=1),
        conv_of(2, 7, 5, 19, 13, 3, 2, 2, 1, 2, mode="3xtf32", **FUSED),
    ),
    "packed-halves": (
        replace(EARLY, tile_c=32, splits=2),
        conv_of(3, 7, 5, 40, 67, 2, 3, 1, 2, mode="float16", **FUSED),
    ),
    "packed-channels-last": (
        replace(PACKED, deep=2),
        conv_of(2, 7, 9, 24, 14, 3, 5, 2, 2, mode="bfloat16", **NHWC, bias=True),
    ),
    "unrolled": (
        replace(UNROLLED, stages=5, blocks=1),  # the weights of two tiles stay in their stages
        conv_of(2, 11, 9, 13, 3, 5, 7, 2, 3, mode="3xtf32", **FUSED),
    ),
    "unrolled-halves": (
        replace(UNROLLED, splits=2, line=32),
        conv_of(3, 9, 13, 24, 5, 3, 4, 3, 2, 2, mode="float16", bias=True),
    ),
    "unrolled-channels-last": (
        UNROLLED,
        conv_of(2, 7, 9, 10, 3, 3, 5, 1, 4, 2, mode="bfloat16", **NHWC),
    ),
    "short-unrolled": (
        UNROLLED,
        conv_of(1, 7, 9, 10, 2, 3, 3, 1, 1, mode="3xtf32", **NHWC),
    ),
    "packed-groups": (
        replace(EARLY, line=128, pitch=128),
        conv_of(2, 7, 5, 12, 22, 3, 2, 1, 1, 1, 2, mode="3xtf32", **FUSED),
    ),
    "packed-groups-channels-last": (
        replace(PACKED, pitch=32),
        conv_of(1, 6, 7, 9, 33, 2, 3, 2, 1, 1, 3, mode="float16", **NHWC, bias=True),
    ),
    "packed-without-weights": (
        replace(EARLY, tile_c=32),
        conv_of(2, 7, 9, 40, 24, 1, 1, 2, 0, mode="tf32"),
    ),
    "wide-lines": (
        replace(BOXED, line=128),
        conv_of(2, 7, 9, 10, 24, 3, 2, 1, 1, mode="3xtf32", **NHWC),
    ),
    "wide-lines-packed": (
        replace(PACKED, line=64, deep=2),
        conv_of(1, 7, 9, 24, 37, 2, 3, 2, 1, mode="float16"),
    ),
    "packed-one-of-nine": (
        replace(EARLY, consumers=2, blocks=1, pitch=32),
        conv_of(3, 13, 11, 19, 37, 1, 1, 3, 2, mode="3xtf32", **FUSED),
    ),
    "packed-dilated-channels-last": (
        replace(PACKED, blocks=2),
        conv_of(2, 9, 12, 10, 21, 3, 2, 2, 3, 2, mode="float16", **NHWC, bias=True),
    ),
    "packed-two-of-five": (
        PACKED,
        conv_of(2, 11, 13, 9, 6, 2, 2, 5, 1, 1, 3, mode="tf32"),
    ),
    "whole-windows": (
        replace(WHOLE, splits=2),
        conv_of(2, 9, 8, 21, 3, 5, 3, 2, 2, 2, mode="3xtf32", **FUSED),
    ),
    "whole-windows-channels-last": (
        replace(WHOLE, blocks=1),
        conv_of(3, 9, 8, 13, 2, 7, 1, 1, 3, mode="bfloat16", **NHWC),
    ),
    "split-before": (
        replace(SPLIT_BEFORE, early=True, blocks=1, line=64),
        conv_of(2, 5, 6, 21, 128, 3, 2, 2, 1, mode="3xtf32", **NHWC, **FUSED),
    ),
    "split-before-in-short-lines": (
        replace(SPLIT_BEFORE, tile_c=8, splits=2, line=32, deep=2),
        conv_of(1, 4, 3, 9, 88, 3, 3, 1, 1, mode="3xtf32", **NHWC),
    ),
    "split-before-of-groups": (
        replace(SPLIT_BEFORE, consumers=2),
        conv_of(1, 5, 4, 12, 1600, 1, 1, 1, 0, 1, 2, mode="3xtf32", **NHWC, relu=True),
    ),
    "split-before-and-packed": (
        replace(EARLY, split_before=True, line=128, pitch=32),
        conv_of(2, 5, 7, 13, 131, 3, 2, 2, 1, 2, mode="3xtf32", **FUSED),
    ),
    "split-before-and-unrolled": (
        replace(UNROLLED, split_before=True),
        conv_of(1, 5, 4, 11, 31, 5, 5, 1, 2, mode="3xtf32", bias=True),
    ),
    "split-before-and-whole": (
        replace(WHOLE, split_before=True),
        conv_of(1, 7, 5, 11, 87, 3, 3, 2, 1, mode="3xtf32", **NHWC),
    ),
    "planes": (
        replace(ONE, tile_c=40, consumers=2, blocks=1),
        conv_of(2, 9, 11, 75, 5, 2, 3, 1, 1, mode="3xtf32", **FUSED),
    ),
    "planes-of-halves": (
        replace(WHOLE, tile_c=56, blocks=1),
        conv_of(3, 9, 12, 50, 6, 3, 3, 1, 0, mode="float16", bias=True),
    ),
    "planes-of-groups": (
        replace(PACKED, consumers=3),
        conv_of(1, 15, 14, 44, 22, 1, 1, 1, 0, 1, 2, mode="tf32", relu=True),
    ),
    "pieces": (
        replace(BOXED, tile_c=56, blocks=1),
        conv_of(2, 6, 7, 104, 16, 3, 2, 1, 1, mode="float16", **NHWC, **FUSED),
    ),
    "lines": (
        replace(ONE, blocks=1, tile_c=24),
        conv_of(2, 7, 9, 33, 15, 3, 3, 1, 2, 1, 3, mode="float16", **NHWC, relu=True),
    ),
    "split-lines": (
        replace(ONE, splits=2),
        conv_of(1, 9, 8, 5, 6, 3, 3, 3, 1, mode="3xtf32", **NHWC),
    ),
    "lines-of-pixels": (
        replace(ONE, consumers=2, stages=2),
        conv_of(2, 8, 11, 19, 13, 2, 3, 1, 3, 2, mode="float16", **FUSED),
    ),
    "runs": (
        replace(ONE, blocks=3, tile_c=8),
        conv_of(3, 10, 7, 13, 11, 3, 2, 2, 1, mode="3xtf32", **FUSED),
    ),
    "runs-of-a-wide-image": (
        replace(ONE, tile_c=8, blocks=2),
        conv_of(1, 5, 1001, 5, 3, 3, 3, 3, 1, mode="3xtf32", **FUSED),
    ),
    "runs-of-rows": (
        replace(ONE, splits=4),
        conv_of(1, 9, 12, 12, 10, 5, 7, 1, 3, 1, 2, mode="tf32", relu=True),
    ),
}


# Others copy in the same way, in another mode or layout.
SIMILAR_ODD = (
    *(
        "boxes-of-groups",
        "packed-groups-channels-last",
        "wide-lines",
        "wide-lines-packed",
        "packed-halves",
    ),
    *("packed-without-weights", "unrolled-channels-last", "short-unrolled"),
    *("split-lines", "runs-of-a-wide-image", "runs-of-rows", "boxes-of-halves"),
    *("unrolled-halves", "packed-channels-last", "lines", "packed"),
    *("planes-of-halves", "planes-of-groups"),
    *("split-before-in-short-lines", "split-before-of-groups"),
    *("split-before-and-unrolled", "split-before-and-whole"),
    *("packed-two-of-five", "whole-windows-channels-last"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(ODD, SIMILAR_ODD))
def test_each_way_to_copy_is_right_for_odd_sizes(device, name):
    assert verify(device, *ODD[name]) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chosen", "options"),
    [(ONE, {}), (ONE, NHWC), (BOXED, NHWC)],
    ids=["runs", "lines", "boxes"],
)
def test_two_stages_are_enough(device, chosen, options):
    conv = conv_of(1, 6, 6, 16, 16, 3, 3, 1, 1, mode="float16", **options)
    assert verify(device, replace(chosen, stages=2), conv) <= 1


@pytest.mark.thorough
@settings(FEW, max_examples=30)
@given(st.data())
def test_it_is_right_for_any_geometry_and_parameters(device, data):
    conv = data.draw(convolutions())
    assert verify(device, data.draw(parameters(conv)), conv) <= 1


@pytest.mark.thorough
@settings(FEW, max_examples=10)
@given(st.data(), convolutions())
def test_any_parameters_that_are_offered_are_right(device, data, conv):
    offered = list(ImplicitParameters.fitting(conv, SMALL_HOPPER))
    assert verify(device, data.draw(st.sampled_from(offered)), conv) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "options"),
    [
        (ONE, {}),
        pytest.param(ONE, NHWC, marks=pytest.mark.thorough),
        pytest.param(BOXED, NHWC, marks=pytest.mark.thorough),
        (SPLIT_BEFORE, NHWC),
    ],
    ids=["runs", "lines", "boxes", "split-before"],
)
def test_split_operands_are_as_exact_as_float32_in_long_sums(device, chosen, options):
    conv = conv_of(1, 3, 3, 16, 264, 3, 3, 1, 1, mode="3xtf32", **options)
    assert verify(device, chosen, conv) < 0.1


@pytest.mark.thorough
@pytest.mark.parametrize(("channels", "layout"), [(3, "nchw"), (1, "nhwc")])
def test_split_operands_are_as_exact_as_float32_in_short_sums(device, channels, layout):
    conv = conv_of(2, 12, 12, 16, channels, 1, 1, 1, 0, mode="3xtf32", layout=layout)
    assert verify(device, ONE, conv) < 0.4


class FarConv2d(Conv2d):
    """A convolution of numbers whose exponents are far apart."""

    def make_inputs(self, seed: int) -> dict[str, Any]:
        ordinary, drawn = super().make_inputs(seed), np.random.default_rng(seed)
        return {
            name: np.ldexp(one, drawn.integers(-55, 56, one.shape))
            for name, one in ordinary.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [BOXED, SPLIT_BEFORE], ids=["boxes", "split-before"])
def test_split_operands_are_as_exact_with_any_exponents(device, chosen):
    conv = FarConv2d(**vars(DEEP_SPLIT))
    assert verify(device, chosen, conv) < 0.2


def test_a_product_with_parts_in_bfloat16_is_off_by_less_than_short_sums_may_be():
    """A product of two numbers, by the formulas of `cuda/conv/coarse.cu`, over all roundings."""
    bits = np.arange(0x3F800000, 0x3F840000, dtype=np.uint32)  # relative errors are largest there
    numbers = bits.view(np.float32)
    larger = (bits + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    lost = numbers - larger

    def in_bfloat16(values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint32)
        nearest = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        return (nearest & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)

    exact = numbers.astype(np.float64)
    whole, lost, coarse = in_bfloat16(numbers), lost.astype(np.float64), in_bfloat16(lost)
    kinds = (whole - exact, lost, coarse - lost, (whole - exact) * lost, coarse - lost + lost / 256)
    extreme = np.unique([np.argsort(sign * kind)[:300] for kind in kinds for sign in (-1, 1)])
    x, y = exact[extreme][:, None], exact[extreme][None]
    left, right = larger.astype(np.float64)[extreme], coarse[extreme]
    product = left[:, None] * left[None] + right[:, None] * whole[extreme][None]
    product += whole[extreme][:, None] * right[None]
    worst = np.abs(product / (x * y) - 1).max() * 2**24
    assert 80 < worst < 92
    conv = conv_of(1, 1, 1, 8, 768, 1, 1, 1, 0, mode="3xtf32", **NHWC)
    assert worst < conv.error_bound.max_relative * 2**24 - 16  # for the sum itself


@pytest.mark.thorough
def test_tf32_alone_is_not_as_exact_as_float32(device):
    conv = conv_of(1, 8, 8, 16, 8, 3, 3, 1, 1, mode="tf32")
    with pytest.raises(KernelFault, match=r"of output .* (is|are) wrong"):
        verify_on_device(device, ONE.kernel(conv), conv.varied(mode="3xtf32"))


SMALL_BOXED = conv_of(1, 8, 8, 16, 40, 3, 3, 1, 1, mode="bfloat16", **NHWC)
SMALL_SPLIT = conv_of(1, 8, 8, 16, 40, 3, 3, 1, 1, mode="3xtf32", **NHWC)
DEEP_SPLIT = conv_of(1, 4, 4, 16, 88, 3, 3, 1, 1, mode="3xtf32", **NHWC)
SMALL_RUNS = conv_of(1, 8, 8, 16, 40, 3, 3, 1, 1, mode="3xtf32")
STRIDED = conv_of(1, 9, 9, 16, 40, 1, 1, 3, 1, mode="bfloat16")
SHORT = conv_of(1, 8, 8, 64, 8, 3, 3, 1, 1, mode="3xtf32")
FIRST_LAYER = conv_of(2, 8, 8, 16, 3, 3, 3, 1, 1, mode="float16", **NHWC)
FAULTS = {
    "ready": (
        BOXED,
        SMALL_SPLIT,
        "if (PREPARED) wait(barriers.ready",
        "if (0) wait(barriers.ready",
    ),
    "empty": (ONE, SMALL_RUNS, "wait(empty[ring.stage], ring.parity ^ 1);", ""),
    "free-early": (BOXED, SMALL_BOXED, "finish<1>(sums.of);", "finish<2>(sums.of);"),
    "zeros": (PACKED, SMALL_RUNS, "channel < PACK_CI && source >= 0 ?", "true ?"),
    "read-pixels": (PACKED, STRIDED, "y % Y_TAPS * Y_STEP + Y_FIRST", "y % Y_TAPS * Y_STEP"),
    "weights": (replace(ONE, blocks=1), FIRST_LAYER, "before < STAGES", "before < 1"),
    "padding": (ONE, SMALL_RUNS, "window.taps[i % 2] >> tap & 1 ?", "true ?"),
    "planes": (ONE, SHORT, "meet_warpgroup();  // it has collected", "// it has collected"),
    "next-planes": (
        replace(ONE, tile_c=64),
        SHORT,
        "meet_warpgroup();  // it has read",
        "// it has read",
    ),
    "smaller-parts": (SPLIT_BEFORE, DEEP_SPLIT, "rest)[1] = parts.lost", "rest)[1] = parts.whole"),
    "order-of-parts": (
        SPLIT_BEFORE,
        DEEP_SPLIT,
        "in_bfloat16(first, second)",
        "in_bfloat16(second, first)",
    ),
    "taps": (BOXED, SMALL_SPLIT, "first = box / TAPS", "first = box / CHANNEL_BOXES"),
    "cluster-ends-early": (
        replace(BOXED, splits=2),
        SMALL_BOXED,
        "meet();  // others",
        "// others",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", nightly(FAULTS, FAULTS.keys() - {"weights", "planes", "cluster-ends-early"})
)
def test_a_fault_in_the_text_is_found(device, fault):
    chosen, conv, right, wrong = FAULTS[fault]
    kernel = chosen.kernel(conv)
    assert kernel.source.count(right) == 1
    with pytest.raises(KernelFault):
        verify_on_device(device, replace(kernel, source=kernel.source.replace(right, wrong)), conv)


# ---- Parameters


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"consumers": 3, "per_multiprocessor": 2}, "cannot have 2 blocks of 3 consumers"),
        ({"consumers": 0}, "cannot have 1 blocks of 0 consumers"),
        ({"consumers": 4}, "cannot have 1 blocks of 4 consumers"),
        ({"tile_c": 20}, "a multiple of 8 channels at a time, up to 256, not 20"),
        ({"tile_c": 264}, "a multiple of 8 channels at a time, up to 256, not 264"),
        ({"tile_c": 0}, "needs tile_c to be a whole number from 8"),
        ({"stages": 1}, "needs stages to be a whole number from 2"),
        ({"splits": 0}, "needs splits to be a whole number from 1"),
        ({"splits": 9}, "among up to 8 blocks, which compute no other one, not 9"),
        ({"splits": 2, "blocks": 5}, "not 2 with blocks=5"),
        ({"blocks": -1}, "needs blocks to be a whole number from 0"),
        ({"deep": 0}, "needs deep to be a whole number from 1"),
        ({"deep": 2}, "steps of one line where threads copy, not of 2"),
        ({"packed": True}, "packs only what is boxed"),
        ({"unrolled": True}, "unrolls windows where it packs"),
        (
            {"boxed": True, "packed": True, "unrolled": 3},
            r"rows of windows \(1\) or whole .* not 3",
        ),
        ({"early": True}, "begins early where it packs"),
        ({"split_before": True}, "splits before only what is boxed"),
        ({"boxed": True, "line": 48}, "lines of 32, 64 or 128 bytes in boxes, not of 48"),
        ({"line": 64}, "not of 64 with boxed=0"),
        ({"pitch": 64}, "not of 64 with packed=0"),
        ({"boxed": True, "packed": True, "pitch": 48}, "of 32, 64 or 128 bytes, not of 48"),
    ],
)
def test_parameters_without_a_kernel_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        replace(ONE, **change)


WIDE = conv_of(1, 36, 12, 8, 8, 33, 8, 1, 0, mode="tf32")


@pytest.mark.parametrize(
    ("chosen", "conv", "words"),
    [
        (ONE, conv_of(1, 8, 8, 8, 8, 3, 3, 1, 1), "in 3xtf32, tf32, .*, not in mode float32"),
        (ONE, WIDE, "up to 32 x 32 in layout nchw and mode tf32, and c has 33 x 8"),
        (
            replace(ONE, splits=3),
            conv_of(1, 8, 8, 8, 8, 1, 1, 1, 0, mode="tf32"),
            "c has 1 steps of a tile, which 3 blocks cannot share: choose fewer splits",
        ),
        (
            BOXED,
            conv_of(1, 8, 8, 8, 8, 3, 3, 1, 1, mode="tf32"),
            "pieces .* in layout nhwc, or",
        ),
        (
            SPLIT_BEFORE,
            conv_of(1, 8, 8, 8, 767, 1, 1, 1, 0, mode="3xtf32", **NHWC),
            "mode 3xtf32 and sums of 768 products or more, not for c",
        ),
        (PACKED, WIDE, "packed ones, with windows of up to 256 elements"),
        (UNROLLED, conv_of(1, 8, 8, 8, 8, 3, 3, 1, 1, 1, 2, mode="tf32"), "of a single group"),
        (PACKED, conv_of(1, 30000, 30000, 1, 1, 3, 3, 1, 1, mode="tf32"), "cannot find"),
    ],
)
def test_convolutions_without_a_kernel_are_refused(chosen, conv, words):
    with pytest.raises(InputError, match=words):
        chosen.kernel(conv)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "conv", [replace(WIDE, layout="nhwc"), replace(WIDE, mode="float16")], ids=["nhwc", "halves"]
)
def test_the_limit_of_windows_is_that_of_runs_alone(device, conv):
    assert verify(device, ONE, conv) <= 1


ENORMOUS = conv_of(1, 17, 40000, 8, 32, 17, 17, 2000, 0, 1, 2, mode="3xtf32")


@pytest.mark.parametrize(
    ("conv", "card", "others"),
    [(ENORMOUS, H100, {"implicit_mma"}), (SMALL_SPLIT, A100, {"implicit_mma", "narrow"})],
)
def test_what_it_cannot_compute_is_left_to_other_templates(conv, card, others):
    assert {one.template for one in rank_kernels(conv, card)} == others


LIMITS = {
    "padding-127": ((1, 4, 4, 8, 16, 3, 3, 1, 127), True),
    "padding-128": ((1, 4, 4, 8, 16, 3, 3, 1, 128), False),
    "reach-127": ((1, 130, 130, 8, 16, 128, 2, 1, 0), True),
    "reach-128": ((1, 130, 130, 8, 16, 129, 2, 1, 0), False),
    "reach-127-around": ((1, 20, 20, 8, 16, 3, 1, 1, 127, 127), True),
    "reach-128-around": ((1, 20, 20, 8, 16, 2, 18, 1, 127, 15), False),
    "stride-8": ((1, 20, 20, 8, 16, 3, 3, 8, 1), True),
    "stride-9": ((1, 20, 20, 8, 16, 3, 3, 9, 1), False),
    "channels-12": ((1, 8, 8, 8, 12, 17, 17, 1, 8), False),
    "groups-of-16": ((1, 8, 8, 8, 32, 3, 3, 1, 1, 1, 2), True),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_threads_copy_what_tensor_maps_cannot_describe(limit):
    sizes, boxes = LIMITS[limit]
    conv = conv_of(*sizes, mode="float16", **NHWC)
    offered = [one for one in ImplicitParameters.fitting(conv, H100) if not one.packed]
    assert any(one.boxed for one in offered) is boxes
    assert bool(offered[0].kernel(conv).tensor_maps) is boxes
    ONE.kernel(conv)
    if boxes:
        return
    for splits in (1, 2):
        with pytest.raises(InputError, match="cannot find the windows of c: it needs"):
            replace(BOXED, splits=splits).kernel(conv)


@pytest.mark.parametrize(("channels", "ways"), [(48, {True, False}), (32, {True})])
def test_threads_may_copy_too_where_boxes_are_short(channels, ways):
    conv = conv_of(1, 8, 8, 8, channels, 3, 3, 1, 1, mode="float16", **NHWC)
    assert {one.boxed for one in ImplicitParameters.fitting(conv, H100)} == ways


PACKS = {
    "nhwc": (conv_of(1, 8, 8, 8, 12, 3, 3, 1, 1, mode="float16", **NHWC), True),
    "nchw": (conv_of(1, 8, 8, 8, 16, 3, 3, 1, 1, mode="tf32"), True),
    "window": (conv_of(1, 40, 40, 8, 16, 33, 2, 1, 1, mode="tf32"), True),
    "large-window": (conv_of(1, 40, 40, 8, 16, 16, 17, 1, 1, mode="tf32"), False),
    "groups": (conv_of(1, 8, 8, 8, 16, 3, 3, 1, 1, 1, 2, mode="tf32"), True),
    "short-groups": (conv_of(1, 8, 8, 8, 16, 3, 3, 1, 1, 1, 2, mode="float16", **NHWC), True),
    "short-rows": (conv_of(1, 8, 8, 8, 20, 3, 3, 1, 1, mode="tf32", **NHWC), True),
    "whole-pieces": (conv_of(1, 8, 8, 8, 16, 3, 3, 1, 1, mode="tf32", **NHWC), False),
}


@pytest.mark.parametrize("name", PACKS)
def test_what_can_be_packed_is_offered_in_both_ways(name):
    conv, packs = PACKS[name]
    offered = [one for one in ImplicitParameters.fitting(conv, H100) if not one.unrolled]
    assert any(one.packed for one in offered) is packs
    kernels = [one.kernel(conv) for one in offered if one.packed][:1]
    assert [len(kernel.launches) for kernel in kernels] == [2] * packs
    assert any(not one.packed for one in offered) is (name != "window")


PACKING = {"packed": PACKED, "early": EARLY, "unrolled": UNROLLED}


@pytest.mark.parametrize("name", PACKING)
@pytest.mark.parametrize("layout", CONV_LAYOUTS)
def test_weights_of_a_single_tap_need_not_be_packed(name, layout):
    conv = conv_of(1, 8, 8, 8, 16, 1, 1, 1, 0, mode="float16", layout=layout)
    assert [space.name for space in PACKING[name].kernel(conv).workspaces] == ["packed_data"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", nightly(CONV_LAYOUTS, ("nhwc",)))
@pytest.mark.parametrize("name", nightly(PACKING, ("packed", "unrolled")))
def test_kernels_are_right_with_weights_of_a_single_tap(device, layout, name):
    conv = conv_of(1, 8, 8, 8, 16, 1, 1, 1, 0, mode="float16", layout=layout)
    assert verify(device, PACKING[name], conv) < 1


@pytest.mark.parametrize(
    ("layout", "channels", "window", "early"),
    [("nchw", 40, 3, {False, True}), ("nhwc", 41, 1, {False}), ("nhwc", 3, 7, {False, True})],
)
def test_launches_begin_early_where_that_may_save_time(layout, channels, window, early):
    conv = conv_of(1, 24, 24, 8, channels, window, window, 1, 0, mode="float16", layout=layout)
    packed = [one for one in ImplicitParameters.fitting(conv, H100) if one.packed]
    assert {one.early for one in packed} == early
    for one in packed[:2]:
        assert [launch.early for launch in one.kernel(conv).launches] == [False, one.early]


READ = {
    "stride-over-window": ((2, 10, 7, 8, 20, 1, 1, 3, 0), (4, 3)),
    "padded": ((1, 10, 9, 8, 20, 1, 1, 3, 1), (3, 3)),  # one of the rows and columns is padding
    "dilated": ((1, 11, 12, 8, 20, 3, 3, 2, 2, 2), (6, 6)),
    "dilated-with-odd-padding": ((1, 11, 12, 8, 20, 3, 3, 2, 1, 2), (5, 6)),
    "one-row": ((1, 11, 12, 8, 20, 1, 3, 2, 0, 1), (6, 11)),
    "two-of-five": ((1, 12, 22, 8, 20, 2, 2, 5, 0), (6, 10)),
    "all": ((1, 12, 11, 8, 20, 3, 3, 2, 1), (12, 11)),
    "but-the-last": ((1, 12, 12, 8, 20, 2, 4, 3, 0), (8, 10)),
}


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("name", READ)
def test_only_pixels_that_windows_read_are_packed(name, layout):
    sizes, (rows, columns) = READ[name]
    conv = conv_of(*sizes, mode="float16", layout=layout)
    packed = PACKED.kernel(conv).workspaces[0]
    assert packed.shape == (sizes[0], rows, columns, 24)


@given(
    *(st.integers(1, most) for most in (40, 7, 12)),
    *(st.integers(0, 9), st.integers(1, 9)),
)
def test_packed_rows_are_those_that_windows_read(length, window, stride, padding, dilation):
    reach = (window - 1) * dilation + 1
    assume(reach <= length + 2 * padding)
    outputs = (length + 2 * padding - reach) // stride + 1
    rows = read_axis(length, outputs, window, stride, padding, dilation)
    assert rows.length <= max(length, 1)
    assert -rows.padding + rows.stride * (outputs - 1) <= rows.length - 1 + rows.last(outputs)
    assert -rows.padding + rows.stride * outputs > rows.length - 1 + rows.last(outputs)
    for output in range(outputs):
        for tap in range(window):
            row = output * stride - padding + tap * dilation
            packed = output * rows.stride - rows.padding + tap * rows.dilation
            found = packed // rows.taps * rows.apart + packed % rows.taps * rows.step + rows.first
            exists = 0 <= packed < rows.length and 0 <= found < length
            assert exists == (0 <= row < length)
            assert not exists or found == row


@pytest.mark.parametrize(("channels", "unrolls"), [(3, True), (64, False)])
@pytest.mark.parametrize("layout", CONV_LAYOUTS)
def test_windows_are_unrolled_where_there_are_few_channels(channels, unrolls, layout):
    conv = conv_of(1, 24, 24, 8, channels, 7, 7, 2, 3, mode="float16", layout=layout)
    offered = [one for one in ImplicitParameters.fitting(conv, H100) if one.unrolled]
    assert bool(offered) is unrolls
    for kernel in [one.kernel(conv) for one in offered][:1]:
        (of_data, _), (packed, _) = kernel.tensor_maps, kernel.workspaces
        assert of_data.dims == (24, 12, 24, 1)  # 7 x 3 elements in whole pieces
        assert packed.shape == (1, 24, 12, 24)


@pytest.mark.slow
@pytest.mark.parametrize("limit", nightly(["padding-127", "reach-127-around"], ["padding-127"]))
def test_it_is_right_at_the_limits_of_tensor_maps(device, limit):
    sizes, boxes = LIMITS[limit]
    conv = conv_of(*sizes, mode="float16", **NHWC)
    fewer = replace(conv, shape=replace(conv.shape, strides=8))  # pixels; the limits are the same
    assert verify(device, replace(ONE, tile_c=8, boxed=boxes), fewer) <= 1


@pytest.mark.slow
@settings(FEW, max_examples=10)
@given(convolutions(), st.sampled_from([1, 4, 20]))
def test_all_offered_parameters_fit(conv, factor):
    s = conv.shape
    larger = replace(conv, shape=replace(s, H=s.H * factor, CO=s.CO * factor, CI=s.CI * factor))
    offered = list(ImplicitParameters.fitting(larger, H100))
    assert offered
    assert len(set(offered)) == len(offered)
    for one in offered:
        assert one.shared_bytes(larger) <= H100.shared_bytes_of_block
        assert one.per_multiprocessor * one.shared_bytes(larger) <= H100.shared_bytes
        threads = one.threads * one.per_multiprocessor
        assert one.registers(larger) * threads <= 1 << 16
        assert one.splits <= one.steps(larger)
        assert one.cycles(larger, H100) > 0
        assert ImplicitParameters.of(one.numbers) == one


@pytest.mark.parametrize(
    ("channels", "mode", "tiles"),
    [
        (66, "3xtf32", {16, 24, 40, 72}),  # of 96 channels, 30 would be in vain
        (5, "tf32", {8}),
        (256, "tf32", {16, 32, 48, 64, 88, 128, 256}),
        (104, "float16", {16, 32, 48, 64, 80, 96, 104, 128}),
    ],
)
def test_tiles_share_the_channels_evenly(channels, mode, tiles):
    conv = conv_of(1, 60, 60, channels, 32, 3, 3, 1, 1, mode=mode, **NHWC)
    assert {one.tile_c for one in ImplicitParameters.fitting(conv, H100)} == tiles


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "most"), [("tf32", 104), ("float16", 104), ("3xtf32", 24)])
def test_sums_fit_in_the_registers_of_two_blocks_of_two_consumers(mode, most):
    tiles = set()
    for channels in range(8, 129, 8):
        conv = conv_of(1, 60, 60, channels, 64, 3, 3, 1, 1, mode=mode, **NHWC)
        offered = ImplicitParameters.fitting(conv, H100)
        pairs = (one for one in offered if (one.consumers, one.per_multiprocessor) == (2, 2))
        tiles |= {one.tile_c for one in pairs}
    assert max(tiles) == most


@given(convolutions())
@FEW
def test_the_order_is_the_same_again(conv):
    ranked = rank_kernels(conv, H100)
    assert ranked == rank_kernels(conv, H100)
    assert {one.template for one in ranked} >= {"implicit", "implicit_mma"}


def has_several(conv: Conv2d) -> bool:
    """Whether five kernels or more are offered; others are not made."""
    return len(list(islice(ImplicitParameters.fitting(conv, H100), 5))) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cases", "resnet", "yolo"])
def test_each_bundled_layer_has_kernels_in_all_modes_and_layouts(name):
    assert TEMPLATES["implicit"] is ImplicitParameters
    for layer in network(name):
        assert isinstance(layer, Conv2d)
        for mode in MODES:
            for layout in CONV_LAYOUTS:
                conv = layer.varied(mode=mode, layout=layout)
                assert has_several(conv), conv.name


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("mode", ["3xtf32", "tf32"])
def test_wide_images_have_kernels(mode, stride):
    conv = conv_of(1, 1080, 1920, 32, 3, 3, 3, stride, 1, mode=mode)
    assert has_several(conv)


# ---- Runs of an image


@st.composite
def shapes(draw: st.DrawFn) -> Conv2dShape:
    height, width, small = st.integers(1, 40), st.integers(1, 3000), st.integers(1, 7)
    width = st.one_of(height, width)
    sizes = (1, draw(height), draw(width), 1, 1, draw(small), draw(small), draw(st.integers(1, 4)))
    try:
        return Conv2dShape(
            *sizes, padding=draw(st.integers(0, 5)), dilation=draw(st.integers(1, 3))
        )
    except InputError:
        assume(False)
        raise


@given(shapes(), st.sampled_from([64, 128, 192]))
def test_every_tap_of_every_pixel_is_in_the_run_that_is_copied(shape, tile_p):
    blocks = input_blocks(shape, tile_p)
    s, plane = shape, shape.OH * shape.OW
    assert blocks.rows in (1, s.KH)
    assert blocks.runs in (1, blocks.rows)
    assert blocks.channels % 8 == blocks.run % 4 == 0
    assert blocks.pitch >= blocks.runs * blocks.run

    pixels = np.arange(plane)
    corners = (pixels // s.OW * s.strides - s.padding) * s.W + pixels % s.OW * s.strides - s.padding
    within = np.arange(blocks.rows)[:, None] * s.W * s.dilation + np.arange(s.KW) * s.dilation
    assert blocks.divided in (s.OW, plane)
    for tile in [
        tile
        for begin in range(0, plane, blocks.divided)
        for tile in range(begin, begin + blocks.divided, tile_p)
    ]:
        end = min(tile + tile_p, (tile // blocks.divided + 1) * blocks.divided)
        for part in range(s.KH // blocks.rows):
            row = part * blocks.rows * s.W * s.dilation
            first = corners[tile] - blocks.before
            aligned = first - first % blocks.width
            assert (aligned + row) % blocks.width == 0
            places = corners[tile:end, None, None] - aligned + within
            if blocks.runs > 1:  # each row of a window in a run of its own
                assert (s.W * s.dilation) % blocks.width == 0
                places -= np.arange(blocks.rows)[:, None] * s.W * s.dilation
            assert places.min() >= 0
            assert places.max() < blocks.run


def test_pixels_of_a_very_long_row_take_no_more_memory():
    long = conv_of(1, 1, 4_000_000, 8, 8, 1, 3, 2, 1, mode="tf32")
    assert has_several(long)
