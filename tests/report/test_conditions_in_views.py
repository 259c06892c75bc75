"""The temperature and the clock of the trials in the views of a report."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

from pytest_gpuenergy.record import ClockState, Conditions
from pytest_gpuenergy.report import page_data, tidy_csv

Make = Callable[..., Any]
AFTER = Conditions(53, 1980, 3201, 0, 700_000)


def test_the_tidy_table_has_them(report: Make, measured: Make) -> None:
    item = measured(temperature_c=52.25, effective_sm_clock_mhz=1977.83, end=AFTER)
    (row,) = csv.DictReader(io.StringIO(tidy_csv(report(item))))
    assert (row["temperature_c"], row["effective_sm_clock_mhz"]) == ("52.25", "1977.83")
    assert (row["end_temperature_c"], row["end_sm_clock_mhz"]) == ("53", "1980")


def test_the_page_has_them(report: Make, measured: Make) -> None:
    item = measured(temperature_c=52.25, effective_sm_clock_mhz=1977.83, end=AFTER)
    (row,) = page_data(report(item))["rows"]
    assert (row["temperature_c"], row["effective_sm_clock_mhz"]) == (52.25, 1977.83)
    assert row["sm_clock_mhz"] == 1980


def test_the_page_names_states_if_there_are_several(report: Make, measured: Make) -> None:
    states = (ClockState("1977.8 MHz", 1977.8, 0.3), ClockState("1985.8 MHz", 1985.8, 0.7))
    several, one = page_data(
        report(measured(clock_states=states), measured(2, clock_states=states[:1]))
    )["rows"]
    assert several["clock_states"] == ["30% at 1977.8 MHz", "70% at 1985.8 MHz"]
    assert one["clock_states"] == []


def test_the_tidy_table_counts_the_states(report: Make, measured: Make) -> None:
    item = measured(clock_states=(ClockState("1977.8 MHz", 1977.8, 1.0),))
    (row,) = csv.DictReader(io.StringIO(tidy_csv(report(item))))
    assert row["clock_states"] == "1"


def test_the_page_of_an_older_report_has_what_it_knows(report: Make, measured: Make) -> None:
    (row,) = page_data(report(measured(end=AFTER)))["rows"]
    assert (row["temperature_c"], row["effective_sm_clock_mhz"]) == (53, None)
