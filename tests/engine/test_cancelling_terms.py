"""Correct kernels whose results are small differences of large terms, and wrong ones like them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.engine import Drawing, case_of, compare, expect
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, ErrorBound, Tensor

SIZE = 3001
F = np.float32
DRAWINGS = (Drawing(0), Drawing(1, -1), Drawing(20, 1), Drawing(20, sparse=1))

erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])


def softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


def sigmoid(x: Any) -> Any:
    return np.exp(-softplus(-x))


def gelu(x: Any) -> Any:
    return 0.5 * x * erfc(-x / math.sqrt(2))


def erff(x: Any) -> Any:
    """Return erf(x) as a GPU computes it: off by up to one unit in the last place."""
    return F(erf(x)) * (1 + F(2**-24) * F(np.sign(np.sin(1e4 * x))))


def gelu_of_single(x: Any) -> Any:
    return F(0.5) * x * (F(1) + erff(x * F(0.70710678)))


def gelu_by_tanh(x: Any, type_: Any = np.float64) -> Any:
    inner = type_(math.sqrt(2 / math.pi)) * (x + type_(0.044715) * x * x * x)
    return type_(0.5) * x * (type_(1) + np.tanh(inner))


def mish_of_single(x: Any) -> Any:
    return x * np.tanh(np.where(x > 20, x, np.log(F(1) + np.exp(np.minimum(x, F(20))))))


def mish(x: Any) -> Any:
    return x * np.tanh(softplus(x))


def derivative_of_gelu(x: Any) -> Any:
    return 0.5 * erfc(-x / math.sqrt(2)) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def verdict(
    right: Any, kernel: Any, drawing: Drawing, init: tuple[float, float] | None = None
) -> ErrorBound:
    """Compare a kernel of single elements with its reference, and return its errors."""
    tensors = (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output"))

    def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": right(inputs["x"])}

    workload = Contract("mine", tensors, compute, init={} if init is None else {"x": init})
    case = case_of(workload, drawing)
    with np.errstate(all="ignore"):
        output = kernel(case.inputs["x"])
    assert output.dtype == np.float32
    return compare({"y": output}, case.reference, workload.io.bounds, drawing.seed)


RIGHT: dict[str, tuple[Any, Any, tuple[float, float] | None]] = {
    "gelu": (gelu, gelu_of_single, None),
    "gelu of negative numbers": (gelu, gelu_of_single, (-10.0, -1.0)),
    "gelu by tanh": (gelu_by_tanh, lambda x: gelu_by_tanh(x, F), None),
    "mish": (mish, mish_of_single, None),
    "root": (lambda x: 1 / (np.sqrt(x * x + 1) + x), lambda x: np.sqrt(x * x + F(1)) - x, None),
    "cosine": (lambda x: 1 - np.cos(x), lambda x: F(1) - np.cos(x), (0.0, 0.01)),
    "shrink": (lambda x: x - np.tanh(x), lambda x: x - np.tanh(x), None),
    "shrink of small": (lambda x: x - np.tanh(x), lambda x: x - np.tanh(x), (-0.1, 0.1)),
    "sigmoid by tanh": (sigmoid, lambda x: F(0.5) * (F(1) + np.tanh(x / F(2))), (-20.0, 20.0)),
    "cube": (lambda x: (x - 1) ** 3, lambda x: ((x - F(3)) * x + F(3)) * x - F(1), None),
    "square of 1 - tanh": (
        lambda x: 1 / np.cosh(x) ** 2,
        lambda x: F(1) - np.tanh(x) * np.tanh(x),
        (-6.0, 6.0),
    ),
    "derivative of gelu": (
        derivative_of_gelu,
        lambda x: (
            F(0.5) * (F(1) + erff(x * F(0.70710678))) + x * np.exp(F(-0.5) * x * x) * F(0.39894228)
        ),
        None,
    ),
    "derivative of silu": (
        lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
        lambda x: (lambda s: s * (F(1) + x * (F(1) - s)))(F(1) / (F(1) + np.exp(-x))),
        None,
    ),
    "difference of exponentials": (
        lambda x: np.exp(x) - 1,
        lambda x: np.exp(x) - F(1),
        (-0.001, 0.001),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("drawing", DRAWINGS, ids=str)
def test_a_difference_of_terms_is_right_within_their_rounding(name, drawing):
    right, kernel, init = RIGHT[name]
    worst = verdict(right, kernel, drawing, init)
    assert worst.max_relative < 1e-6


def test_parts_of_a_sum_may_be_equal():
    """With equal parts, another sign of one of them gives 0, where nothing cancels."""
    names = ("a", "b", "bias")

    def total(inputs: Mapping[str, Any]) -> Any:
        return inputs["a"] * inputs["b"] + inputs["bias"]

    inputs = (Tensor(name, (SIZE,), "float32", "input") for name in names)
    workload = Contract(
        "sum",
        (*inputs, Tensor("y", (SIZE,), "float32", "output")),
        lambda inputs: {"y": gelu(total(inputs))},
        init={"a": (1.0, 1.0001), "b": (-2.35, -2.34), "bias": (-2.35, -2.34)},
    )
    case = case_of(workload, Drawing(0))
    output = gelu_of_single(total(case.inputs))
    worst = compare({"y": output}, case.reference, workload.io.bounds, 0)
    assert worst.max_relative < 1e-6


def scaled(where: Any, factor: float, values: Any) -> Any:
    return np.where(where, F(factor) * values, values)


WRONG: dict[str, tuple[Any, Any, tuple[float, float] | None]] = {
    "gelu of 1 %": (gelu, lambda x: scaled(x < -2, 1.01, gelu_of_single(x)), None),
    "gelu cut off": (gelu, lambda x: scaled(x < -3.5, 0, gelu_of_single(x)), None),
    "gelu by tanh": (gelu, lambda x: gelu_by_tanh(x, F), None),
    "mish cut off": (mish, lambda x: scaled(x < -8, 0, mish_of_single(x)), None),
    "root cut off": (
        lambda x: 1 / (np.sqrt(x * x + 1) + x),
        lambda x: scaled(x > 30, 0, np.sqrt(x * x + F(1)) - x),
        None,
    ),
    "shrink of 1 %": (
        lambda x: x - np.tanh(x),
        lambda x: F(1.01) * (x - np.tanh(x)),
        (-0.5, 0.5),
    ),
    "exponential of 1 %": (np.exp, lambda x: scaled(x < -5, 1.01, np.exp(x)), (-20.0, 20.0)),
    "exponential cut off": (np.exp, lambda x: scaled(x < -10, 0, np.exp(x)), (-20.0, 20.0)),
    "sigmoid of 1e-5": (sigmoid, lambda x: scaled(x < 0, 1.00001, F(sigmoid(x))), None),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_beyond_the_rounding_of_terms_is_found(name):
    right, kernel, init = WRONG[name]

    def judged_on_all() -> None:
        for drawing in DRAWINGS:
            verdict(right, kernel, drawing, init)

    with pytest.raises(KernelFault, match=r"of y .* wrong"):
        judged_on_all()


ROWS = 10.0 ** np.where(np.arange(100) == 37, -6.0, 0.0)


def test_an_error_of_1_percent_in_one_small_row_is_found():
    tensors = (
        Tensor("x", (100, 64), "float32", "input"),
        Tensor("y", (100, 64), "float32", "output"),
    )
    workload = Contract("rows", tensors, lambda inputs: {"y": ROWS[:, None] * inputs["x"]})
    case = case_of(workload, Drawing(0))
    output = F(ROWS[:, None]) * case.inputs["x"]
    compare({"y": output}, case.reference, workload.io.bounds, 0)
    output[37] *= F(1.01)
    with pytest.raises(KernelFault, match=r"of y .* wrong"):
        compare({"y": output}, case.reference, workload.io.bounds, 0)


def test_a_callables_result_may_have_the_rounding_of_terms():
    x = np.random.default_rng(0).uniform(10, 1000, SIZE).astype(F)
    result = np.sqrt(x * x + F(1)) - x
    expected = expect(lambda x: 1 / (np.sqrt(F(1) + x.astype(np.float64) ** 2) + x), (x,), None)
    assert expected.check(result)
    with pytest.raises(KernelFault, match=r"of result .* wrong"):
        expected.check(result + F(0.1))
