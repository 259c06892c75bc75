"""The matrix products of a model: what a recorded call becomes, and how often it is made."""

from __future__ import annotations

import contextlib
import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from profiler_traces import ADDMM, GEMM, STRANGE_VALUES, lasting, launch, layer, operator, write
from recorded_profile import BLOOM, copy_bloom

from pytest_gpuenergy.replay import (
    ModelProducts,
    matrix_storage,
    model_products,
    recorded_product,
)
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import LAYOUTS, Gemm

SIZES = st.integers(1, 40)
STRIDES = st.integers(0, 60)
PADDING = st.integers(0, 9)


def tensor(*shape: int, strides: tuple[int, ...] = (), dtype: str = "float16") -> dict[str, Any]:
    """A tensor of a recorded call, contiguous unless it has other strides."""
    usual = [int(np.prod(shape[place + 1 :])) for place in range(len(shape))]
    return {"shape": [*shape], "strides": [*strides] or usual, "dtype": dtype}


def product(operator: str, *arguments: Any, **options: Any) -> Gemm:
    found = recorded_product(operator, [*arguments], **options)
    assert found is not None
    assert found.product is not None, found.reason
    return found.product


def reason(operator: str, *arguments: Any) -> str:
    found = recorded_product(operator, [*arguments])
    assert found is not None
    assert found.product is None
    return found.reason


@given(SIZES, SIZES, STRIDES, STRIDES)
def test_each_element_is_read_where_its_strides_say(rows, columns, row_stride, column_stride):
    transposed, leading, copied = matrix_storage(rows, columns, row_stride, column_stride)
    assert leading >= (rows if transposed else columns)
    if copied:
        assert (transposed, leading) == (False, columns)
        return
    i, j = np.mgrid[:rows, :columns]
    stored = j * leading + i if transposed else i * leading + j
    np.testing.assert_array_equal(stored, i * row_stride + j * column_stride)


@given(SIZES, SIZES, STRIDES, STRIDES)
def test_only_what_no_layout_describes_is_copied(rows, columns, row_stride, column_stride):
    i, j = np.mgrid[:rows, :columns]
    places = i * row_stride + j * column_stride
    described = any(
        np.array_equal(places, j * leading + i if transposed else i * leading + j)
        for transposed in (False, True)
        for leading in range(rows if transposed else columns, 62)
    )
    assert matrix_storage(rows, columns, row_stride, column_stride).copied == (not described)


@given(st.sampled_from(LAYOUTS), *[st.integers(2, 40)] * 3, *[PADDING] * 2)
def test_a_product_has_the_layout_and_leading_dimensions_of_its_matrices(
    layout, m, n, k, more_a, more_b
):
    lda, ldb = (m if layout[1] == "t" else k) + more_a, (k if layout[0] == "t" else n) + more_b
    a = tensor(m, k, strides=(1, lda) if layout[1] == "t" else (lda, 1))
    b = tensor(k, n, strides=(1, ldb) if layout[0] == "t" else (ldb, 1))
    expected = Gemm("", m, n, k, layout, "float16", lda, ldb)
    for call in (("aten.mm.default", a, b), ("aten::addmm", tensor(n), a, b)):
        found = product(*call)
        assert found.parameters == expected.parameters


@given(st.lists(st.integers(1, 5), max_size=3), SIZES, SIZES)
def test_a_linear_layer_has_a_row_for_each_vector(outer, k, n):
    found = product("aten.linear.default", tensor(*outer, k), tensor(n, k))
    assert int(np.prod(outer)) == found.M
    assert (n, k) == (found.N, found.K)
    if n > 1 and k > 1:
        assert found.layout[0] == "t"


def test_a_part_of_each_vector_has_the_leading_dimension_of_the_whole():
    part = tensor(2, 3, 8, strides=(72, 24, 1))
    found = product("aten.linear.default", part, tensor(4, 8))
    assert found.name == "gemm_6x4x8_tn_float16_lda24"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (("aten.matmul.default", tensor(2, 3, 8), tensor(8, 4)), "gemm_6x4x8_nn_float16"),
        (("aten.matmul.default", tensor(8), tensor(8, 4)), "gemm_1x4x8_nn_float16"),
        (("aten.mv.default", tensor(5, 8), tensor(8)), "gemm_5x1x8_nn_float16"),
        (("aten.bmm.default", tensor(1, 5, 8), tensor(1, 8, 4)), "gemm_5x4x8_nn_float16"),
        (("aten.linear.default", tensor(5, 8), tensor(8)), "gemm_5x1x8_tn_float16"),
        (("aten.bmm.default", tensor(2, 5, 8), tensor(2, 8, 4)), "gemm_b2_5x4x8_nn_float16"),
        (
            ("aten.baddbmm.default", tensor(2, 5, 4), tensor(2, 5, 8), tensor(2, 8, 4)),
            "gemm_b2_5x4x8_nn_float16",
        ),
        (
            ("aten.matmul.default", tensor(2, 3, 5, 8), tensor(2, 3, 8, 4)),
            "gemm_b6_5x4x8_nn_float16",
        ),
        (  # queries and keys of a decoding step
            ("aten.bmm.default", tensor(6, 1, 8), tensor(6, 8, 9, strides=(72, 1, 8))),
            "gemm_b6_1x9x8_tn_float16",
        ),
        (
            ("aten.bmm.default", tensor(6, 1, 8, strides=(12, 8, 1)), tensor(6, 8, 9)),
            "gemm_b6_1x9x8_nn_float16_lda12",
        ),
        (
            ("aten.mm.out", tensor(5, 8), tensor(8, 4), {"out": tensor(5, 4, strides=(6, 1))}),
            "gemm_5x4x8_nn_float16_ldc6",
        ),
        (
            ("aten.linear.default", {"input": tensor(5, 8), "weight": tensor(4, 8)}),
            "gemm_5x4x8_tn_float16",
        ),
    ],
)
def test_operators_are_products(call, name):
    assert product(*call).name == name


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("float16", "float16"), ("c10::BFloat16", "bfloat16"), ("float", "float32")],
)
def test_the_type_gives_the_mode(dtype, mode):
    matrices = tensor(5, 8, dtype=dtype), tensor(8, 4, dtype=dtype)
    assert product("aten::mm", *matrices).mode == mode


def test_tf32_concerns_float32_alone():
    for dtype, mode in (("float32", "tf32"), ("float16", "float16")):
        matrices = tensor(5, 8, dtype=dtype), tensor(8, 4, dtype=dtype)
        assert product("aten.mm.default", *matrices, float32_mode="tf32").mode == mode


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("aten.matmul.default", tensor(2, 5, 8), tensor(1, 8, 4)), "share a matrix"),
        (("aten.matmul.default", tensor(2, 3, 5, 8), tensor(3, 2, 8, 4)), "share a matrix"),
        (("aten.addbmm.default", tensor(5, 4), tensor(2, 5, 8), tensor(2, 8, 4)), "it adds the"),
        (
            ("aten.bmm.default", tensor(2, 5, 8, strides=(8, 16, 1)), tensor(2, 8, 4)),
            "not stored one after another",
        ),
        (
            ("aten.bmm.default", tensor(2, 5, 8), tensor(2, 8, 4, strides=(0, 4, 1))),
            "not stored one after another",
        ),
        (
            ("aten.matmul.default", tensor(2, 3, 5, 8, strides=(40, 80, 8, 1)), tensor(2, 3, 8, 4)),
            "not stored one after another",
        ),
        (
            ("aten.linear.default", tensor(2, 3, 8, strides=(8, 16, 1)), tensor(4, 8)),
            "its vectors have different distances",
        ),
        (
            ("aten._scaled_mm.default", *[tensor(8, 8, dtype="float8_e4m3fn")] * 2),
            "no mode has matrices of float8_e4m3fn",
        ),
        (("aten.mm.default", tensor(0, 8), tensor(8, 4)), "it has no elements"),
        (("aten.mm.default", tensor(5, 8), tensor(7, 4)), "those of no product"),
        (("aten.mm.default", tensor(5, 8), tensor(8, 4, dtype="float32")), "differ in type"),
        (("aten.mm.default", tensor(5, 8), None), "shapes of its arguments were not recorded"),
        (("aten::mm", {**tensor(5, 8), "strides": None}, tensor(8, 4)), "strides of its"),
        (("aten._grouped_mm.default", tensor(5, 8), tensor(2, 8, 4)), "are not recorded"),
        (("aten.scaled_dot_product_attention.default",), "within its own kernel"),
        (("aten.mm.default", tensor(1 << 20, 1 << 20), tensor(1 << 20, 8)), "32-bit indices"),
    ],
)
def test_other_calls_are_left_out_with_the_reason(call, why):
    assert why in reason(*call)


def test_other_operators_multiply_no_matrices():
    assert recorded_product("aten.add.Tensor", [tensor(4, 4), tensor(4, 4)]) is None


@pytest.mark.parametrize(
    ("call", "omitted"),
    [
        (("aten.linear.default", tensor(5, 8), tensor(4, 8)), ()),
        (("aten.linear.default", tensor(5, 8), tensor(4, 8), None), ()),
        (("aten.linear.default", tensor(5, 8), tensor(4, 8), tensor(4)), ("bias",)),
        (("aten.linear.default", tensor(5, 8), tensor(4, 8), {"bias": tensor(4)}), ("bias",)),
        (
            ("aten::_addmm_activation", tensor(4), tensor(5, 8), tensor(8, 4)),
            ("bias", "activation"),
        ),
        (("aten.mm.default", tensor(5, 8, strides=(20, 2)), tensor(8, 4)), ("copy",)),
    ],
)
def test_what_a_call_does_beside_the_product_is_told(call, omitted):
    found = recorded_product(call[0], [*call[1:]])
    assert found is not None
    assert tuple(word.split()[0] for word in found.omitted) == omitted


JSON_VALUES = st.recursive(
    st.none() | st.integers(-3, 1 << 40) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({"shape": inner, "strides": inner, "dtype": inner})
        | st.dictionaries(st.sampled_from(["input", "out", "bias"]), inner)
    ),
    max_leaves=8,
)


@given(st.sampled_from(["linear", "addmm", "bmm", "matmul", "dot"]), JSON_VALUES)
def test_any_arguments_are_a_product_or_left_out(operator, arguments):
    found = recorded_product(f"aten.{operator}.default", arguments)
    assert found is not None
    assert (found.product is None) == bool(found.reason)


def counts(products: ModelProducts) -> dict[str, dict[str, int]]:
    return {one.product.name: {**one.calls} for one in products.products if one.product}


@pytest.mark.slow
def test_a_profile_and_its_trace_have_the_same_products():
    of_profile, of_trace = model_products(BLOOM), model_products(BLOOM / "trace.json.gz")
    assert counts(of_profile) == counts(of_trace)
    assert counts(of_profile)["gemm_1024x4096x1024_tn_float16"] == {"prefill": 24}
    assert of_profile.steps == of_trace.steps == ("prefill", "decode step 1")
    for one in (of_profile, of_trace):
        (interleaved,) = one.left_out  # queries, of which one row has those of all heads
        assert interleaved.calls == {"prefill": 24}
        batches = [each for each in one.products if each.product and each.product.is_batch]
        assert sum(each.calls.get("prefill", 0) for each in batches) == 24
        assert sum(each.calls.get("decode step 1", 0) for each in batches) == 48


def test_a_trace_without_phases_is_one_step(tmp_path):
    events = [*layer(correlation=1), *layer(100.0, correlation=2)]
    found = model_products(write(tmp_path / "some.json", events))
    assert counts(found) == {"gemm_8x64x32_tn_float16": {"trace": 2}}
    (one,) = found.products
    assert one.recorded_us == {"trace": 10.0}


def test_only_the_first_run_of_a_trace_counts(tmp_path):
    runs = [lasting("user_annotation", f"run {run}", 100.0 * run, 90.0) for run in range(3)]
    layers = [layer(100.0 * run, correlation=run + 1) for run in range(3)]
    path = write(tmp_path / "some.json", [*runs, *chain(*layers)])
    assert counts(model_products(path)) == {"gemm_8x64x32_tn_float16": {"trace": 1}}


def test_a_call_that_a_dispatch_mode_makes_again_counts_once(tmp_path):
    again = [operator("aten::addmm", 0.0, 50.0, **ADDMM), *layer(5.0)[1:]]
    found = model_products(write(tmp_path / "some.json", again))
    assert counts(found) == {"gemm_8x64x32_tn_float16": {"trace": 1}}


@given(
    field=st.sampled_from(["Input Dims", "Input type", "Input Strides", "Concrete Inputs"]),
    value=STRANGE_VALUES,
)
def test_any_values_in_a_trace_are_products_or_told(tmp_path_factory, field, value):
    called = operator("aten::addmm", 5.0, 20.0, **{**ADDMM, field: value})
    path = tmp_path_factory.getbasetemp() / "strange.json"
    write(path, [called, *launch(GEMM, 10.0, 40.0, 1)])
    with contextlib.suppress(InputError):
        assert model_products(path).products


def test_names_of_kernels_tell_of_tf32(tmp_path):
    arguments = json.loads(json.dumps(ADDMM).replace("c10::Half", "float"))
    called = operator("aten::addmm", 5.0, 20.0, **arguments)
    for kernel, mode in ((GEMM.replace("f16f16", "tf32f32"), "tf32"), ("ampere_sgemm", "float32")):
        path = write(tmp_path / "some.json", [called, *launch(kernel, 10.0, 40.0, 1)])
        (one,) = model_products(path).products
        assert one.product is not None
        assert one.product.mode == mode


def test_a_profile_tells_of_tf32(tmp_path):
    run = copy_bloom(tmp_path / "bloom")
    calls = (run / "operator_calls.jsonl").read_text()
    (run / "operator_calls.jsonl").write_text(calls.replace('"float16"', '"float32"'))
    record = json.loads((run / "profile.json").read_text())
    for allowed, mode in ((True, "tf32"), (False, "float32")):
        (run / "profile.json").write_text(json.dumps({**record, "tf32": allowed}))
        assert {one.product.mode for one in model_products(run).products} == {mode}


@pytest.mark.slow
def test_bad_sources_are_told_in_one_sentence(tmp_path):
    run = copy_bloom(tmp_path / "bloom")
    other = write(tmp_path / "other.json", [operator("aten::add", 0, 9), *launch("add", 1, 9, 1)])
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.jsonl").write_text("{}\n")
    shared = copy_bloom(tmp_path / "shared")
    record = json.loads((shared / "profile.json").read_text())
    (shared / "profile.json").write_text(json.dumps({**record, "ranks": 2}))
    for rank in ("rank0", "rank1"):
        (shared / rank).mkdir()
    for source, step, told in (
        (run, 2, "has no decode step 2: give 1 to 1"),
        (run / "trace.json.gz", 7, "has no decode step 7: give 1 to 1"),
        (other, 1, "has no matrix product that can be measured (no operator is one)"),
        (tmp_path / "empty", 1, "name a folder of gpuenergy profile, or a trace"),
        (tmp_path / "list.jsonl", 1, "do not say how often each operator was called"),
        (tmp_path / "none.json", 1, "none.json"),
        (shared, 1, "of a model on 2 GPUs: name the folder of one of them"),
    ):
        with pytest.raises(InputError) as error:
            model_products(source, step)
        assert told in str(error.value)
    (run / "operator_calls.jsonl").unlink()
    with pytest.raises(InputError, match=r"has no operator_calls\.jsonl"):
        model_products(run)
