"""A kind writes the sizes of a workload as its own grammar reads them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import (
    CONV_LAYOUTS,
    CONV_MODES,
    KINDS,
    LAYOUTS,
    MODES,
    Conv2d,
    Gemm,
    from_parameters,
    parse_shape,
    to_parameters,
)

size, small = st.integers(1, 5000), st.integers(1, 3)


@st.composite
def products(draw: st.DrawFn) -> Gemm:
    sizes = draw(size), draw(size), draw(size)
    layout, mode = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(MODES))
    bare, more = Gemm("g", *sizes, layout, mode), st.integers(0, 9)
    lda, ldb, ldc = (least + draw(more) for least in (bare.lda, bare.ldb, bare.ldc))
    distribution = draw(st.sampled_from(["normal", "zeros", "sparse:0.5"]))
    return Gemm("g", *sizes, layout, mode, lda, ldb, distribution, ldc=ldc)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    image, ins, outs = draw(st.integers(9, 40)), draw(small), draw(small)
    strides, padding, dilation, groups = draw(small), draw(small), draw(small), draw(small)
    sizes = (1, image, image, outs * groups, ins * groups, 3, 3, strides, padding)
    mode, layout = draw(st.sampled_from(CONV_MODES)), draw(st.sampled_from(CONV_LAYOUTS))
    bias, relu = draw(st.booleans()), draw(st.booleans())
    options = {"mode": mode, "layout": layout, "bias": bias, "relu": relu}
    return Conv2d.of("c", *sizes, dilation, groups, **options)


@given(st.one_of(products(), convolutions()))
def test_a_workload_is_read_from_what_its_kind_writes(workload):
    text = KINDS[workload.kind].format_sizes(workload)
    found = parse_shape(f"{workload.name}={workload.kind}:{text}")
    assert found == workload


@given(st.one_of(products(), convolutions()))
def test_a_workload_is_read_from_its_parameters(workload):
    assert from_parameters(json.loads(json.dumps(to_parameters(workload)))) == workload


@given(convolutions(), convolutions())
def test_convolutions_that_differ_have_other_names_files_and_digests(one, other):
    differ = one != other
    names = [parse_shape(KINDS["conv2d"].format_sizes(conv)).name for conv in (one, other)]
    assert (names[0] != names[1]) == differ
    assert (one.signature != other.signature) == differ
    assert (one.digest != other.digest) == differ


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1,56,56,64,64,1,1,1,0", "conv_1x56x56_64x64_1x1_s1_p0"),
        ("1,56,56,64,64,1,1,1,0 mode=float32 bias=0", "conv_1x56x56_64x64_1x1_s1_p0"),
        ("1,56,56,64,64,1,1,1,0 relu=1", "conv_1x56x56_64x64_1x1_s1_p0_relu"),
        (
            "conv2d: 1, 56, 56, 64, 64, 1, 1, 1, 0, 1, 2  relu = 1 layout=NHWC mode=tf32 bias=1",
            "conv_1x56x56_64x64_1x1_s1_p0_g2_tf32_nhwc_bias_relu",
        ),
        ("mine=1,56,56,64,64,1,1,1,0 mode=float16", "mine"),
    ],
)
def test_a_convolution_of_a_text_is_named_after_all_of_it(text, name):
    assert parse_shape(text).name == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mode=int8", "no mode 'int8': choose one of float32, 3xtf32"),
        ("layout=nt", "no layout 'nt': choose one of nchw, nhwc"),
        ("bias=2", "needs bias to be 0 or 1, not '2'"),
        ("relu=1 relu=1", "gives relu twice"),
        ("groups=2", "has 'groups', which is not understood: after the sizes there may be mode"),
        ("mode", "is not understood: give"),
        ("mode=", "is not understood: give"),
    ],
)
def test_options_that_cannot_be_are_told(words, message):
    with pytest.raises(InputError, match=message):
        parse_shape(f"1,56,56,64,64,1,1,1,0 {words}")
