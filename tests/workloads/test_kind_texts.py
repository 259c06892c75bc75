"""A kind writes the sizes of a workload as its own grammar reads them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from pytest_gpuenergy.workloads import KINDS, LAYOUTS, MODES, Conv2d, Gemm, parse_shape

size, small = st.integers(1, 5000), st.integers(1, 3)


@st.composite
def products(draw: st.DrawFn) -> Gemm:
    sizes = draw(size), draw(size), draw(size)
    layout, mode = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(MODES))
    bare, more = Gemm("g", *sizes, layout, mode), st.integers(0, 9)
    lda, ldb, ldc = (least + draw(more) for least in (bare.lda, bare.ldb, bare.ldc))
    distribution = draw(st.sampled_from(["normal", "zeros", "sparse:0.5"]))
    return Gemm("g", *sizes, layout, mode, lda, ldb, distribution, ldc=ldc)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    image, ins, outs = draw(st.integers(9, 40)), draw(small), draw(small)
    strides, padding, dilation, groups = draw(small), draw(small), draw(small), draw(small)
    sizes = (1, image, image, outs * groups, ins * groups, 3, 3, strides, padding)
    return Conv2d.of("c", *sizes, dilation, groups)


@given(st.one_of(products(), convolutions()))
def test_a_workload_is_read_from_what_its_kind_writes(workload):
    text = KINDS[workload.kind].format_sizes(workload)
    found = parse_shape(f"{workload.name}={workload.kind}:{text}")
    assert found == workload
