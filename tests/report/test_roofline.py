"""Data rate, arithmetic intensity and part of the peak, in the record's views."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import PROFILES
from pytest_gpuenergy.record import (
    PEAKS,
    Correctness,
    Interval,
    KernelInfo,
    Measurement,
    WorkloadInfo,
    peaks_of,
)
from pytest_gpuenergy.report import Roofline, arithmetic, roofline, summary, tidy_csv
from pytest_gpuenergy.workloads import Conv2d

H200 = "NVIDIA H200"
CONV = {"kind": "conv2d", "dtype": "float32"}


def product(flops: int, moved: int, **changes: Any) -> Measurement:
    """A measurement of 1 ms, in float32 unless the parameters say otherwise."""
    parameters = changes.pop("parameters", CONV)
    values: dict[str, Any] = {"time_ms": 1.0, "energy_mj": 500.0, "cache": "cold"}
    return Measurement(
        "item",
        WorkloadInfo("w", parameters, flops, moved),
        KernelInfo("k01", "0" * 64, "record"),
        "correct",
        "current",
        **{**values, **changes},
    )


def test_many_operations_a_byte_are_under_the_roof_of_arithmetic():
    found = roofline(product(33_450_000_000, 10_000_000), H200)
    assert found.gb_s == pytest.approx(10)
    assert found.flop_per_byte == pytest.approx(3345)
    assert (found.percent_of_peak, found.roof) == (pytest.approx(50), "compute")


def test_few_operations_a_byte_are_under_the_roof_of_the_memory():
    found = roofline(product(1_200_000_000, 1_200_000_000), H200)
    assert (found.percent_of_peak, found.roof) == (pytest.approx(25), "memory")


def test_where_only_bytes_are_known_the_memory_is_the_roof():
    found = roofline(product(0, 2_400_000_000, parameters={}), H200)
    assert (found.flop_per_byte, found.percent_of_peak) == (None, pytest.approx(50))


@pytest.mark.parametrize(
    ("mode", "tflops"),
    [
        ("float32", 66.9),
        ("3xtf32", 494.7 / 3),
        ("tf32", 494.7),
        ("float16", 989.4),
        ("bfloat16", 989.4),
    ],
)
def test_the_roof_is_that_of_the_declared_mode(mode, tflops):
    layer = Conv2d.of("layer", 1, 8, 8, 4, 4, 3, 3, 1, 1, mode=mode)
    for parameters in ({"kind": "gemm", "mode": mode}, dict(layer.parameters)):
        item = product(10**10, 10, parameters=parameters)
        assert roofline(item, H200).percent_of_peak == pytest.approx(1e3 / tflops)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"x": "float32[4]", "y": "float32[4]"}, "float32"),
        ({"x": "bfloat16[4]", "y": "float32[4]"}, "bfloat16"),
        ({"x": "float64[4]", "n": "3"}, "float64"),
        ({"x": "int32[4]"}, None),
    ],
)
def test_the_arithmetic_of_tensors_is_that_with_the_highest_peak(shapes, expected):
    assert arithmetic(product(1, 1, parameters={"kind": "contract", **shapes})) == expected


def test_a_bound_that_allows_tf32_has_its_roof():
    loose = Correctness(1e-4, 1e-4, 2.0**-9, 2.0**-9, (0,))
    exact = Correctness(1e-7, 1e-7, 1e-5, 1e-5, (0,))
    assert arithmetic(product(1, 1, correctness=loose)) == "tf32"
    assert arithmetic(product(1, 1, correctness=exact)) == "float32"


@pytest.mark.parametrize(
    "item",
    [
        product(10**9, 0),
        product(10**9, 10, parameters={}),
        product(10**9, 10, parameters={"kind": "gemm", "mode": "float8"}),
        product(10**9, 10, time_ms=None, energy_mj=None),
    ],
    ids=["unknown traffic", "undeclared type", "type without a peak", "no figures"],
)
def test_what_is_unknown_has_no_percentage(item):
    assert roofline(item, H200).percent_of_peak is None


@pytest.mark.parametrize("name", ["Some other GPU", "", "NVIDIA H200 MIG 1g.18gb"])
def test_an_unknown_card_has_a_data_rate_but_no_percentage(name):
    found = roofline(product(10**9, 10**6), name)
    assert found == Roofline(gb_s=pytest.approx(1), flop_per_byte=1000)


def test_what_stays_in_the_l2_is_not_set_against_the_device_memory():
    small, large = (
        product(1, size, cache="hot") for size in (PEAKS[H200].l2_bytes, PEAKS[H200].l2_bytes + 1)
    )
    assert roofline(small, H200).percent_of_peak is None
    assert roofline(large, H200).roof == "memory"
    assert roofline(product(10**9, 10**6, cache="hot"), H200).roof == "compute"


def test_a_power_limit_does_not_lower_the_roof():
    free, held = (
        roofline(product(10**9, 10, enforced_power_limit_w=watts), H200) for watts in (700, 200)
    )
    assert free == held


@given(
    st.integers(1, 10**15),
    st.integers(1, 10**12),
    st.floats(1e-4, 1e4),
    st.floats(1e-3, 0.5),
    st.sampled_from(sorted(PEAKS)),
)
def test_the_roof_is_the_lower_of_both_peaks(flops, moved, time_ms, width, name):
    ends = Interval(time_ms * (1 - width), time_ms * (1 + width))
    found = roofline(product(flops, moved, time_ms=time_ms, time_ms_ci95=ends), name)
    peaks = PEAKS[name]
    roof = min(peaks.fp32_tflops * 1e12, peaks.bandwidth_gb_s * 1e9 * flops / moved)
    assert found.percent_of_peak == pytest.approx(100 * flops / time_ms * 1e3 / roof)
    for value, interval in (
        (found.gb_s, found.gb_s_ci95),
        (found.percent_of_peak, found.percent_of_peak_ci95),
    ):
        assert value is not None
        assert interval is not None
        assert interval.low < value < interval.high
        assert interval.high / interval.low == pytest.approx(ends.high / ends.low)


def test_every_emulated_model_has_peaks_with_a_source():
    assert all(PEAKS[profile.name].source for profile in PROFILES.values())
    assert all(peaks.source for peaks in PEAKS.values())


def test_tensor_cores_are_no_slower_than_cuda_cores():
    for name, peaks in PEAKS.items():
        known = [peaks.fp32_tflops, peaks.tf32_tflops, peaks.bf16_tflops]
        assert sorted(filter(None, known)) == list(filter(None, known)), name


def test_older_drivers_names_are_known_too():
    assert peaks_of("A100-SXM4-40GB") == PEAKS["NVIDIA A100-SXM4-40GB"]


def test_the_tidy_table_has_them(report, measured):
    workload = WorkloadInfo("case1", CONV, 10**9, 10**6)
    (row,) = csv.DictReader(io.StringIO(tidy_csv(report(measured(1, workload="x")))))
    assert (row["gb_s"], row["flop_per_byte"], row["percent_of_peak"]) == ("2.0", "1000.0", "")
    item = product(workload.flops, workload.bytes_moved)
    (row,) = csv.DictReader(io.StringIO(tidy_csv(report(item))))
    assert float(row["percent_of_peak"]) == pytest.approx(1 / 0.669)
    assert row["roof"] == "compute"


def test_the_terminal_shows_them():
    item = product(
        33_450_000_000,
        10_000_000,
        edp_mj_ms=500.0,
        power_w=500.0,
        gflops=33450.0,
        gflops_per_w=66.9,
    )
    title, head, row = summary([item], emulated=True, gpu_name=H200)
    assert title == "w at current (emulated), 3345 FLOP/byte"
    assert head.split()[-5:] == ["GFLOP/s", "%", "peak", "GB/s", "GFLOP/s/W"]
    assert row.split()[-4:] == ["33450", "50.0", "10.0", "66.90"]
