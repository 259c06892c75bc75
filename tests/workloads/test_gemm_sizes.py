"""The grammar in which the sizes of matrix products are given."""

from __future__ import annotations

import contextlib

import pytest
from gemm_products import products
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import (
    KINDS,
    MODES,
    GemmRequest,
    measured_products,
    parse_requests,
    product_name,
    products_in,
    search_options_notice,
    sizes_text,
)

SIZE = st.integers(1, 9999)


def product_sizes(text: str) -> list[tuple[int, int, int]]:
    return [(one.workload.M, one.workload.N, one.workload.K) for one in parse_requests(text)]


@given(SIZE, SIZE, SIZE, st.permutations("MNK"))
def test_sizes_come_in_any_order(m, n, k, order):
    values = {"M": m, "N": n, "K": k}
    assert product_sizes(" ".join(f"{name}={values[name]}" for name in order)) == [(m, n, k)]


@given(products(st.sampled_from(MODES), 99), st.sampled_from(["normal", "zeros", "sparse:0.5"]))
def test_the_text_of_a_product_describes_it_alone(product, distribution):
    (found,) = measured_products(sizes_text(product.varied(distribution=distribution)))
    assert found == product.varied(distribution=distribution)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("MNK=4096", [(4096, 4096, 4096)]),
        ("MN=1024 K=2048", [(1024, 1024, 2048)]),
        ("NK=7 M=3", [(3, 7, 7)]),
        ("M=1 N=2 K=3; MNK=5 ;", [(1, 2, 3), (5, 5, 5)]),
        ("  MNK=8  ", [(8, 8, 8)]),
    ],
)
def test_equal_sizes_may_share_a_number(text, sizes):
    assert product_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "batch", "groups", "sizes"),
    [
        ("B=32 MNK=8", 32, (), (8, 8, 8)),
        ("MNKB=4", 4, (), (4, 4, 4)),
        ("BK=2 MN=3 t=5", 2, (), (3, 3, 2)),
        ("B=1 MNK=8", 1, (), (8, 8, 8)),
        ("groups=5,0,2 NK=8", 1, (5, 0, 2), (7, 8, 8)),
        ("groups=5 MNK=5", 1, (5,), (5, 5, 5)),
    ],
)
def test_products_may_be_in_batches_or_groups(text, batch, groups, sizes):
    (request,) = parse_requests(text)
    gemm = request.workload
    assert (gemm.B, gemm.groups, (gemm.M, gemm.N, gemm.K)) == (batch, groups, sizes)
    assert products_in(f"test_gemm[{gemm.name}-template-200W]") == [gemm]


def test_one_product_has_the_name_that_it_had_before_there_were_batches():
    assert parse_requests("B=1 MNK=8") == parse_requests("MNK=8")
    assert parse_requests("B=1 MNK=8")[0].workload.name == "gemm_8x8x8_nn"


def test_a_workload_may_have_groups():
    product = KINDS["gemm"].parse("groups=5,2 NK=8 layout=tn")
    assert product is not None
    assert product.parameters["groups"] == "5,2"
    with pytest.raises(InputError, match="has several layouts, and a workload has one"):
        KINDS["gemm"].parse("groups=5,2 NK=8 layout=tn,nn")


def test_trials_and_tuner_are_told_apart_from_sizes():
    bare, full = parse_requests("MNK=7384; MNK=7384 t=2398 O=65537")
    assert bare == GemmRequest(full.workload, layouts=full.layouts)
    assert (full.trials, full.tuner, full.in_background) == (2398, "tvm", True)


@pytest.mark.parametrize(
    ("text", "size", "trials", "tuner"),
    [
        ("MNKt=32", (32, 32, 32), 32, None),
        ("MN=64 tK=16", (64, 64, 16), 16, None),
        ("MNK=8 tO=1", (8, 8, 8), 1, "tvm"),
        ("OKMNt=1", (1, 1, 1), 1, "tvm"),
    ],
)
def test_letters_may_share_a_number_with_trials_and_tuner(text, size, trials, tuner):
    (request,) = parse_requests(text)
    workload = request.workload
    assert size == (workload.M, workload.N, workload.K)
    assert (request.trials, request.tuner) == (trials, tuner)


@pytest.mark.parametrize(
    ("text", "layouts"),
    [
        ("MNK=8", ["nn", "nt"]),
        ("MNK=8 layout=nn", ["nn"]),
        ("MNK=8 layout=tn", ["tn"]),
        ("MNK=8 layout=tt,nt", ["tt", "nt"]),
    ],
)
def test_products_have_the_layouts_that_are_named_or_both_usual_ones(text, layouts):
    (request,) = parse_requests(text)
    assert [one.layout for one in request.layouts] == layouts
    assert request.workload == request.layouts[0]


@pytest.mark.parametrize(
    ("option", "tuner", "in_background"),
    [(0, "template", False), (1, "tvm", False), (65536, "template", True), (65537, "tvm", True)],
)
def test_the_old_options_choose_the_tuner(option, tuner, in_background):
    (request,) = parse_requests(f"MNK=64 O={option}")
    assert (request.tuner, request.in_background) == (tuner, in_background)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "No matrix product is named"),
        (" ; ", "No matrix product is named"),
        ("MNK", "'MNK', which is not understood: give sizes such as 'M=1024 N=2048 K=3072'"),
        ("M=0 N=1 K=1", "gemm needs M to be an integer of at least 1, not 0"),
        ("MNK=1e9", "MNK=1e9 is not understood: give a whole number of at most nine digits"),
        ("MNK=1000000000", "is not understood"),
        ("MNK=-4", "is not understood"),
        ("MNK=999999999", "more elements than 32-bit indices"),
        ("MNK=16 lda=999999999", "a matrix A of 16 rows of 999999999, which are more elements"),
        ("MNK=16 ldc=0", "has ldc=0: leave it out where rows follow one another"),
        ("M=4 K=4", "does not say what N is"),
        ("t=5", "does not say what M and N and K are"),
        ("MNK=4 M=5", "gives M twice"),
        ("MNKt=4 t=5", "gives t twice"),
        ("MNKO=4", "has O=4: give O=0 for the template"),
        ("MNK=4 MNK=5", "gives MNK twice: leave one out, or separate products by semicolons"),
        ("MNK=4 MM=4", "gives M twice"),
        ("mnk=4", "has mnk, which is not understood"),
        ("MNK=4 x=5", "has x, which is not understood"),
        ("MNK=4 O=2", "has O=2: give O=0 for the template or O=1 for TVM's tuner"),
        ("MNK=4 t=0", "asks for no trials"),
        ("MNK=4 layout=xx", "no layout 'xx': choose one of nn, nt"),
        ("MNK=4, t=5", "MNK=4, is not understood"),
        ("MNK=4 bias=yes", "gemm needs bias to be 0 or 1, not 'yes'"),
        ("MNK=4 residual=-1", "gemm needs residual to be 0 or 1, not '-1'"),
        ("MNK=4 activation=swish", "no activation 'swish': choose one of none, relu, gelu"),
        ("MNK=4 relu=1", "has relu, which is not understood"),
        ("MNK=4 bias=1 bias=0", "gives bias twice"),
        ("MNK=4 B=0", "gemm needs B to be an integer of at least 1, not 0"),
        ("MNKB=4 B=2", "gives B twice"),
        ("NK=4 groups=3,,4", "numbers of rows, such as 512,0,128, not '3,,4'"),
        ("MNK=4 groups=3,4", "needs M to be 7, the rows of its groups together, not 4"),
        ("NK=4 B=2 groups=3,4", "cannot have both groups and a batch of B=2"),
    ],
)
def test_what_is_not_understood_is_told_in_one_sentence(text, told):
    with pytest.raises(InputError) as error:
        parse_requests(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(st.sampled_from("BMNKtO=,; 0123456789eld"), max_size=30))
def test_any_text_is_understood_or_refused(text):
    requests = []
    with contextlib.suppress(InputError):
        requests = parse_requests(text)
    assert all(one.workload.name == product_name(one.workload) for one in requests)


@pytest.mark.parametrize("words", ["t=5", "O=1", "t=2398 O=65536"])
def test_how_products_are_searched_has_no_effect_where_they_are_measured(words):
    assert measured_products(f"MNK=4; MNK=5 {words}") == measured_products("MNK=4; MNK=5")
    assert "no effect here" in (search_options_notice(f"MNK=4; MNK=5 {words}") or "")
    assert search_options_notice("MNK=4; MNK=5") is None


@given(st.text(st.sampled_from("sparse:0123456789.e-+_ \N{ARABIC-INDIC DIGIT ONE}"), max_size=8))
def test_a_product_is_found_by_its_name_however_its_inputs_are_drawn(share):
    with contextlib.suppress(InputError):
        (product, _) = measured_products(f"MNK=4 distribution=sparse:{share}")
        assert products_in(f"test_gemm[{product.name}-template-200W]") == [product]


def test_a_workload_has_neither_trials_nor_tuner():
    with pytest.raises(InputError, match="t and O are no part of a workload"):
        KINDS["gemm"].parse("MNK=64 t=5")


@pytest.mark.parametrize("sizes", [[], [1, 2], [1, 2, 3, 4]])
def test_a_list_of_sizes_has_three(sizes):
    with pytest.raises(InputError, match="gemm takes the three numbers M,N,K"):
        KINDS["gemm"].from_sizes("mine", sizes)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [({"M": 1, "N": 2}, "K is missing"), ({"M": 1, "N": 2, "K": 3, "ldd": 4}, "take 'ldd'")],
)
def test_parameters_must_be_known(parameters, told):
    with pytest.raises(InputError, match=told):
        KINDS["gemm"].from_parameters("mine", parameters)
