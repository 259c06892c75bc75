"""What the page has to say: figures with intervals, the best, and what can be put on an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, Measurement, Window, WorkloadInfo
from pytest_gpuenergy.report import column, page_data


def with_intervals(m: Measurement, percent: float) -> Measurement:
    """``m`` with intervals of this half width for time and energy, and twice as much for EDP.

    They are from eight equal trials.
    """
    energy, time = m.energy_mj or 0.0, m.time_ms or 0.0
    window = Window(0.6, energy * 1e-3 * 600, 600.0, time * 1e-3 * 600)

    def ends(value: float | None, times: float = 1.0) -> Interval:
        half = (value or 0.0) * times * percent / 100
        return Interval((value or 0.0) - half, (value or 0.0) + half)

    return replace(
        m,
        time_ms_ci95=ends(m.time_ms),
        energy_mj_ci95=ends(m.energy_mj),
        edp_mj_ms_ci95=ends(m.edp_mj_ms, 2.0),
        trials=(window,) * 8,
    )


def axis(data: dict[str, Any], name: str) -> list[Any]:
    (found,) = (one["values"] for one in data["axes"] if one["name"] == name)
    return list(found)


def test_every_figure_has_its_interval(report, measured):
    workload = WorkloadInfo("case1", {"kind": "conv2d", "dtype": "float32"}, 10**9, 10**6)
    item = replace(with_intervals(measured(1), 1.0), workload=workload, cache="cold")
    page = page_data(report(item))
    (row,) = page["rows"]
    for name in page["figures"]:
        if name != "flop_per_byte":  # follows from the workload alone
            assert row[f"{name}_low"] < row[name] < row[f"{name}_high"], name


def test_a_rate_is_as_uncertain_as_what_it_is_divided_by(report, measured):
    (row,) = page_data(report(with_intervals(measured(1), 1.0)))["rows"]
    assert row["gflops_high"] == pytest.approx(row["gflops"] / 0.99)
    assert row["gflops_per_w_low"] == pytest.approx(row["gflops_per_w"] / 1.01)


def test_without_intervals_a_figure_is_a_point(report, measured):
    (row,) = page_data(report(measured(1)))["rows"]
    assert (row["power_w_low"], row["power_w_high"]) == (row["power_w"], row["power_w"])


def test_a_kernel_that_was_only_verified_has_not_failed(report, failed):
    wrong = failed(1)
    verified = replace(failed(2), outcome="correct", error=None)
    assert [row["state"] for row in page_data(report(wrong, verified))["rows"]] == [
        "failed",
        "verified",
    ]


def test_the_best_is_a_tie_where_noise_leaves_it_open(report, measured):
    near = [with_intervals(measured(k, energy_mj=100.0 + k / 10), 1.0) for k in (1, 2)]
    (best,) = page_data(report(*near, with_intervals(measured(3, energy_mj=150.0), 1.0)))["best"]
    assert best["edp"]["kernels"] == "k01, k02 within noise"
    assert best["edp"]["sure"] == "2 of 3 within noise; the next is 50 % more"
    assert best["edp"]["percent"] == pytest.approx(2.0)


def test_the_best_is_sure_where_it_is(report, measured):
    rows = [with_intervals(measured(k, energy_mj=100.0 * k), 0.1) for k in (1, 2)]
    (best,) = page_data(report(*rows))["best"]
    assert best["edp"]["sure"] == "beyond noise: the next is 100 % more"
    assert best["edp"]["kernels"] == "k01"


def test_any_cap_may_be_the_best(report, measured):
    rows = [
        with_intervals(measured(1, cap, energy_mj=energy), 1.0)
        for cap, energy in ((1, 150.0), (3, 100.0), (5, 100.1))
    ]
    (best,) = page_data(report(*rows))["best"]
    assert best["edp"]["caps"] == "any cap from 450 W"


def test_the_parameters_of_kernels_and_workloads_are_axes(report, measured):
    rows = [
        replace(one, kernel=replace(one.kernel, details={"tile_m": tile, "order": order}))
        for one, tile, order in ((measured(1), 64, "rows"), (measured(2), 128, "columns"))
    ]
    data = page_data(report(*rows))
    assert axis(data, "kernel_details.tile_m") == [64, 128]
    assert axis(data, "kernel_details.order") == ["rows", "columns"]
    assert axis(data, "kernel_rank") == [1, 2]


def test_columns_that_tell_nothing_apart_are_no_axes(report, measured):
    names = {one["name"] for one in page_data(report(measured(1), measured(2)))["axes"]}
    assert not names & {"run_id", "gpu_name", "cache", "workload_flops", "node_id", "time_ms"}


def test_figures_known_for_some_only_are_axes_with_gaps(report, measured):
    rows = (measured(1, temperature_c=50.0), measured(2), measured(3, temperature_c=55.5))
    assert axis(page_data(report(*rows)), "temperature_c") == [50.0, None, 55.5]


def test_an_axis_names_its_unit(report, measured):
    rows = (measured(1, effective_sm_clock_mhz=1000.0), measured(2, effective_sm_clock_mhz=1500.0))
    titles = {one["name"]: one["title"] for one in page_data(report(*rows))["axes"]}
    assert titles["effective_sm_clock_mhz"] == "effective sm clock (MHz)"
    assert titles["kernel_rank"] == "kernel rank"


def test_an_axis_has_no_more_texts_than_can_be_read(report, measured):
    def many(count: int) -> set[str]:
        rows = (measured(k, gpu_uuid=f"GPU-{k}") for k in range(count))
        return {one["name"] for one in page_data(report(*rows))["axes"]}

    assert "gpu_uuid" in many(100)
    assert "gpu_uuid" not in many(101)


def test_the_roofs_are_those_of_the_arithmetic_that_occurs(report, measured):
    workload = WorkloadInfo("case1", {"kind": "conv2d", "dtype": "float32"}, 10**9, 10**6)
    data = page_data(report(replace(measured(1), workload=workload)))
    assert data["roofs"]["gflops"] == {"float32": pytest.approx(66900)}
    assert data["roofs"]["bandwidth_gb_s"] == 4800


def test_an_unknown_card_has_no_roofs(report, measured):
    assert page_data(report(measured(1), gpu_name="Some other GPU"))["roofs"] is None


@given(st.lists(st.text(max_size=5) | st.none()))
def test_a_column_can_be_read_back(values):
    found = column(values)
    if isinstance(found, dict):
        assert len(found["words"]) == len(set(values))
        found = [found["words"][place] for place in found["at"]]
    assert found == values


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_seven_digits(value):
    (found,) = column([value])
    assert found == pytest.approx(value, rel=1e-6, abs=0.0)


Make = Callable[..., Any]
PHONE = 400


@pytest.fixture
def plane(at_clock: Make) -> list[Measurement]:
    """Two kernels under two caps at three clocks."""
    return [
        at_clock(
            rank, cap, clock, time_ms=0.5 + rank / 10, energy_mj=90 + cap + (clock or 1980) / 100
        )
        for rank in (1, 2)
        for cap in (3, 5)
        for clock in (None, 1500, 990)
    ]


def test_the_data_has_limits_and_clocks_in_order(report, plane):
    data = page_data(report(*plane))
    assert data["limits"] == ("450W", "700W")
    assert data["clocks"] == ("990MHz", "1500MHz", "unlocked")
    assert data["caps"][:3] == ("450W-990MHz", "450W-1500MHz", "450W")
    assert (data["rows"][1]["limit"], data["rows"][1]["clock"]) == ("450W", "1500MHz")
    (best,) = data["best"]
    assert best["savings"]["energy"]["words"].startswith("-8.8 % (-9.")


def test_without_locks_there_are_no_savings(report, measured):
    data = page_data(report(measured(1, 3), measured(1, 5)))
    assert data["clocks"] == ("unlocked",)
    assert data["limits"] == data["caps"]
    assert data["best"][0]["savings"] is None


def cells(table: Any) -> list[list[str]]:
    rows = table.find_elements("css selector", "tbody tr")
    return [
        [cell.text.split("\n")[0] for cell in row.find_elements("css selector", "th, td")]
        for row in rows
    ]


@pytest.mark.browser
def test_each_kernel_has_a_plane_of_clocks_and_caps(show, report, plane):
    page = show(report(*plane))
    assert page.complaints == []
    tables = page.find(".planes table.shades")
    assert [table.get_attribute("aria-label") for table in tables] == [
        f"{kernel}, case1: EDP (mJ·ms) by SM clock and power cap, each kernel relative to its own "
        "best (emulated)"
        for kernel in ("k01", "k02")
    ]
    first = cells(tables[0])
    assert [row[0] for row in first] == ["990MHz", "1500MHz", "unlocked"]
    assert first[0][1:] == ["best", "+1.9 %"]
    assert "+16.7 % from the best kernel" in page.find(".planes")[0].text
    (kernels,) = page.find(".heat:not(.planes) table.shades")
    assert [row[0] for row in cells(kernels)] == ["k01", "k02"]
    assert page.points("clocks") == len(plane)
    page.choose("figure", "energy (mJ)")
    assert (
        "energy (mJ) by SM clock"
        in page.find(".planes figcaption, figure.planes figcaption")[0].text
    )


@pytest.mark.browser
def test_a_clock_can_be_chosen_and_is_in_the_address(show, report, plane):
    page = show(report(*plane))
    page.choose("cap", "450W")
    page.choose("clock", "990MHz")
    assert page.column("setpoint") == ["450W-990MHz"] * 2
    assert page.run("return location.hash") == "#cap=450W&clock=990MHz"


@pytest.mark.browser
def test_a_plane_has_names_and_fits_a_phone(show, report, plane):
    page = show(report(*plane))
    page.resize(PHONE)
    assert page.run("return document.documentElement.scrollWidth") <= PHONE
    wider = page.run(
        """return [...document.querySelectorAll('.scroll')]
             .filter((one) => one.scrollWidth > one.clientWidth + 1 || !one.ariaLabel).length"""
    )
    assert wider == 0
    page.run("document.querySelector('.planes .scroll').focus()")
    assert page.run("return document.activeElement.getAttribute('role')") == "region"
    headings = page.run(
        """return [...document.querySelectorAll('.planes th')].every((one) => one.scope)"""
    )
    assert headings


@pytest.mark.browser
def test_clocks_under_one_cap_are_the_columns_of_the_heat_map(show, report, at_clock):
    page = show(report(*(at_clock(1, None, clock) for clock in (None, 990, 1500))))
    (table,) = page.find("table.shades")
    heads = [head.text for head in table.find_elements("css selector", "thead th")]
    assert heads == ["kernel", "990MHz", "1500MHz", "unlocked"]
    assert page.find("figure.planes") == []
    assert page.find("#best h3")[0].text.startswith("The best locked clock")
