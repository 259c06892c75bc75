"""Moves on Triton functions: their text, and what it computes on NumPy arrays."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from move_checks import only, results, whats
from moved_triton import GEMM, GRID, LOOPED_SOFTMAX, SOFTMAX, SPECS, rows_of, run
from msgspec.structs import replace
from points import each_once

from pytest_gpuenergy.search import MOVES, Application, KernelSpec, evaluate

NAMES = [move.name for move in MOVES]


def found(move: str, spec: KernelSpec, what: str = "") -> list[Application]:
    """The applications of a move to a spec's baseline that ``what`` describes."""
    return [one for one in results(move, spec) if what in one.what]


def inputs_of(spec: KernelSpec) -> dict[str, Any]:
    draw, names = np.random.default_rng(0), {**spec.sizes[0], **spec.launch.constants}
    return {
        one.name: draw.normal(size=[evaluate(size, names) for size in one.shape]).astype(one.dtype)
        for one in spec.tensors
        if one.role == "input"
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_all_that_moves_make_of_a_function_computes_the_same(name):
    spec = SPECS[name]
    inputs = inputs_of(spec)
    expected = run(spec.baseline, spec, inputs)
    states = [one.state for move in MOVES for one in move.applications(spec.baseline, spec)]
    assert states
    for state in states:
        for output, array in run(state, spec, inputs).items():
            np.testing.assert_allclose(array, expected[output], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", SPECS)
def test_comments_stay_apart_from_those_in_what_is_replaced(name):
    spec = SPECS[name]
    for move in MOVES:
        for one in move.applications(spec.baseline, spec):
            assert "# one" in one.state.source or "# one" not in spec.source
            ast.parse(one.state.source)


def test_masks_go_where_every_size_fills_all_blocks():
    text = only("pad_tail_and_mask", SPECS["add"]).source
    assert "x = tl.load(x_ptr + offs)  # one" in text
    assert "y = tl.load(y_ptr + offs)" in text
    assert "tl.store(out_ptr + offs, x + y)" in text


def test_masks_of_rows_and_columns_go_together():
    text = only("pad_tail_and_mask", SPECS["whole gemm"]).source
    assert "mask=" not in text
    assert "b_ptr + inner[:, None] * n + rn[None, :]).to(tl.float32)" in text


@pytest.mark.parametrize(
    ("name", "move"), [("whole gemm", "pad_tail_and_mask"), ("gemm", "grouped_gemm_colmajor")]
)
def test_the_axis_of_a_program_may_be_named(name, move):
    spec = SPECS[name]
    source = spec.source.replace("program_id(", "program_id(axis=")
    (one,) = found(move, replace(spec, source=source))
    (other,) = found(move, spec)
    assert one.state.source.replace("axis=", "") == other.state.source.replace("axis=", "")


LEFT_ALONE = {
    ("pad_tail_and_mask", "add"): [  # what the mask compares changes
        ("    mask =", "    offs += 1\n    mask ="),
        ("    pid =", "    n = n - 5\n    pid ="),
        ("    pid =", "    (n := n - 5)\n    pid ="),
        ("    pid =", "    for n in range(0, 3):\n        pass\n    pid ="),
        ("offs < n", "offs.to(tl.int8) < n"),
    ],
    ("switch_to_mma_or_wgmma", "gemm"): [  # another sum than that of a product
        ("axis=1", "axis=0"),
        ("[:, :, None] *", "[:, None, :] *"),
        ("[:, :, None] * b", "[:, :, None] + b"),
        ("        acc +=", "        b = b + 1\n        acc +="),
        ("rk = tl.arange(0, BK)", "rk = tl.arange(0, 8)"),
    ],
    ("grouped_gemm_colmajor", "gemm in one dimension"): [  # the place is used otherwise
        ("    pid_n =", "    row = pid_m\n    pid_n ="),
        ("    rm =", "    pid_m = pid_m + 1\n    rm ="),
        ("    rm =", "    pid_k = pid + 1\n    rm ="),
        ("pid % across", "pid % BN"),
    ],
}


@pytest.mark.parametrize(
    ("move", "name", "old", "new"),
    [(*key, old, new) for key, changes in LEFT_ALONE.items() for old, new in changes],
)
def test_a_function_that_may_compute_something_else_is_left_alone(move, name, old, new):
    spec = SPECS[name]
    assert old in spec.source
    assert whats(move, spec)
    assert whats(move, replace(spec, source=spec.source.replace(old, new))) == []


@pytest.mark.parametrize(
    ("move", "name"),
    [
        ("pad_tail_and_mask", "add with tails"),
        ("pad_tail_and_mask", "softmax"),
        ("pad_tail_and_mask", "gemm"),
        ("enable_async_pipeline", "softmax"),
        ("vectorize_global_loads", "whole softmax"),
    ],
)
def test_a_function_that_needs_its_masks_or_has_no_loop_is_left_alone(move, name):
    assert whats(move, SPECS[name]) == []


def test_each_load_gets_its_own_hint():
    states = found("cache_policy_cg", SPECS["add"], ".cg")
    assert [one.what for one in states] == [
        ".cg for load 1 of x_ptr + offs",
        ".cg for load 2 of y_ptr + offs",
    ]
    assert 'tl.load(x_ptr + offs, mask=mask, cache_modifier=".cg")' in states[0].state.source
    assert 'other=0.0, cache_modifier=".cg",  # beyond the end' in states[1].state.source


def test_a_hint_is_replaced_by_another():
    spec = SPECS["add"]
    hinted = only("cache_policy_cg", spec, ".cg for load 1")
    again = results("cache_policy_cg", spec, hinted)
    texts = [one.state.source for one in again if ".ca for load 1" in one.what]
    assert texts == [hinted.source.replace(".cg", ".ca")]


def test_exponentials_get_another_base():
    text = only("softmax_math_fusion", SPECS["softmax"], "base 2").source
    assert "e = tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)" in text


def test_a_sum_is_inverted_once():
    text = only("softmax_math_fusion", SPECS["softmax"], "reciprocals of sums").source
    assert "(e + 0.0) * (1.0 / total), mask=(c < cols))" in text


def test_roots_are_inverted_at_once():
    text = only("softmax_math_fusion", SPECS["norm"], "reciprocal square roots").source
    assert "scale = tl.rsqrt(squares / cols + 1e-6)" in text
    assert "x * scale + x * tl.rsqrt(squares)" in text


def test_stages_are_those_of_the_launch_or_of_a_loop():
    applications = found("enable_async_pipeline", SPECS["gemm"])
    assert [one.state.launch.num_stages for one in applications] == [2, 4, 5, 3, 3, 3, 3]
    assert [one.state.source == GEMM for one in applications] == [True] * 3 + [False] * 4
    assert "for k0 in tl.range(0, k, BK, num_stages=5):" in applications[-1].state.source


def test_stages_of_a_loop_are_replaced():
    spec = SPECS["gemm"]
    once = only("enable_async_pipeline", spec, "k0 in 2 stages")
    twice = results("enable_async_pipeline", spec, once)
    assert "num_stages=3" in twice[-3].state.source
    assert "num_stages=2" not in twice[-3].state.source


def test_a_sum_of_products_becomes_a_dot():
    text = only("switch_to_mma_or_wgmma", SPECS["gemm"]).source
    assert "acc += tl.dot(a, b.to(tl.float16))" in text


@pytest.mark.parametrize("allowed", [False, True])
def test_float32_becomes_a_dot_where_the_spec_allows_tensor_cores(allowed):
    spec = SPECS["gemm"]
    tensors = tuple(replace(tensor, dtype="float32") for tensor in spec.tensors)
    applications = found(
        "switch_to_mma_or_wgmma", replace(spec, tensors=tensors, tensor_cores=allowed)
    )
    assert len(applications) == allowed


def test_programs_are_taken_in_groups_of_rows():
    (one,) = found("grouped_gemm_colmajor", SPECS["gemm"])
    assert one.what == "groups of 4 rows of programs"
    head = "tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0), 4"
    assert f"    program_row, program_column = tl.swizzle2d({head})\n" in one.state.source
    assert "pid_m = program_row\n    pid_n = program_column\n" in one.state.source
    assert whats("grouped_gemm_colmajor", SPECS["gemm"], one.state) == []


def test_programs_in_one_dimension_are_taken_in_groups_of_rows():
    (one,) = found("grouped_gemm_colmajor", SPECS["gemm in one dimension"])
    call = "tl.swizzle2d(pid_m, pid_n, tl.num_programs(0) // across, across, 4)"
    assert f"    pid_n = pid % across\n    pid_m, pid_n = {call}\n" in one.state.source


def test_a_maximum_and_its_sum_are_found_in_one_loop():
    text = only("softmax_math_fusion", SPECS["looped softmax"], "online").source
    assert text.count("for first in") == 2
    assert text.index("    total = 0.0\n    for first") < text.index("higher = tl.maximum(")
    assert (
        "total = total * tl.exp(largest - higher) + tl.sum(tl.exp(values - higher), axis=0)" in text
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total = 0.0", "total = 1.0"),
        ("total = 0.0", "total = 0.0\n    largest = largest + 1"),
        ("total += tl.sum(tl.exp(values", "total += tl.sum(tl.exp(2 * values"),
        ("tl.max(values, axis=0)", "tl.max(values, axis=1)"),
        ("total += tl", "total -= tl"),
        ("tl.maximum(", "tl.minimum("),
        ("in range(0, cols, BLOCK)", "in range(BLOCK, cols, BLOCK)"),
        ('other=-float("inf"))\n        total', "other=0.0)\n        total"),
    ],
)
def test_loops_that_are_no_softmax_are_not_fused(old, new):
    source = SPECS["looped softmax"].source
    assert old in source
    spec = replace(SPECS["looped softmax"], source=source.replace(old, new, 1))
    assert found("softmax_math_fusion", spec, "online") == []


def test_programs_in_one_group_keep_their_order():
    spec = replace(SPECS["gemm"], sizes=({"M": 100, "N": 100, "K": 40},))
    assert spec.launch.grid == GRID
    assert found("grouped_gemm_colmajor", spec) == []


@pytest.mark.parametrize(
    "source",
    [
        SOFTMAX.replace("@triton.jit", "@triton.autotune(configs=[], key=[])\n@triton.jit"),
        SOFTMAX.replace("@triton.jit", ""),
        SOFTMAX.replace("def kernel(", "def other("),
        SOFTMAX.replace("cols, BLOCK", "BLOCK"),
        SOFTMAX + "\nthis is no Python",
        SOFTMAX + "\nkernel = other",
        SOFTMAX + SOFTMAX.replace("tl.exp(x", "tl.exp(2 * x"),
    ],
)
def test_functions_that_are_not_understood_are_left_alone(source):
    spec = rows_of(source, 64)
    assert [one for name in NAMES for one in found(name, spec)] == []


@pytest.mark.parametrize(
    "source",
    [
        SOFTMAX.replace("import triton.language as tl", "from other import language as tl"),
        SOFTMAX + "\ntl = other",
        SOFTMAX.replace("c = tl.arange", "tl = tl\n    c = tl.arange"),
    ],
)
def test_calls_that_may_not_be_tritons_stay(source):
    spec = rows_of(source, 64)
    assert {one.state.source for name in NAMES for one in found(name, spec)} <= {source}


def renamed(source: str, imports: str, language: str) -> str:
    """A module that knows Triton by other names."""
    head, _, body = source.partition("@triton.jit")
    jit = "tr.jit" if "as tr" in imports else "jit" if "import jit" in imports else "triton.jit"
    assert "import triton" in head
    return f"{imports}\n\n@{jit}{body.replace('tl.', f'{language}.')}"


@pytest.mark.parametrize(
    ("imports", "language", "name"),
    each_once(
        [
            ("import triton\nfrom triton import language as tl", "tl"),
            ("from triton import jit, language", "language"),
            ("import triton\nimport triton.language", "triton.language"),
            ("import triton as tr\nimport triton.language as lang", "lang"),
            ("import triton as tr", "tr.language"),
        ],
        ["whole softmax", "gemm", "looped softmax"],
    ),
)
def test_other_names_of_the_language_are_understood(name, imports, language):
    usual = SPECS[name]
    spec = replace(usual, source=renamed(usual.source, imports, language))
    states = [one.state for move in MOVES for one in move.applications(spec.baseline, spec)]
    plain = [one.state for move in MOVES for one in move.applications(usual.baseline, usual)]
    assert len(states) == len(plain)
    inputs = inputs_of(spec)
    expected = run(spec.baseline, spec, inputs)
    for state in states[:: 1 if "looped" in name else 5]:
        for output, array in run(state, spec, inputs).items():
            np.testing.assert_allclose(array, expected[output], rtol=2e-3, atol=2e-3)


def test_functions_that_are_imported_by_name_are_understood():
    imports = "import triton\nimport triton.language as tl\nfrom triton.language import exp as e_to"
    source = renamed(SOFTMAX, imports, "tl").replace("tl.exp(", "e_to(")
    usual, spec = SPECS["softmax"], replace(SPECS["softmax"], source=source)
    assert whats("softmax_math_fusion", spec) == whats("softmax_math_fusion", usual)


def test_arguments_by_name_raise_nothing():
    source = GEMM.replace("tl.arange(0, BK)", "tl.arange(start=0, end=BK)")
    spec = replace(
        SPECS["gemm"], source=source.replace("tl.load(\n            a_ptr", "tl.load(pointer=a_ptr")
    )
    for name in NAMES:
        for one in found(name, spec):
            ast.parse(one.state.source)


WARPS = [f"num_warps={warps}" for warps in (1, 2, 8, 16)]


def block_sizes(spec: KernelSpec) -> list[str]:
    return whats("change_block_sizes", spec)


def test_tiles_that_the_grid_or_a_loop_goes_on_by_and_warps_are_changed():
    assert block_sizes(SPECS["gemm"]) == [
        *WARPS,
        *(f"BM={size}" for size in (8, 16, 64, 128)),
        *(f"BN={size}" for size in (8, 16, 64, 128)),
        *(f"BK={size}" for size in (4, 8, 32, 64)),
    ]


def test_a_block_that_a_number_of_rounds_is_counted_by_is_changed():
    source = LOOPED_SOFTMAX.replace("range(0, cols, BLOCK)", "range(0, tl.cdiv(cols, STEP))")
    source = source.replace(
        "cols, BLOCK: tl.constexpr):", "cols, BLOCK: tl.constexpr):\n    STEP = BLOCK"
    )
    source = source.replace("first + tl", "first * STEP + tl")
    assert "BLOCK=128" in block_sizes(rows_of(source, 200))


def test_a_block_that_covers_a_whole_row_is_left_alone():
    assert block_sizes(SPECS["softmax"]) == WARPS


def test_a_constant_that_a_tensor_depends_on_is_left_alone():
    x, y = SPECS["looped softmax"].tensors
    spec = replace(
        SPECS["looped softmax"], tensors=(x, replace(y, shape=("R", "COLS + 0 * BLOCK")))
    )
    assert block_sizes(spec) == WARPS


@pytest.mark.parametrize(("now", "others"), [(1, [2, 4]), (16, [4, 8, 32]), (32, [8, 16])])
def test_a_program_has_at_most_32_warps(now, others):
    spec = SPECS["softmax"]
    spec = replace(spec, launch=replace(spec.launch, num_warps=now))
    assert block_sizes(spec) == [f"num_warps={warps}" for warps in others]
