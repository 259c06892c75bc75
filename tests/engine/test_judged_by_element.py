"""Outputs of wide range, of few elements and in half precision are judged element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import (
    Reference,
    cached_reference,
    compare,
    expect,
    read_job,
    verify_on_device,
    write_job,
)
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Array, Contract, ErrorBound, Tensor

SIZE = 4096
WIDE = {"init": {"x": (-20.0, 20.0)}}


def elementwise(function: Any, dtype: str = "float32", **options: Any) -> Contract:
    """y = function(x)."""
    tensors = (Tensor("x", (SIZE,), dtype, "input"), Tensor("y", (SIZE,), dtype, "output"))
    return Contract("mine", tensors, lambda inputs: {"y": function(inputs["x"])}, **options)


def judged(workload: Contract, output: Array, seed: int = 0) -> ErrorBound:
    """Return the message of `compare` about ``output``."""
    reference = cached_reference(workload, seed)
    return compare({"y": output}, reference, workload.io.bounds, seed)


BITS = "unsigned short"
EXP = elementwise(np.exp, **WIDE)


def exps(seed: int = 0) -> Any:
    return np.exp(EXP.make_inputs(seed)["x"])


def test_single_precision_is_right_over_a_wide_range():
    assert judged(EXP, exps()).max_relative < 1e-6


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.01, 1.0001])
def test_small_elements_of_a_wide_range_are_wrong_by_their_own_measure(scale):
    output = exps()
    output[output < 1] *= np.float32(scale)
    with pytest.raises(KernelFault, match=r"y.* wrong .* of its own value \(bound"):
        judged(EXP, output)


@given(st.integers(0, SIZE - 1))
def test_one_small_element_of_a_wide_range_is_found(place):
    output = exps()
    output[place] *= np.float32(0.9)
    with pytest.raises(KernelFault, match=rf"1 of 4096 elements of y \(first y\[{place}\]\)"):
        judged(EXP, output)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (np.exp, {"init": {"x": (-80.0, 80.0)}}),
        (np.exp, {"init": {"x": (-100.0, 10.0)}}),  # some results are subnormal
        (lambda x: np.exp(x) - np.exp(-x), WIDE),
        (lambda x: x**15, {}),
        (lambda x: 1 / x, {"init": {"x": (1e-6, 1.0)}}),
        (lambda x: np.exp(x) / np.exp(x).sum(), WIDE),
        (lambda x: np.maximum(x, 0) ** 9, {}),
        (lambda x: np.log1p(np.exp(x)), WIDE),
    ],
    ids=["exp", "underflow", "sinh", "power", "reciprocal", "softmax", "zeros", "softplus"],
)
@pytest.mark.parametrize("seed", range(3))
def test_single_precision_passes_whatever_the_function(function, options, seed):
    workload = elementwise(function, **options)
    output = function(workload.make_inputs(seed)["x"])
    output[np.abs(output) < np.finfo(np.float32).tiny] = 0
    assert judged(workload, output, seed)


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_sums_with_rows_of_very_different_size_pass_in_single(seed, decades):
    rows = 10.0 ** np.repeat(np.arange(-4 * decades, 4 * decades), 8)

    def product(inputs: Mapping[str, Any]) -> dict[str, Any]:
        scaled = inputs["a"] * rows[:, None].astype(inputs["a"].dtype)
        return {"y": scaled @ inputs["b"]}

    shapes = {"a": (len(rows), 64), "b": (64, 16)}
    inputs = tuple(Tensor(name, shape, "float32", "input") for name, shape in shapes.items())
    output = Tensor("y", (len(rows), 16), "float32", "output")
    workload = Contract("rows", (*inputs, output), product, reduction_length=64)
    given_inputs: Any = workload.make_inputs(seed)
    right = product(given_inputs)["y"]
    assert judged(workload, right, seed)
    wrong = right.copy()
    wrong[0] = 0
    with pytest.raises(KernelFault, match=r"16 of .* own value"):
        judged(workload, wrong, seed)


@pytest.mark.parametrize("seed", range(40))
def test_the_only_sum_of_an_output_may_be_close_to_zero(seed):
    tensors = (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (1,), "float32", "output"))
    workload = Contract(
        "sum",
        tensors,
        lambda inputs: {"y": inputs["x"].sum(keepdims=True)},
        reduction_length=SIZE,
    )
    x = workload.make_inputs(seed)["x"]
    x[0] -= x.astype(np.float64).sum()  # as close as it may get by chance
    in_order = np.cumsum(x, dtype=np.float32)[-1:]
    values = {"y": x.astype(np.float64).sum(keepdims=True)}
    conditions = cached_reference(workload, seed).conditions
    assert compare({"y": in_order}, Reference(values, conditions), workload.io.bounds, seed)


def test_each_element_of_half_precision_is_judged_by_its_own_rounding():
    workload = elementwise(lambda x: 3 * x, "float16")
    right = (3 * workload.make_inputs(0)["x"].astype(np.float32)).astype(np.float16)
    assert judged(workload, right)
    wrong = right.copy()
    small = int(np.abs(right).argmin())
    wrong[small] = 2e-4  # half an ulp of the largest value is 3e-3
    with pytest.raises(KernelFault, match=r"1 of 4096 .* of the largest value"):
        judged(workload, wrong)


def test_a_bound_of_its_own_is_relative_to_the_largest_element_only():
    workload = elementwise(np.exp, bound=ErrorBound(1e-3, 1e-3), **WIDE)
    output = exps()
    output[output < 1] = 0
    assert judged(workload, output)


SOURCE = """
extern "C" __global__ void f(const TYPE* x, TYPE* y) {
  int i = blockIdx.x * 128 + threadIdx.x;
  y[i] = BODY;
}
"""


def kernel(body: str, kind: str = "float") -> Kernel:
    text = SOURCE.replace("TYPE", kind).replace("BODY", body)
    return Kernel(text, (Launch("f", (SIZE // 128, 1, 1), (128, 1, 1), ("x", "y")),))


def verified(body: str, workload: Contract, kind: str = "float") -> Correctness:
    with EmulatedDevice() as device:
        return verify_on_device(device, kernel(body, kind), workload)


@pytest.mark.slow
def test_a_kernel_that_flushes_what_is_small_is_wrong():
    with pytest.raises(KernelFault, match="of its own value"):
        verified("x[i] < -5.0f ? 0.0f : expf(x[i])", EXP)


@pytest.mark.slow
def test_a_kernel_of_wide_range_is_right():
    assert verified("expf(x[i])", EXP).max_relative_error < 1e-6


@pytest.mark.slow
def test_a_stored_job_is_judged_by_element_too(tmp_path):
    wrong = kernel("x[i] < -5.0f ? 0.0f : expf(x[i])")
    stored = read_job(tmp_path, write_job(tmp_path, Job.of(wrong, EXP), EXP))
    with EmulatedDevice() as device, stored.opened() as (arenas, check):
        device.run_once(stored.job, arenas)
        with pytest.raises(KernelFault, match="of its own value"):
            check()


ROUNDED = "(unsigned short)((__float_as_uint(v) + 0x7fff + ((__float_as_uint(v) >> 16) & 1)) >> 16)"


def halved(rounding: str) -> str:
    """Half of a bfloat16, with a sum in single that makes rounding necessary."""
    return (
        "([](unsigned short b) { float v = 1.0f + 0.5f * __uint_as_float((unsigned)b << 16); "
        f"return {rounding}; }})(x[i])"
    )


@pytest.mark.slow
def test_bfloat16_is_right_when_it_is_rounded_once():
    workload = elementwise(lambda x: 1 + 0.5 * x, "bfloat16")
    found = verified(halved(ROUNDED), workload, BITS)
    assert 2**-11 < found.max_relative_error < 2**-8


@pytest.mark.slow
def test_bfloat16_is_wrong_when_it_has_other_bits():
    workload = elementwise(lambda x: 1 + 0.5 * x, "bfloat16")
    with pytest.raises(KernelFault, match=r"of y .* wrong"):
        verified(halved("(unsigned short)(__float_as_uint(1.02f * v) >> 16)"), workload, BITS)


@pytest.mark.slow
def test_bfloat16_that_was_not_written_is_told():
    workload = elementwise(lambda x: x, "bfloat16")
    with pytest.raises(KernelFault, match=r"of y .* never written"):
        verified("i % 7 ? x[i] : y[i]", workload, BITS)


X = np.random.default_rng(0).uniform(-20, 20, SIZE).astype(np.float32)


def small_as_zero(values: Any) -> Any:
    return np.where(values < 1, np.float32(0), values)


@pytest.mark.parametrize(
    "reference", [np.exp, np.exp(X.astype(np.float64))], ids=["function", "array"]
)
def test_a_callables_result_of_wide_range_is_judged_by_element(reference):
    expected = expect(reference, (X,), None)
    assert expected.check(np.exp(X)).max_relative_error < 1e-6
    with pytest.raises(KernelFault, match="of its own value"):
        expected.check(small_as_zero(np.exp(X)))


def test_the_parts_of_a_callables_result_have_the_bounds_of_the_outputs():
    outputs = (Tensor("h", (SIZE,), "float16", "output"), Tensor("d", (SIZE,), "float64", "output"))
    workload = Contract("two", (Tensor("x", (SIZE,), "float32", "input"), *outputs), dict)
    exact = 3 * X.astype(np.float64)
    expected = expect((exact, exact / 7), (), None, workload)
    assert expected.check((exact.astype(np.float16), exact / 7))
    with pytest.raises(KernelFault, match=r"result\[1\]"):
        expected.check((exact.astype(np.float16), (exact / 7).astype(np.float32)))


def test_a_callables_result_in_half_precision_may_be_rounded():
    exact = 3 * X.astype(np.float64)
    expected = expect(exact, (), None)
    assert expected.check(exact.astype(np.float16)).max_relative_bound > 2**-11
    with pytest.raises(KernelFault):
        expected.check((1.002 * exact).astype(np.float16))


def test_a_callables_arguments_are_as_they_were_after_its_reference_was_called_again():
    before = X.copy()
    expect(np.exp, (X,), None)
    np.testing.assert_array_equal(X, before)
