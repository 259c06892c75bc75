"""The candidates of the contender ``triton``; the text of their kernel runs on NumPy arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gemm_products import ends, several
from host_triton import host_triton
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices.cuda.binders import _triton_function
from pytest_gpuenergy.kernels import TritonKernel
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuners import triton_candidates
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import LAYOUTS, MODES, Gemm, numbers

SMALL_CARD = CardResources(90, 1, 128, 2048, 228 << 10, 227 << 10)
H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)


def product(kernel: TritonKernel, gemm: Gemm, inputs: Any) -> Any:
    c = np.full(gemm.outputs[0].shape, np.nan, inputs["A"].dtype)
    function = _triton_function(kernel.source, kernel.function)
    function[kernel.grid](
        *(({**inputs, "C": c}[name].reshape(-1)) for name in kernel.arguments),
        **kernel.constants,
        num_warps=kernel.num_warps,
        num_stages=kernel.num_stages,
    )
    return c


sizes = st.integers(1, 150)
more = st.integers(0, 5)


@given(
    st.tuples(sizes, sizes, sizes),
    st.sampled_from(LAYOUTS),
    st.sampled_from(["float32", "3xtf32", "float16", "e4m3"]),
    st.tuples(more, more, more),
    ends(),
    several(),
    st.data(),
)
def test_each_candidate_is_right_for_all_sizes(mnk, layout, mode, between, end, more, data):
    m, n, k = mnk
    if mode == "e4m3":
        scaling = data.draw(st.sampled_from(["tensor", "row", "block"]))
        end, more = {**end, "scaling": scaling}, {}
    bare = Gemm(
        "g", sum(more["groups"]) if "groups" in more else m, n, k, layout, mode, **more, **end
    )
    lda, ldb, ldc = (sum(one) for one in zip((bare.lda, bare.ldb, bare.ldc), between, strict=True))
    gemm = replace(bare, lda=lda, ldb=ldb, ldc=ldc)
    types = {tensor.name: tensor.dtype for tensor in gemm.inputs}
    inputs = {
        name: numbers(array, types[name]).copy() for name, array in gemm.make_inputs(0).items()
    }
    inputs["A"][..., gemm.row_of_a :] = np.nan  # what lies between rows
    inputs["B"][..., gemm.row_of_b :] = np.nan
    if gemm.residual:
        inputs["residual"][..., gemm.N :] = np.nan
    kernel = data.draw(st.sampled_from(triton_candidates(gemm, SMALL_CARD)))
    with host_triton():
        found = product(kernel, gemm, inputs)
    assert np.isnan(found[..., gemm.N :]).all()
    found, expected = (c[..., : gemm.N] for c in (found, gemm.reference(inputs)["C"]))
    bound = gemm.error_bound.max_relative * np.abs(expected).max()
    assert np.abs(found - expected).max() <= bound


@pytest.mark.parametrize("mode", MODES)
def test_no_candidate_is_listed_twice(mode):
    found = triton_candidates(Gemm("g", 4096, 4096, 4096, "nt", mode), H200)
    assert len({one.digest for one in found}) == len(found) >= 12


@pytest.mark.parametrize(
    ("mode", "precision"),
    [
        ("float32", "ieee"),
        ("3xtf32", "tf32x3"),
        ("tf32", "tf32"),
    ],
)
def test_each_mode_has_its_precision(mode, precision):
    found = triton_candidates(Gemm("g", 64, 64, 64, mode=mode), H200)
    assert {one.constants["precision"] for one in found} == {precision}


@pytest.mark.parametrize(
    ("options", "constants"),
    [
        ({}, {"scaling": "tensor", "most_imprecise": 128}),
        ({"accumulation": "fast"}, {"scaling": "tensor", "most_imprecise": 0}),
        ({"scaling": "block"}, {"scaling": "block", "tile_k": 128, "b_scale_row": 32}),
    ],
)
def test_8_bit_products_are_added_as_they_say(options, constants):
    gemm = Gemm("g", 4096, 4096, 4096, "tn", "e4m3", **options)
    found = triton_candidates(gemm, H200)
    assert len(found) >= 12
    assert all(constants.items() <= one.constants.items() for one in found)


def test_it_does_not_quantize():
    gemm = Gemm("g", 64, 64, 64, "tn", "e4m3", quantize=True)
    with pytest.raises(UnavailableError, match="compare with the product without quantize"):
        triton_candidates(gemm, H200)


def test_8_bit_products_need_their_tensor_cores():
    with pytest.raises(UnavailableError, match="takes a GPU of sm_89 or later"):
        triton_candidates(Gemm("g", 64, 64, 64, "tn", "e4m3"), replace(H200, capability=80))


def test_a_program_computes_several_tiles_where_there_are_more_than_the_card_holds():
    (first, *_) = triton_candidates(Gemm("g", 4096, 4096, 8), H200)
    assert first.grid == (132, 1, 1)
    (first, *_) = triton_candidates(Gemm("g", 129, 128, 8), H200)
    assert first.grid == (2, 1, 1)


def test_there_are_none_for_an_old_card():
    old = CardResources(75, 40, 64, 1024, 64 << 10, 64 << 10)
    with pytest.raises(UnavailableError, match="sm_80 or later, and this one is of sm_75"):
        triton_candidates(Gemm("g", 8, 8, 8), old)
