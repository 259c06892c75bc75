"""Verification of convolutions in each mode: right kernels pass, and others are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import (
    CONV_LAYOUTS,
    CONV_MODES,
    Conv2d,
    numbers,
    rounded_to,
)

Arrays = dict[str, Any]
CUT = np.uint32(0xFFFFE000)


@st.composite
def convolutions(draw: st.DrawFn, **fixed: Any) -> Conv2d:
    h, w, kh, kw = (draw(st.integers(1, 6)) for _ in range(4))
    padding, strides, dilation = (draw(st.integers(low, 3)) for low in (0, 1, 1))
    assume(h + 2 * padding > dilation * (kh - 1) and w + 2 * padding > dilation * (kw - 1))
    n, groups, outs, ins = (draw(st.integers(1, 3)) for _ in range(4))
    sizes = (n, h, w, groups * outs, groups * ins, kh, kw, strides, padding, dilation, groups)
    options = {
        "mode": st.sampled_from(CONV_MODES),
        "layout": st.sampled_from(CONV_LAYOUTS),
        "bias": st.booleans(),
        "relu": st.booleans(),
    }
    chosen = draw(st.fixed_dictionaries({name: options[name] for name in options.keys() - fixed}))
    return Conv2d.of("drawn", *sizes, **chosen, **fixed)


def computed(workload: Conv2d, arrays: Arrays) -> Any:
    """The output as float32 sums, and rounded once, as a kernel computes it."""
    plain = workload.varied(mode="float32", relu=False)
    single = {name: numbers(one, workload.dtype) for name, one in arrays.items()}
    if workload.mode == "tf32":
        single = {
            name: one if name == "bias" else (one.view(np.uint32) & CUT).view(np.float32)
            for name, one in single.items()
        }
    sums = plain.reference(single)["output"].astype(np.float32).astype(np.float64)
    return rounded_to(np.maximum(sums, 0) if workload.relu else sums, workload.dtype)


def verify(workload: Conv2d, kernel: Any) -> None:
    def body(output: Any, **inputs: Any) -> None:
        output[...] = kernel(inputs)

    verify_on_device(PythonDevice(body), KERNEL, workload)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(convolutions())
def test_a_right_kernel_passes_whatever_is_drawn(workload):
    verify(workload, lambda inputs: computed(workload, inputs))


LAYER = Conv2d.of("layer", 2, 6, 7, 6, 8, 3, 3, 1, 1)


def without(name: str) -> Any:
    return lambda w, inputs: computed(w, {**inputs, name: np.zeros_like(inputs[name])})


def in_mode(mode: str) -> Any:
    """As a kernel of another mode computes it, on the same elements."""

    def kernel(workload: Conv2d, inputs: Arrays) -> Any:
        other = workload.varied(mode=mode)
        wide = {n: numbers(one, workload.dtype).astype(np.float64) for n, one in inputs.items()}
        rounded = {name: rounded_to(one, other.dtype) for name, one in wide.items()}
        result = numbers(computed(other, rounded), other.dtype).astype(np.float64)
        return rounded_to(result, workload.dtype)

    return kernel


def relu_before_bias(workload: Conv2d, inputs: Arrays) -> Any:
    sums = numbers(computed(workload.varied(bias=False), inputs), workload.dtype)
    bias = numbers(inputs["bias"], workload.dtype)
    if workload.layout == "nchw":
        bias = bias[:, None, None]
    return rounded_to((sums + bias).astype(np.float64), workload.dtype)


def other_layout(workload: Conv2d, inputs: Arrays) -> Any:
    """The weight is read as if it were stored in the other layout."""
    shape = workload.inputs[1].shape
    order = (0, 2, 3, 1) if workload.layout == "nchw" else (0, 3, 1, 2)
    turned = np.ascontiguousarray(inputs["weight"].transpose(order)).reshape(shape)
    return computed(workload, {**inputs, "weight": turned})


def two_roundings(workload: Conv2d, inputs: Arrays) -> Any:
    """The sums of the first half of the channels are rounded to the type of the output."""
    half = inputs["data"].copy()
    half[..., workload.shape.CI // 2 :] = 0
    rest = inputs["data"].copy()
    rest[..., : workload.shape.CI // 2] = 0
    without_bias = workload.varied(bias=False, relu=False)
    first = numbers(computed(without_bias, {**inputs, "data": half}), workload.dtype)
    first = numbers(rounded_to(first.astype(np.float64), "bfloat16"), "bfloat16")
    second = numbers(computed(without_bias, {**inputs, "data": rest}), workload.dtype)
    return rounded_to((first + second).astype(np.float64), workload.dtype)


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"mode": "float16", "bias": True}, without("bias")),
        ({"mode": "tf32", "relu": True}, lambda w, x: computed(w.varied(relu=False), x)),
        ({"mode": "bfloat16", "bias": True, "relu": True}, relu_before_bias),
        ({"mode": "float16", "layout": "nhwc"}, other_layout),
        ({"mode": "3xtf32", "layout": "nchw"}, other_layout),
        ({"mode": "3xtf32"}, in_mode("tf32")),
        ({"layout": "nhwc"}, in_mode("tf32")),
        ({"mode": "tf32"}, in_mode("float16")),
        ({"mode": "tf32"}, in_mode("bfloat16")),
        ({"mode": "float16"}, in_mode("bfloat16")),
        ({"mode": "float16", "layout": "nhwc"}, two_roundings),
        ({"mode": "3xtf32", "layout": "nhwc"}, two_roundings),
    ],
    ids=[
        *("no-bias", "no-relu", "relu-first", "weight-nhwc", "weight-nchw"),
        *("3xtf32-as-tf32", "float32-as-tf32", "tf32-as-float16", "tf32-as-bfloat16"),
        *("float16-as-bfloat16", "float16-rounded-twice", "3xtf32-rounded-twice"),
    ],
)
def test_a_kernel_that_computes_something_else_is_found(options, kernel):
    workload = LAYER.varied(**options)
    verify(workload, lambda inputs: computed(workload, inputs))
    with pytest.raises(KernelFault, match=r"output"):
        verify(workload, lambda inputs: kernel(workload, inputs))
