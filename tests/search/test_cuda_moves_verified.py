"""What moves make of CUDA kernels computes the same, on the emulated GPU."""

from __future__ import annotations

import pytest
from move_checks import check, results
from moved_kernels import CASES

pytestmark = pytest.mark.slow

DAILY = [
    ("softmax", "vectorize_global_loads", "shared loops over c at line 11/21/29 by 4"),
    ("softmax", "cache_policy_cg", "__ldcg for x"),
    ("transpose", "pad_tail_and_mask", "rows of tile by 1"),
    ("squares", "avoid_atomics_reduce", "warp reduction for total"),
    ("histogram", "avoid_atomics_reduce", "copy of counts for each block"),
    ("softmax", "softmax_math_fusion", "online sum from line 11"),
    ("tiled gemm", "enable_async_pipeline", "loop 1 over t in 2 stages"),
    ("tiled gemm", "grouped_gemm_colmajor", "groups of 4 rows of blocks"),
    ("half gemm", "switch_to_mma_or_wgmma", "wmma for acc"),
]
"""Each move, where it changes most of the text."""
NIGHTLY = [
    ("add", "vectorize_global_loads", "4 elements per thread"),
    ("half add", "vectorize_global_loads", "8 elements per thread"),
    ("stencil", "vectorize_global_loads", "2 elements per thread"),
    ("histogram", "vectorize_global_loads", "4 elements per thread"),
    ("grid stride", "vectorize_global_loads", "shared loops over i at line 4 by 4"),
    ("uneven softmax", "vectorize_global_loads", "shared loops over c at line 11/21/29 by 4"),
    ("rows", "vectorize_global_loads", "4 elements per thread"),
    ("layernorm", "vectorize_global_loads", "shared loops over c at line 6/16 by 4"),
    ("naive gemm", "vectorize_global_loads", "loop 1 over i by 4"),
    ("tiled gemm", "cache_policy_cg", "__ldg for b"),
    ("layernorm", "cache_policy_cg", "__ldca for w"),
    ("tiled gemm", "pad_tail_and_mask", "rows of As by 4"),
    ("whole tiles", "pad_tail_and_mask", "guards that always hold"),
    ("squares", "avoid_atomics_reduce", "block reduction for total"),
    ("layernorm", "softmax_math_fusion", "reciprocal square roots"),
    ("softmax", "softmax_math_fusion", "fast functions"),
    ("softmax", "softmax_math_fusion", "exponentials to base 2"),
    ("softmax", "softmax_math_fusion", "reciprocals before loops"),
    ("stencil", "softmax_math_fusion", "fast divisions"),
    ("tiled gemm", "enable_async_pipeline", "loop 1 over t in 3 stages"),
]
"""Moves of other kernels, and applications whose text `test_cuda_moves_text.py` shows."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_right_before_any_move(name):
    case = CASES[name]
    check(case.spec.baseline, case.spec, case.reference, **case.options)


@pytest.mark.parametrize(
    ("name", "move", "what"),
    [*DAILY, *(pytest.param(*one, marks=pytest.mark.thorough) for one in NIGHTLY)],
)
def test_a_moved_kernel_is_right_for_all_sizes(name, move, what):
    case = CASES[name]
    (state,) = (one.state for one in results(move, case.spec) if one.what == what)
    check(state, case.spec, case.reference, **case.options)


CHAINS = [
    (
        "softmax",
        ("softmax_math_fusion", "online sum"),
        ("vectorize_global_loads", "by 4"),
        ("cache_policy_cg", "__ldcg for x"),
    ),
    (
        "tiled gemm",
        ("enable_async_pipeline", "2 stages"),
        ("pad_tail_and_mask", "rows of Bs by 1"),
        ("grouped_gemm_colmajor", "4 rows"),
    ),
    (
        "squares",
        ("avoid_atomics_reduce", "block"),
        ("vectorize_global_loads", "by 4"),
        ("cache_policy_cg", "__ldg for x"),
    ),
    (
        "half gemm",
        ("pad_tail_and_mask", "rows of As by 8"),
        ("pad_tail_and_mask", "rows of Bs by 8"),
        ("switch_to_mma_or_wgmma", "wmma"),
    ),
    (
        "histogram",
        ("avoid_atomics_reduce", "copy"),
        ("cache_policy_cg", "__ldcg for values"),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize("chain", CHAINS, ids=[str(chain[0]) for chain in CHAINS])
def test_moves_can_follow_one_another(chain):
    name, *steps = chain
    case, state = CASES[name], CASES[name].spec.baseline
    for move, what in steps:
        state = next(one.state for one in results(move, case.spec, state) if what in one.what)
    check(state, case.spec, case.reference, **case.options)
