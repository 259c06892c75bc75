"""Kinds of workloads: named, written down, and made again from what was written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import (
    CASES,
    KINDS,
    Contract,
    Conv2d,
    Tensor,
    all_networks,
    from_parameters,
    parse_shape,
    to_parameters,
)

PLAIN = {"N": 1, "H": 8, "W": 8, "CO": 4, "CI": 4, "KH": 3, "KW": 3, "strides": 1, "padding": 1}


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    small = st.integers(1, 4)
    n, outs, ins, kh, kw, strides, dilation, groups = (draw(small) for _ in range(8))
    h, w = (draw(st.integers(dilation * (taps - 1) + 1, 20)) for taps in (kh, kw))
    sizes = (n, h, w, outs * groups, ins * groups, kh, kw, strides, draw(st.integers(0, 3)))
    return Conv2d.of("mine", *sizes, dilation, groups)


@given(convolutions())
def test_a_workload_is_made_again_from_its_parameters(workload):
    assert from_parameters(json.loads(json.dumps(to_parameters(workload)))) == workload


@given(convolutions(), convolutions())
def test_signatures_are_equal_where_the_computation_is(one, other):
    assert (one.signature == other.signature) == (one.shape == other.shape)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_kind_understands_its_own_example(kind):
    workload = kind.parse(kind.example)
    assert workload == parse_shape(f"{kind.name}:{kind.example}")
    assert workload.kind == kind.name
    assert KINDS[kind.name] is kind


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_bundled_workloads_are_of_their_kind(kind):
    bundled = [workload for group in kind.networks.values() for workload in group]
    assert bundled
    assert all(from_parameters(to_parameters(workload)) == workload for workload in bundled)


def test_files_from_before_there_were_kinds_are_of_convolutions():
    found = from_parameters({"name": "mine", **PLAIN})
    assert found == Conv2d.of("mine", *PLAIN.values())


def test_a_shape_may_name_its_kind():
    assert parse_shape("mine = conv2d: 1,8,8,4,4,3,3,1,1") == parse_shape("mine=1,8,8,4,4,3,3,1,1")


def test_an_entry_of_a_project_may_name_its_kind(tmp_path):
    sizes = ", ".join(f"{name} = {size}" for name, size in PLAIN.items())
    text = f'[tool.gpuenergy.workloads]\nmine = {{kind = "conv2d", {sizes}, groups = 4}}\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert all_networks(tmp_path)["project"] == (Conv2d.of("mine", *PLAIN.values(), 1, 4),)


@pytest.mark.parametrize(
    "entry", ['{kind = "fft", N = 1024}', "{kind = 3}"], ids=["unknown", "number"]
)
def test_an_entry_of_an_unknown_kind_is_told(tmp_path, entry):
    (tmp_path / "pyproject.toml").write_text(f"[tool.gpuenergy.workloads]\nmine = {entry}\n")
    with pytest.raises(InputError, match=r"pyproject\.toml: the workload 'mine' cannot be used: "):
        all_networks(tmp_path)["project"]


def test_a_shape_of_an_unknown_kind_is_told():
    with pytest.raises(InputError) as error:
        parse_shape("fft:1024")
    assert str(error.value) == (
        "--shape 'fft:1024': There is no kind of workload 'fft': choose one of conv2d, gemm."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "fft"}, "no kind of workload 'fft'"),
        ({"kind": 1}, "kind is 1 instead of a string"),
        ({"name": "../x"}, "name '../x' cannot be used"),
        ({"name": None}, "name None cannot be used"),
        ({"H": "8"}, "H to be an integer of at least 1, not '8'"),
        ({"H": True}, "H to be an integer"),
        ({"H": -1}, "H to be an integer of at least 1"),
        ({"depth": 8}, "does not take 'depth'"),
        ({"layout": "CHWN"}, "conv2d has no layout 'chwn': choose one of nchw, nhwc"),
        ({"layout": 4}, "conv2d has no layout 4: choose one of nchw, nhwc"),
        ({"mode": "fp8"}, "conv2d has no mode 'fp8': choose one of float32, 3xtf32, tf32"),
        ({"mode": ["tf32"]}, "conv2d has no mode"),
        ({"dtype": "float16"}, "mode float32 has the dtype float32, not 'float16'"),
        ({"dtype": "float32", "mode": "bfloat16"}, "mode bfloat16 has the dtype bfloat16, not"),
        ({"bias": 2}, "conv2d needs bias to be 0 or 1, not 2"),
        ({"relu": "yes"}, "conv2d needs relu to be 0 or 1, not 'yes'"),
    ],
)
def test_parameters_that_cannot_be_are_told(change, message):
    with pytest.raises(InputError) as error:
        from_parameters({"name": "mine", **PLAIN, **change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_parameter_is_told():
    with pytest.raises(InputError, match="; KW is missing"):
        from_parameters({"name": "mine", **{k: v for k, v in PLAIN.items() if k != "KW"}})


def test_what_only_a_program_can_make_is_not_kept():
    output = Tensor("y", (4,), "float32", "output")
    contract = Contract("mine", (output,), lambda _: {"y": np.zeros(4)})
    with pytest.raises(InputError, match="mine is of kind contract, which cannot be stored"):
        to_parameters(contract)


def test_a_workload_may_be_called_otherwise():
    other = CASES["case7"].called("mine")
    assert (other.name, other.signature) == ("mine", CASES["case7"].signature)
