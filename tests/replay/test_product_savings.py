"""What the products of a step would save with the best contender for each."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, Window, WorkloadInfo
from pytest_gpuenergy.replay import (
    ModelProducts,
    ProductCalls,
    StepCosts,
    product_savings,
    savings_lines,
)
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.workloads import Gemm, product_name


def a_product(m: int, mode: str = "float16") -> Gemm:
    bare = Gemm("", m, 8, 8, "tn", mode)
    return bare.called(product_name(bare))


def calls_of(product: Gemm, **calls: int) -> ProductCalls:
    return ProductCalls(product, "", ("aten.mm.default",), calls, dict.fromkeys(calls, 10.0))


def products_of(*products: ProductCalls, left_out: tuple[ProductCalls, ...] = ()) -> ModelProducts:
    steps = dict.fromkeys(step for one in (*products, *left_out) for step in one.calls)
    return ModelProducts("some", "NVIDIA H200", tuple(steps), products, left_out)


def a_measurement(
    product: Gemm, label: str, time_ms: float, energy_mj: float, error: float = 0.01
) -> Measurement:
    """A measurement whose intervals reach ``error`` times its figures to either side."""

    def ends(value: float) -> Interval:
        return Interval(value * (1 - error), value * (1 + error))

    return Measurement(
        node_id=f"bench/test_gemm.py::test_gemm[{product.name}-{label}-current]",
        workload=WorkloadInfo(product.name, product.parameters, 1, 1),
        kernel=KernelInfo(label, "0" * 64, "library", None),
        outcome="correct",
        cap="current",
        time_ms=time_ms,
        energy_mj=energy_mj,
        edp_mj_ms=time_ms * energy_mj,
        power_w=energy_mj / time_ms,
        time_ms_ci95=ends(time_ms),
        energy_mj_ci95=ends(energy_mj),
        trials=(Window(1.0, 200.0, 2000, 1.0),) * 50,
    )


def steps_of(products: ModelProducts, *measurements: Measurement) -> Mapping[str, StepCosts]:
    (cap,) = product_savings(Report(a_run(), [*measurements]), products).caps
    return {step.step: step for step in cap.steps}


def test_savings_are_weighted_by_calls():
    small, large = a_product(1), a_product(64)
    products = products_of(calls_of(small, prefill=3, decode=5), calls_of(large, prefill=2))
    steps = steps_of(
        products,
        a_measurement(small, "cublas", 1.0, 100.0),
        a_measurement(small, "template", 0.5, 80.0),
        a_measurement(large, "cublas", 10.0, 900.0),
        a_measurement(large, "triton", 20.0, 450.0),
    )
    prefill, decode = steps["prefill"], steps["decode"]
    assert prefill.now is not None
    assert prefill.now.time_ms.value == pytest.approx(3 * 1.0 + 2 * 10.0)
    assert prefill.saved_by_fastest is not None
    assert prefill.saved_by_fastest.time_ms.value == pytest.approx(3 * 0.5)
    assert prefill.saved_by_most_frugal is not None
    assert prefill.saved_by_most_frugal.energy_mj.value == pytest.approx(3 * 20.0 + 2 * 450.0)
    assert prefill.saved_by_most_frugal.time_ms.value == pytest.approx(3 * 0.5 - 2 * 10.0)
    assert decode.saved_by_fastest is not None
    assert decode.saved_by_fastest.energy_mj.value == pytest.approx(5 * 20.0)


def test_errors_of_one_product_are_alike_and_of_several_independent():
    small, large = a_product(1), a_product(64)
    found = steps_of(
        products_of(calls_of(small, prefill=3), calls_of(large, prefill=4)),
        a_measurement(small, "cublas", 1.0, 100.0, error=0.01),
        a_measurement(large, "cublas", 1.0, 100.0, error=0.01),
    )["prefill"]
    assert found.now is not None
    assert found.now.time_ms.half_width == pytest.approx(math.hypot(3 * 0.01, 4 * 0.01))
    assert found.saved_by_fastest is not None
    assert (found.saved_by_fastest.time_ms.value, found.saved_by_fastest.time_ms.half_width) == (
        0.0,
        0.0,
    )


@given(st.floats(0.5, 2.0), st.floats(1e-4, 0.3))
def test_a_contender_is_chosen_only_if_it_is_certainly_better(ratio, error):
    product = a_product(1)
    found = product_savings(
        Report(
            a_run(),
            [
                a_measurement(product, "cublas", 1.0, 100.0, error),
                a_measurement(product, "template", ratio, 100.0 * ratio, error),
            ],
        ),
        products_of(calls_of(product, prefill=1)),
    )
    (cap,) = found.caps
    chosen = cap.products[0].fastest
    if ratio > 1 or error > abs(math.log(ratio)):  # the intervals are wider than the difference
        assert chosen == "cublas"
    elif -math.log(ratio) > 3 * math.hypot(error, 0.01):
        assert chosen == "template"
    step = cap.steps[0]
    assert step.saved_by_fastest is not None
    assert step.saved_by_fastest.time_ms.value >= 0


def test_float32_is_also_compared_in_3xtf32():
    product = a_product(64, "float32")
    found = product_savings(
        Report(
            a_run(),
            [
                a_measurement(product, "cublas", 1.0, 100.0),
                a_measurement(product, "template", 0.9, 90.0),
                a_measurement(product.varied(mode="3xtf32"), "template", 0.4, 40.0),
            ],
        ),
        products_of(calls_of(product, prefill=1)),
    )
    assert found.caps[0].products[0].fastest == "template in 3xtf32"


def test_products_without_cublas_are_no_part_of_the_sums():
    small, large = a_product(1), a_product(64)
    found = steps_of(
        products_of(calls_of(small, prefill=3), calls_of(large, prefill=2)),
        a_measurement(small, "cublas", 1.0, 100.0),
        a_measurement(large, "template", 1.0, 100.0),
    )["prefill"]
    assert (found.calls, found.measured_calls) == (5, 3)
    assert (found.recorded_us, found.measured_us) == (20.0, 10.0)


def test_a_sum_with_a_figure_without_interval_has_none():
    product = a_product(1)
    bare = replace(a_measurement(product, "cublas", 1.0, 100.0), energy_mj_ci95=None)
    found = steps_of(products_of(calls_of(product, prefill=1)), bare)["prefill"]
    assert found.now is not None
    assert found.now.energy_mj.half_width is None
    assert found.now.time_ms.half_width is not None


def test_lines_say_what_is_left_out_and_that_figures_are_emulated():
    product = a_product(1)
    batched = ProductCalls(
        None, "it is batched", ("aten.bmm.default",), {"prefill": 7}, {"prefill": 30.0}
    )
    products = products_of(calls_of(product, prefill=1), left_out=(batched,))
    report = Report(a_run(), [a_measurement(product, "template", 1.0, 100.0)])
    text = "\n".join(savings_lines(product_savings(report, products)))
    assert "on NVIDIA H200 (emulated), at current, cache hot" in text
    assert "1 of 8 calls that multiply matrices are in these sums, with 25.0% of" in text
    assert "savings are unknown, because cublas has no figures" in text
    assert "left out: aten.bmm.default (7 in prefill), because it is batched" in text


def test_lines_have_what_is_saved():
    product = a_product(1)
    measurements = [
        a_measurement(product, "cublas", 2.0, 100.0),
        a_measurement(product, "template", 1.0, 80.0),
    ]
    products = products_of(calls_of(product, prefill=10))
    lines = savings_lines(product_savings(Report(a_run(), measurements), products))
    (fastest,) = (line for line in lines if "the fastest of each" in line)
    assert "10.0 ms ±1 %" in fastest
    assert "10 ±0.22 ms" in fastest
    assert "200 ±13 mJ" in fastest
