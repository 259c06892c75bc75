"""The templates for products are right for any sizes, layouts, modes and parameters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gemm_products import aligned_products, products, several
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from points import nightly

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import drawings_of, verify_on_device
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import (
    TEMPLATES,
    MmaParameters,
    SimtParameters,
    SkinnyParameters,
    WgmmaFloat8Parameters,
    WgmmaParameters,
    WgmmaTf32Parameters,
    rank_kernels,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import Gemm

H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
B200 = replace(H200, capability=100)
V100 = CardResources(70, 80, 64, 2048, 96 << 10, 96 << 10, 0)
SMALL_HOPPER = replace(H200, multiprocessors=2)
"""Its blocks compute several tiles of small products, or share them."""

SIMT = SimtParameters(tile_m=16, tile_n=32, tile_k=4, thread_m=4, thread_n=4, stages=2)
MMA = MmaParameters(tile_m=32, tile_n=32, tile_k=16, warp_m=16, warp_n=16, stages=2)
WGMMA = WgmmaParameters(tile_m=64, tile_n=64, stages=2, consumers=1)
TF32 = WgmmaTf32Parameters(tile_m=64, tile_n=64, stages=2, consumers=1)
FLOAT8 = WgmmaFloat8Parameters(tile_m=64, tile_n=64, stages=2, consumers=1)
SKINNY = SkinnyParameters(tile_m=8, tile_n=64, stages=2)
SMALLEST: dict[str, Any] = {one.template: one for one in (SIMT, MMA, WGMMA, TF32, FLOAT8, SKINNY)}
HALF = Gemm("g", M=72, N=136, K=200, mode="bfloat16")
SPLIT = Gemm("g", M=72, N=68, K=100, layout="nt", mode="3xtf32")


@pytest.mark.parametrize(
    ("template", "mode"),
    [
        ("simt", "float32"),
        ("mma", "3xtf32"),
        ("wgmma", "bfloat16"),
        ("wgmma_tf32", "tf32"),
        ("skinny", "float16"),
    ],
)
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_kernels_of_a_product_without_an_activation_share_the_inputs_of_their_verification(
    template, mode, activation
):
    gemm = Gemm("g", M=1024, N=1024, K=1024, mode=mode, activation=activation)
    drawings = drawings_of((0, 1, 2), gemm, SMALLEST[template].kernel(gemm))
    assert all(each.is_shared for each in drawings) == (activation == "none")


@st.composite
def simt(draw: st.DrawFn) -> SimtParameters:
    thread_m, thread_n = draw(st.sampled_from([4, 8])), draw(st.sampled_from([4, 8, 12]))
    warps_m, warps_n, slices = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 4)]))
    return SimtParameters(
        tile_m=4 * thread_m * warps_m,
        tile_n=8 * thread_n * warps_n,
        tile_k=4 * slices * draw(st.sampled_from([1, 2])),
        thread_m=thread_m,
        thread_n=thread_n,
        slices=slices,
        stages=draw(st.integers(2, 4)),
        blocks=draw(st.sampled_from([0, 1, 3, 7, 16])),
        group=draw(st.sampled_from([1, 2, 8])),
        transpose_a=draw(st.sampled_from([0, 8])),
        asynchronous=draw(st.booleans()),
        spread=draw(st.booleans()),
    )


@st.composite
def mma(draw: st.DrawFn) -> MmaParameters:
    warp_m, warp_n = draw(st.sampled_from([16, 32])), draw(st.sampled_from([16, 32]))
    slices, split = draw(st.sampled_from([1, 1, 2, 4])), draw(st.sampled_from([1, 1, 2, 3]))
    return MmaParameters(
        tile_m=warp_m * draw(st.sampled_from([1, 2])),
        tile_n=warp_n * draw(st.sampled_from([1, 2])),
        tile_k=slices * draw(st.sampled_from([16, 32])),
        warp_m=warp_m,
        warp_n=warp_n,
        stages=draw(st.integers(2, 4)),
        blocks=draw(st.sampled_from([0, 1, 3, 7, 16])) if split == 1 else 0,
        group=draw(st.sampled_from([1, 2, 8])),
        slices=slices,
        split=split,
    )


@st.composite
def wgmma(draw: st.DrawFn) -> WgmmaParameters:
    consumers = draw(st.sampled_from([1, 2]))
    cluster_m, cluster_n = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    return WgmmaParameters(
        tile_m=64 * max(consumers, cluster_n),
        tile_n=draw(st.sampled_from([64, 96])) * cluster_m,
        tile_k=draw(st.sampled_from([64, 128])),
        stages=draw(st.integers(2, 3)),
        consumers=consumers,
        blocks=draw(st.sampled_from([0, 1, 3])),
        whole_tiles=draw(st.booleans()),
        cluster_m=cluster_m,
        cluster_n=cluster_n,
    )


@st.composite
def wgmma_tf32(draw: st.DrawFn) -> WgmmaTf32Parameters:
    consumers = draw(st.sampled_from([1, 2]))
    pair = {"together": 3 - consumers, "copying": draw(st.booleans())}
    return WgmmaTf32Parameters(
        tile_m=draw(st.sampled_from([64, 128])),
        tile_n=64 * consumers,
        stages=draw(st.integers(2, 3)),
        consumers=consumers,
        blocks=draw(st.sampled_from([0, 1, 3])),
        whole_tiles=draw(st.booleans()),
        **draw(st.sampled_from([{}, {"cluster_m": 2}, {"cluster_n": 2}, {"copying": True}, pair])),
        in_turn=consumers > 1 and draw(st.booleans()),
    )


@st.composite
def wgmma_float8(draw: st.DrawFn) -> WgmmaFloat8Parameters:
    consumers = draw(st.sampled_from([1, 2]))
    cluster_m, cluster_n = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    return WgmmaFloat8Parameters(
        tile_m=64 * max(consumers, cluster_n),
        tile_n=32 * cluster_m * draw(st.sampled_from([2, 3, 4])),
        stages=draw(st.integers(2, 3)),
        consumers=consumers,
        blocks=draw(st.sampled_from([0, 1, 3])),
        whole_tiles=draw(st.booleans()),
        cluster_m=cluster_m,
        cluster_n=cluster_n,
    )


@st.composite
def skinny(draw: st.DrawFn) -> SkinnyParameters:
    return SkinnyParameters(
        tile_m=8 * draw(st.sampled_from([1, 2, 3, 9, 16])),
        tile_n=draw(st.sampled_from([64, 128])),
        tile_k=draw(st.sampled_from([64, 128])),
        stages=draw(st.integers(2, 3)),
        split=draw(st.sampled_from([1, 2, 3])),
        copying_warps=draw(st.sampled_from([1, 4, 8])),
    )


STRATEGIES: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
    "simt": simt,
    "mma": mma,
    "wgmma": wgmma,
    "wgmma_tf32": wgmma_tf32,
    "wgmma_float8": wgmma_float8,
    "skinny": skinny,
}
ANY_TEMPLATE = pytest.mark.parametrize("template", STRATEGIES)
FEW = settings(max_examples=2, suppress_health_check=[*HealthCheck])


def some_product(template: str, most: int) -> st.SearchStrategy[Gemm]:
    """Products that a template computes; those for Hopper take only aligned rows as they are."""
    kind: Any = TEMPLATES[template]
    modes = st.sampled_from(kind.modes)
    drawn = products(modes, most)
    if kind.max_capability == kind.min_capability:
        drawn = aligned_products(modes, most) | drawn
    refusal = getattr(kind, "refusal", lambda _: None)
    return drawn.filter(lambda gemm: not refusal(gemm))


def verify(device: EmulatedDevice, parameters: Any, gemm: Gemm) -> float:
    """The error of a template's kernel, as a multiple of what the product allows."""
    error = verify_on_device(device, parameters.kernel(gemm), gemm).max_relative_error
    return error / gemm.error_bound.max_relative


ODD = {
    "mma": (
        replace(MMA, tile_n=64, warp_n=32, stages=3, blocks=3, group=2),
        Gemm("g", 33, 70, 41, "nt", "float16"),
    ),
    "wgmma_tf32": (
        replace(TF32, tile_n=128, stages=3, consumers=2, in_turn=True, cluster_m=2, blocks=3),
        Gemm("g", 72, 132, 100, "nt", "tf32"),
    ),
    "wgmma-split": (
        replace(WGMMA, tile_m=128, stages=4, consumers=2, split=3),
        Gemm("g", 70, 69, 200, "nt", "float16", ldc=72, bias=True, activation="gelu"),
    ),
    "wgmma_float8-split": (
        replace(FLOAT8, stages=3, split=2, turned=True),
        Gemm("g", 66, 72, 1040, "tn", "e4m3", scaling="block"),
    ),
    "wgmma-swapped": (
        replace(WGMMA, tile_m=80, tile_n=128, consumers=2, swapped=True, blocks=3),
        Gemm("g", 90, 139, 136, "nn", "float16", bias=True, activation="gelu", residual=True),
    ),
    "wgmma-swapped-split": (
        replace(WGMMA, tile_m=96, stages=4, swapped=True, split=3),
        Gemm("g", 90, 72, 280, "tn", "bfloat16", ldc=80),
    ),
    "wgmma-swapped-boxes": (
        replace(WGMMA, tile_m=96, tile_n=256, consumers=2, swapped=True, blocks=2, cluster_n=2),
        Gemm("g", 170, 264, 136, "tn", "float16", bias=True, activation="gelu", residual=True),
    ),
    "wgmma-swapped-whole-tiles": (
        replace(WGMMA, tile_m=208, tile_n=64, swapped=True, blocks=1, whole_tiles=True),
        Gemm("g", 250, 136, 72, "tn", "bfloat16", B=2),
    ),
    "wgmma_tf32-together": (
        replace(TF32, stages=3, copying=True, together=2, split=3),
        Gemm("g", 139, 131, 177, "nn", "3xtf32", bias=True),
    ),
    "wgmma_tf32-together-turned": (
        replace(TF32, stages=4, turned=True, together=2, split=2),
        Gemm("g", 139, 131, 177, "nt", "3xtf32", ldc=133),
    ),
    "wgmma_float8-swapped": (
        replace(FLOAT8, tile_m=80, tile_n=128, swapped=True, cluster_m=2),
        Gemm("g", 90, 136, 280, "tn", "e4m3", scaling="row"),
    ),
    "wgmma_float8-swapped-turned": (
        replace(FLOAT8, tile_m=80, tile_n=128, swapped=True),
        Gemm("g", 53, 137, 150, "nn", "e4m3", scaling="row", quantize=True),
    ),
    "wgmma_float8-swapped-turned-rows": (
        replace(FLOAT8, tile_m=80, tile_n=128, swapped=True),
        Gemm("g", 137, 53, 150, "nt", "e4m3"),
    ),
    "wgmma_float8-swapped-quantized": (
        replace(FLOAT8, tile_m=80, tile_n=128, swapped=True),
        Gemm("g", 137, 53, 150, "tn", "e5m2", quantize=True),
    ),
    "wgmma_tf32-split": (
        replace(TF32, tile_m=72, tile_n=128, stages=4, consumers=2, in_turn=True, split=4),
        Gemm("g", 71, 72, 176, "nn", "3xtf32", bias=True),
    ),
    "wgmma_tf32-copying-split": (
        replace(TF32, stages=3, copying=True, split=3),
        Gemm("g", 71, 65, 177, "tt", "3xtf32"),
    ),
    "wgmma_tf32-swapped": (
        replace(TF32, tile_m=128, tile_n=72, consumers=2, stages=3, in_turn=True, swapped=True),
        Gemm("g", 139, 137, 100, "tt", "3xtf32", bias=True, activation="gelu", ldc=139),
    ),
    "wgmma_tf32-swapped-split": (
        replace(TF32, tile_m=64, tile_n=72, stages=4, copying=True, split=3, swapped=True),
        Gemm("g", 71, 65, 177, "tt", "3xtf32", residual=True),
    ),
    "wgmma_tf32-swapped-across": (
        replace(TF32, tile_m=64, tile_n=64, stages=3, blocks=3, swapped=True),
        Gemm("g", 90, 72, 100, "nn", "tf32"),
    ),
    "wgmma-linear": (
        replace(WGMMA, tile_m=128, tile_n=128, cluster_m=2, blocks=1, whole_tiles=True),
        Gemm("g", 70, 133, 72, "tn", "bfloat16", ldc=136),
    ),
    "wgmma-turned": (
        replace(WGMMA, tile_k=32, turned=True, blocks=3),
        Gemm("g", 70, 69, 101, "nt", "tf32"),
    ),
    "wgmma-half-lines": (
        replace(WGMMA, tile_n=96, tile_k=32, cluster_m=2, blocks=3),
        Gemm("g", 70, 203, 100, "tn", "tf32", ldc=204),
    ),
    "wgmma_tf32-linear": (
        replace(TF32, tile_n=128, stages=3, consumers=2, cluster_m=2, blocks=3),
        Gemm("g", 72, 133, 100, "tn", "3xtf32", ldc=135),
    ),
    "wgmma_tf32-rows": (
        replace(TF32, tile_m=72, tile_n=128, stages=3, consumers=2, cluster_m=2, blocks=2),
        Gemm("g", 137, 132, 100, "nn", "3xtf32"),
    ),
    "wgmma_tf32-copying": (
        replace(TF32, tile_m=96, tile_n=128, stages=4, consumers=2, copying=True, blocks=3),
        Gemm("g", 71, 67, 101, "nt", "3xtf32"),
    ),
    "wgmma_tf32-turned": (
        replace(TF32, tile_m=72, tile_n=128, stages=3, consumers=2, turned=True, blocks=3),
        Gemm("g", 139, 131, 101, "nt", "3xtf32", ldb=133),
    ),
    "wgmma_tf32-copying-linear": (
        replace(TF32, tile_m=72, copying=True, whole_tiles=True, blocks=3),
        Gemm("g", 71, 131, 101, "tn", "tf32", ldb=103),
    ),
    "wgmma_float8-linear": (
        replace(FLOAT8, tile_m=128, tile_n=192, consumers=2, cluster_n=2, blocks=3),
        Gemm("g", 140, 133, 391, "tn", "e5m2", scaling="block", residual=True),
    ),
    "wgmma_float8-fast": (
        replace(FLOAT8, tile_n=128, stages=3, cluster_m=2, blocks=1, whole_tiles=True),
        Gemm("g", 70, 133, 600, "tn", "e4m3", lda=608, accumulation="fast"),
    ),
    "wgmma_float8-few-rows": (
        replace(FLOAT8, tile_m=128, stages=3, blocks=3, cluster_n=2),
        Gemm("g", 7, 69, 250, "nt", "e4m3", scaling="row", ldc=72),
    ),
    "skinny-linear": (
        SkinnyParameters(tile_m=72, tile_n=128, tile_k=128, stages=2, split=3),
        Gemm("g", 65, 133, 200, "tn", "bfloat16", ldc=136),
    ),
    "skinny-unaligned": (
        SkinnyParameters(tile_m=16, tile_n=128, stages=3, split=2, copying_warps=8),
        Gemm("g", 13, 133, 199, "tn", "float16", lda=203, ldb=202),
    ),
    "skinny-float8": (
        SkinnyParameters(tile_m=16, tile_n=128, tile_k=128, stages=3, split=3),
        Gemm("g", 13, 133, 1008, "tn", "e4m3", ldc=136, scaling="block", bias=True),
    ),
    "skinny-float8-fast": (
        SkinnyParameters(tile_m=8, tile_n=64, tile_k=256, stages=2, split=2),
        Gemm("g", 5, 133, 1008, "tn", "e5m2", scaling="row", accumulation="fast"),
    ),
    "skinny-columns": (
        replace(SKINNY, tile_m=72, split=2, copying_warps=4),
        Gemm("g", 69, 136, 87, "nt", "bfloat16"),
    ),
    "wgmma-narrow": (
        replace(WGMMA, tile_m=128, tile_n=96, stages=4, consumers=2, split=2),
        Gemm("g", 70, 203, 136, "tt", "bfloat16", ldc=205, bias=True),
    ),
    "wgmma_float8-narrow": (
        replace(FLOAT8, tile_n=96, stages=3, blocks=3),
        Gemm("g", 66, 208, 300, "tn", "e4m3", scaling="block", residual=True),
    ),
    "mma-cluster": (
        replace(MMA, tile_k=64, slices=4, stages=3, split=3),
        Gemm("g", 37, 41, 133, "nt", "3xtf32", ldc=43, bias=True, activation="relu"),
    ),
    "mma-slices": (
        replace(MMA, tile_m=64, tile_k=32, slices=2, blocks=3),
        Gemm("g", 70, 42, 133, "tn", "bfloat16", ldc=42, residual=True),
    ),
    "mma-linear": (
        replace(MMA, blocks=3),
        Gemm("g", 33, 70, 41, "tn", "tf32", ldc=72),
    ),
    "simt-linear": (
        replace(SIMT, tile_m=32, tile_n=64, tile_k=64, slices=2, transpose_a=32),
        Gemm("g", 38, 41, 69, "tn", lda=73, ldb=73, ldc=44),
    ),
}


SIMILAR_ODD = (
    *("wgmma_tf32", "wgmma_float8-fast", "skinny-float8-fast", "skinny-columns", "mma"),
    *("wgmma_tf32-rows", "wgmma_tf32-copying-linear", "wgmma_float8-linear", "skinny-linear"),
    *("wgmma-half-lines", "wgmma_float8-split", "wgmma_tf32-linear", "wgmma-linear"),
    *("skinny-unaligned", "mma-linear", "mma-slices", "wgmma-swapped-split"),
    *("wgmma_float8-swapped", "wgmma_tf32-split", "wgmma-swapped-whole-tiles"),
    *("wgmma_tf32-together-turned", "wgmma_float8-swapped-turned-rows"),
    *("wgmma_float8-swapped-quantized", "wgmma-split", "wgmma_tf32-copying-split"),
    "wgmma_tf32-swapped-across",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(ODD, SIMILAR_ODD))
def test_it_is_right_for_odd_sizes_and_most_parameters_at_once(device, name):
    chosen, gemm = ODD[name]
    assert verify(device, chosen, gemm) <= 1


SEVERAL: dict[str, tuple[Any, Gemm]] = {
    "simt-batch": (SIMT, Gemm("g", 17, 33, 9, B=3)),
    "simt-batch-shared": (
        replace(SIMT, blocks=5),
        Gemm("g", 17, 33, 9, "tt", ldc=34, B=3, bias=True, activation="gelu", residual=True),
    ),
    "simt-groups": (
        replace(SIMT, blocks=4),
        Gemm("g", 34, 33, 9, "tt", groups=(3, 17, 13, 0, 1, 0), bias=True, residual=True),
    ),
    "simt-empty-first": (SIMT, Gemm("g", 34, 32, 9, groups=(0, 17, 16, 0, 1))),
    "mma-batch": (MMA, Gemm("g", 33, 40, 20, "nt", "tf32", B=2)),
    "mma-batch-cluster": (
        replace(MMA, tile_k=32, slices=2, split=2),
        Gemm("g", 33, 37, 70, "tt", "3xtf32", B=2, bias=True, residual=True),
    ),
    "mma-groups": (
        replace(MMA, blocks=3),
        Gemm(
            *("g", 41, 40, 20, "tt", "bfloat16"),
            ldc=44,
            groups=(8, 33, 0),
            bias=True,
            activation="gelu_tanh",
            residual=True,
        ),
    ),
    "wgmma-batch": (
        replace(WGMMA, tile_n=128, cluster_m=2),
        Gemm("g", 70, 72, 72, "tn", "bfloat16", B=3),
    ),
    "wgmma-batch-padded": (
        WGMMA,
        Gemm("g", 70, 67, 71, "nt", "bfloat16", B=2, bias=True, residual=True),
    ),
    "wgmma-batch-shared": (replace(WGMMA, blocks=2), Gemm("g", 64, 72, 136, mode="float16", B=3)),
    "wgmma-groups": (
        replace(WGMMA, blocks=2, whole_tiles=True),
        Gemm("g", 171, 72, 72, "tn", "bfloat16", groups=(3, 0, 64, 104), bias=True),
    ),
    "wgmma-groups-clusters": (
        replace(WGMMA, tile_n=128, cluster_m=2, blocks=1, whole_tiles=True),
        Gemm("g", 80, 136, 72, "nt", "bfloat16", groups=(8, 72), residual=True),
    ),
    "wgmma-groups-padded": (
        replace(WGMMA, tile_m=128, cluster_n=2, blocks=1, whole_tiles=True),
        Gemm("g", 131, 72, 69, "tt", "float16", groups=(72, 0, 59)),
    ),
    "skinny-groups-columns": (
        replace(SKINNY, copying_warps=4),
        Gemm("g", 12, 69, 70, "nt", "bfloat16", groups=(0, 11, 1), residual=True),
    ),
    "wgmma_tf32-batch": (TF32, Gemm("g", 70, 72, 72, "nt", "tf32", B=2)),
    "wgmma_tf32-groups": (
        replace(TF32, blocks=3),
        Gemm(
            *("g", 69, 72, 100, "tn", "3xtf32"),
            ldc=75,
            groups=(3, 0, 66),
            bias=True,
            activation="gelu_tanh",
            residual=True,
        ),
    ),
    "skinny-batch": (replace(SKINNY, split=2), Gemm("g", 5, 72, 136, "tn", "bfloat16", B=3)),
    "skinny-batch-unaligned": (
        replace(SKINNY, split=2, copying_warps=4),
        Gemm("g", 11, 67, 71, "nt", "bfloat16", B=2, bias=True, residual=True),
    ),
    "skinny-groups": (
        replace(SKINNY, tile_m=16, split=2),
        Gemm("g", 27, 72, 136, "tn", "bfloat16", groups=(3, 0, 16, 7, 1), bias=True),
    ),
    "skinny-groups-unaligned": (
        replace(SKINNY, tile_m=16, copying_warps=4),
        Gemm("g", 27, 67, 69, "tt", "float16", groups=(0, 3, 23, 1), residual=True),
    ),
}


SIMILAR_SEVERAL = (
    *("simt-batch-shared", "simt-empty-first", "wgmma-batch-padded", "wgmma-batch-shared"),
    *("wgmma-groups-padded", "skinny-batch", "skinny-groups", "wgmma_tf32-batch"),
    *("simt-batch", "mma-batch", "wgmma-batch", "wgmma-groups", "skinny-groups-columns"),
    *("skinny-groups-unaligned", "wgmma_tf32-groups", "mma-groups"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(SEVERAL, SIMILAR_SEVERAL))
def test_it_computes_batches_and_groups(device, name):
    chosen, gemm = SEVERAL[name]
    assert verify(device, chosen, gemm) <= 1


# Rows beyond the end of a group are those of the next one.
ROWS_OF_ANOTHER = {
    "simt-end-of-a-group": (
        *("simt-empty-first", "end = GROUP_ROWS[product + 1]"),
        "end = M",
    ),
    "wgmma-end-of-a-group": (
        *("wgmma-groups", "bool boxed = place.end - place.row >= TILE_M"),
        "bool boxed = true",
    ),
    "wgmma-boxes-in-flight": (
        *("wgmma-groups", "wait_for_boxes<0>();  // the latest"),
        "wait_for_boxes<1>();  // the latest",
    ),
    "simt-b-of-another": ("simt-batch", "B + place.product *", "B + 0 *"),
    "skinny-end-of-a-group": (
        *("skinny-groups", "place.end - place.row - first)"),
        "M - place.row - first)",
    ),
    "skinny-unaligned-b-of-another": ("skinny-batch-unaligned", "(z * HEIGHT + row)", "row"),
    "wgmma-a-of-another": ("wgmma-batch", "int of_a = matrix_of(place)", "int of_a = 0"),
    "simt-bias-of-another": ("simt-groups", "bias += place.product * C_COLUMNS", "bias += 0 * N"),
}
DAILY_ROWS = {
    "wgmma-a-of-another",
    # The gate's right kernels do not show these.
    *("wgmma-boxes-in-flight", "skinny-end-of-a-group"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", nightly(ROWS_OF_ANOTHER, ROWS_OF_ANOTHER.keys() - DAILY_ROWS))
def test_a_product_with_rows_or_matrices_of_another_is_wrong(device, fault):
    name, right, wrong = ROWS_OF_ANOTHER[fault]
    chosen, gemm = SEVERAL[name]
    kernel = chosen.kernel(gemm)
    assert kernel.source.count(right) == 1
    broken = replace(kernel, source=kernel.source.replace(right, wrong))
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong|race|fence"):
        verify_on_device(device, broken, gemm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "groups", "rows"), [("bfloat16", (8, 4, 2), 8), ("3xtf32", (4, 2, 2), 4)]
)
def test_groups_within_lines_of_a_must_begin_where_boxes_can(mode, groups, rows):
    """An H200 has no boxes that begin at other places than multiples of 16 bytes."""
    product = Gemm("g", sum(groups), 72, 72, "nt", mode, groups=groups)
    for chosen in (WGMMA, TF32):
        if mode in chosen.modes:
            with pytest.raises(
                InputError, match=f"groups of multiples of {rows} rows in layout nt"
            ):
                chosen.kernel(product)
    assert rank_kernels(product, H200)[0].template not in ("wgmma", "wgmma_tf32")
    aligned = replace(product, groups=(groups[0], 0, groups[1] + groups[2]))
    by_rows = replace(product, layout="tn", lda=0, ldb=0)
    for fitting in (aligned, by_rows):
        templates = {one.template for one in rank_kernels(fitting, H200)}
        assert templates & {"wgmma", "wgmma_tf32"}


def test_where_a_may_be_copied_depends_on_the_first_rows_of_groups():
    stored = Gemm("g", 24, 32, 16, "nt", groups=(8, 2, 14))
    assert "constexpr int A_WIDTH = 2;" in SIMT.kernel(stored).source
    by_rows = replace(stored, layout="nn", lda=0)
    assert "constexpr int A_WIDTH = 4;" in SIMT.kernel(by_rows).source


@given(several(200), simt() | wgmma(), st.integers(1, 300))
def test_each_row_of_each_product_is_in_one_tile(more, chosen, n):
    gemm = Gemm("g", sum(more.get("groups", (77,))), n, 64, **more)
    height = chosen.cluster[0] * chosen.tile_m
    width = chosen.cluster[1] * chosen.tile_n
    covered = [range(0, rows, height) for rows in gemm.groups or (gemm.M,) * gemm.B]
    assert chosen.tiles(gemm) == sum(map(len, covered)) * -(-n // width)


WITH_ENDS: dict[str, tuple[Any, Gemm]] = {
    "simt-shared": (
        replace(SIMT, blocks=7),
        Gemm("g", 33, 41, 29, "tn", ldc=44, bias=True, activation="relu"),
    ),
    "simt-unaligned": (
        SIMT,
        Gemm("g", 33, 41, 29, ldc=43, bias=True, activation="gelu", residual=True),
    ),
    "mma-shared": (
        replace(MMA, blocks=3),
        Gemm("g", 33, 41, 29, "nt", "bfloat16", ldc=44, activation="gelu_tanh", residual=True),
    ),
    "mma-unaligned": (
        MMA,
        Gemm("g", 33, 41, 29, "tn", "tf32", ldc=43, bias=True, activation="silu"),
    ),
    "wgmma-boxes": (
        WGMMA,
        Gemm("g", 70, 133, 72, "tn", "bfloat16", ldc=136, bias=True, activation="silu"),
    ),
    "wgmma-whole-boxes": (
        replace(WGMMA, blocks=3),
        Gemm("g", 64, 128, 264, "nn", "float16", bias=True, activation="relu"),
    ),
    "wgmma-unaligned": (
        WGMMA,
        Gemm("g", 70, 69, 72, "tn", "float16", ldc=71, bias=True, activation="gelu", residual=True),
    ),
    "wgmma_tf32-shared": (
        replace(TF32, blocks=3),
        Gemm("g", 72, 70, 100, "tn", "3xtf32", ldc=73, activation="gelu_tanh", residual=True),
    ),
    "wgmma_tf32": (TF32, Gemm("g", 64, 64, 100, "nt", "tf32", bias=True, activation="silu")),
    "wgmma_float8": (
        replace(FLOAT8, blocks=3),
        Gemm("g", 72, 70, 300, "tn", "e4m3", scaling="row", bias=True, residual=True),
    ),
    "skinny-shared": (
        replace(SKINNY, split=3),
        Gemm("g", 5, 133, 264, "tn", "bfloat16", ldc=135, bias=True, activation="gelu"),
    ),
    "skinny-whole": (
        SKINNY,
        Gemm("g", 8, 64, 72, "nn", "float16", activation="gelu", residual=True),
    ),
}
# Other cases of these templates have ends, too.
SIMILAR_ENDS = (
    *("mma-shared", "wgmma_tf32-shared"),
    *("simt-shared", "simt-unaligned", "mma-unaligned", "wgmma-boxes", "wgmma-whole-boxes"),
    *("wgmma-unaligned", "wgmma_tf32", "wgmma_float8", "skinny-whole"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(WITH_ENDS, SIMILAR_ENDS))
def test_it_applies_an_end_to_whole_sums(device, name):
    assert verify(device, *WITH_ENDS[name]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation", nightly(["relu", "gelu", "gelu_tanh", "silu"], ["gelu", "gelu_tanh", "silu"])
)
def test_a_product_without_its_activation_is_wrong(device, activation):
    plain = Gemm("g", 16, 32, 40)
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong"):
        verify_on_device(device, SIMT.kernel(plain), replace(plain, activation=activation))


@pytest.mark.slow
def test_the_forms_of_gelu_are_told_apart_in_float32(device):
    exact = Gemm("g", 16, 32, 2, activation="gelu")
    by_tanh = replace(exact, activation="gelu_tanh")
    assert verify(device, SIMT, exact) <= 1
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong"):
        verify_on_device(device, SIMT.kernel(exact), by_tanh)


@pytest.mark.parametrize("template", STRATEGIES)
def test_a_product_without_an_end_takes_no_further_inputs(template):
    mode = TEMPLATES[template].modes[0]
    plain = Gemm("g", 64, 64, 64, mode=mode)
    fused = replace(plain, bias=True, residual=True)
    names = [SMALLEST[template].kernel(one).launches[-1].arguments for one in (plain, fused)]
    assert set(names[1]) - set(names[0]) == {"bias", "residual"}


@pytest.mark.thorough
@settings(FEW, max_examples=8)
@given(st.data())
@ANY_TEMPLATE
def test_it_is_right_for_any_sizes_and_parameters(device, template, data):
    gemm = data.draw(some_product(template, 140 if "wgmma" in template else 60))
    chosen = data.draw(STRATEGIES[template]())
    if template == "wgmma" and gemm.mode == "tf32" and gemm.layout != "tn":
        chosen = replace(chosen, turned=True)
    if template == "wgmma" and not (gemm.b_transposed or chosen.turned):
        chosen = replace(chosen, tile_n=64 * chosen.cluster_m)
    if template == "mma":
        chosen = replace(chosen, split=min(chosen.split, chosen.steps(gemm)))
    assume(chosen.shared_bytes(gemm) <= H200.shared_bytes_of_block)
    assert verify(device, chosen, gemm) <= 1


@pytest.mark.thorough
@settings(FEW, max_examples=5)
@given(st.data())
@ANY_TEMPLATE
def test_any_parameters_that_are_offered_are_right(device, template, data):
    gemm = data.draw(some_product(template, 140))
    offered = list(TEMPLATES[template].fitting(gemm, SMALL_HOPPER))
    assume(offered)  # skinny is for few rows
    assert verify(device, data.draw(st.sampled_from(offered)), gemm) <= 1


@pytest.mark.slow
@ANY_TEMPLATE
@FEW
@given(st.data(), st.sampled_from([1, 8, 64]))
def test_all_offered_parameters_fit(template, data, factor):
    gemm = data.draw(some_product(template, 140))
    sizes = (gemm.M * factor, gemm.N * factor, gemm.K * factor)
    groups = tuple(factor * rows for rows in gemm.groups)
    larger = Gemm("g", *sizes, gemm.layout, gemm.mode, B=gemm.B, groups=groups)
    rates = {"simt": 128, "wgmma": 2048, "skinny": 2048, "wgmma_float8": 2048}
    products_per_cycle = rates.get(template, 1024) * (2 if larger.is_float8 else 1)
    fastest = larger.flops / 2 / (H200.multiprocessors * products_per_cycle)
    for chosen in list(TEMPLATES[template].fitting(larger, H200))[::50]:
        assert chosen.shared_bytes(larger) <= H200.shared_bytes_of_block
        assert chosen.registers(larger) * chosen.threads <= 1 << 16
        assert chosen.cycles(larger, H200) >= fastest


def test_blocks_that_share_tiles_have_a_workspace_and_warps_that_share_steps_are_more():
    gemm = Gemm("g", 33, 65, 40)
    assert not SIMT.kernel(gemm).workspaces
    assert replace(SIMT, blocks=5).kernel(gemm).workspaces
    assert replace(SIMT, tile_k=16, slices=4).threads == 4 * SIMT.threads


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    "chosen",
    [SIMT, replace(SIMT, blocks=5), replace(SIMT, tile_k=16, slices=4)],
    ids=["alone", "blocks", "warps"],
)
def test_blocks_or_warps_may_share_tiles(device, chosen, layout):
    assert verify(device, chosen, Gemm("g", 33, 65, 40, layout)) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_rows_of_a_may_be_transposed(device, asynchronous):
    chosen = replace(SIMT, tile_n=96, tile_k=8, transpose_a=8, asynchronous=asynchronous)
    assert chosen.tile_m % (chosen.threads // 8) > 0  # the last rows are those of some threads only
    assert verify(device, chosen, Gemm("g", 21, 70, 27, "nn", lda=30)) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("along", [16, 32])
def test_longer_parts_of_rows_of_a_may_be_transposed(device, along):
    longer = replace(SIMT, tile_m=32, tile_n=64, tile_k=2 * along, slices=2, transpose_a=along)
    assert verify(device, longer, Gemm("g", 38, 40, 69, "nn", lda=73)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("ldc", [36, pytest.param(33, marks=pytest.mark.thorough)])
def test_elements_between_rows_of_c_must_not_be_written(device, ldc):
    gemm = Gemm("g", 16, 32, 8, ldc=ldc)
    kernel = SIMT.kernel(gemm)
    whole, beyond = "store<ALL_M && ALL_N>(C", "C[N] = 0; store<ALL_M && ALL_N>(C"
    assert kernel.source.count(whole) == 1
    with pytest.raises(KernelFault, match=r"of C .* written .* must leave as it was"):
        verify_on_device(device, replace(kernel, source=kernel.source.replace(whole, beyond)), gemm)


@given(some_product("simt", 70), simt())
def test_every_step_of_every_tile_has_one_block(gemm, chosen):
    blocks, every = chosen.block_count(gemm), chosen.tiles(gemm) * chosen.steps(gemm)
    first = [every * block // blocks for block in range(blocks + 1)]
    assert first[0] == 0
    assert first[-1] == every
    assert all(one < other for one, other in itertools.pairwise(first))
    assert chosen.shares_tiles(gemm) is any(step % chosen.steps(gemm) for step in first)
    owners = [((step + 1) * blocks - 1) // every for step in range(every)]
    assert all(first[owner] <= step < first[owner + 1] for step, owner in enumerate(owners))


@pytest.mark.parametrize(("depth", "row"), [(519, 576), (101, 104)])
def test_only_long_rows_of_copies_begin_with_a_line_of_the_l2(depth, row):
    kernel = WGMMA.kernel(Gemm("g", 70, 72, depth, "tn", "bfloat16"))
    assert [space.shape for space in kernel.workspaces] == [(70, row), (72, row)]


@pytest.mark.parametrize(
    ("rows", "depth", "copied"), [(4096, 4096, 0), (4096, 4112, 2), (16, 4112, 0)]
)
def test_long_8_bit_rows_are_copied_to_whole_lines_of_the_l2_where_that_pays(rows, depth, copied):
    product = Gemm("g", rows, 4096, depth, "tn", "e4m3")
    kernel = rank_kernels(product, H200)[0].kernel(product)
    assert [space.shape for space in kernel.workspaces] == [(4096, 4224)] * copied


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "few"), [(16, True), (64, True), (128, False)])
def test_few_rows_have_a_template_of_their_own(rows, few):
    product = Gemm("g", rows, 4096, 14336, "tn", "bfloat16")
    assert isinstance(rank_kernels(product, H200)[0], SkinnyParameters) == few


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "columns", "split", "stages", "early"),
    [
        pytest.param(16, 4096, 2, 16, True, id="one block on nearly each multiprocessor"),
        pytest.param(16, 4096, 2, 10, False, id="room for two blocks"),
        pytest.param(16, 4096, 1, 16, False, id="half of the multiprocessors"),
        pytest.param(16, 8192, 2, 16, False, id="two waves"),
        pytest.param(72, 4096, 2, 16, False, id="many rows"),
    ],
)
def test_launches_begin_early_where_each_multiprocessor_has_one_block(
    rows, columns, split, stages, early
):
    tile_m = -(-rows // 8) * 8
    chosen = SkinnyParameters(tile_m=tile_m, tile_n=64, tile_k=128, stages=stages, split=split)
    kernel = chosen.kernel(Gemm("g", rows, columns, 4096, "tn", "e4m3"))
    assert [one.early for one in kernel.launches] == [early]
    assert f"#define EARLY {early:d}" in kernel.source


@pytest.mark.parametrize(
    "smallest", [one for one in SMALLEST.values() if one.follows], ids=lambda one: one.template
)
def test_what_can_begin_early_waits_for_the_launch_before_it(smallest):
    gemm = Gemm("g", 64, 4096, 4096, "tn", smallest.modes[0])
    source = smallest.kernel(gemm).source
    body = source[source.index("gemm(", source.index("__launch_bounds__(THREADS")) :]
    reads = re.search(r"\b(copy_step|copy_mapped|common_scales|factors_of)\(", body)
    assert reads is not None
    assert body.index("\n  follow();\n") < reads.start()


def test_blocks_divide_the_steps_of_few_tiles():
    assert rank_kernels(Gemm("g", 200, 3584, 18944, "tn", "bfloat16"), H200)[0].split > 1
    assert rank_kernels(Gemm("g", 4096, 4096, 4096, "tn", "bfloat16"), H200)[0].split == 1


@pytest.mark.parametrize("more", [{"groups": (60, 12)}, {"mode": "e4m3", "scaling": "block"}])
def test_no_transpose_is_computed_for_groups_or_scales_of_blocks(more):
    gemm = Gemm("g", 72, 128, 256, "tn", **{"mode": "bfloat16", **more})
    kind = WgmmaFloat8Parameters if gemm.is_float8 else WgmmaParameters
    chosen = kind(tile_m=80, tile_n=64, consumers=1, swapped=True)
    with pytest.raises(InputError, match="computes no transpose of C"):
        chosen.kernel(gemm)
    assert not any(one.swapped for one in kind.fitting(gemm, H200))


@pytest.mark.slow
def test_tiles_of_any_rows_are_chosen_where_64_do_not_divide_them():
    assert rank_kernels(Gemm("g", 200, 16384, 4096, "tn", "bfloat16"), H200)[0].swapped


@pytest.mark.parametrize(
    ("layout", "tile_k", "turned", "worth"),
    [
        *(("nt", 16, False, True), ("nt", 8, False, False), ("tn", 8, False, True)),
        *(("tn", 16, True, True), ("tn", 8, True, False)),
    ],
)
def test_copies_are_spread_where_that_pays(layout, tile_k, turned, worth):
    big = {"tile_m": 128, "tile_n": 128, "thread_m": 16, "thread_n": 8}
    chosen = SimtParameters(**big, tile_k=tile_k, turned=turned)
    assert chosen.worth_spreading(Gemm("g", 1000, 1000, 1000, layout)) is worth
    if not turned:
        assert not chosen.worth_spreading(Gemm("g", 999, 999, 999, layout))


def test_each_block_that_divides_a_tile_has_a_step():
    with pytest.raises(InputError, match="2 steps of a tile among 3 blocks: choose split up to 2"):
        replace(WGMMA, stages=3, split=3).kernel(Gemm("g", 64, 64, 72, mode="bfloat16"))
    with pytest.raises(InputError, match="2 steps of a tile among 3 blocks: choose split up to 2"):
        replace(MMA, split=3).kernel(Gemm("g", 64, 64, 32, mode="3xtf32"))
    for chosen in (replace(WGMMA, stages=3), replace(TF32, stages=3), MMA):
        with pytest.raises(InputError, match="only with blocks=0"):
            replace(chosen, split=2, blocks=3)


def test_only_cards_with_clusters_run_kernels_in_clusters():
    a100 = replace(H200, capability=80, multiprocessors=108, shared_bytes_of_block=163 << 10)
    assert MMA.runs_on(a100)
    assert not replace(MMA, split=2).runs_on(a100)
    small = Gemm("g", 113, 247, 633, "nt", "3xtf32")
    for card, most in ((a100, 1), (H200, 8)):
        assert max(one.split for one in MmaParameters.fitting(small, card)) == most


def test_two_blocks_are_tried_together_only_where_a_multiprocessor_holds_them():
    gemm = Gemm("g", 509, 507, 461, mode="3xtf32")
    pairs = [one for one in WgmmaTf32Parameters.fitting(gemm, H200) if one.together == 2]
    assert pairs
    assert all(one.resident(gemm, H200) == 2 for one in pairs)


def test_tiles_of_few_rows_less_fill_all_multiprocessors_twice():
    chosen = rank_kernels(Gemm("g", 5832, 1152, 4304, "tn", "bfloat16"), H200)[:20]
    assert any(one.swapped and one.tile_m in (144, 208) for one in chosen)


@pytest.mark.parametrize("gemm", [replace(SPLIT, layout="tn", lda=0, ldb=0), replace(SPLIT, B=2)])
def test_only_a_single_a_that_is_stored_transposed_is_transposed_before_the_product(gemm):
    turned = replace(TF32, turned=True)
    assert turned.kernel(SPLIT).launches[0].entry == "gemm_copy"
    with pytest.raises(InputError, match="transposes A before the product only where"):
        turned.kernel(gemm)


@pytest.mark.parametrize("whole_tiles", [True, False])
def test_blocks_have_whole_or_shared_tiles(whole_tiles):
    chosen = replace(WGMMA, blocks=2, whole_tiles=whole_tiles)
    gemm = Gemm("g", 136, 136, 72, mode="bfloat16")
    assert chosen.shares_tiles(gemm) is not whole_tiles
    assert chosen.whole_tile_count(gemm) == (9 if whole_tiles else 6)


@pytest.mark.thorough
@pytest.mark.parametrize("whole_tiles", [True, False])
def test_blocks_compute_whole_or_shared_tiles(device, whole_tiles):
    chosen = replace(WGMMA, blocks=2, whole_tiles=whole_tiles)
    assert verify(device, chosen, Gemm("g", 136, 136, 72, mode="bfloat16")) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cluster_m", "cluster_n", "layout"), [(1, 2, "nt"), (2, 1, "nn"), (2, 2, "nn")]
)
def test_blocks_of_a_cluster_copy_for_one_another(device, cluster_m, cluster_n, layout):
    cluster = {"cluster_m": cluster_m, "cluster_n": cluster_n}
    tile = {"tile_m": 64 * cluster_n, "tile_n": 64 * cluster_m}
    chosen = replace(WGMMA, **tile, **cluster, blocks=1, whole_tiles=True)
    gemm = Gemm("g", 72, 136, 72, layout, "bfloat16")
    assert "__cluster_dims__" in chosen.kernel(gemm).source
    assert verify(device, chosen, gemm) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "gemm", "most"),
    [
        pytest.param(MMA, Gemm("g", 16, 16, 4096, mode="3xtf32"), 0.1, id="mma"),
        pytest.param(
            *(replace(TF32, tile_m=32), Gemm("g", 8, 64, 4096, mode="3xtf32"), 0.25),
            id="wgmma_tf32",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_split_operands_are_as_exact_as_float32_in_long_sums(device, chosen, gemm, most):
    assert verify(device, chosen, gemm) < most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "gemm"),
    [
        pytest.param(*ODD["mma-linear"], id="mma"),
        pytest.param(
            *(TF32, Gemm("g", 64, 64, 64, mode="tf32")),
            id="wgmma_tf32",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_tf32_alone_is_right_but_not_as_exact_as_float32(device, chosen, gemm):
    kernel = chosen.kernel(gemm)
    verify_on_device(device, kernel, gemm)
    with pytest.raises(KernelFault, match=r"of C .* (is|are) wrong"):
        verify_on_device(device, kernel, replace(gemm, mode="3xtf32"))


def test_cutting_off_loses_more_than_the_bound_of_a_product_allows():
    """One and all 13 bits of a float32 number that TF32 ignores, of the smaller part two again."""
    exact, cut = (1 + 8191 * 2.0**-23) ** 2, 1 + 2 * 8188 * 2.0**-23
    lost = 1 - cut / exact
    assert lost > replace(SPLIT, K=1).error_bound.max_relative
    assert lost < replace(SPLIT, K=32).error_bound.max_relative


SLICED, IN_PARTS = replace(SIMT, tile_k=8, slices=2), replace(SIMT, blocks=7)
WHOLE = replace(WGMMA, blocks=1, whole_tiles=True)
FLOAT32, LONG = Gemm("g", 32, 32, 40), Gemm("g", 16, 16, 8192, mode="3xtf32")
TF32_PRODUCT, BFLOAT16_PRODUCT = (Gemm("g", 32, 32, 80, mode=m) for m in ("tf32", "bfloat16"))
LONG_FLOAT8 = Gemm("g", 72, 136, 300, "tn", "e4m3")
EARLY = ("wait<STAGES - 2>();", "wait<STAGES - 1>();")
CUT_OFF = ("float part[PIECES_N][4] = {};", "auto& part = sums.of[i];")
NOT_ADDED = ("sums.of[i][j][l] += part[j][l];", ";")
FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
WAIT_GROUP = 'asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");'
FAULTS = {
    "simt-slice-not-added": (SLICED, FLOAT32, [("other = 1;", "other = 2;")]),
    "simt-end-of-parts": (
        replace(SIMT, blocks=7),
        Gemm("g", 32, 32, 40, activation="relu"),
        [("NoEnd{}", "end_at(place, BIAS, RESIDUAL)")],
    ),
    "simt-bias-after-activation": (
        *(SIMT, Gemm("g", 32, 32, 40, bias=True, activation="gelu")),
        [
            (
                "sums[i] = activated(sums[i]);",
                "sums[i] = activated(sums[i] - biases[i]) + biases[i];",
            )
        ],
    ),
    "wgmma-residual-of-another-row": (
        *(WGMMA, replace(HALF, residual=True)),
        [("m + k % 2 * 8 + lane / 4,", "m + lane / 4,")],
    ),
    "wgmma-swapped-boxes-stored-early": (
        *(replace(WGMMA, swapped=True), HALF),
        [
            (
                'asm volatile("bar.sync %0, 128;"',
                'if (threadIdx.x == 999) asm volatile("bar.sync %0, 128;"',
            )
        ],
    ),
    "wgmma-swapped-boxes-free-early": (
        *(replace(WGMMA, swapped=True, tile_m=256), replace(HALF, M=256)),
        [("if (lane == 0) wait_for_boxes<0>();", "")],
    ),
    "wgmma-swapped-columns-exchanged": (
        *(replace(WGMMA, swapped=True), HALF),
        [("warp * 16 + lane / 8 % 2 * 8);", "warp * 16 + (1 - lane / 8 % 2) * 8);")],
    ),
    "simt-part-not-added": (IN_PARTS, FLOAT32, [("block <= last", "block < last")]),
    "simt-stage-overwritten-early": (SIMT, FLOAT32, [EARLY]),
    "mma-tf32-stage-overwritten-early": (MMA, TF32_PRODUCT, [EARLY]),
    "mma-stage-overwritten-early": (MMA, BFLOAT16_PRODUCT, [EARLY]),
    "mma-long-sums-cut-off": (MMA, LONG, [CUT_OFF, NOT_ADDED]),
    "mma-slice-not-added": (
        *(replace(MMA, tile_k=32, slices=2), TF32_PRODUCT),
        [
            (
                "for (int slice = 0; slice < SLICES; ++slice) {\n#",
                "for (int slice = 1; slice < SLICES; ++slice) {\n#",
            )
        ],
    ),
    "mma-block-not-added": (
        *(replace(MMA, split=2), TF32_PRODUCT),
        [("block < TILE_BLOCKS; ++block", "block < TILE_BLOCKS - 1; ++block")],
    ),
    "mma-sums-not-waited-for": (
        *(replace(MMA, split=2), TF32_PRODUCT),
        [("#if TILE_BLOCKS > 1\n  meet();\n#else", "#if 0\n#else")],
    ),
    "mma-block-gone-early": (
        *(replace(MMA, split=2), TF32_PRODUCT),
        [("  wait_for_cluster();  // others have read", "  // others have read")],
    ),
    "mma-sums-over-a-stage": (
        *(replace(MMA, tile_k=32, slices=2), TF32_PRODUCT),
        [
            (
                "__syncthreads();  // what is overwritten was read\n#pragma unroll\n  for (int i",
                "\n#pragma unroll\n  for (int i",
            )
        ],
    ),
    "wgmma-pieces-of-narrow-boxes-exchanged": (
        *(replace(WGMMA, tile_n=96), Gemm("g", 72, 136, 72, "tn", "bfloat16")),
        [("line / (128 / C_LINE_BYTES) % (C_LINE_BYTES / 16)", "line % (C_LINE_BYTES / 16)")],
    ),
    "wgmma-full": (
        *(WGMMA, HALF),
        [("wait(full[ring.stage], ring.parity);\n      multiply(sums", "multiply(sums")],
    ),
    "wgmma-empty": (WGMMA, HALF, [("wait(empty[ring.stage], ring.parity ^ 1);", "")]),
    "wgmma-finish": (WGMMA, HALF, [("finish<0>(sums);", "")]),
    "wgmma-fence": (WGMMA, HALF, [(FENCE, "")]),
    "wgmma-written": (
        *(WGMMA, HALF),
        [("written_for_async();\n        __syncwarp();", "__syncwarp();")],
    ),
    "wgmma-swapped-written": (
        *(replace(WGMMA, swapped=True), HALF),
        [("written_for_async();\n      if (lane == 0)", "if (lane == 0)")],
    ),
    "wgmma-stage-free-early": (WHOLE, HALF, [("finish<1>(sums);", "finish<2>(sums);")]),
    "wgmma-part-not-added": (
        *(replace(WGMMA, stages=3, split=2), HALF),
        [("other < TILE_BLOCKS; ++other", "other < TILE_BLOCKS - 1; ++other")],
    ),
    "wgmma-parts-not-waited-for": (
        *(replace(WGMMA, stages=3, split=2), HALF),
        [("  meet();\n  constexpr int OF_BOX", "  constexpr int OF_BOX")],
    ),
    "wgmma-box-of-c-free-early": (
        *(WHOLE, HALF),
        [("wait_for_boxes<C_BOXES - 1>();", "wait_for_boxes<C_BOXES>();")],
    ),
    "wgmma_float8-stage-free-early": (
        *(FLOAT8, LONG_FLOAT8),
        [("finish<1>(part.sums);", "finish<2>(part.sums);")],
    ),
    "wgmma_float8-scale-of-another-row": (
        *(FLOAT8, replace(LONG_FLOAT8, scaling="block")),
        [("int own = row + i / 2 * 64 + i % 2 * 8;", "int own = row + i / 2 * 64;")],
    ),
    "wgmma_float8-scale-of-another-step": (
        *(FLOAT8, replace(LONG_FLOAT8, scaling="block")),
        [("B_SCALE_ROW + step]", "B_SCALE_ROW]")],
    ),
    "wgmma_float8-scale-of-another-column": (
        *(FLOAT8, replace(LONG_FLOAT8, scaling="row")),
        [("b_scale[column + i] : 0.0f", "b_scale[column] : 0.0f")],
    ),
    "wgmma_float8-not-promoted": (
        *(FLOAT8, Gemm("g", 8, 64, 4096, "tn", "e4m3")),
        [
            ("further(B_STAGE), true);", "further(B_STAGE), step < work.begin + 2);"),
            ("Ring ended = ring;", "int left = work.end - work.begin; Ring ended = ring;"),
            ("promote(sums, part.sums", "if (--left < 2) promote(sums, part.sums"),
        ],
    ),
    "wgmma_float8-quantized-with-another-scale": (
        *(FLOAT8, Gemm("g", 72, 64, 130, "tn", "e4m3", scaling="row", quantize=True)),
        [("float factor = power_of_two(-power);", "float factor = power_of_two(1 - power);")],
    ),
    "wgmma_float8-largest-of-a-part": (
        *(FLOAT8, replace(LONG_FLOAT8, scaling="block", quantize=True)),
        [("fmaxf(fabsf(four[2]), fabsf(four[3]))", "fabsf(four[2])")],
    ),
    "skinny-float8-scale-of-another-row": (
        replace(SKINNY, tile_m=16, tile_k=128),
        replace(LONG_FLOAT8, M=16, K=304, lda=0, ldb=0, scaling="block"),
        [("threadIdx.x % 4 * 2 + i % 2;", "threadIdx.x % 4 * 2;")],
    ),
    "skinny-float8-scale-of-another-step": (
        replace(SKINNY, tile_k=128),
        replace(LONG_FLOAT8, M=8, K=304, lda=0, ldb=0, scaling="block"),
        [("      factors = next;\n", "")],
    ),
    "wgmma_float8-turned-to-another-row": (
        *(FLOAT8, replace(LONG_FLOAT8, layout="nn", ldb=0)),
        [("four[j] = square[within + j][i];", "four[j] = square[within + j][i ^ 1];")],
    ),
    "wgmma_tf32-ready": (
        *(TF32, SPLIT),
        [("if (PREPARED) wait(ready[ring.stage], ring.parity);", "")],
    ),
    "wgmma_tf32-empty": (TF32, SPLIT, [("wait(empty[ring.stage], ring.parity ^ 1);", "")]),
    "wgmma_tf32-written": (TF32, SPLIT, [("          written_for_async();", "")]),
    "wgmma_tf32-copied-late": (
        *(replace(TF32, copying=True, stages=3), SPLIT),
        [('"n"(AHEAD)', '"n"(AHEAD + 1)')],
    ),
    "wgmma_tf32-copied-over": (
        *(replace(TF32, copying=True), SPLIT),
        [("wait(empty[copied.stage], copied.parity ^ 1);", "")],
    ),
    "wgmma_tf32-wait-group": (TF32, SPLIT, [(WAIT_GROUP, "")]),
    "skinny-full": (SKINNY, HALF, [("wait(full[ring.stage], ring.parity);", "")]),
    "skinny-empty": (SKINNY, HALF, [("wait(empty[ring.stage], ring.parity ^ 1);", "")]),
    "skinny-stage-free-early": (SKINNY, HALF, [("finish<1>(sums);", "finish<2>(sums);")]),
    "skinny-steps-beyond-the-last": (
        *(SKINNY, Gemm("g", 8, 136, 200, "tt", "bfloat16")),
        [("step < end ? step : step - (end - begin)", "step")],
    ),
    "skinny-block-not-added": (
        *(replace(SKINNY, split=3), HALF),
        [("other < TILE_BLOCKS", "other < TILE_BLOCKS - 1")],
    ),
    "skinny-sums-not-waited-for": (
        *(replace(SKINNY, split=2), HALF),
        [("  meet();\n  int first", "  __syncthreads();\n  int first")],
    ),
    "skinny-given-to-a-block-that-has-not-begun": (
        *(replace(SKINNY, split=2), HALF),
        [
            ("  arrive_in_cluster();  // before the first", "  // before the first"),
            ("    wait_for_cluster();\n  } else", "  } else"),
            ("wait_for_cluster();  // its blocks have begun", "//"),
        ],
    ),
    "skinny-sums-in-stages-that-are-read": (
        *(replace(SKINNY, tile_n=128), HALF),
        [
            ("    wait_for_cluster();\n  } else", "  } else"),
            ("wait_for_cluster();  // its blocks have begun", "//"),
        ],
    ),
    "skinny-written": (
        *(replace(SKINNY, copying_warps=4), replace(HALF, lda=201, ldb=137)),
        [("written_for_async();", "")],
    ),
    "skinny-shifted": (
        *(replace(SKINNY, copying_warps=4), replace(HALF, lda=201, ldb=137)),
        [("bytes % 4 * 8", "0")],
    ),
    "skinny-line-not-cut-off": (
        replace(SKINNY, copying_warps=4),
        Gemm("g", 5, 64, 67, "tn", "bfloat16", lda=70, ldb=71, B=2),
        [("whole = beginning(", "beginning(")],
    ),
}


# One for each way in which the emulated GPU finds a fault; the others are found in the same ways.
DAILY_FAULTS = {
    *("simt-part-not-added", "wgmma-full", "wgmma-box-of-c-free-early"),
    *("wgmma_tf32-written", "wgmma_float8-not-promoted"),
    "skinny-given-to-a-block-that-has-not-begun",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", nightly(FAULTS, FAULTS.keys() - DAILY_FAULTS))
def test_a_fault_in_the_text_is_found(device, fault):
    chosen, gemm, replacements = FAULTS[fault]
    kernel = chosen.kernel(gemm)
    source = kernel.source
    for right, wrong in replacements:
        assert source.count(right) == 1
        source = source.replace(right, wrong)
    with pytest.raises(KernelFault):
        verify_on_device(device, replace(kernel, source=source), gemm)


REFUSED: dict[str, tuple[str, list[dict[str, int]]]] = {
    "The template simt needs": (
        "simt",
        [{"tile_m": 0}, {"tile_k": 0}, {"stages": 1}, {"blocks": -1}, {"group": 0}],
    ),
    "among warps of 4 x 8 threads": (
        "simt",
        [{"tile_m": 24}, {"tile_n": 48}, {"thread_m": 6}, {"thread_n": 0}],
    ),
    "cannot be divided into": (
        "simt",
        [{"slices": 0}, {"slices": 2}, {"tile_k": 2}, {"tile_k": 24, "slices": 3}],
    ),
    "transpose_a is": (
        "simt",
        [{"transpose_a": 12}, {"transpose_a": 32}, {"tile_k": 32, "transpose_a": 32}],
    ),
    "in pieces of 16 x 16 x 16": (
        "mma",
        [{"tile_m": 24}, {"warp_n": 24}, {"warp_m": 0}, {"warp_m": 64}, {"tile_k": 8}],
    ),
    "cannot be divided among 1 warpgroups": (
        "wgmma",
        [{"tile_m": 96}, {"tile_n": 320}, {"tile_n": 48}, {"tile_k": 48}],
    ),
    "cannot be divided among 2 warpgroups": ("wgmma", [{"consumers": 2}]),
    "1 to 3 consumers, not 4": ("wgmma", [{"consumers": 4}]),
    "tiles of 200 x 192 with 3 consumers": (
        "wgmma_tf32",
        [{"tile_m": 200, "tile_n": 192, "consumers": 3}],
    ),
    "with swapped=1, in pieces of 16 x 64": (
        "wgmma",
        [{"swapped": True, "tile_m": 72}, {"swapped": True, "tile_n": 96}],
    ),
    "tiles of 192 x 256 with 3 consumers": (
        "wgmma",
        [{"tile_m": 192, "tile_n": 256, "consumers": 3}],
    ),
    "needs steps of 128, not 64": ("wgmma_float8", [{"tile_k": 64}]),
    "has tiles of 8 to 256 rows": (
        "skinny",
        [{"tile_m": 12}, {"tile_m": 264}, {"tile_n": 96}, {"tile_k": 96}],
    ),
    "has a cluster of 1 to 8 blocks": ("skinny", [{"blocks": 2}, {"split": 9}]),
    "The template skinny needs": ("skinny", [{"split": 0}, {"copying_warps": 0}]),
    "64 columns for each of 1 consumers": (
        "wgmma_tf32",
        [
            *({"tile_m": 60}, {"tile_n": 128}, {"tile_k": 64}, {"copying": True, "cluster_n": 2}),
            *({"together": 3}, {"together": 2, "cluster_m": 2, "tile_m": 128}),
        ],
    ),
}


@pytest.mark.parametrize(
    ("template", "change", "words"),
    [
        (template, change, words)
        for words, (template, changes) in REFUSED.items()
        for change in changes
    ],
)
def test_parameters_without_a_kernel_are_refused(template, change, words):
    with pytest.raises(InputError, match=words):
        replace(SMALLEST[template], **change)


@pytest.mark.parametrize(
    ("template", "mode", "modes"),
    [
        *(("simt", mode, "float32") for mode in ("tf32", "3xtf32", "float16", "bfloat16")),
        ("mma", "float32", "tf32, 3xtf32, float16, bfloat16"),
        ("wgmma", "3xtf32", "float16, bfloat16, tf32"),
        ("wgmma_tf32", "float32", "tf32, 3xtf32"),
        ("wgmma_float8", "bfloat16", "e4m3, e5m2"),
        ("skinny", "tf32", "float16, bfloat16, e4m3, e5m2"),
    ],
)
def test_other_modes_are_refused(template, mode, modes):
    with pytest.raises(InputError, match=f"computes in {modes}, not in mode {mode}"):
        SMALLEST[template].kernel(Gemm("g", 64, 64, 64, mode=mode))


PREPARED = {
    "turned-b": Gemm("g", 72, 133, 300, "nn", "e4m3", ldb=135),
    "turned-both": Gemm("g", 72, 133, 130, "nt", "e5m2", scaling="block"),
    "turned-a": Gemm("g", 70, 133, 301, "tt", "e4m3", scaling="row", lda=71, ldb=303),
    "quantized": Gemm("g", 70, 133, 301, "tn", "e4m3", quantize=True),
    "quantized-rows": Gemm("g", 70, 133, 300, "nn", "e5m2", scaling="row", quantize=True),
    "quantized-blocks": Gemm("g", 70, 69, 150, "tn", "e4m3", scaling="block", quantize=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(PREPARED, PREPARED.keys() - {"quantized-blocks"}))
def test_operands_are_turned_or_quantized_before_the_product(device, name):
    gemm = PREPARED[name]
    kernel = FLOAT8.kernel(gemm)
    assert {space.name for space in kernel.workspaces} & {"a_turned", "b_turned", "a_quantized"}
    assert len(kernel.launches) > 1
    assert verify(device, FLOAT8, gemm) <= 1


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [((5_000_000, 16, 16), "nt"), ((16, 5_000_000, 16), "nn"), ((16, 16, 5_000_000), "nn")],
)
def test_operands_of_any_size_are_turned_by_a_launch_that_a_gpu_can_make(sizes, layout):
    for launch in FLOAT8.kernel(Gemm("g", *sizes, layout, "e4m3")).launches:
        _, along_y, along_z = launch.grid
        assert max(along_y, along_z) < 1 << 16


def test_operands_that_are_stored_along_k_are_multiplied_as_they_are():
    kernel = FLOAT8.kernel(Gemm("g", 64, 64, 128, "tn", "e4m3"))
    assert [launch.entry for launch in kernel.launches] == ["gemm"]
    assert not kernel.workspaces


@pytest.mark.parametrize(
    "options", [{"layout": "nn"}, {"quantize": True}, {"K": 120, "lda": 0, "ldb": 0}]
)
def test_few_rows_of_8_bits_are_computed_only_where_they_are_copied_as_they_are(options):
    gemm = replace(Gemm("g", 8, 64, 128, "tn", "e4m3"), **options)
    with pytest.raises(InputError, match="only in layout tn, with rows a multiple of 16 bytes"):
        replace(SKINNY, tile_k=128).kernel(gemm)


def test_few_rows_of_8_bits_take_steps_as_long_as_blocks_with_a_scale():
    with pytest.raises(InputError, match="no steps of 64"):
        SKINNY.kernel(Gemm("g", 8, 64, 128, "tn", "e4m3"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "more", "tried"),
    [
        (72, {"mode": "bfloat16"}, True),
        (73, {"mode": "bfloat16"}, False),
        (192, {"mode": "bfloat16", "groups": (128, 64)}, True),
        (128, {"mode": "e4m3"}, True),
        (129, {"mode": "e4m3"}, False),
    ],
)
def test_the_template_for_few_rows_is_tried_for_few_rows_only(rows, more, tried):
    gemm = Gemm("g", rows, 256, 256, "tn", **more)
    assert ("skinny" in offered_templates(gemm)) is tried


def test_a_that_is_stored_across_k_is_not_quantized():
    gemm = Gemm("g", 64, 64, 128, "tt", "e4m3", quantize=True)
    with pytest.raises(InputError, match="quantizes A only where it is stored along K"):
        FLOAT8.kernel(gemm)
    with pytest.raises(InputError, match=r"templates fit .*: wgmma_float8 quantizes A only"):
        rank_kernels(gemm, H200)


def test_the_text_says_where_it_comes_from():
    origin = SIMT.kernel(Gemm("g", 8, 8, 8)).origin
    assert origin.kind == "template"
    assert (origin.details["template"], origin.details["tile_n"]) == ("simt", 32)


def offered_templates(gemm: Gemm, card: CardResources = H200) -> set[str]:
    return {one.template for one in rank_kernels(gemm, card)}


@pytest.mark.parametrize(("layout", "copied"), [("nn", "A"), ("nt", ""), ("tn", "AB"), ("tt", "B")])
def test_rows_that_tensor_maps_cannot_describe_are_copied_first(layout, copied):
    gemm = Gemm("g", 64, 72, 60, layout, "bfloat16")
    kernel = WGMMA.kernel(gemm)
    assert [one.entry for one in kernel.launches] == ["gemm_copy"] * bool(copied) + ["gemm"]
    assert [one.name for one in kernel.workspaces] == [f"{name.lower()}_copy" for name in copied]
    assert all(one.shape[1] == 64 for one in kernel.workspaces)
    aligned = replace(gemm, K=64, lda=0, ldb=0)
    assert (WGMMA.cycles(gemm, H200) > WGMMA.cycles(aligned, H200)) is bool(copied)


@pytest.mark.parametrize(
    ("layout", "ldb", "copied"),
    [("nn", 72, "A"), ("nn", 73, "AB"), ("nt", 72, ""), ("nt", 73, "B"), ("tt", 61, "B")],
)
def test_copies_of_operands_have_whole_tiles(layout, ldb, copied):
    gemm = Gemm("g", 64, 72, 60, layout, ldb=ldb)
    kernel = replace(SIMT, turned=True).kernel(gemm)
    assert [one.entry for one in kernel.launches] == ["gemm_copy"] * bool(copied) + ["gemm"]
    shapes = {"A": (60, 64), "B": (60, 96)}
    assert [one.shape for one in kernel.workspaces] == [shapes[name] for name in copied]


def test_operands_of_several_products_are_not_copied_for_cuda_cores():
    with pytest.raises(InputError, match="copies operands of one product only"):
        replace(SIMT, turned=True).kernel(Gemm("g", 16, 32, 8, B=2))


@pytest.mark.slow
def test_tf32_takes_from_shared_memory_only_what_lies_along_k():
    linear = Gemm("g", 4096, 4096, 4096, "tn", "tf32")
    other = replace(linear, layout="nn")
    for gemm in (linear, other):
        offered = [one for one in rank_kernels(gemm, H200) if one.template == "wgmma"]
        assert {one.turned for one in offered} == {gemm is other}
    assert "wgmma" not in offered_templates(replace(other, B=2))
    with pytest.raises(InputError, match="the layout tn in mode tf32, not nn, or turned=1"):
        replace(WGMMA, tile_k=32).kernel(other)
    with pytest.raises(InputError, match="tile_k to be a multiple of 64 in mode bfloat16, not 32"):
        replace(WGMMA, tile_k=32).kernel(HALF)


UNALIGNED: dict[str, tuple[Any, Gemm]] = {
    "simt-copied": (
        replace(SIMT, tile_k=8, stages=3, turned=True, spread=True, blocks=7),
        Gemm("g", 33, 65, 41, "nn", lda=43, bias=True, residual=True),
    ),
    "simt-turned": (replace(SIMT, turned=True), Gemm("g", 33, 68, 41, "tt", lda=36, ldc=71)),
    "simt-spread": (
        replace(SIMT, tile_k=16, slices=2, stages=3, spread=True, transpose_a=8),
        Gemm("g", 21, 37, 50, "tn"),
    ),
    "wgmma-copied": (WGMMA, Gemm("g", 72, 69, 87, "tn", "bfloat16", lda=91)),
    "wgmma_tf32-copied": (
        replace(TF32, blocks=3),
        Gemm("g", 71, 70, 50, "tt", "3xtf32", ldb=53, ldc=71),
    ),
    "wgmma-tf32": (
        replace(WGMMA, tile_n=128, tile_k=32, cluster_m=2, blocks=3),
        Gemm("g", 72, 133, 100, "tn", "tf32", residual=True, activation="gelu"),
    ),
    "wgmma-tf32-boxes": (
        replace(WGMMA, tile_m=128, tile_k=32, consumers=2, blocks=1),
        Gemm("g", 130, 100, 101, "tn", "tf32", ldb=104, bias=True, residual=True),
    ),
}


SIMILAR_UNALIGNED = (
    *("simt-turned", "simt-spread", "wgmma-tf32", "wgmma-tf32-boxes", "wgmma_tf32-copied"),
    "wgmma-copied",  # as the wgmma-turned of odd sizes
)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(UNALIGNED, SIMILAR_UNALIGNED))
def test_rows_that_are_not_aligned_are_multiplied(device, name):
    chosen, gemm = UNALIGNED[name]
    assert verify(device, chosen, gemm) <= 1


@pytest.mark.slow
def test_short_sums_in_3xtf32_are_left_to_the_template_that_rounds():
    short = replace(SPLIT, K=31)
    assert offered_templates(short) == {"mma"}
    with pytest.raises(InputError, match="wgmma_tf32 needs K to be at least 32 in mode 3xtf32"):
        TF32.kernel(short)
    for gemm in (replace(SPLIT, K=32), replace(short, mode="tf32")):
        assert "wgmma_tf32" in offered_templates(gemm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "template"), [("bfloat16", "wgmma"), ("tf32", "wgmma_tf32"), ("3xtf32", "wgmma_tf32")]
)
def test_hopper_has_templates_of_its_own(mode, template):
    gemm = Gemm("g", 4096, 4096, 4096, mode=mode)
    assert rank_kernels(gemm, H200)[0].template == template
    assert offered_templates(gemm, B200) == {"mma"}


def test_a_card_without_such_tensor_cores_is_refused():
    with pytest.raises(
        InputError, match=r"mode tf32 takes a GPU of sm_80 or later, and this one is of sm_70"
    ):
        rank_kernels(Gemm("g", 8, 8, 8, mode="tf32"), V100)
