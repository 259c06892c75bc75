"""The modes and layouts that command lines and ids name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import (
    CASES,
    CONV_LAYOUTS,
    CONV_MODES,
    Conv2d,
    choose_workloads,
    find_workload,
    in_variants,
    is_in_variants,
    network,
    parse_variants,
    variants_named,
)

OPTIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(CONV_MODES),
        "layout": st.sampled_from(CONV_LAYOUTS),
        "bias": st.booleans(),
        "relu": st.booleans(),
    }
)


@given(OPTIONS, st.sampled_from([*CASES, "resnet01", "yolo08"]))
def test_a_convolution_is_found_by_the_name_that_it_has_in_other_modes(options, name):
    plain = find_workload(name)
    assert isinstance(plain, Conv2d)
    varied = plain.varied(**options)
    assert find_workload(varied.name) == varied
    assert varied in in_variants([plain], variants_named(f"{varied.name}-k01-300W"))


@given(OPTIONS, OPTIONS)
def test_parameters_tell_the_variant(own, wanted):
    workload = CASES["case2"]
    assert isinstance(workload, Conv2d)
    variants = {name: [value] for name, value in wanted.items()}
    assert is_in_variants(workload.varied(**own).parameters, variants) == (own == wanted)


@pytest.mark.parametrize(
    ("text", "modes", "layouts"),
    [
        ("", [], []),
        ("case1-k01", [], []),
        ("case2 and 3xTF32", ["3xtf32"], []),
        ("bfloat16_nhwc", ["bfloat16"], ["nhwc"]),
        ("tf32x or mytf32 or float162", [], []),
    ],
)
def test_a_mode_is_named_by_a_word_that_equals_it(text, modes, layouts):
    found = variants_named(text)
    assert found["mode"] == ["float32", *modes]
    assert found["layout"] == ["nchw", *layouts]


def test_workloads_are_chosen_in_each_mode_and_layout():
    variants = parse_variants("tf32, float16", "nhwc", relu=True)
    chosen = choose_workloads(["2"], shapes=["mine=1,8,8,4,4,3,3,1,1"], variants=variants)
    assert [workload.name for workload in chosen] == [
        *("case2_tf32_nhwc_relu", "case2_float16_nhwc_relu"),
        *("mine_tf32_nhwc_relu", "mine_float16_nhwc_relu"),
    ]


def test_matrix_products_have_modes_too():
    (product, *_) = in_variants(network("gemm"), parse_variants("3xtf32"))
    assert product.name == "gemm_512x256x640_nn_3xtf32"
    with pytest.raises(InputError, match="is of the kind gemm, which has no --layout"):
        in_variants(network("gemm"), parse_variants(None, "nhwc"))


def test_what_is_not_asked_for_stays():
    workload = find_workload("case2_tf32_nhwc")
    assert in_variants([workload], parse_variants(None)) == (workload,)
    assert in_variants([workload], parse_variants("tf32")) == (workload,)


@pytest.mark.parametrize("word", ["3xtf3", "", "float32,", "nhwc", "FLOAT32 "])
def test_an_unknown_mode_is_told(word):
    with pytest.raises(InputError, match=re.escape("is not known: choose from float32, 3xtf32,")):
        parse_variants(word)


def test_a_mode_contrary_to_the_name_is_told():
    with pytest.raises(InputError, match="case2_tf32 has the mode tf32, and --mode names 3xtf32"):
        choose_workloads(["case2_tf32"], variants=parse_variants("3xtf32"))


def test_a_shape_cannot_have_the_name_of_another_mode():
    with pytest.raises(InputError, match=r"case2_tf32. says tf32, and the mode is"):
        choose_workloads(shapes=["case2_tf32=1,8,8,4,4,3,3,1,1"])
