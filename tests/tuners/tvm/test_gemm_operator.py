"""Matrix products in TVM: their computation, its forms, and a search of few trials."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from points import each_once

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners import (
    SPACES,
    GemmForm,
    load_database,
    load_records,
    product_sizes,
    require_space,
    tvm_operator,
    useful_forms,
)
from pytest_gpuenergy.tuning import file_name, find_records
from pytest_gpuenergy.workloads import LAYOUTS, Gemm

OPERATOR = tvm_operator(Gemm("g", 8, 8, 8))
MODES = ("float32", "float16", "bfloat16")
SHARED_FLOATS = 48 * 1024 // 4


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


@st.composite
def products(draw: st.DrawFn, most: int = 5000) -> Gemm:
    size, more = st.integers(1, most), st.integers(0, 5)
    m, n, k = draw(size), draw(size), draw(size)
    layout, mode = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(MODES))
    bare = Gemm("g", m, n, k, layout, mode)  # type: ignore[arg-type]
    return replace(bare, lda=bare.lda + draw(more), ldb=bare.ldb + draw(more))


@given(products())
def test_flops_follow_from_the_tensors(gemm):
    if gemm.b_transposed:  # whose depth could be less than the length of its rows
        gemm = replace(gemm, lda=0, ldb=0)
    elif gemm.N == gemm.K:  # which could be those of a transposed B
        gemm = replace(gemm, ldb=0)
    assert OPERATOR.flops_for_shapes([tensor.shape for tensor in gemm.tensors]) == gemm.flops


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 5), (5, 6)],
        [(4, 5), (5, 6), (4, 6), (6,)],
        [(4, 5), (6, 6), (4, 6)],  # K = 6 does not fit into rows of 5
        [(4, 5), (6, 7), (4, 6)],
        [(4, 5), (5, 6), (4, 7)],
        [(4, 0), (0, 6), (4, 6)],
        [(1, 4, 5), (1, 5, 6), (1, 4, 6)],
    ],
)
def test_other_tensors_are_of_no_product(shapes):
    assert OPERATOR.flops_for_shapes(shapes) is None


def test_longer_rows_of_c_are_refused():
    with pytest.raises(UnavailableError, match="whose rows of C are followed by other elements"):
        OPERATOR.module(Gemm("g", 8, 8, 8, ldc=9))


@pytest.mark.parametrize(
    "end", [{"bias": True}, {"activation": "silu"}, {"residual": True}], ids=str
)
def test_ends_are_refused(end):
    with pytest.raises(UnavailableError, match="no schedules of products with a bias, an activ"):
        OPERATOR.module(Gemm("g", 8, 8, 8, **end))


@pytest.mark.parametrize("more", [{"B": 2}, {"groups": (5, 3)}], ids=str)
def test_batches_and_groups_are_refused(more):
    with pytest.raises(UnavailableError, match="no schedules of products in batches or groups"):
        OPERATOR.module(Gemm("g", 8, 8, 8, **more))


@given(products(), st.integers(0, 5))
def test_a_record_file_is_recognized_by_its_name(gemm, more):
    gemm = replace(gemm, ldc=gemm.N + more)
    found = OPERATOR.from_log_name(file_name(gemm))
    assert found is not None
    assert found.signature == gemm.signature


@pytest.mark.parametrize(
    "name",
    [
        "matmul.json",
        "gemm_M_0_N_256_K_640_layout_nn_mode_float32.json",
        "gemm_M_512_N_256_K_640_layout_tx_mode_float32.json",
        "gemm_M_512_N_256_K_640_layout_nn_mode_float32_lda_5.json",
        "gemm_M_512_N_256_K_640_layout_nn_mode_float32x.json",
        "gemm_M_512_N_256_K_640_layout_nn_mode_float32_bias_1.json",
        "gemm_M_512_N_256_K_640_layout_nn_mode_float32_lda_700_activation_gelu.json",
        "gemm_M_512_N_256_K_640_layout_nn_mode_float32_B_4.json",
        "gemm_M_512_N_256_K_640_layout_nn_mode_float32_groups_500.12.json",
        "gemm_M_999999999_N_999999999_K_1_layout_nn_mode_float32.json",
    ],
)
def test_another_name_has_no_product(name):
    assert OPERATOR.from_log_name(name) is None


@pytest.mark.parametrize(
    ("key", "sizes"),
    [
        (["matmul_auto_scheduler_test", 512, 256, 640], (512, 256, 640)),
        (["matmul", 512, 640, 256, "float32"], (512, 256, 640)),
        (["matmul", 512, 640, 256], (512, 256, 640)),
    ],
)
def test_a_function_of_tvm_has_the_sizes_of_its_arguments(key, sizes):
    found = OPERATOR.from_log_key(key)
    assert found is not None
    assert sizes == (found.M, found.N, found.K)


@pytest.mark.parametrize(
    "key",
    [
        ["conv2d", 1, 2, 3],
        ["matmul", 1, 2],
        ["matmul", 1, 2, "3"],
        ["matmul", 1, 2, 0],
        ["matmul", 1, 2, 3, "float16"],
        [["matmul"], 1, 2, 3],
        ["matmul", True, 2, 3],
    ],
)
def test_another_function_has_no_product(key):
    assert OPERATOR.from_log_key(key) is None


@given(products(most=300))
def test_forms_waste_little_and_split_evenly(gemm):
    sizes = product_sizes(gemm)
    forms = useful_forms(sizes)
    assert len(set(forms)) == len(forms) > 0
    assert sizes.depth <= sizes.padded_depth < sizes.depth + 8
    wastes = [
        math.prod(
            -(-size // tile) * tile for size, tile in zip(sizes.outputs, form.tile, strict=True)
        )
        / (gemm.M * gemm.N)
        for form in forms
    ]
    assert max(wastes) <= max(1.35, min(wastes) + 1e-9)
    for form in forms:
        assert 1 <= form.max_depth * sum(form.tile) * (1 + form.pipelined) <= SHARED_FLOATS
        assert sizes.padded_depth % form.parts == 0


@given(st.integers(1, 5000))
def test_a_long_sum_has_parts_of_useful_length(k):
    depth = product_sizes(Gemm("g", 64, 64, k)).padded_depth
    assert depth <= 64 or any(depth % part == 0 for part in range(8, 65))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mode", ["tf32", "3xtf32"])
def test_a_mode_of_tensor_cores_is_refused_before_a_search(space, mode):
    with pytest.raises(InputError, match=f"no schedules in mode {mode}: choose mode float32"):
        require_space(Gemm("g", 64, 64, 64, mode=mode), space, "sm_90a")


def test_bfloat16_is_refused_on_a_gpu_without_it():
    gemm = Gemm("g", 64, 64, 64, mode="bfloat16")
    require_space(gemm, "all", "sm_80")
    with pytest.raises(InputError, match="from sm_80 on and it is of sm_75: choose float16"):
        require_space(gemm, "all", "sm_75")


@pytest.mark.tvm
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(products())
def test_the_computation_takes_the_tensors(child, gemm):
    found = child.call("parameters", gemm, timeout_s=60)
    shapes = [(shape, dtype) for _, shape, dtype in found]
    assert shapes == [(tensor.shape, tensor.dtype) for tensor in gemm.tensors]
    assert [name for name, *_ in found] == ["A", "B", "C"]


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("space", "m", "n", "k"),
    each_once(SPACES, [(1, 1, 1), (7, 13, 5), (31, 1, 131), (64, 64, 256)]),
)
def test_every_size_has_schedules(child, space, m, n, k):
    gemm = Gemm("g", m, n, k)
    traces = child.call("traces", gemm, space, timeout_s=120)
    ours = [trace for trace in traces if "reindex" in trace]
    assert len(ours) == (0 if space == "direct" else len(useful_forms(product_sizes(gemm))))
    assert bool(len(traces) - len(ours)) == (space != "gemm")


@pytest.mark.tvm
@pytest.mark.thorough
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(products(most=70), st.data())
def test_every_form_of_any_product_is_right(child, device, gemm, data):
    form = data.draw(st.sampled_from(useful_forms(product_sizes(gemm))))
    seed = data.draw(st.integers(1, 1000))
    verify_on_device(device, child.call("lower_form", gemm, form, seed, timeout_s=120), gemm)


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        pytest.param(
            *one,
            marks=[] if one == ("float16", "nt") else [pytest.mark.thorough],
        )
        for one in product(MODES, LAYOUTS)
    ],
)
def test_sums_in_parts_of_a_padded_product_are_right(child, device, layout, mode):
    gemm = Gemm("g", 33, 65, 131, layout, mode, lda=140, ldb=140)
    form = GemmForm((4, 16), (4, 2), parts=2, pipelined=True)
    kernel = child.call("lower_form", gemm, form, timeout_s=120)
    assert len(kernel.launches) == 2
    verify_on_device(device, kernel, gemm)


@pytest.mark.tvm
@pytest.mark.thorough  # as of a convolution, in test_tune_command.py
def test_a_search_is_kept_listed_and_read_back(tmp_path, device, store, capsys):
    gemm = Gemm("gemm_8x8x16_nt_bfloat16", 8, 8, 16, "nt", "bfloat16")
    shape = ["--shape", "gemm:M=8 N=8 K=16 layout=nt mode=bfloat16", "--tuner", "tvm"]
    few = ["--trials", "2", "--keep", "2", "--no-energy", "--strategy", "replay-trace"]
    where = ["--out", str(tmp_path), "--gpu-device", "emulated"]
    assert main(["tune", *shape, *few, *where]) == 0
    path = find_records(tmp_path, gemm)
    assert path.name == file_name(gemm)
    capsys.readouterr()
    assert main(["kernels", "list", "--records", str(tmp_path), "--json"]) == 0
    assert [one["rank"] for one in json.loads(capsys.readouterr().out)] == [1, 2]
    database = load_database(tmp_path / gemm.name / "raw")
    kernel = store.kernel(load_records(path), 1)
    stored = store.database_kernel(database, database.valid[0])
    assert verify_on_device(device, kernel, gemm).max_relative_error < 1e-2
    assert verify_on_device(device, stored, gemm).max_relative_error < 1e-2
