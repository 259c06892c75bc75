"""The templates for convolutions in groups are right for any geometry and parameters."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import (
    DepthwiseParameters,
    GroupedParameters,
    NarrowParameters,
    ShallowParameters,
    rank_kernels,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import CONV_LAYOUTS, CONV_MODES, Conv2d

H100 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
THOROUGH = pytest.mark.thorough
DRAWN = settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def convolutions(draw: st.DrawFn, *, depthwise: bool = False, most: int = 6) -> Conv2d:
    """Any geometry, mode and layout: sizes that tiles do not divide, padding beyond windows."""
    groups, more = draw(st.integers(1, 5)), st.integers(1, 3)
    in_group, out_group = 1 if depthwise else draw(st.integers(1, most)), draw(more)
    size, taps = st.integers(1, 14), st.sampled_from([1, 2, 3, 5])
    sizes = (
        *(draw(st.integers(1, 2)), draw(size), draw(size), groups * out_group, groups * in_group),
        *(draw(taps), draw(taps), draw(more), draw(st.integers(0, 4)), draw(more), groups),
    )
    options = {
        "mode": draw(st.sampled_from(CONV_MODES)),
        "layout": draw(st.sampled_from(CONV_LAYOUTS)),
        "bias": draw(st.booleans()),
        "relu": draw(st.booleans()),
    }
    try:
        return Conv2d.of("c", *sizes, **options)
    except InputError:  # the window does not fit the padded input
        assume(False)
        raise


@st.composite
def short_sums(draw: st.DrawFn, channels: int) -> Conv2d:
    """A convolution with so many output channels in a group, and up to 48 products in a sum."""
    conv = draw(convolutions())
    s = conv.shape
    assume(s.CI // s.groups * s.KH * s.KW <= 48)
    sizes = (s.N, s.H, s.W, channels * s.groups, s.CI, s.KH, s.KW)
    options = {"layout": conv.layout, "bias": conv.bias, "relu": conv.relu}
    mode = draw(st.sampled_from(ShallowParameters.modes))
    walk = (s.strides, s.padding, s.dilation, s.groups)
    return Conv2d.of("c", *sizes, *walk, mode=mode, **options)


def tiles() -> dict[str, st.SearchStrategy[int]]:
    return {
        "rows": st.integers(1, 4),
        "columns": st.sampled_from([1, 2, 3, 4, 8]),
        "threads_x": st.integers(1, 4),
        "threads_y": st.integers(1, 4),
        "threads_z": st.integers(1, 4),
        "spread": st.booleans(),
    }


@pytest.mark.slow
@DRAWN
@given(
    convolutions(depthwise=True),
    st.builds(DepthwiseParameters, **tiles(), read_first=st.booleans()),
)
def test_depthwise_is_right_for_any_geometry(device, conv, chosen):
    error = verify_on_device(device, chosen.kernel(conv), conv).max_relative_error
    assert error <= conv.error_bound.max_relative


@pytest.mark.slow
@DRAWN
@given(
    convolutions(),
    st.builds(
        GroupedParameters,
        **tiles(),
        channels=st.sampled_from([1, 2, 3, 4, 8]),
        depth=st.integers(1, 4),
    ),
)
def test_grouped_is_right_for_any_geometry(device, conv, chosen):
    error = verify_on_device(device, chosen.kernel(conv), conv).max_relative_error
    assert error <= conv.error_bound.max_relative


@pytest.mark.slow
@DRAWN
@given(
    convolutions(most=40),
    st.builds(
        NarrowParameters,
        **{**tiles(), "threads_z": st.sampled_from([1, 2, 3, 8, 32])},
        channels=st.sampled_from([1, 2, 3, 4]),
    ),
)
def test_narrow_is_right_for_any_geometry(device, conv, chosen):
    error = verify_on_device(device, chosen.kernel(conv), conv).max_relative_error
    assert error <= conv.error_bound.max_relative


@pytest.mark.slow
@DRAWN
@given(
    st.integers(8, 70).flatmap(lambda channels: short_sums(channels)),
    st.builds(
        ShallowParameters,
        along=st.sampled_from([1, 2, 4]),
        across=st.sampled_from([4, 8]),
        warps=st.sampled_from([4, 8]),
    ),
)
def test_shallow_is_right_for_any_geometry(device, conv, chosen):
    assume(chosen in [*chosen.fitting(conv, H100)])
    error = verify_on_device(device, chosen.kernel(conv), conv).max_relative_error
    assert error <= conv.error_bound.max_relative


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((1, 13, 16, 6, 6, 3, 3, 1, 1, 1, 6), id="vectors", marks=THOROUGH),
        pytest.param((1, 14, 14, 8, 4, 3, 3, 2, 0, 1, 4), id="multiplier-2", marks=THOROUGH),
        pytest.param((1, 15, 12, 5, 5, 3, 3, 3, 2, 2, 5), id="stride-3-dilation-2"),
        pytest.param((3, 1, 1, 7, 7, 3, 3, 1, 1, 1, 7), id="images-of-1x1", marks=THOROUGH),
        pytest.param((1, 9, 8, 12, 8, 3, 3, 1, 1, 1, 4), id="grouped"),
    ],
)
def test_what_the_search_begins_with_is_right(device, sizes):
    conv = Conv2d.of("c", *sizes)
    kernel = rank_kernels(conv, H100)[0].kernel(conv)
    assert verify_on_device(device, kernel, conv).max_relative_error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        pytest.param(DepthwiseParameters, (1, 14, 14, 32, 32, 3, 3, 1, 1, 1, 32), id="depthwise"),
        pytest.param(
            *(GroupedParameters, (1, 30, 31, 8, 3, 3, 3, 1, 1)), id="first-layer", marks=THOROUGH
        ),
        pytest.param(NarrowParameters, (1, 20, 21, 5, 40, 3, 3, 1, 1), id="narrow"),
    ],
)
def test_the_best_is_right_with_channels_last(device, kind, sizes):
    conv = Conv2d.of("c", *sizes, mode="float16", layout="nhwc", bias=True, relu=True)
    chosen = min(kind.fitting(conv, H100), key=lambda one: one.cycles(conv, H100))
    error = verify_on_device(device, chosen.kernel(conv), conv).max_relative_error
    assert error <= conv.error_bound.max_relative


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "groups", "right", "wrong"),
    [
        (DepthwiseParameters(), 3, "top + y >= 0", "true"),
        (GroupedParameters(channels=2), 1, "first > 0) __sync", "first < 0) __sync"),
        (NarrowParameters(channels=4, threads_z=3), 1, "channel >= channels", "channel > channels"),
        (ShallowParameters(along=1), 1, "static_cast<unsigned>(at.x + x) < W", "true"),
        (ShallowParameters(along=1), 1, "channel >= GROUP_OUT", "channel > GROUP_OUT"),
    ],
)
def test_a_missing_condition_is_found(device, chosen, groups, right, wrong):
    options = {"mode": "3xtf32"} if isinstance(chosen, ShallowParameters) else {}
    channels = (24, 3) if options else (6, 9 if groups == 1 else groups)
    conv = Conv2d.of("c", 1, 5, 5, *channels, 3, 3, 1, 1, 1, groups, **options)
    kernel = chosen.kernel(conv)
    assert right in kernel.source
    with pytest.raises(KernelFault):
        verify_on_device(
            device, type(kernel)(kernel.source.replace(right, wrong), kernel.launches), conv
        )


MOBILENET = [
    (112, 112, 32, 1),
    (112, 112, 64, 2),
    (14, 14, 512, 1),
    (7, 7, 1024, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width", "channels", "stride"), MOBILENET)
def test_the_search_begins_with_blocks_for_all_multiprocessors(height, width, channels, stride):
    conv = Conv2d.of("c", 1, height, width, channels, channels, 3, 3, stride, 1, 1, channels)
    offered = rank_kernels(conv, H100)
    assert all(one.resident(conv, H100) > 0 for one in offered)
    for one in offered[:16]:
        warps = one.blocks(conv) * one.warps
        assert H100.multiprocessors <= 2 * one.blocks(conv)
        assert warps >= 2 * H100.multiprocessors


def test_a_depthwise_convolution_gets_the_template_that_does_less():
    conv = Conv2d.of("c", 1, 14, 14, 64, 64, 3, 3, 1, 1, 1, 64)
    assert {type(one) for one in rank_kernels(conv, H100)} == {DepthwiseParameters}
    conv = Conv2d.of("c", 1, 14, 14, 64, 64, 3, 3, 1, 1, 1, 16)
    assert {type(one) for one in rank_kernels(conv, H100)} == {GroupedParameters}


@pytest.mark.slow
def test_few_output_channels_get_the_template_without_tensor_cores():
    conv = Conv2d.of("c", 5, 65, 80, 4, 113, 1, 7, 1, 14, 4, mode="3xtf32")
    assert type(rank_kernels(conv, H100)[0]) is NarrowParameters
    conv = Conv2d.of("c", 1, 56, 56, 64, 64, 3, 3, 1, 1, mode="3xtf32")
    assert NarrowParameters not in {type(one) for one in rank_kernels(conv, H100)}


@pytest.mark.parametrize(
    ("sizes", "mode", "computes"),
    [
        ((1, 9, 9, 8, 48, 1, 1, 1, 0), "3xtf32", True),
        ((1, 9, 9, 8, 49, 1, 1, 1, 0), "3xtf32", False),
        ((1, 9, 9, 7, 3, 3, 3, 1, 1), "tf32", False),
        ((1, 9, 9, 32, 12, 3, 3, 1, 1, 1, 4), "tf32", True),
        ((1, 9, 9, 8, 3, 3, 3, 1, 1), "float16", True),
        ((1, 9, 9, 8, 3, 3, 3, 1, 1), "float32", False),
    ],
)
def test_sums_of_few_products_have_a_template_without_tensor_cores(sizes, mode, computes):
    conv = Conv2d.of("c", *sizes, mode=mode)
    assert ShallowParameters.computes(conv) == computes
    assert (ShallowParameters in {type(one) for one in rank_kernels(conv, H100)}) == computes


@given(convolutions(), st.booleans())
def test_every_convolution_with_a_window_that_fits_registers_has_parameters(conv, small):
    assume(math.prod(conv.shape.window) <= 81)
    card = CardResources(70, 1 if small else 80, 64, 2048, 96 << 10, 96 << 10)
    ranked = rank_kernels(conv, card)
    first = next(one for one in ranked if not isinstance(one, ShallowParameters))
    assert first.kernel(conv).launches[0].grid == first.grid(conv)


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ((1, 40, 40, 4, 4, 31, 31, 1, 15, 1, 4), "31 x 31, which"),
        ((2, 40, 40, 15, 15, 12, 12, 1, 4, 3, 5), "12 x 12, 34 x 34 with its dilation, which"),
    ],
)
def test_a_window_that_is_too_large_is_told(sizes, window):
    with pytest.raises(InputError, match=rf"window of {window} .* with --tuner tvm"):
        rank_kernels(Conv2d.of("c", *sizes), H100)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DepthwiseParameters(threads_x=64, threads_y=32),
            "64 x 32 x 1 threads is too large",
        ),
        (lambda: DepthwiseParameters(threads_x=1, threads_z=65), "64 along Z"),
        (lambda: DepthwiseParameters(rows=0), "needs rows to be a whole number from 1"),
        (
            lambda: DepthwiseParameters().kernel(Conv2d.of("c", 1, 9, 9, 4, 4, 3, 3, 1, 1, 1, 2)),
            "one input channel in each group, and c has 2",
        ),
        (
            lambda: DepthwiseParameters(rows=999, columns=99).kernel(
                Conv2d.of("c", 1, 9, 9, 4, 4, 3, 3, 1, 1, 1, 4)
            ),
            "A tile of 999 x 99 is too large for c",
        ),
        (
            lambda: GroupedParameters(channels=512, depth=9).kernel(
                Conv2d.of("c", 1, 9, 9, 512, 9, 3, 3, 1, 1)
            ),
            "choose a smaller depth for c",
        ),
        (
            lambda: NarrowParameters(channels=16, threads_x=1, threads_z=64).kernel(
                Conv2d.of("c", 1, 9, 9, 16, 64, 5, 5, 1, 2)
            ),
            "choose fewer threads along Z or channels for c",
        ),
        (lambda: ShallowParameters(across=6), "across to be a multiple of 4, not 6"),
        (
            lambda: ShallowParameters().kernel(
                Conv2d.of("c", 1, 9, 9, 16, 49, 1, 1, 1, 0, mode="3xtf32")
            ),
            "not 16 channels and 49 products, as c has",
        ),
        (
            lambda: ShallowParameters(warps=1).kernel(
                Conv2d.of("c", 1, 9, 9, 16, 9, 1, 1, 1, 0, mode="3xtf32")
            ),
            "32 threads would have 128 of c",
        ),
        (
            lambda: DepthwiseParameters(threads_y=1).kernel(
                Conv2d.of("c", 1, 70_000, 2, 1, 1, 1, 1, 1, 0)
            ),
            "c has too many tiles in a plane",
        ),
    ],
)
def test_parameters_without_a_kernel_are_told(make, message):
    with pytest.raises(InputError, match=message):
        make()
