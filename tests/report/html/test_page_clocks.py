"""Setpoints with clocks on the page: planes of clock and cap, filters, charts, savings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import page_data

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


def test_the_data_has_limits_and_clocks_in_order(report: Make, plane: list[Measurement]) -> None:
    data = page_data(report(*plane))
    assert data["limits"] == ("450W", "700W")
    assert data["clocks"] == ("990MHz", "1500MHz", "unlocked")
    assert data["caps"][:3] == ("450W-990MHz", "450W-1500MHz", "450W")
    assert (data["rows"][1]["limit"], data["rows"][1]["clock"]) == ("450W", "1500MHz")
    (best,) = data["best"]
    assert best["savings"]["energy"]["words"].startswith("-8.8 % (-9.")


def test_without_locks_there_are_no_savings(report: Make, measured: Make) -> None:
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
def test_each_kernel_has_a_plane_of_clocks_and_caps(
    show: Make, report: Make, plane: list[Measurement]
) -> None:
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
def test_a_clock_can_be_chosen_and_is_in_the_address(
    show: Make, report: Make, plane: list[Measurement]
) -> None:
    page = show(report(*plane))
    page.choose("cap", "450W")
    page.choose("clock", "990MHz")
    assert page.column("setpoint") == ["450W-990MHz"] * 2
    assert page.run("return location.hash") == "#cap=450W&clock=990MHz"


@pytest.mark.browser
def test_a_plane_has_names_and_fits_a_phone(
    show: Make, report: Make, plane: list[Measurement]
) -> None:
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
def test_clocks_under_one_cap_are_the_columns_of_the_heat_map(
    show: Make, report: Make, at_clock: Make
) -> None:
    page = show(report(*(at_clock(1, None, clock) for clock in (None, 990, 1500))))
    (table,) = page.find("table.shades")
    heads = [head.text for head in table.find_elements("css selector", "thead th")]
    assert heads == ["kernel", "990MHz", "1500MHz", "unlocked"]
    assert page.find("figure.planes") == []
    assert page.find("#best h3")[0].text.startswith("The best locked clock")
