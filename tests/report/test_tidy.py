"""The tidy table as CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.record import (
    ClockState,
    Conditions,
    Correctness,
    Interval,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import page_data, tidy_csv, write_parquet
from pytest_gpuenergy.support import ReportError


@pytest.fixture
def parquet() -> Any:
    return pytest.importorskip(
        "pyarrow.parquet", reason="Parquet is read with pyarrow", exc_type=ImportError
    )


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_there_is_a_row_for_each_measurement(report, measured, failed):
    rows = table(tidy_csv(report(measured(1), measured(2), failed(3))))
    assert [row["kernel_label"] for row in rows] == ["k01", "k02", "k03"]
    assert {row["run_id"] for row in rows} == {"20260102T030405-abcdef"}
    assert {row["emulated"] for row in rows} == {"True"}


def test_nested_fields_have_columns_of_their_own(report, measured):
    item = measured(
        energy_mj_ci95=Interval(99.0, 101.5),
        trials=(Window(0.3, 1.0, 10.0, 0.3), Window(0.3, 1.0, 10.0, 0.3)),
        correctness=Correctness(1e-6, 2e-6, 1e-5, 1e-5, (0, 1)),
        end=Conditions(43, 1980, 3201, 0, 700000),
        validity=("host_gaps", "not_steady"),
    )
    (row,) = table(tidy_csv(report(item)))
    assert (row["energy_mj_ci95_low"], row["energy_mj_ci95_high"]) == ("99.0", "101.5")
    assert row["trials"] == "2"
    assert row["correctness_seeds"] == "0 1"
    assert (row["begin_temperature_c"], row["end_temperature_c"]) == ("", "43")
    assert row["validity"] == "host_gaps not_steady"
    assert json.loads(row["workload_parameters"]) == {"kind": "conv2d"}


def test_what_failed_has_a_row_without_figures(report, failed):
    (row,) = table(tidy_csv(report(failed())))
    assert (row["outcome"], row["error"]) == ("correctness", "1 of 4 elements of output is wrong.")
    assert {row[name] for name in ("time_ms", "energy_mj", "edp_mj_ms", "power_w")} == {""}


def test_nothing_measured_is_a_header(report):
    (header,) = csv.reader(io.StringIO(tidy_csv(report())))
    assert len(header) == len(set(header))
    assert {"time_ms", "kernel_label", "workload_name", "energy_calibrated_mj"} <= {*header}


def test_parquet_holds_the_same_table_with_types(parquet, tmp_path, report, measured, failed):
    given = report(measured(1, cap_binding=False), failed(2))
    write_parquet(given, tmp_path / "deep" / "t.parquet")
    found = parquet.read_table(tmp_path / "deep" / "t.parquet")
    rows = table(tidy_csv(given))
    assert [
        {name: "" if cell is None else str(cell) for name, cell in row.items()}
        for row in found.to_pylist()
    ] == rows
    assert found.column("energy_mj").to_pylist() == [100.0, None]
    assert found.column("cap_binding").to_pylist() == [False, None]


def test_parquet_keeps_the_identity_of_the_run(parquet, tmp_path, report):
    write_parquet(report(), tmp_path / "t.parquet")
    metadata = parquet.read_schema(tmp_path / "t.parquet").metadata
    assert json.loads(metadata[b"gpuenergy"])["gpu_name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    "workload", [WorkloadInfo("w", {}, 10**30, 0), WorkloadInfo("\ud800", {}, 1, 1)]
)
@pytest.mark.usefixtures("parquet")
def test_what_parquet_cannot_hold_is_one_sentence(tmp_path, report, measured, workload):
    path = tmp_path / "t.parquet"
    with pytest.raises(ReportError, match="cannot be written as Parquet"):
        write_parquet(report(replace(measured(1), workload=workload)), path)
    assert not path.exists()


AFTER = Conditions(53, 1980, 3201, 0, 700_000)


def test_the_tidy_table_has_them(report, measured):
    item = measured(temperature_c=52.25, effective_sm_clock_mhz=1977.83, end=AFTER)
    (row,) = csv.DictReader(io.StringIO(tidy_csv(report(item))))
    assert (row["temperature_c"], row["effective_sm_clock_mhz"]) == ("52.25", "1977.83")
    assert (row["end_temperature_c"], row["end_sm_clock_mhz"]) == ("53", "1980")


def test_the_page_has_them(report, measured):
    item = measured(temperature_c=52.25, effective_sm_clock_mhz=1977.83, end=AFTER)
    (row,) = page_data(report(item))["rows"]
    assert (row["temperature_c"], row["effective_sm_clock_mhz"]) == (52.25, 1977.83)
    assert row["sm_clock_mhz"] == 1980


def test_the_page_names_states_if_there_are_several(report, measured):
    states = (ClockState("1977.8 MHz", 1977.8, 0.3), ClockState("1985.8 MHz", 1985.8, 0.7))
    several, one = page_data(
        report(measured(clock_states=states), measured(2, clock_states=states[:1]))
    )["rows"]
    assert several["clock_states"] == ["30% at 1977.8 MHz", "70% at 1985.8 MHz"]
    assert one["clock_states"] == []


def test_the_tidy_table_counts_the_states(report, measured):
    item = measured(clock_states=(ClockState("1977.8 MHz", 1977.8, 1.0),))
    (row,) = csv.DictReader(io.StringIO(tidy_csv(report(item))))
    assert row["clock_states"] == "1"


def test_the_page_of_an_older_report_has_what_it_knows(report, measured):
    (row,) = page_data(report(measured(end=AFTER)))["rows"]
    assert (row["temperature_c"], row["effective_sm_clock_mhz"]) == (53, None)
