"""Matrix products: sizes, reference, bounds, inputs, and what they say of themselves."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gemm_products import ends, float8_options, several
from hypothesis import given, strategies as st
from points import each_once
from strict_arrays import StrictArrays

from pytest_gpuenergy.engine import compare
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import (
    ACTIVATIONS,
    FLOAT8_MODES,
    KINDS,
    LAYOUTS,
    MODES,
    Gemm,
    activated,
    choose_workloads,
    from_parameters,
    is_untouched,
    largest,
    network,
    numbers,
    parse_shape,
    product_name,
    products_in,
    rounded_to,
    to_parameters,
)

SMALL = st.integers(1, 9)


@st.composite
def products(draw: st.DrawFn) -> Gemm:
    m, n, k = draw(SMALL), draw(SMALL), draw(SMALL)
    layout, mode = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(MODES))
    more = {} if mode in FLOAT8_MODES else draw(several(4))
    m = sum(more.get("groups", (m,)))
    bare = Gemm("any", m, n, k, layout, mode, **more)
    lda, ldb, ldc = (least + draw(st.integers(0, 3)) for least in (bare.lda, bare.ldb, bare.ldc))
    kinds = ["normal", "uniform", "integers", "ones", "zeros", "sorted", "sparse:0.5"]
    kind = draw(st.sampled_from(kinds))
    options = {**draw(ends()), **draw(float8_options(mode)), **more}
    return Gemm("any", m, n, k, layout, mode, lda, ldb, kind, ldc=ldc, **options)


def direct(gemm: Gemm, inputs: dict[str, Any]) -> Any:
    """The definition: that of each product, where there are several."""
    if gemm.products == 1 and not gemm.groups:
        return directly(gemm, inputs)
    end, found = 0, []
    for number, rows in enumerate(gemm.groups or (gemm.M,) * gemm.B):
        begin, end = end, end + rows
        if not rows:
            continue
        one = {name: array[number] for name, array in inputs.items() if len(array) > number}
        if gemm.groups:
            one["A"] = inputs["A"][begin:end]
            if gemm.a_transposed:
                one["A"] = inputs["A"][:, begin:end]
            if gemm.residual:
                one["residual"] = inputs["residual"][begin:end]
        product = replace(gemm, M=rows, B=1, groups=(), lda=0)
        found.append(directly(product, one))
    return np.concatenate(found) if gemm.groups else np.stack(found)


def directly(gemm: Gemm, inputs: dict[str, Any]) -> Any:
    """The definition, term by term, on what is stored."""
    added = {t.name: numbers(inputs[t.name], t.dtype).astype(np.float64) for t in gemm.inputs}
    a, b = added["A"], added["B"]
    of_a, of_b = scales(gemm, added)
    if gemm.quantize:
        a = quantized_directly(gemm, a)
    out = np.zeros((gemm.M, gemm.N))
    for i, j, k in itertools.product(range(gemm.M), range(gemm.N), range(gemm.K)):
        left = a[i, k] if gemm.layout in ("nn", "tn") else a[k, i]
        right = b[k, j] if gemm.layout in ("nn", "nt") else b[j, k]
        out[i, j] += of_a(i, k) * left * of_b(j, k) * right
    for i, j in itertools.product(range(gemm.M), range(gemm.N)):
        out[i, j] = ACTIVATION_OF[gemm.activation](
            out[i, j] + (added["bias"][j] if gemm.bias else 0)
        )
        out[i, j] += added["residual"][i, j] if gemm.residual else 0
    return out


def scales(gemm: Gemm, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """The scales of A by row and k, and of B by column and k."""
    of_a, of_b = (inputs.get(name, np.ones(1)) for name in ("a_scale", "b_scale"))
    if gemm.mode not in FLOAT8_MODES:
        return (lambda *_: 1.0,) * 2
    by_scaling = {
        "tensor": (lambda _, __: of_a[0], lambda _, __: of_b[0]),
        "row": (lambda i, _: of_a[i], lambda j, _: of_b[j]),
        "block": (lambda i, k: of_a[k // 128, i], lambda j, k: of_b[j // 128, k // 128]),
    }
    left, right = by_scaling[gemm.scaling]
    return (lambda *_: 1.0 if gemm.quantize else left(*_)), right


def quantized_directly(gemm: Gemm, a: Any) -> Any:
    """A as 8-bit numbers times powers of two, found one after another."""
    rows = a.T if gemm.a_transposed else a
    result = rows.copy()
    columns = [slice(first, first + 128) for first in range(0, gemm.K, 128)]
    part = {
        "tensor": [(slice(None), slice(0, gemm.K))],
        "row": [(i, slice(0, gemm.K)) for i in range(gemm.M)],
        "block": [(i, each) for i in range(gemm.M) for each in columns],
    }[gemm.scaling]
    for place in part:
        values = result[: gemm.M, : gemm.K][place]
        scale = 2.0**-60
        while np.abs(values).max() > largest(gemm.dtype) * scale:
            scale *= 2
        values[...] = scale * numbers(rounded_to(values / scale, gemm.dtype), gemm.dtype)
    return result.T if gemm.a_transposed else result


ACTIVATION_OF: dict[str, Any] = {
    "none": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
}


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations_are_exact_in_their_tails(activation):
    x = np.linspace(-30, 30, 4001)
    expected = {
        "gelu": [0.5 * value * math.erfc(-value / math.sqrt(2)) for value in x],
        "gelu_tanh": [
            value / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
            if value > -20
            else 0.0
            for value in x
        ],
        "silu": [value / (1 + math.exp(-value)) for value in x],
    }[activation]
    np.testing.assert_allclose(activated(x, activation), expected, rtol=1e-12, atol=1e-50)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_bound_covers_what_an_activation_makes_of_errors(activation):
    gemm = Gemm("g", 8, 8, 64, activation=activation)
    x, error = np.linspace(-12, 12, 100_001), 1e-4
    steepest = (activated(x + error, activation) - activated(x, activation)).max() / error
    plain, own = replace(gemm, activation="none").error_bound.max_relative, 2.0**-24
    assert (
        0.999 * steepest * plain
        <= gemm.error_bound.max_relative
        <= steepest * 1.01 * plain + 10 * own
    )


@given(products(), st.integers(0, 2**32))
def test_reference_is_the_definition(gemm, seed):
    inputs = gemm.make_inputs(seed)
    found = gemm.reference(gemm.widened(inputs))["C"]
    between = [*range(gemm.N, gemm.ldc)] * gemm.M * gemm.B
    assert is_untouched(found).nonzero()[-1].tolist() == between
    found = found[..., : gemm.N]
    np.testing.assert_allclose(found, direct(gemm, inputs), rtol=1e-12, atol=1e-12)


@given(products())
def test_a_product_is_known_by_its_parameters(gemm):
    assert from_parameters(json.loads(json.dumps(to_parameters(gemm)))) == gemm
    assert gemm.called(product_name(gemm)).io.name == product_name(gemm)
    assert gemm.flops == 2 * gemm.B * gemm.M * gemm.N * gemm.K
    assert parse_shape(f"any=gemm:{KINDS['gemm'].format_sizes(gemm)}") == gemm
    assert products_in(f"bench/test_gemm.py::test_gemm[{product_name(gemm)}-triton-300W]") == [
        gemm.called(product_name(gemm))
    ]
    assert all(twin.digest != gemm.digest for twin in gemm.twins)
    usual = replace(gemm, name="other", distribution="normal")
    assert gemm.signature == usual.signature  # however its inputs are drawn


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({size: value}, f"gemm needs {size} to be an integer of at least 1, not")
        for size in "BMNK"
        for value in (0, -1, 1.5, True, "8", None)
    ),
    *(
        (given, r"gemm needs ld[abc] to be at least 8, the length")
        for given in ({"lda": 4}, {"ldb": 7}, {"ldc": 7}, {"lda": -8}, {"ldb": 8.5})
    ),
    ({"layout": "tx"}, "no layout 'tx': choose one of nn, nt, tn, tt"),
    ({"mode": "int8"}, "no mode 'int8': choose one of float32, 3xtf32, tf32, float16"),
    ({"distribution": "even"}, "cannot be drawn as 'even': choose one of normal, uniform"),
    *(
        ({"distribution": f"sparse:{share}"}, "a share of zeros such as sparse:0.5")
        for share in ("2", "nan", "1e-3", "1.1")
    ),
    ({"activation": "tanh"}, "no activation 'tanh': choose one of none, relu, gelu, gelu_tanh"),
    *(
        ({option: value}, f"gemm needs {option} to be 0 or 1, not")
        for option in ("bias", "residual")
        for value in (2, -1, "1", None, 0.5)
    ),
    ({"M": 1 << 17, "N": 1 << 17}, "more elements than 32-bit indices can address"),
    ({"B": 4096, "M": 1024, "N": 1024}, "C of 4194304 rows of 1024, which are more elements"),
    ({"groups": (8, *[0] * 1024)}, "at most 1024 groups, not 1025"),
    ({"B": 2, "groups": (8,)}, "cannot have both groups and a batch of B=2: give one of them"),
    ({"groups": (4, 5)}, "needs M to be 9, the rows of its groups together, not 8"),
    ({"groups": (0, 0)}, "needs a group with at least one row, and none has any"),
    *(
        ({"groups": value}, "needs groups to be numbers of rows, such as 512,0,128, not")
        for value in ("8,", "8,x", (8.5,), (-1, 9), None, (True,))
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_product_that_cannot_be_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Gemm("g", **{"M": 8, "N": 8, "K": 8, **changes})


@pytest.mark.slow
@given(products(), products())
def test_names_differ_where_the_products_do(one, other):
    assert (product_name(one) == product_name(other)) == (one == other)


SHAPES: dict[Any, Any] = {
    "nn": ((3, 5), (5, 4)),
    "nt": ((5, 3), (5, 4)),
    "tn": ((3, 5), (4, 5)),
    "tt": ((5, 3), (4, 5)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_says_how_a_and_b_are_stored(layout):
    gemm = Gemm("g", 3, 4, 5, layout)
    assert tuple(one.shape for one in gemm.tensors) == (*SHAPES[layout], (3, 4))
    longer = Gemm("g", 3, 4, 5, layout, lda=9, ldb=7, ldc=6)
    rows = [shape[0] for shape in SHAPES[layout]]
    assert [one.shape for one in longer.tensors] == [(rows[0], 9), (rows[1], 7), (3, 6)]
    assert longer.bytes_moved == gemm.bytes_moved == 4 * (3 * 5 + 5 * 4 + 3 * 4)


def test_bias_and_residual_count_as_bytes_but_the_end_does_not_count_as_work():
    plain = Gemm("g", 3, 4, 5, "tn", ldc=6)
    fused = replace(plain, bias=True, activation="gelu", residual=True)
    assert [one.shape for one in fused.tensors[2:]] == [(4,), (3, 6), (3, 6)]
    assert fused.bytes_moved == plain.bytes_moved + 4 * (4 + 3 * 4)
    assert fused.flops == plain.flops
    assert fused.signature == f"{plain.signature}_bias_1_activation_gelu_residual_1"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_product_has_a_twin_where_integers_stay_integers(activation):
    fused = Gemm("g", 8, 8, 8, bias=True, activation=activation, residual=True)
    assert bool(fused.twins) is (activation in ("none", "relu"))


def test_a_batch_stores_its_products_one_after_another():
    batch = Gemm("g", 3, 4, 5, "nt", B=7, bias=True, residual=True, ldc=6)
    shapes = [one.shape for one in batch.tensors]
    assert shapes == [(7, 5, 3), (7, 5, 4), (7, 4), (7, 3, 6), (7, 3, 6)]
    single = replace(batch, B=1)
    assert (batch.flops, batch.bytes_moved) == (7 * single.flops, 7 * single.bytes_moved)
    assert batch.signature == "gemm_M_3_N_4_K_5_layout_nt_mode_float32_B_7_ldc_6_bias_1_residual_1"
    assert product_name(batch) == "gemm_b7_3x4x5_nt_ldc6_bias_residual"


def test_each_group_has_a_matrix_and_a_bias_which_is_read_if_it_has_rows():
    groups = Gemm("g", 9, 4, 5, "tn", groups=(6, 0, 3), bias=True)
    assert [one.shape for one in groups.tensors] == [(9, 5), (3, 4, 5), (3, 4), (9, 4)]
    assert groups.flops == 2 * 9 * 4 * 5
    assert groups.bytes_moved == 4 * (9 * 5 + 2 * (5 + 1) * 4 + 9 * 4)
    assert product_name(groups) == "gemm_g6.0.3_9x4x5_tn_bias"
    assert groups == replace(groups, groups="6,0,3") == replace(groups, groups=[6, 0, 3])


def test_the_name_of_many_groups_is_short_and_differs_from_that_of_others():
    rows = [7 * number % 129 for number in range(64)]
    one, other = (Gemm("g", sum(rows), 8, 8, groups=order) for order in (rows, rows[::-1]))
    names = {product_name(one), product_name(other)}
    assert len(names) == 2
    assert all(name.startswith("gemm_g64h") and len(name) < 60 for name in names)
    assert one.signature != other.signature
    assert from_parameters(json.loads(json.dumps(to_parameters(one)))) == one
    assert not products_in(" ".join(names))  # a hash does not say what the groups are


def test_references_of_several_products_are_computed_on_a_device_too():
    arrays = StrictArrays()
    for more in ({"B": 3}, {"groups": (0, 5, 3)}):
        gemm = Gemm("g", 8, 6, 7, "tt", ldc=9, bias=True, activation="silu", residual=True, **more)
        inputs = gemm.widened(gemm.make_inputs(0))
        with arrays.used():
            there = gemm.reference({name: arrays.put(array) for name, array in inputs.items()})
            found = arrays.get(there["C"])
        np.testing.assert_array_equal(found, gemm.reference(inputs)["C"])


def test_tn_is_a_linear_layer():
    x, weights = (
        np.arange(6.0).reshape(2, 3),
        np.arange(12.0).reshape(4, 3),
    )  # [batch, in], [out, in]
    found = Gemm("linear", 2, 4, 3, "tn").reference({"A": x, "B": weights})["C"]
    np.testing.assert_array_equal(found, x @ weights.T)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_has_its_type(mode):
    dtype = mode if mode.endswith("float16") else "float32"
    if mode in FLOAT8_MODES:
        dtype = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[mode]
    tensors = {one.name: one.dtype for one in Gemm("g", 8, 8, 8, mode=mode).tensors}
    assert (tensors["A"], tensors["B"]) == (dtype, dtype)
    assert tensors["C"] == ("bfloat16" if mode in FLOAT8_MODES else dtype)


def sums(gemm: Gemm, a: Any, b: Any) -> dict[str, Any]:
    """C as float32 accumulators give it, rounded once."""
    wide = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    return {"C": numbers(rounded_to(wide, gemm.output_type), gemm.output_type)}


def matrices(gemm: Gemm, seed: int = 0) -> tuple[Any, Any, dict[str, Any]]:
    inputs = gemm.make_inputs(seed)
    a, b = (numbers(inputs[name], gemm.dtype).astype(np.float64) for name in "AB")
    if gemm.mode in FLOAT8_MODES:
        a, b = a * inputs["a_scale"], b * inputs["b_scale"]
    return a, b, gemm.reference(gemm.widened(inputs))


@pytest.mark.parametrize("mode", MODES)
def test_a_right_product_is_within_its_bound(mode):
    gemm = Gemm("g", 64, 48, 700, mode=mode)
    a, b, right = matrices(gemm)
    assert compare(sums(gemm, a, b), right, gemm.io.bounds, 0).max_relative < 0.01


def cut(values: Any) -> Any:
    """What a tensor core sees of float32 numbers in TF32."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def test_operands_cut_to_tf32_are_right_in_that_mode_only():
    for mode in ("tf32", "float32"):
        gemm = Gemm("g", 64, 48, 700, mode=mode)
        a, b, right = matrices(gemm)
        outputs = sums(gemm, cut(a), cut(b))
        if mode == "tf32":
            assert compare(outputs, right, gemm.io.bounds, 0).max_relative > 1e-5
        else:
            with pytest.raises(KernelFault, match="wrong"):
                compare(outputs, right, gemm.io.bounds, 0)


@pytest.mark.parametrize("mode", ["tf32", "float32", "bfloat16"])
def test_a_term_that_is_left_out_is_wrong(mode):
    gemm = Gemm("g", 64, 48, 700, mode=mode)
    a, b, right = matrices(gemm)
    with pytest.raises(KernelFault, match="wrong"):
        compare(sums(gemm, a[:, 1:], b[1:]), right, gemm.io.bounds, 0)


@pytest.mark.parametrize("mode", MODES)
def test_its_twin_is_exact(mode):
    twin, *_ = Gemm("g", 64, 48, 700, mode=mode).twins
    assert isinstance(twin, Gemm)
    a, b, right = matrices(twin)
    outputs = sums(twin, a, b)
    compare(outputs, right, twin.io.bounds, 0)
    largest = np.unravel_index(np.abs(right["C"]).argmax(), right["C"].shape)
    outputs["C"][largest] *= 1.01
    with pytest.raises(KernelFault, match="wrong"):
        compare(outputs, right, twin.io.bounds, 0)


EXPECTED = {
    "normal": lambda x: x.min() <= -3.5 and abs(x.std() - 1) < 0.05,
    "uniform": lambda x: -1 <= x.min() < -0.99 < 0.99 < x.max() <= 1,
    "integers": lambda x: sorted(set(x.tolist())) == list(range(-4, 5)),
    "ones": lambda x: set(x.tolist()) == {1.0},
    "zeros": lambda x: set(x.tolist()) == {0.0},
    "sorted": lambda x: (np.diff(x) >= 0).all() and x[0] < -2 < 2 < x[-1],
    "sparse:0.75": lambda x: abs((x == 0).mean() - 0.75) < 0.05 and abs(x).max() > 2,
    "sparse:0": lambda x: (x != 0).mean() > 0.99,  # small ones become 0 in 8 bits
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("distribution", EXPECTED)
def test_inputs_have_the_distribution_asked_for(distribution, mode):
    gemm = Gemm("g", 64, 64, 64, mode=mode, distribution=distribution)
    drawn = numbers(gemm.make_inputs(0)["A"], gemm.dtype).astype(np.float64).reshape(-1)
    assert EXPECTED[distribution](drawn)


def test_the_default_set_has_each_size_in_both_layouts():
    names = [gemm.name for gemm in network("gemm")]
    assert names[:3] == ["gemm_512x256x640_nn", "gemm_512x256x640_nt", "gemm_512x384x256_nn"]
    assert len(names) == len(set(names)) == 26
    assert choose_workloads(["gemm_8192x8192x8192_nt"])[0] in network("gemm")


def test_a_shape_may_be_a_matrix_product():
    found = parse_shape("mine = gemm: M=3 N=4 K=5 layout=nt mode=tf32 lda=8 distribution=zeros")
    assert found == Gemm("mine", 3, 4, 5, "nt", "tf32", 8, 4, "zeros")


FLOAT8 = Gemm("g", 64, 48, 4096, "tn", "e4m3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "bfloat16", "scaling": "row"}, "gemm in mode bfloat16 takes no scaling"),
        ({"mode": "float32", "accumulation": "fast"}, "takes no accumulation: choose mode e4m3"),
        ({"mode": "tf32", "quantize": True}, "gemm in mode tf32 takes no quantize"),
        ({"scaling": "column"}, "no scaling 'column': choose one of tensor, row, block"),
        ({"accumulation": "slow"}, "no accumulation 'slow': choose one of float32, fast"),
        ({"quantize": 2}, "needs quantize to be 0 or 1"),
        ({"scaling": "block", "accumulation": "fast"}, "scaled after every 128 products"),
    ],
)
def test_options_of_8_bit_products_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        replace(FLOAT8, **options)


def test_scales_are_inputs_in_the_shapes_that_libraries_take():
    wide = replace(FLOAT8, M=40, N=200, K=1000, lda=0, ldb=0, ldc=0)
    shapes = {
        scaling: {
            one.name: one.shape
            for one in replace(wide, scaling=scaling).inputs
            if one.name.endswith("_scale")
        }
        for scaling in ("tensor", "row", "block")
    }
    assert shapes == {
        "tensor": {"a_scale": (1,), "b_scale": (1,)},
        "row": {"a_scale": (40,), "b_scale": (200,)},
        "block": {"a_scale": (8, 40), "b_scale": (2, 8)},
    }
    assert replace(wide, K=500, lda=0, ldb=0, scaling="block").shapes_of_scales[1] == (2, 4)
    inside = replace(wide, scaling="row", quantize=True)
    assert [one.name for one in inside.inputs] == ["A", "B", "b_scale"]
    assert inside.inputs[0].dtype == "bfloat16"


def test_bytes_of_8_bit_products_are_those_of_each_type():
    plain = Gemm("g", 16, 32, 48, "tn", "e4m3", bias=True)
    assert plain.bytes_moved == 16 * 48 + 32 * 48 + 2 * (16 * 32 + 32) + 2 * 4
    inside = replace(plain, quantize=True)
    assert inside.bytes_moved == plain.bytes_moved + 16 * 48 - 4


def cut_sums(gemm: Gemm, a: Any, b: Any, bits: int, *, promoted: bool) -> dict[str, Any]:
    """C as of tensor cores that keep so many bits below the leading one of the largest term."""
    total = np.zeros((gemm.M, gemm.N))
    for first in range(0, gemm.K, 128):
        part = np.zeros_like(total) if promoted else total
        for k in range(first, min(first + 128, gemm.K), 32):
            terms = np.stack([part, *(a[:, j, None] * b[None, j] for j in range(k, k + 32))])
            unit = np.exp2(np.floor(np.log2(np.abs(terms).max(0) + 1e-300)) - bits)
            part = np.trunc(terms / unit).sum(0) * unit
        total = (total + part).astype(np.float32).astype(np.float64) if promoted else part
    return {"C": numbers(rounded_to(total, gemm.output_type), gemm.output_type)}


def is_right(gemm: Gemm, bits: int, *, promoted: bool) -> bool:
    """Whether such sums are right for a product and all its twins."""
    for subject in (gemm, *gemm.twins):
        assert isinstance(subject, Gemm)
        inputs = subject.make_inputs(3)
        wide = subject.widened(inputs)
        a, b = wide["A"] * wide["a_scale"], wide["B"].T * wide["b_scale"]
        try:
            outputs = cut_sums(subject, a, b, bits, promoted=promoted)
            compare(outputs, subject.reference(wide), subject.io.bounds, 3)
        except KernelFault:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "depth"), each_once(["e4m3", "e5m2"], [512, 2048, 8192]))
def test_sums_as_hopper_adds_them_are_right(mode, depth):
    promoted = Gemm("g", 24, 16, depth, "tn", mode)
    assert is_right(promoted, 13, promoted=True)
    assert is_right(replace(promoted, accumulation="fast"), 13, promoted=False)
    assert is_right(promoted, 22, promoted=False)  # of a float32 accumulator


@pytest.mark.parametrize("mode", ["e4m3", "e5m2"])
def test_coarser_sums_than_hoppers_are_wrong(mode):
    promoted = Gemm("g", 24, 16, 4096, "tn", mode)
    fast = replace(promoted, accumulation="fast")
    assert not is_right(promoted, 13, promoted=False)  # a sum that is not promoted
    assert not is_right(fast, 10, promoted=False)  # as with accumulators of half precision
    assert not is_right(promoted, 9, promoted=True)


def test_a_product_whose_operands_are_stored_across_k_has_no_cancelling_twin():
    kinds = {
        layout: [type(twin).__name__ for twin in replace(FLOAT8, layout=layout, lda=0, ldb=0).twins]
        for layout in LAYOUTS
    }
    assert kinds == {
        **{layout: ["ExactGemm", "CancellingGemm"] for layout in ("nn", "tn", "tt")},
        "nt": ["ExactGemm"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_a_cancelling_twin_has_large_sums_and_small_results(layout):
    gemm = Gemm("g", 300, 400, 5000, layout, "e4m3")
    *_, twin = gemm.twins
    assert isinstance(twin, Gemm)
    wide = twin.widened(twin.make_inputs(1))
    half = dict(wide)
    name = "A" if not gemm.a_transposed else "B"
    half[name] = np.maximum(wide[name], 0)
    halfway, whole = (twin.reference(one)["C"] for one in (half, wide))
    assert halfway.min() > 1 << 14  # more than 14 bits represent
    assert np.abs(whole).mean() < halfway.mean() / 20


def test_the_quantized_a_is_near_a_and_exact_where_it_can_be():
    for scaling, mode in itertools.product(("tensor", "row", "block"), ("e4m3", "e5m2")):
        gemm = Gemm("g", 20, 8, 300, "tn", mode, scaling=scaling, quantize=True)
        a = np.random.default_rng(0).standard_normal((20, 300))
        a = numbers(rounded_to(a, "bfloat16"), "bfloat16").astype(np.float64)
        identity = {"A": a, "B": np.eye(8, 300), "b_scale": np.ones(gemm.shapes_of_scales[1])}
        found = gemm.reference(identity)["C"]
        error = np.abs(found - a[:, :8])
        digits = 2.0**-4 if mode == "e4m3" else 2.0**-3
        assert 0 < error.max() <= digits * np.abs(a).max()
        whole = gemm.reference({**identity, "A": np.rint(a)})["C"]
        np.testing.assert_array_equal(whole, np.rint(a[:, :8]))
        none = gemm.reference({**identity, "A": np.zeros_like(a)})["C"]
        np.testing.assert_array_equal(none, 0)
