"""Convolutions as matrix products: which forms there are, and that every one is right."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.tuners import GemmForm, gemm_forms
from pytest_gpuenergy.workloads import CASES, Conv2d

SMALL = Conv2d.of("small", 1, 7, 9, 8, 6, 3, 3, 1, 1)
WORKLOADS = [
    Conv2d.of("strided-dilated-batch", 2, 9, 8, 8, 4, 3, 3, 2, 2, 2),
    Conv2d.of("scaling", 2, 6, 6, 1, 1, 1, 1, 1, 0),
]
SIMILAR = [
    Conv2d.of("one-channel", 1, 6, 6, 1, 8, 3, 3, 1, 1),
    Conv2d.of("pointwise", 1, 7, 7, 16, 8, 1, 1, 1, 0),
    Conv2d.of("one-product", 2, 6, 6, 8, 1, 1, 1, 1, 0),
    Conv2d.of("positions-of-a-batch", 2, 3, 3, 4, 8, 3, 3, 1, 0),
]
DAILY = [((1, False), ((4, 16), (4, 2))), ((3, True), ((4, 7), (2, 3)))]
ONE_POSITION = [
    Conv2d.of("head", 1, 7, 7, 64, 32, 7, 7, 1, 0),
    Conv2d.of("fc", 1, 1, 1, 1000, 512, 1, 1, 1, 0),
    Conv2d.of("small-fc", 1, 1, 1, 16, 8, 1, 1, 1, 0),
    Conv2d.of("outer", 1, 3, 3, 2, 2, 3, 3, 1, 0),
    Conv2d.of("scalar", 1, 1, 1, 1, 1, 1, 1, 1, 0),
]


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("parts", "pipelined", "threads", "outputs"),
    [
        pytest.param(*form, *tile, marks=[] if (form, tile) in DAILY else pytest.mark.thorough)
        for form in [(1, False), (3, False), (1, True), (3, True)]
        for tile in [((2, 32), (4, 2)), ((4, 16), (4, 2)), ((8, 8), (1, 1)), ((4, 7), (2, 3))]
    ],
)
def test_every_form_is_right(child, device, threads, outputs, parts, pipelined):
    form = GemmForm(threads, outputs, parts, pipelined)
    kernel = child.call("lower_form", SMALL, form, timeout_s=120)
    assert len(kernel.launches) == (1 if parts == 1 else 2)
    verify_on_device(device, kernel, SMALL)


@pytest.mark.tvm
@pytest.mark.parametrize(
    "workload",
    [
        *WORKLOADS,
        *(pytest.param(workload, marks=pytest.mark.thorough) for workload in SIMILAR),
    ],
    ids=lambda workload: workload.name,
)
def test_other_convolutions_are_right(child, device, workload):
    reduced = workload.shape.CI * workload.shape.KH * workload.shape.KW
    form = GemmForm((4, 16), (2, 2), math.gcd(2, reduced), pipelined=True)
    verify_on_device(device, child.call("lower_form", workload, form, timeout_s=120), workload)


def waste(outputs: tuple[int, int], form: GemmForm) -> float:
    """Outputs that are computed against those that are wanted."""
    computed = [-(-size // tile) * tile for size, tile in zip(outputs, form.tile, strict=True)]
    return math.prod(computed) / math.prod(outputs)


sizes = st.integers(1, 64)
convolutions = st.builds(
    lambda n, h, w, co, ci, k, stride: Conv2d.of("x", n, h, w, co, ci, k, k, stride, k // 2),
    *(st.integers(1, 4), sizes, sizes, sizes, sizes),
    st.sampled_from([1, 3, 5]),
    st.integers(1, 2),
)


@given(convolutions)
def test_forms_waste_little_and_split_evenly(workload):
    shape = workload.shape
    outputs = shape.CO, shape.N * shape.OH * shape.OW
    depth = shape.CI * shape.KH * shape.KW
    assume(outputs[1] > 1)
    forms = gemm_forms(shape)
    assert forms
    assert len(set(forms)) == len(forms)
    wastes = [waste(outputs, form) for form in forms]
    assert max(wastes) <= max(1.35, min(wastes) + 1e-9)
    for form in forms:
        assert 1 <= form.max_depth * sum(form.tile) * (1 + form.pipelined) <= 48 * 1024 / 4
        assert depth % form.parts == 0
        assert form.parts == 1 or depth // form.parts >= 64


def test_sums_are_split_only_where_tiles_are_few():
    parts = {name: {form.parts for form in gemm_forms(case.shape)} for name, case in CASES.items()}
    assert max(parts["case1"]) <= 2
    assert min(parts["case7"]) > 4


def test_a_grouped_convolution_is_no_single_product():
    assert gemm_forms(Conv2d.of("x", 1, 8, 8, 8, 8, 3, 3, 1, 1, 1, 8).shape) == ()


@pytest.mark.tvm
@pytest.mark.parametrize("workload", ONE_POSITION, ids=lambda workload: workload.name)
def test_one_output_position_has_tvms_own_space(child, workload):
    traces = child.call("traces", workload, "all", timeout_s=120)
    assert traces
    assert not any("transform_layout" in trace for trace in traces)


@pytest.mark.tvm
def test_the_spaces_are_tvms_own_ours_and_both(child):
    direct, gemm, both = (
        child.call("traces", SMALL, space, timeout_s=120) for space in ("direct", "gemm", "all")
    )
    assert not any("transform_layout" in trace for trace in direct)
    assert all("transform_layout" in trace for trace in gemm)
    assert len(gemm) == len(gemm_forms(SMALL.shape))
    assert len(both) == len(direct) + len(gemm)


@pytest.mark.tvm
def test_processes_share_the_forms(child):
    workload = Conv2d.of("ten-forms", 1, 8, 8, 16, 16, 3, 3, 1, 1)
    whole, *parts = (
        child.call("traces", workload, "gemm", *share, timeout_s=120)
        for share in ((0, 1), (0, 3), (1, 3), (2, 3))
    )
    assert sum(map(len, parts)) == len(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.tvm
def test_a_grouped_convolution_has_tvms_own_space(child):
    grouped = Conv2d.of("grouped", 1, 8, 8, 8, 8, 3, 3, 1, 1, 1, 2)
    assert child.call("traces", grouped, "all", timeout_s=120)
