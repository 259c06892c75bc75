"""Conv2d: sizes, reference, FLOPs, and what it says of itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, strategies as st
from strict_arrays import StrictArrays

from pytest_gpuenergy.engine import compare
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import (
    CASES,
    CONV_LAYOUTS,
    CONV_MODES,
    Conv2d,
    ErrorBound,
    Gemm,
    all_networks,
    distinct_shapes,
    numbers,
    rounded_to,
)

SIZES = (1, 8, 8, 4, 3, 3, 3, 1, 1)
NAMES = ("N", "H", "W", "CO", "CI", "KH", "KW", "strides", "padding", "dilation", "groups")


def direct(workload: Conv2d, inputs: dict[str, Any]) -> npt.NDArray[np.float64]:
    """The definition, tap by tap."""
    if workload.layout == "nhwc":
        first = {
            name: np.moveaxis(one, 3, 1) if one.ndim == 4 else one for name, one in inputs.items()
        }
        return np.moveaxis(direct(workload.varied(layout="nchw"), first), 1, 3)
    data, weight, s = inputs["data"], inputs["weight"], workload.shape
    oh = (s.H + 2 * s.padding - s.dilation * (s.KH - 1) - 1) // s.strides + 1
    ow = (s.W + 2 * s.padding - s.dilation * (s.KW - 1) - 1) // s.strides + 1
    ins, outs = s.CI // s.groups, s.CO // s.groups
    out = np.zeros((s.N, s.CO, oh, ow))
    for b, o, y, x in itertools.product(range(s.N), range(s.CO), range(oh), range(ow)):
        for c, dy, dx in itertools.product(range(ins), range(s.KH), range(s.KW)):
            row = y * s.strides + dy * s.dilation - s.padding
            column = x * s.strides + dx * s.dilation - s.padding
            if 0 <= row < s.H and 0 <= column < s.W:
                out[b, o, y, x] += data[b, o // outs * ins + c, row, column] * weight[o, c, dy, dx]
    if workload.bias:
        out += inputs["bias"].reshape(1, -1, 1, 1)
    return np.maximum(out, 0) if workload.relu else out


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    h, w = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    kh, kw = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    padding, strides, dilation = (draw(st.integers(low, 3)) for low in (0, 1, 1))
    assume(h + 2 * padding > dilation * (kh - 1) and w + 2 * padding > dilation * (kw - 1))
    n, groups, outs, ins = (draw(st.integers(1, 3)) for _ in range(4))
    sizes = (n, h, w, groups * outs, groups * ins, kh, kw, strides, padding, dilation, groups)
    options = {"mode": st.sampled_from(CONV_MODES), "layout": st.sampled_from(CONV_LAYOUTS)}
    options |= {"bias": st.booleans(), "relu": st.booleans()}
    return Conv2d.of("any", *sizes, **draw(st.fixed_dictionaries(options)))


@given(convolutions(), st.integers(0, 2**32))
def test_reference_is_the_definition(workload, seed):
    inputs = workload.widened(workload.make_inputs(seed))
    wanted = direct(workload, inputs)
    got = workload.reference(inputs)["output"]
    assert got.dtype == np.float64
    assert got.flags.c_contiguous
    assert got.shape == workload.outputs[0].shape
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@given(convolutions(), st.integers(1, 4096))
def test_blocks_of_rows_do_not_change_the_reference(workload, scratch_bytes):
    inputs = workload.widened(workload.make_inputs(0))
    whole = workload.reference(inputs)["output"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_gpuenergy.workloads.convolutions._SCRATCH_BYTES", scratch_bytes)
        parts = workload.reference(inputs)["output"]
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


@given(convolutions())
def test_output_shape_holds_every_placement_of_the_window(workload):
    s = workload.shape
    placements = range(0, s.H + 2 * s.padding - s.dilation * (s.KH - 1), s.strides)
    assert len(placements) == s.OH
    channels_first, channels_last = (s.N, s.CO, s.OH, s.OW), (s.N, s.OH, s.OW, s.CO)
    expected = channels_first if workload.layout == "nchw" else channels_last
    assert workload.outputs[0].shape == expected


def test_a_group_sees_its_own_channels_only():
    workload = Conv2d.of("x", 1, 8, 8, 8, 4, 3, 3, 1, 1, 1, 4)
    assert workload.inputs[1].shape == (8, 1, 3, 3)
    assert workload.flops == 2 * (8 * 8 * 8) * (1 * 3 * 3)
    assert workload.error_bound == ErrorBound.for_reduction(9)


def test_dilation_changes_the_output_alone():
    plain, dilated = (Conv2d.of("x", 1, 9, 9, 4, 4, 3, 3, 1, 0, d) for d in (1, 2))
    assert plain.inputs == dilated.inputs
    assert dilated.outputs[0].shape == (1, 4, 5, 5)
    assert dilated.error_bound == plain.error_bound


def test_work_is_counted_by_tap_and_by_tensor():
    assert Conv2d.of("x", 2, 5, 4, 3, 6, 2, 1, 1, 0).flops == 2 * (2 * 3 * 4 * 4) * (6 * 2 * 1)
    assert CASES["case1"].flops == 2_727_346_176
    assert Conv2d.of("x", *SIZES).bytes_moved == 4 * (3 * 64 + 4 * 3 * 9 + 4 * 64)


def with_size(place: int, value: object) -> list[object]:
    sizes: list[object] = [*SIZES, 1, 1]
    sizes[place] = value
    return sizes


REFUSED: list[tuple[Sequence[object], str]] = [
    *(
        (with_size(place, value), rf"conv2d needs {name} to be an integer of at")
        for place, name in enumerate(NAMES)
        for value in (-1, 2.0, "3", None, True)
    ),
    *(
        (with_size(place, 0), rf"{name} .* of at least 1, not 0")
        for place, name in enumerate(NAMES)
        if name != "padding"
    ),
    ((1, 2, 2, 1, 1, 5, 3, 1, 1), r"a 5x3 window does not fit .* 4x4"),
    ((1, 2, 2, 1, 1, 3, 5, 1, 1), r"a 3x5 window does not fit .* 4x4"),
    ((1, 2, 2, 1, 1, 3, 3, 1, 1, 2), r"a 3x3 window dilated by 2 does not fit .* 4x4"),
    *(
        ((1, 8, 8, co, ci, 3, 3, 1, 1, 1, 2), f"groups .* 2 does not divide {co} and {ci}")
        for co, ci in ((4, 3), (3, 4), (1, 1))
    ),
    ((2, 32768, 32768, 1, 1, 1, 1, 1, 0), "more elements than 32-bit indices can address"),
    *(((1,) * count, rf"nine numbers .* not {count}") for count in (0, 8, 12)),
]


@pytest.mark.parametrize(("sizes", "message"), REFUSED)
def test_a_convolution_that_cannot_be_is_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        Conv2d.of("x", *sizes)


@pytest.mark.parametrize(
    ("more", "ending"),
    [
        ((1, 1), "padding_1"),
        ((2,), "padding_1_dilation_2"),
        ((1, 4), "padding_1_groups_4"),
        ((2, 4), "padding_1_dilation_2_groups_4"),
    ],
)
def test_dilation_and_groups_are_told_where_there_are_any(more, ending):
    workload = Conv2d.of("x", 1, 8, 8, 4, 4, 3, 3, 1, 1, *more)
    assert workload.shape.label == f"N_1_H_8_W_8_CO_4_CI_4_KH_3_KW_3_strides_1_{ending}"
    told = dict(zip(("dilation", "groups"), more, strict=False))
    assert {k: v for k, v in told.items() if v > 1} == {
        k: v for k, v in workload.parameters.items() if k in told
    }


def test_inputs_follow_from_the_seed():
    first, again, other = (Conv2d.of("x", *SIZES).make_inputs(seed) for seed in (7, 7, 8))
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes()
        assert (value != other[name]).all()


def test_inputs_are_not_zero_and_look_normal():
    inputs = CASES["case7"].make_inputs(0)
    for value in inputs.values():
        assert np.count_nonzero(value) == value.size
        assert abs(value.mean()) < 0.02
        assert value.std() == pytest.approx(1, abs=0.02)


def test_inputs_of_one_workload_are_independent():
    inputs = Conv2d.of("x", 1, 6, 6, 4, 4, 6, 6, 1, 0).make_inputs(0)
    assert not np.intersect1d(inputs["data"], inputs["weight"]).size


def test_inputs_do_not_change_between_releases():
    data = Conv2d.of("x", *SIZES).make_inputs(0)["data"]
    # NumPy keeps the streams of SeedSequence and PCG64 for good; recorded results rest on that.
    np.testing.assert_array_equal(
        data.ravel()[:2],
        np.random.default_rng(np.random.SeedSequence(0).spawn(1)[0])
        .standard_normal(2)
        .astype(np.float32),
    )


def test_digest_tells_shapes_apart_and_names_not():
    sizes = (1, 8, 8, 4, 2, 3, 3, 1, 1, 1, 1)
    digest = Conv2d.of("x", *sizes).digest
    assert digest == Conv2d.of("other", *sizes).digest
    grown = ([size + (k == place) for k, size in enumerate(sizes)] for place in range(11))
    assert len({digest} | {Conv2d.of("x", *others).digest for others in grown}) == 12


def test_a_digest_does_not_change_between_releases():
    # References and verdicts on disk are found by it.
    assert (
        CASES["case1"].digest == "542617e6f7c2dbade385990eb0cfd2190490eea4a78773f017cdc1f67b220410"
    )


def test_parameters_hold_the_sizes():
    workload = Conv2d.of("x", *SIZES)
    assert workload.parameters == {
        "kind": "conv2d",
        **dict(zip(NAMES[:9], SIZES, strict=True)),
        "layout": "NCHW",
        "dtype": "float32",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cases", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("resnet", "yolo"))]
)
def test_references_of_a_network_take_seconds(name):
    begin_s = time.process_time()
    for workload in distinct_shapes(all_networks()[name]):
        output = workload.reference(workload.make_inputs(0))["output"]
        assert output.shape == workload.outputs[0].shape
        # Sums of CI KH KW products of standard normal values.
        assert 0.8 < output.std() / np.sqrt(workload.shape.reduction_length) < 1.1
    assert time.process_time() - begin_s < 10


OPTIONS = [{"mode": mode} for mode in CONV_MODES[1:]] + [
    {"layout": "nhwc"},
    {"bias": True},
    {"mode": "float16", "layout": "nhwc", "bias": True, "relu": True},
]


def sums(workload: Conv2d, inputs: dict[str, Any]) -> dict[str, Any]:
    """The output as float32 accumulators give it, rounded once."""
    single = {name: value.astype(np.float32) for name, value in inputs.items()}
    wide = direct(workload, single).astype(np.float32).astype(np.float64)
    return {"output": numbers(rounded_to(wide, workload.dtype), workload.dtype)}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_right_convolution_is_within_its_bound_and_its_twin_exact(options):
    workload = Conv2d.of("x", *SIZES, **options)
    (twin,) = workload.twins
    assert isinstance(twin, Conv2d)
    assert twin.digest != workload.digest
    assert twin.twins == ()
    for one in (workload, twin):
        inputs = one.widened(one.make_inputs(0))
        compare(sums(one, inputs), one.reference(inputs), one.io.bounds, 0)
    assert {abs(number) for number in inputs["data"].flat} == {0, 1, 2, 3, 4}


def test_an_error_below_the_bound_is_found_by_the_twin():
    workload = Conv2d.of("x", *SIZES, mode="tf32", bias=True)
    (twin,) = workload.twins
    for one, is_found in ((workload, False), (twin, True)):
        assert isinstance(one, Conv2d)
        inputs = one.widened(one.make_inputs(0))
        right = one.reference(inputs)
        outputs = {"output": right["output"] * (1 + 1e-4)}
        if is_found:
            with pytest.raises(KernelFault, match="wrong"):
                compare(outputs, right, one.io.bounds, 0)
        else:
            compare(outputs, right, one.io.bounds, 0)


@pytest.mark.parametrize("mode", CONV_MODES)
def test_a_mode_means_what_it_means_for_products(mode):
    workload = Conv2d.of("x", *SIZES, mode=mode)
    gemm = Gemm("g", 4, 64, 27, mode=mode)
    assert workload.error_bound == gemm.error_bound
    assert {tensor.dtype for tensor in workload.tensors} == {gemm.dtype}
    assert workload.allows_tensor_cores == gemm.allows_tensor_cores
    wider = workload.varied(bias=True, relu=True).error_bound
    assert wider == Gemm("g", 4, 64, 28, mode=mode).error_bound


def test_a_plain_convolution_has_no_twins():
    # Verification of the seven cases would take longer.
    assert CASES["case1"].is_plain
    assert CASES["case1"].twins == ()


@given(convolutions(), convolutions())
def test_a_name_ends_with_the_options_that_are_not_as_usual(workload, other):
    named = workload.called("layer" + workload.suffix)
    varied = named.varied(
        **{name: getattr(other, name) for name in ("mode", "layout", "bias", "relu")}
    )
    assert varied.name == "layer" + other.suffix
    assert varied.shape == workload.shape
    assert (
        varied.varied(
            mode=workload.mode, layout=workload.layout, bias=workload.bias, relu=workload.relu
        )
        == named
    )


@given(convolutions())
def test_a_device_computes_the_same_reference(workload):
    inputs = workload.widened(workload.make_inputs(0))
    arrays = StrictArrays()
    with arrays.used():
        there = workload.reference({name: arrays.put(one) for name, one in inputs.items()})
        found = arrays.get(there["output"])
    np.testing.assert_array_equal(found, workload.reference(inputs)["output"])
