"""Matrix products to draw, and record files of templates for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pytest_gpuenergy.tuners import TEMPLATE_FORM
from pytest_gpuenergy.tuning import Record, RecordFile, TemplateParameters
from pytest_gpuenergy.workloads import ACTIVATIONS, FLOAT8_MODES, LAYOUTS, Gemm


def ends() -> st.SearchStrategy[dict[str, Any]]:
    """Options of products: any end, often none."""
    named = {"bias": st.booleans(), "activation": st.sampled_from(ACTIVATIONS)}
    return st.just({}) | st.fixed_dictionaries({**named, "residual": st.booleans()})


def float8_options(mode: str) -> st.SearchStrategy[dict[str, Any]]:
    """Options of products in a mode: scales, accumulation and quantization, of 8-bit numbers."""
    if mode not in FLOAT8_MODES:
        return st.just({})
    scaled = st.fixed_dictionaries(
        {
            "scaling": st.sampled_from(["tensor", "row"]),
            "accumulation": st.sampled_from(["float32", "fast"]),
            "quantize": st.booleans(),
        }
    )
    blocks = st.fixed_dictionaries({"scaling": st.just("block"), "quantize": st.booleans()})
    return scaled | blocks


def several(most_rows: int = 80) -> st.SearchStrategy[dict[str, Any]]:
    """Options of products: often one, else a batch or groups, some of which have no rows."""
    rows = st.lists(st.integers(0, most_rows) | st.just(0), min_size=1, max_size=5).filter(any)
    groups = rows.map(lambda one: {"groups": tuple(one)})
    return st.just({}) | st.fixed_dictionaries({"B": st.integers(2, 4)}) | groups


def with_longer_rows(gemm: Gemm, elements: int) -> Gemm:
    """Return a product whose rows are further apart, in all matrices by as many elements."""
    longer = {name: getattr(gemm, name) + elements for name in ("lda", "ldb", "ldc")}
    return replace(gemm, **longer)


@st.composite
def products(draw: st.DrawFn, modes: st.SearchStrategy[Any], most: int) -> Gemm:
    """Products of any sizes up to ``most``, in all layouts, with any leading dimensions and end.

    Some are batches, and some have groups.
    """
    more = st.integers(0, 9)
    bare = _drawn(draw, most, modes)
    return replace(
        bare, lda=bare.lda + draw(more), ldb=bare.ldb + draw(more), ldc=bare.ldc + draw(more)
    )


@st.composite
def aligned_products(draw: st.DrawFn, modes: st.SearchStrategy[Any], most: int) -> Gemm:
    """As `products`, with rows a multiple of 16 bytes apart, as tensor maps need."""
    bare = _drawn(draw, most, modes)
    pieces = 16 // bare.element_bytes
    lda, ldb, aligned = (
        -(-least // pieces) * pieces + pieces * draw(st.sampled_from([0, 0, 3]))
        for least in (bare.lda, bare.ldb, bare.ldc)
    )
    ldc = draw(st.sampled_from([bare.N, bare.N + 1, aligned]))
    return replace(bare, lda=lda, ldb=ldb, ldc=ldc)


def _drawn(draw: st.DrawFn, most: int, modes: st.SearchStrategy[Any]) -> Gemm:
    m, n, k = (draw(st.integers(1, most)) for _ in range(3))
    layout, mode = draw(st.sampled_from(LAYOUTS)), draw(modes)
    more = {} if mode in FLOAT8_MODES else draw(several(most // 2))
    m = sum(more.get("groups", (m,)))
    options = {**draw(ends()), **draw(float8_options(mode))}
    return Gemm("g", m, n, k, layout, mode, **more, **options)


def template_records(product: Gemm, parameters: TemplateParameters[Gemm]) -> RecordFile:
    """A record file with these parameters as its only record, tuned on an H200."""
    recipe = TEMPLATE_FORM.with_time(TEMPLATE_FORM.recipe(parameters), 0.5)
    return RecordFile(
        product,
        TEMPLATE_FORM.tuner,
        "NVIDIA H200",
        "580.1",
        {"gpuenergy": "0.1.0"},
        "2026-01-01",
        64,
        32,
        (Record(1, "fastest", recipe),),
    )
