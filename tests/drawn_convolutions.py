"""Convolutions that tests of templates on tensor cores draw."""

from __future__ import annotations

from hypothesis import assume, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import CONV_LAYOUTS, CONV_MODES, Conv2d

TENSOR_CORE_MODES = CONV_MODES[1:]


@st.composite
def convolutions(draw: st.DrawFn, *, most: int = 12) -> Conv2d:
    """Any geometry of images of up to `most` rows and columns, in any mode of tensor cores."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    channels = st.one_of(st.integers(1, 40 // groups), st.sampled_from([8, 4]))
    window, size = st.integers(1, 7), st.integers(1, most)
    sizes = (
        *(draw(st.integers(1, 3)), draw(size), draw(size)),
        *(groups * draw(channels), groups * draw(channels), draw(window), draw(window)),
        *(draw(st.integers(1, 3)), draw(st.integers(0, 4)), draw(st.integers(1, 3)), groups),
    )
    options = {
        "mode": draw(st.sampled_from(TENSOR_CORE_MODES)),
        "layout": draw(st.sampled_from(CONV_LAYOUTS)),
        "bias": draw(st.booleans()),
        "relu": draw(st.booleans()),
    }
    try:
        return Conv2d.of("c", *sizes, **options)
    except InputError:  # the window does not fit the padded input
        assume(False)
        raise
