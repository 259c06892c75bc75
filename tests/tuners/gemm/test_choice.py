"""The first choice for a product runs on the card, and follows from what was fitted to trials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from pytest_gpuenergy.tuners import (
    FittedCosts,
    MmaParameters,
    SimtParameters,
    SkinnyParameters,
    Trees,
    WgmmaFloat8Parameters,
    WgmmaParameters,
    WgmmaTf32Parameters,
    estimated_cycles,
    fitted,
    rank_kernels,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import FLOAT8_MODES, Gemm, Mode

H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
A100 = CardResources(80, 108, 64, 2048, 164 << 10, 163 << 10)
RTX = CardResources(89, 128, 128, 1536, 100 << 10, 99 << 10)
SIZES = st.one_of(st.integers(1, 64), st.integers(65, 9000))
MODES: tuple[Mode, ...] = ("float32", "3xtf32", "tf32", "float16", "bfloat16")
KERNELS = (
    SimtParameters(tile_m=64, tile_n=128, tile_k=16, thread_m=8, thread_n=8),
    MmaParameters(tile_m=64, tile_n=64, tile_k=32),
    WgmmaParameters(tile_m=128, tile_n=128, consumers=1),
    WgmmaTf32Parameters(tile_m=96, tile_n=128, consumers=2),
    SkinnyParameters(tile_m=16, tile_n=128, split=4, stages=8),
    WgmmaFloat8Parameters(tile_m=128, tile_n=192, consumers=2),
)


@pytest.mark.slow
@settings(max_examples=3)
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    layout=st.sampled_from(["nn", "nt"]),
    mode=st.sampled_from(MODES),
    card=st.sampled_from([H200, A100, RTX]),
)
def test_the_first_choice_fits_the_card_and_makes_a_kernel(sizes, layout, mode, card):
    product = Gemm("g", *sizes, layout, mode)
    chosen = rank_kernels(product, card)[0]
    assert chosen.runs_on(card)
    assert chosen.resident(product, card) >= 1
    assert chosen.shared_bytes(product) <= card.shared_bytes_of_block
    assert chosen.registers(product) <= card.max_registers
    (launch, *_) = chosen.kernel(product).launches
    assert math.prod(launch.block) <= 1024
    assert launch.grid[0] >= 1


@given(
    kernel=st.sampled_from(KERNELS),
    sizes=st.tuples(SIZES, SIZES, st.integers(1, 2000)),
    more=st.integers(1, 3000),
)
@example(kernel=KERNELS[-1], sizes=(1, 1, 1), more=112)
def test_a_deeper_product_takes_no_less_time(kernel: Any, sizes, more):
    """Where rows of A and B are as long for both: those that begin within lines take longer."""
    m, n, k = sizes
    row = -(-(k + more) // 16) * 16
    along_k = {"layout": "tn", "lda": row, "ldb": row}  # without copies that are turned first
    stored = along_k if kernel.modes[0] in FLOAT8_MODES else {"layout": "nt"}
    product, deeper = (
        Gemm("g", m, n, deep, mode=kernel.modes[0], **stored) for deep in (k, k + more)
    )
    assert kernel.cycles(deeper, H200) >= kernel.cycles(product, H200) * (1 - 1e-9)


@given(kernel=st.sampled_from(KERNELS), sizes=st.tuples(SIZES, SIZES, SIZES))
def test_costlier_loads_never_make_a_kernel_faster(kernel: Any, sizes):
    product = Gemm("g", *sizes, mode=kernel.modes[0])
    usual = fitted().costs[kernel.family]
    half = usual.loaded_bytes_per_cycle / 2
    worse = FittedCosts({kernel.family: _changed(usual, loaded_bytes_per_cycle=half)}, {})
    assert kernel.cycles(product, H200, worse.costs[kernel.family]) >= kernel.cycles(product, H200)


def _changed(costs: Any, **values: float) -> Any:
    from msgspec.structs import replace as changed

    return changed(costs, **values)


def test_rows_that_only_narrow_copies_can_take_cost_more():
    for kernel in KERNELS[:2]:
        product = Gemm("g", 2048, 2048, 2048, mode=kernel.modes[0])
        assert kernel.cycles(replace(product, lda=2049, ldb=2049), H200) > kernel.cycles(
            product, H200
        )


def test_all_templates_have_costs_and_trees_are_complete():
    estimate = fitted()
    assert {kernel.family for kernel in KERNELS} == estimate.costs.keys()
    assert {kernel.corrections for kernel in KERNELS} == estimate.corrections.keys()
    for kernel in KERNELS:
        trees = estimate.corrections[kernel.corrections]
        product = Gemm("g", 2048, 2048, 2048, mode=kernel.modes[0])
        assert len(kernel.traits(product, H200, 1e5)) == len(trees.traits)
    for trees in estimate.corrections.values():
        for nodes, thresholds, values in zip(
            trees.nodes, trees.thresholds, trees.values, strict=True
        ):
            assert len(nodes) == len(thresholds) == len(values) - 1 == 31
            assert all(0 <= node < len(trees.traits) for node in nodes)
    for costs in estimate.costs.values():
        assert all(value >= 0 for value in costs.energy_shares.values())


@given(sizes=st.tuples(SIZES, SIZES, SIZES))
def test_a_correction_is_small(sizes):
    kernels = [replace(KERNELS[0], blocks=blocks) for blocks in (0, 132)]
    product = Gemm("g", *sizes)
    corrected = estimated_cycles(product, H200, kernels, fitted())
    for kernel, cycles in zip(kernels, corrected, strict=True):
        assert 0.5 < cycles / kernel.cycles(product, H200) < 2


TREE = st.tuples(
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
    st.lists(st.floats(-2, 2), min_size=7, max_size=7),
    st.lists(st.floats(-1, 1), min_size=8, max_size=8),
)


@given(
    trees=st.lists(TREE, max_size=4),
    rows=st.lists(st.tuples(*[st.floats(-3, 3)] * 3), max_size=5),
)
def test_trees_are_walked_from_the_root_to_a_leaf(trees, rows):
    made = Trees(("a", "b", "c"), *map(list, zip(*trees, strict=True))) if trees else None
    made = made or Trees(("a", "b", "c"), [], [], [])
    sums = made.sums(np.array(rows, dtype=float).reshape(len(rows), 3))
    assert sums == pytest.approx([sum(_walked(tree, row) for tree in trees) for row in rows])


def _walked(tree: Any, row: tuple[float, ...]) -> float:
    nodes, thresholds, values = tree
    place = 0
    while place < len(nodes):
        place = 2 * place + (2 if row[nodes[place]] > thresholds[place] else 1)
    return float(values[place - len(nodes)])
