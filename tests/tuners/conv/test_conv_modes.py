"""What computes convolutions in float32 and NCHW alone refuses other modes and layouts."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuners import DepthwiseParameters, GroupedParameters, tvm_operator
from pytest_gpuenergy.tuning import usual_tuner
from pytest_gpuenergy.workloads import CONV_LAYOUTS, CONV_MODES, Conv2d

GROUPS = {1: "tvm", 2: "template", 8: "template"}


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    options = {
        "mode": draw(st.sampled_from(CONV_MODES)),
        "layout": draw(st.sampled_from(CONV_LAYOUTS)),
        "bias": draw(st.booleans()),
        "relu": draw(st.booleans()),
    }
    groups, dilation = draw(st.sampled_from([*GROUPS])), draw(st.integers(1, 2))
    return Conv2d.of("conv2d", 1, 9, 9, 8, 8, 3, 3, 1, 1, dilation, groups, **options)


@given(convolutions())
def test_a_log_is_of_the_convolution_in_its_name(workload):
    found = tvm_operator(workload).from_log_name(f"records/{workload.signature}.json")
    assert found == workload.called("conv2d" + workload.suffix)


@given(convolutions())
def test_each_convolution_has_a_usual_tuner_that_can_compute_it(workload):
    plain = workload.is_plain
    assert usual_tuner(workload) == (GROUPS[workload.shape.groups] if plain else "template")
    assert GroupedParameters.computes(workload)
    assert DepthwiseParameters.computes(workload) == (workload.shape.groups == 8)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"mode": "tf32"}, "template"),
        ({"layout": "nhwc"}, "3xtf32, which is as exact"),
        ({"bias": True}, "3xtf32, which is as exact"),
        ({"relu": True}, "3xtf32, which is as exact"),
    ],
)
def test_tvm_refuses_what_it_has_no_schedules_of(options, advice):
    workload = Conv2d.of("layer", 1, 9, 9, 8, 8, 3, 3, 1, 1, **options)
    operator = tvm_operator(workload)
    for ask in (operator.module, operator.forms):
        with pytest.raises(UnavailableError, match=rf"layer cannot be tuned with TVM.*{advice}\.$"):
            ask(workload)
